"""Prints how ncu is told of the launches in a listing: what the commands of a dry run need.

Where the kernels need several runs of ncu, it is the first one's.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kanalyze.collectors.base.options import Options
from kanalyze.collectors.tools.ncu_launches import parse, select

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the filter; the status is 1 where the listing has no kernel."""
    parser = argparse.ArgumentParser(prog="python -m kanalyze.collectors.tools.choose", description=__doc__)
    parser.add_argument("listing", type=Path)
    parser.add_argument("--kernels", type=int, default=Options.kernels)
    parser.add_argument("--launches", type=int, default=Options.launches)
    parser.add_argument("--part", action="store_true")
    told = parser.parse_args(arguments)
    options = Options(kernels=told.kernels, launches=told.launches, cuda_profiler_api=told.part)
    chosen = select(parse(told.listing.read_text(encoding="utf-8", errors="replace")), options)
    sys.stdout.write(f"{chosen[0].expression}\n" if chosen else "")
    return 0 if chosen else 1


if __name__ == "__main__":
    sys.exit(main())
