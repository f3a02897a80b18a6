"""Files of what a comparison and the analysis of a job keep of a report, and the small tables in them."""

import os
import re
from pathlib import Path
from textwrap import dedent

from kanalyze.schema import Table, columns

#: How the name of a reduction's folder ends, and its manifest.
SUFFIX, MANIFEST = ".reduced", "kanalyze-reduction.json"


def is_reduction(path: Path) -> bool:
    """Whether `path` is the folder of a reduction, as its name or its manifest says."""
    is_named = path.name.endswith(SUFFIX)
    return os.path.isdir(path) and (is_named or os.path.isfile(path / MANIFEST))  # noqa: PTH112, PTH113 - never raise


def declared(prefix: str, text: str) -> dict[str, Table]:
    """The tables that a text declares by name: what a row of each is, and indented its columns as in `columns`."""
    parts = re.findall(r"^(\w+): (.*)\n((?: .*\n)+)", dedent(text), re.MULTILINE)
    return {name: Table(f"{prefix}_{name}", row, columns(f"\n{rest}")) for name, row, rest in parts}
