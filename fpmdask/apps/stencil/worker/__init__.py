"""A worker's side of a stencil."""
