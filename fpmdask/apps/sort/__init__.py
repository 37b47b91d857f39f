"""Sorting on unequal workers."""
