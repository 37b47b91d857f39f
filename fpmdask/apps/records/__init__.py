"""Files of records, sorted into files: larger than the cluster's memory, too."""
