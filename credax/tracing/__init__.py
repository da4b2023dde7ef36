"""Whatever looks into a traced function: how weights are used, their products, and what stands in for them."""
