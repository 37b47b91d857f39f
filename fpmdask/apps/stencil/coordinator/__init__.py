"""The part on the scheduler."""
