"""Allocations, copies and unified memory."""
