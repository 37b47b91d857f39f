"""The scheduler's side of a product."""
