"""Shared by all readers: the user's cache, checksums, checks for regular files."""
