"""Monte Carlo: draws whose averages converge to expectations under the posterior."""
