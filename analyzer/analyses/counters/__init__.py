"""Counters of ncu: metrics, stall reasons, rooflines, advice."""
