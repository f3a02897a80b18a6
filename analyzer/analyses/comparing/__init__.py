"""Two sides of runs compared: how much faster or slower, where the difference went, and how sure that is."""
