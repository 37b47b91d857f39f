"""The client's side of a sort."""
