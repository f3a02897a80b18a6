"""What is taken out of a text, and what it becomes."""
