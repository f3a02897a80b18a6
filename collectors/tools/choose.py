"""Prints how ncu is told of the launches in a listing, of the first run where the kernels need several.

Commands of a dry run need it: ``python -m kanalyze.collectors.tools.choose LISTING``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kanalyze.collectors.options import Options
from kanalyze.collectors.tools.ncu import parse, select


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the filter; the status is 1 where the listing has no kernel."""
    parser = argparse.ArgumentParser(prog="python -m kanalyze.collectors.tools.choose", description=__doc__)
    parser.add_argument("listing", type=Path)
    parser.add_argument("--kernels", type=int, default=Options.kernels)
    parser.add_argument("--launches", type=int, default=Options.launches)
    parser.add_argument("--part", action="store_true")
    values = parser.parse_args(arguments)
    options = Options(kernels=values.kernels, launches=values.launches, cuda_profiler_api=values.part)
    chosen = select(parse(values.listing.read_text(encoding="utf-8", errors="replace")), options)
    sys.stdout.write(f"{chosen[0].expression}\n" if chosen else "")
    return 0 if chosen else 1


if __name__ == "__main__":
    sys.exit(main())
