"""In the client: collections go in, calls are run, collections come out."""
