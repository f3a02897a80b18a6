"""What ran on the GPU, when, and in which window."""
