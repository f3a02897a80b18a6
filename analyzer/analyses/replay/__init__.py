"""What would a change bring? The recording computed anew along its dependencies, with other durations."""
