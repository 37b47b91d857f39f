"""What all applications share."""
