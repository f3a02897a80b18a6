"""Rules for texts: what is removed, and its replacement."""
