"""What all applications share in the client's process."""
