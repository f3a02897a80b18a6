"""Timelines: what ran on each device and host thread, as tracks of a picture, and the ledger piece by piece."""
