"""Device operations, and the window of each device."""
