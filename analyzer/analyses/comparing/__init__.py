"""Two sides of runs compared: faster or slower, by how much, and how sure."""
