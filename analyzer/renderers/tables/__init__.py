"""Single tables, trees, source and pictures as text."""
