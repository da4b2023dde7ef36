"""Tools for all other packages, which depend on none of them: random numbers, pytrees, checks, errors."""
