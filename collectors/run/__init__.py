"""The plan of a collection, and its run."""
