"""Pages for programs: JSON, documented in docs/summary-json.md and as a schema beside this module, or JUnit's XML."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

import polars as pl

from kanalyze import outlets
from kanalyze.analyses.ranks._job_findings import job_findings, late_ranks
from kanalyze.renderers.page import comparison
from kanalyze.renderers.page import job as job_pages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.comparing._comparison import Comparison, Verdict
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.iterations._steady import SteadyPart
    from kanalyze.analyses.page.overview_page import Overview
    from kanalyze.analyses.page.time_page import Summary
    from kanalyze.analyses.ranks._job import Job
    from kanalyze.analyses.replay._whatif import WhatIf
    from kanalyze.analyses.unprofiled._bare import Bare
    from kanalyze.renderers.page.of_any_kind import Shown
    from kanalyze.report import Meta

#: Metadata fields that are paths.
_PATHS: Final = ("path", "read_from", "capture")

#: Rows of the first page's tables, its findings, and the length of a text in it.
_OVERVIEW: Final = {
    "ledger": 30,
    "critical_path": 3,
    "spread": 13,
    "code": 8,
    "hot_kernels": 6,
    "parts": 6,
    "ops": 6,
    "phases": 12,
    "culprits": 8,
}
_FINDINGS: Final = 6
_LONGEST: Final = 120

#: The JSON Schema of what `summarize` prints.
SCHEMA: Final = Path(__file__).with_name("page.schema.json")

#: Schema version; raised by every breaking change, not by additions.
SCHEMA_VERSION: Final = 2


def render(shown: Sequence[Shown]) -> str:
    """Renders reports as one JSON object; each table is a list of objects with the columns of `kanalyze tables`."""
    found = [content(one) for one in shown]
    whole = found[0] if len(found) == 1 else {"schema_version": SCHEMA_VERSION, "reports": found}
    return outlets.json(whole)


def content(shown: Shown) -> dict[str, Any]:
    """The JSON object of one report."""
    if shown.kind == "noise" or shown.kind == "whatif":  # noqa: PLR1714 - narrows the type
        return asdict(shown) if shown.kind == "noise" else _whatif(shown)
    if shown.kind == "evidence":
        tables = {name: getattr(shown, name).to_dicts() for name in ("lines", "kernels", "waits")}
        head = {"schema_version": SCHEMA_VERSION, "report": _meta(shown.meta)}
        return {**head, "window": shown.window and shown.window.name, "finding": _finding(shown.finding), **tables}
    if shown.kind == "comparison" or shown.kind == "job":  # noqa: PLR1714 - narrows the type
        return _comparison(shown) if shown.kind == "comparison" else _job(shown)
    if shown.kind == "joint":
        return content(shown.summary) | {
            "joined_with": [str(_path(meta.path)) for meta in shown.metas[1:]],
            "joined_reports": [_meta(meta) for meta in shown.metas[1:]],
            "joined": shown.joined.to_dicts(),
            "gains": [] if shown.gains is None else shown.gains.to_dicts(),
        }
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
        names = ("devices", "kernels", "groups", "stalls", "advice", "health")
        own: dict[str, Any] = {name: getattr(shown, name).to_dicts() for name in names}
    elif shown.kind == "instances":
        tables = {"instances": shown.instances.to_dicts(), "spread": shown.spread.to_dicts()}
        own = {"range": shown.name, **tables}
    else:
        own = _overview(shown) if shown.kind == "overview" else _summary(shown)
    return head | own


def _whatif(found: WhatIf) -> dict[str, Any]:
    """Result of a change: times of the whole window, in ns."""
    told = asdict(found)
    lists = {name: [one._asdict() for one in getattr(found, name)] for name in ("critical", "single")}
    told.pop("meta")
    head = {"schema_version": SCHEMA_VERSION, "report": _meta(found.meta)}
    return {**head, **told, "gain_ns": found.gain_ns, **lists}


def _job(job: Job) -> dict[str, Any]:
    """A job of several ranks: the answer, its late ranks, and all tables."""
    return {
        "schema_version": SCHEMA_VERSION,
        "answer": job_pages.answer(job),
        "reports": [outlets.line(one) for one in job.ranks.get_column("report")],
        "world_size": job.world_size,
        "missing_ranks": job.missing,
        "late_ranks": [one._asdict() | {"causes": dict(one.causes)} for one in late_ranks(job)],
        "findings": [one._asdict() for one in job_findings(job)],
        "doubts": [{"check": check, "count": count, "effect": effect} for check, count, effect in job.doubts],
        **{name: frame.to_dicts() for name, frame in job.tables.items()},
    }


def _meta(meta: Meta) -> dict[str, Any]:
    """Metadata of a report, without what only comparisons of runs (turn) and the answer (wsl) use."""
    told = {**asdict(meta), **{name: _path(getattr(meta, name)) for name in _PATHS}}
    for unused in ("turn", "wsl"):
        told.pop(unused)
    return told


def _path(path: Path | None) -> str | None:
    return None if path is None else outlets.line(str(path))


def _summary(summary: Summary) -> dict[str, Any]:
    return {
        "windows": summary.windows.to_dicts(),
        "processes": summary.processes.to_dicts(),
        **{name: frame.to_dicts() for name, frame in summary.tables.items()},
        "findings": [_finding(found) for found in summary.findings],
        "cannot_tell": _reasons(summary.cannot_tell),
        "not_recorded": summary.not_recorded,
    }


def _overview(found: Overview) -> dict[str, Any]:
    """The first page: the largest rows of each table, with names cut, so that it stays small."""
    tables = {
        name: _short_rows(found.tables[name].head(most)) for name, most in _OVERVIEW.items() if name in found.tables
    }
    doubts = found.tables["health"].filter("doubt") if "health" in found.tables else None
    return {
        "iterations": None if found.steady is None else _iterations(found.steady),
        "windows": found.windows.to_dicts(),
        **tables,
        "findings": [_short_finding(one) for one in found.findings[:_FINDINGS]],
        "health": [] if doubts is None else _short_rows(doubts.select("check", "count").head(_FINDINGS)),
        "cannot_tell": _reasons(found.cannot_tell),
        **({} if found.bare is None else {"without_profiler": _bare(found.bare)}),
    } | ({"joined_with": [str(_path(meta.path)) for meta in found.others]} if found.others else {})


def _reasons(cannot_tell: dict[str, str]) -> dict[str, str]:
    """The reason for each missing table, and for findings without a ledger: that there are none says nothing then."""
    reason = cannot_tell.get("ledger")
    told = {} if reason is None else {"findings": reason.replace("cannot tell ledger", "cannot tell findings", 1)}
    return cannot_tell | told


def _bare(bare: Bare) -> dict[str, Any]:
    """Runs without a profiler."""
    iteration = bare.iteration and bare.iteration._asdict() | {"mark": _cut(bare.iteration.mark)}
    return {"programs_ns": bare.programs_ns, "iteration": iteration}


def _iterations(steady: SteadyPart) -> dict[str, Any]:
    kinds = steady.rows.filter(pl.col("name") == steady.each).group_by("kind").len().sort("kind")
    return {
        "name": _cut(steady.each),
        "found_by": steady.found_by,
        "process_id": steady.process_id,
        "device": steady.device,
        "kinds": dict(kinds.iter_rows()),
        "mean_ns": steady.ns / steady.number,
        "median_ns": steady.lengths.median(),
        "min_ns": steady.lengths.min(),
        "max_ns": steady.lengths.max(),
        "steady_count": steady.number,
        "steady_ns": steady.ns,
        "first": _cut(steady.first),
        "last": _cut(steady.last),
    }


def _short_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows with texts cut, without what is missing."""
    return [
        {name: _cut(value) if isinstance(value, str) else value for name, value in row.items() if value is not None}
        for row in frame.to_dicts()
    ]


