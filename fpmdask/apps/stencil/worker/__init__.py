"""A worker's side of a product."""
