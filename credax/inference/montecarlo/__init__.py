"""Monte Carlo: draws whose average is exact in the limit."""
