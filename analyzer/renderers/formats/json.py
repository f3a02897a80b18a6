"""The page as JSON, complete, for programs; schema in docs/summary-json.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from kanalyze import outlets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.page.counters_page import CounterSummary
    from kanalyze.analyses.page.joint_page import JointSummary
    from kanalyze.analyses.page.time_page import Summary
    from kanalyze.analyses.ranges._instances import Instances
    from kanalyze.renderers.page.of_any_kind import Shown
    from kanalyze.report import Meta

#: Metadata fields that are paths.
_PATHS: Final = ("path", "read_from", "capture")

#: Schema version; raised by every breaking change, not by additions.
SCHEMA_VERSION: Final = 2


def render(shown: Sequence[Shown]) -> str:
    """Renders reports as one JSON object; each table is a list of objects with the columns of `kanalyze tables`."""
    found = [content(one) for one in shown]
    whole = found[0] if len(found) == 1 else {"schema_version": SCHEMA_VERSION, "reports": found}
    return outlets.json(whole)


def content(shown: Shown) -> dict[str, Any]:
    """The JSON object of one report."""
    if shown.kind == "joint":
        return content(shown.summary) | _joint(shown)
    window = shown.scope.window
    head = {
        "schema_version": SCHEMA_VERSION,
        "report": _meta(shown.meta),
        "scope": {
            "window": window.name if window else None,
            "window_start_ns": window.start_ns if window else None,
            "window_end_ns": window.end_ns if window else None,
            "device": shown.scope.device,
            "process": shown.scope.process,
        },
        "answer": shown.answer,
    }
    if shown.kind == "counters":
        return head | _counters(shown)
    return head | (_summary(shown) if shown.kind == "time" else _instances(shown))


def _meta(meta: Meta) -> dict[str, Any]:
    """Metadata of a report."""
    return {**asdict(meta), **{name: _path(getattr(meta, name)) for name in _PATHS}}


def _path(path: Path | None) -> str | None:
    return None if path is None else outlets.line(str(path))


def _summary(summary: Summary) -> dict[str, Any]:
    return {
        "windows": _rows(summary.windows),
        "processes": _rows(summary.processes),
        **{name: _rows(frame) for name, frame in summary.tables.items()},
        "findings": [_finding(found) for found in summary.findings],
        "cannot_tell": summary.cannot_tell,
        "not_recorded": summary.not_recorded,
    }


def _counters(found: CounterSummary) -> dict[str, Any]:
    names = ("devices", "kernels", "groups", "stalls", "advice", "health")
    return {name: _rows(getattr(found, name)) for name in names}


def _joint(found: JointSummary) -> dict[str, Any]:
    return {
        "joined_with": [str(_path(meta.path)) for meta in found.metas[1:]],
        "joined_reports": [_meta(meta) for meta in found.metas[1:]],
        "joined": _rows(found.joined),
        "gains": [] if found.gains is None else _rows(found.gains),
    }


def _instances(found: Instances) -> dict[str, Any]:
    return {"range": found.name, "instances": _rows(found.instances), "spread": _rows(found.spread)}


def _rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return frame.to_dicts()


def _finding(found: Finding) -> dict[str, Any]:
    return {
        "rule": found.rule,
        "device": found.device,
        "at_stake_ns": found.at_stake_ns,
        "at_most": found.at_most,
        "headline": found.headline.format(*found.names),
        "action": found.action,
        "where": found.where.format() or None,
        "sentence": found.text.format(*found.names),
        "kernels": list(found.names),
        "remedy": found.remedy,
        "table": found.table,
        "definition": found.definition,
    }
