"""Small tables that reports are reduced to, and their files: of a run for comparisons, of a rank for jobs."""
