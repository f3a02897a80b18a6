"""Common ground of all analyses: caches per report, thread pools, nesting and lookups. Knows no subject."""
