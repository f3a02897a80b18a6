"""Folders that `kanalyze collect` wrote."""
