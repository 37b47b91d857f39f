"""A worker's side of a sort of records."""
