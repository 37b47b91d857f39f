"""On the scheduler: rows are handed out call by call."""
