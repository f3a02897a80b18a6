"""Times comparing two reports against one page of one of them, and comparing two baselines against starting polars.

    python benchmarks/make_report.py tests/reports/torch.sqlite big.sqlite --copies 124
    python benchmarks/run_comparing.py big.sqlite

Without a second report the first one is compared with a copy of itself. How commands are timed: run.py.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from run import HERE, Command, aligned, machine, markdown, measured, table

SAMPLES: Final = HERE.parent / "sample_reports"

_MEGABYTE: Final = 10**6


def main() -> None:
    """Time both, and print a table each."""
    parser = argparse.ArgumentParser(description="Time kanalyze compare.")
    parser.add_argument("base", type=Path, help="a large report, such as make_report.py makes")
    parser.add_argument("new", type=Path, nargs="?", help="another one (default: a copy of the first)")
    parser.add_argument("--baselines", type=Path, nargs=2, default=[SAMPLES / "loop_base.kz", SAMPLES / "loop_fuse.kz"])
    parser.add_argument("--runs", type=int, default=5, help="runs of each command (default: 5)")
    parser.add_argument(
        "--patience", type=float, default=120, help="seconds after which a command is not started again (default: 120)"
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args()
    for path in (options.base, *([options.new] if options.new is not None else []), *options.baselines):
        if not path.is_file():
            parser.error(f"{path}: no such file")
    with tempfile.TemporaryDirectory() as folder:
        new = options.new or Path(shutil.copy(options.base, folder))
        told = [
            (
                f"{options.base.name}, {options.base.stat().st_size / _MEGABYTE:,.1f} MB",
                reports(options.base, new, Path(folder)),
            ),
            (" and ".join(path.name for path in options.baselines), baselines(*options.baselines)),
        ]
        tables = [table(measured(commands, options.base, options.runs, options.patience)) for _, commands in told]
    print(machine())
    for (title, _), rows in zip(told, tables, strict=True):
        print(f"\n{title}:\n")
        print("\n".join(markdown(rows) if options.markdown else aligned(rows)))


def reports(base: Path, new: Path, folder: Path) -> list[Command]:
    """One page of one report, two reports compared, and one reduced to a baseline, which is left in `folder`."""
    return [
        Command("kanalyze summarize", kanalyze("summarize", base)),
        Command("kanalyze compare, two reports", kanalyze("compare", base, new)),
        Command("kanalyze compare --save, one report", kanalyze("compare", "--save", folder / "base.kz", base)),
    ]


def baselines(base: Path, new: Path) -> list[Command]:
    """Rows for the least start and for two baselines compared."""
    return [
        Command("python -c 'import polars'", [sys.executable, "-c", "import polars"]),
        Command("kanalyze compare, two baselines", kanalyze("compare", base, new)),
    ]


def kanalyze(*words: object) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "kanalyze", *map(str, words)]


if __name__ == "__main__":
    main()
