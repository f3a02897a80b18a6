"""Iterations of a program, their steady part, and what came before, between and after."""
