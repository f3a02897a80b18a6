"""Findings ranked by the time at stake, and doubts about a report."""
