"""Reports of Nsight Compute: .ncu-rep, CSV pages, folders of them."""
