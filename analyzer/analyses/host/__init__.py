"""Activity of host threads, and the launch call of each device operation."""
