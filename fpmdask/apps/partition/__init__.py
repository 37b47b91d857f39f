"""The smallest application: measure a kernel, return the shares."""
