"""Analysis of traced functions: how weights are used, their products, and random weights in their place."""
