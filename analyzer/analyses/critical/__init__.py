"""What each operation had to wait for, and the critical path: what the end of a window waited for."""
