"""What all applications share on a worker."""
