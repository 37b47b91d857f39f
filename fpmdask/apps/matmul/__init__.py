"""Matrix multiplication: the panel update that is timed and run, its plan, its run on a cluster."""
