"""Loads traces with HolisticTraceAnalysis and makes its breakdowns, as a user of it would for one page.

python benchmarks/load_hta.py FOLDER    # with a trace of each rank, or of one
"""

from __future__ import annotations

import sys

from hta.trace_analysis import TraceAnalysis


def main() -> None:
    """Make the breakdowns that the page of kanalyze holds, too."""
    analysis = TraceAnalysis(trace_dir=sys.argv[1])
    ranks = sorted(analysis.t.traces)
    print(analysis.get_temporal_breakdown(visualize=False))
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10)
    print(kinds, kernels)
    print(analysis.get_idle_time_breakdown(visualize=False, ranks=ranks)[0])
    if len(ranks) > 1:
        print(analysis.get_comm_comp_overlap(visualize=False))
    print(analysis.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False))


if __name__ == "__main__":
    main()
