"""Readers of Nsight Compute reports: .ncu-rep, CSV pages, folders of them."""
