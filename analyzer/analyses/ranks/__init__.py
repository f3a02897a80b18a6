"""Ranks of one job. Who waits for whom, why, and at what bandwidth."""
