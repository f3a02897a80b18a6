"""Streams, their concurrency, and the dependencies of queued work."""
