"""The page as JSON: the same content, complete, for programs. docs/summary-json.md describes it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from kanalyze.units import printable

if TYPE_CHECKING:
    import polars as pl

    from kanalyze.analyses.rules import Finding
    from kanalyze.analyses.summary import Summary

#: Grows with every change that can break a reader; additions do not count.
SCHEMA_VERSION: Final = 1


def render(summary: Summary) -> str:
    """One JSON object; every table is a list of objects with the columns that `kanalyze tables` lists."""
    return json.dumps(content(summary), indent=2, ensure_ascii=False) + "\n"


def content(summary: Summary) -> dict[str, Any]:
    """The object that :func:`render` prints."""
    window = summary.scope.window
    return {
        "schema_version": SCHEMA_VERSION,
        "report": {**asdict(summary.meta), "path": printable(str(summary.meta.path))},
        "scope": {
            "window_start_ns": window.start_ns if window else None,
            "window_end_ns": window.end_ns if window else None,
            "device": summary.scope.device,
            "process": summary.scope.process,
        },
        "answer": summary.answer,
        "windows": _rows(summary.windows),
        "processes": _rows(summary.processes),
        **{name: _rows(frame) for name, frame in summary.tables.items()},
        "findings": [_finding(found) for found in summary.findings],
        "cannot_tell": summary.cannot_tell,
    }


def _rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return frame.to_dicts()


def _finding(found: Finding) -> dict[str, Any]:
    return {
        "rule": found.rule,
        "device": found.device,
        "at_stake_ns": found.at_stake_ns,
        "sentence": found.text.format(*found.names),
        "kernels": list(found.names),
        "remedy": found.remedy,
        "table": found.table,
    }
