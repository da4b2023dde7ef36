"""From a table to a posterior: reading, preprocessing, recommended choices, fits and comparisons."""
