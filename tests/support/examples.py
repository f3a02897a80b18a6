"""The examples of README.md and docs/: what they print is what the program prints.

A block fenced as ``console`` holds commands that begin with ``$ kanalyze`` and, below each, what it prints at 80
columns. They run in a folder like the checkout, with two files more that only docs need: `cut.sqlite`, the first
half of a report, and `ranges.sqlite`, a report that holds NVTX ranges and nothing of CUDA.

``python tests/support/examples.py`` writes what the program prints now into the files.
"""

import io
import os
import re
import shlex
import sqlite3
import sys
import tempfile
from contextlib import chdir, closing, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from unittest.mock import patch

from kanalyze.cli import main

ROOT = Path(__file__).parents[2]
FILES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

#: Prints the page of all findings.
FINDINGS_COMMAND = "kanalyze explain --format markdown"

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROMPT = "$ "


def folder(place):
    for name in ("sample_reports", "tests"):
        (place / name).symlink_to(ROOT / name)
    whole = (ROOT / "tests" / "reports" / "add.sqlite").read_bytes()
    (place / "cut.sqlite").write_bytes(whole[: len(whole) // 2])
    with closing(sqlite3.connect(place / "ranges.sqlite")) as database, database:
        database.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        database.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, globalTid INTEGER)")
    return place


def printed(command):
    """What a command line prints to the terminal, 80 columns wide, in the current folder."""
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with (
        patch.object(sys, "argv", shlex.split(command)),
        patch.dict(os.environ, {"COLUMNS": "80", "LINES": "24"}),
        redirect_stdout(said),
        redirect_stderr(said),
        suppress(SystemExit),
    ):
        main()
    said.seek(0)
    return said.read()


def refreshed(text):
    """`text`, a page of Markdown, with what its commands print now."""
    return _BLOCK.sub(lambda block: f"```console\n{_rerun(block[1])}```", text)


def _rerun(block):
    return "\n".join(f"{_PROMPT}{command}\n{printed(command)}" for command in _commands(block))


def _commands(block):
    return [line.removeprefix(_PROMPT) for line in block.splitlines() if line.startswith(_PROMPT)]


def commands(text):
    return [command for block in _BLOCK.findall(text) for command in _commands(block)]


if __name__ == "__main__":
    import page_schema  # as above

    page_schema.FILE.write_text(page_schema.text())
    with tempfile.TemporaryDirectory() as place, chdir(folder(Path(place))):
        for path in FILES:
            path.write_text(refreshed(path.read_text()))
