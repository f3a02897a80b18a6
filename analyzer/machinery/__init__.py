"""Threads, processors and memory: what makes work faster or smaller, and gives no figure another value.

Each piece says what it is worth; without it every table and page stays the same.
"""
