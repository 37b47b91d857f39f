"""What all applications share on the scheduler: the coordinator."""
