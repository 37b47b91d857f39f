"""What the benchmarks of MHETA share."""
