"""Several reports: the ranks of a job, two sides; opened one after the other, reduced side by side, drawn."""
