"""Loads a trace with HolisticTraceAnalysis and makes its breakdowns, as a user of it would for one page.

python benchmarks/load_hta.py FOLDER    # with one trace of one rank
"""

from __future__ import annotations

import sys

from hta.trace_analysis import TraceAnalysis


def main() -> None:
    """Make the breakdowns that the page of kanalyze holds, too."""
    analysis = TraceAnalysis(trace_dir=sys.argv[1])
    print(analysis.get_temporal_breakdown(visualize=False))
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10)
    print(kinds, kernels)
    print(analysis.get_idle_time_breakdown(visualize=False, ranks=[0])[0])
    print(analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0])


if __name__ == "__main__":
    main()
