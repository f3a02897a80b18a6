"""Activity of host threads."""
