"""The client's side of a product."""
