"""The client's side of sorts of DataFrames."""
