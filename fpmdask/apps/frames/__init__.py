"""Rows of DataFrames in order: keys of rows are sorted, rows move once."""
