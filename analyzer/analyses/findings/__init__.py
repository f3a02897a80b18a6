"""What is worth knowing, ranked, and what is doubtful about a report."""
