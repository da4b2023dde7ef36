"""What every other room uses and what knows none of them: random numbers, trees, checks, errors."""
