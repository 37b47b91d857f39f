"""Any function of rows: `map_blocks` of arrays, `map_partitions` of frames."""
