"""From a table to a posterior and back: reading, preprocessing, recommending, fitting, comparing."""
