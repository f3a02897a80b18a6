"""Streams, concurrency, and what queued work waited for."""
