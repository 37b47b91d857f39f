"""What sorts are made of: splitters, runs in blocks, words of keys. Pure."""