def _short_finding(found: Finding) -> dict[str, Any]:
    whole = _finding(found.brief)
    replayed = ("replayed_ns", "replayed_low_ns", "replayed_high_ns")
    kept = ("rule", "device", "at_stake_ns", "at_most", *replayed, "headline", "action", "where", "table")
    return {name: _cut(whole[name]) if isinstance(whole[name], str) else whole[name] for name in kept}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _finding(found: Finding) -> dict[str, Any]:
    return {
        "rule": found.rule,
        "device": found.device,
        "at_stake_ns": found.at_stake_ns,
        "at_most": found.at_most,
        "replayed_ns": found.replayed_ns,
        "replayed_low_ns": found.replayed_low_ns,
        "replayed_high_ns": found.replayed_high_ns,
        "headline": found.headline.format(*found.names),
        "action": found.action,
        "where": found.place.format() or None,
        "sentence": found.text.format(*found.names),
        "kernels": list(found.names),
        "remedy": found.remedy,
        "table": found.table,
        "definition": found.definition,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.word,
        "ratio": verdict.ratio,
        "ratio_low": verdict.low,
        "ratio_high": verdict.high,
        "base_ns": verdict.base_ns,
        "new_ns": verdict.new_ns,
    }


def _comparison(found: Comparison) -> dict[str, Any]:
    verdict = found.verdict
    buckets = found.table("compare").select("bucket", "detail", "base_ns", "new_ns", "delta_ns")
    return {
        "schema_version": SCHEMA_VERSION,
        **_verdict(verdict),
        "scope": {
            "of": found.base.about.scope,
            "each": found.base.about.each or None,
            "base_iterations": [one.about.iterations for one in found.base.digests],
            "new_iterations": [one.about.iterations for one in found.new.digests],
            "reason": found.reason or None,
            "note": found.note or None,
            "ranks": len(found.pairs),
            "rank": found.base.about.rank,
        },
        "basis": verdict.basis or None,
        "quick": None if found.quick is None else _verdict(found.quick),
        "repeats_needed": verdict.repeats,
        "gate": None if found.gate is None else found.gate._asdict() | {"sentence": outlets.line(found.gate.sentence)},
        "runs": {
            name: {
                "used": [{"name": outlets.line(one.about.name), "ns": one.about.iteration_ns} for one in side.digests],
                "left_out": [{"name": outlets.line(one.name), "reason": one.reason} for one in side.left_out],
            }
            for name, side in (("base", found.base), ("new", found.new))
        },
        "differs": [{"kind": one.kind, "text": outlets.line(one.text)} for one in found.doubts],
        "buckets": buckets.to_dicts(),
        **{name: frame.to_dicts() for name, frame in found.tables.items() if name != "compare"},
    }


#: What a verdict is as a test, where no gate was asked for.
_STATES: Final = {"faster": "held", "same": "held", "slower": "failed", "cannot tell": "cannot judge"}


def junit(found: Comparison) -> str:
    """Renders a comparison as one test suite with one test case: failed where new is slower, or as the gate says."""
    gate, verdict = found.gate, found.verdict
    state = gate.state if gate is not None else _STATES[verdict.word]
    failed, skipped = state == "failed", state == "cannot judge"
    counts = {"tests": "1", "failures": str(int(failed)), "skipped": str(int(skipped)), "errors": "0"}
    suite = ET.Element("testsuite", {"name": "kanalyze compare", **counts})
    metric = gate.metric if gate is not None else found.each
    case = ET.SubElement(suite, "testcase", classname="kanalyze.compare", name=outlets.line(metric))
    text = outlets.line(gate.sentence if gate is not None else comparison.answer(found))
    if failed or skipped:
        ET.SubElement(case, "failure" if failed else "skipped", message=text)
    ET.SubElement(case, "system-out").text = outlets.line(comparison.answer(found))
    ET.indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suite, encoding="unicode")}\n'
