"""Pages as sections, of whatever kind of summary."""
