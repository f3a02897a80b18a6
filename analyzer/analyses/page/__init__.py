"""The values that pages draw."""
