"""The scheduler's side of a sort of records."""
