"""Renders single tables, trees, source listings and plots."""
