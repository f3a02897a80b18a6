"""Files of what a comparison and the analysis of a job keep of a report, and the small tables in them."""

import re
from textwrap import dedent

from kanalyze.schema import Table, columns


def declared(prefix: str, text: str) -> dict[str, Table]:
    """The tables that a text declares by name: what a row of each is, and indented its columns as in `columns`."""
    parts = re.findall(r"^(\w+): (.*)\n((?: .*\n)+)", dedent(text), re.MULTILINE)
    return {name: Table(f"{prefix}_{name}", row, columns(f"\n{rest}")) for name, row, rest in parts}
