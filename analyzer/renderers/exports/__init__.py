"""Renders reports as files of other programs: typed tables, Perfetto, speedscope."""
