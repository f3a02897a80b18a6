"""Plans and runs a collection."""
