"""What every pass needs: the workload, options, programs, processes, files."""
