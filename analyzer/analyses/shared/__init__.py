"""What all analyses build on: answers kept per report, threads, nesting and lookups. Knows no subject."""
