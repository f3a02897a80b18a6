"""Decodes Chrome traces into columns, in parallel processes where they are large."""
