"""Collectives. What is recorded of each, which of several ranks are one, and how much of them is waiting."""
