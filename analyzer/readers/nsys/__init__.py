"""Readers of Nsight Systems reports: SQLite exports, Parquet and Arrow folders, .nsys-rep."""
