"""The same rows, placed so that synchronous programs on unequal workers finish together."""
