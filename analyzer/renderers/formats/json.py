"""Pages for programs: JSON, documented in docs/summary-json.md and as a schema beside this module, or JUnit's XML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

import polars as pl

from kanalyze import outlets, report
from kanalyze.analyses.ranks._job_findings import job_findings, late_ranks
from kanalyze.renderers.page import Shown, comparison, job as job_pages

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._comparison import Comparison, Noise, Verdict
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.iterations.phases import SteadyPart
    from kanalyze.analyses.page.overview_page import Summary
    from kanalyze.analyses.ranges.instances import Instances
    from kanalyze.analyses.ranks._job import Job
    from kanalyze.analyses.replay._whatif import WhatIf

    Object = dict[str, Any]

#: Rows of the first page's tables, its findings and doubts, and the length of a text in it.
_OVERVIEW: Final = {
    "ledger": 30,
    "critical_path": 3,
    "spread": 13,
    "code": 8,
    "hot_kernels": 6,
    "parts": 6,
    "ops": 6,
    "captured": 6,
    "phases": 12,
    "culprits": 8,
    "engine_steps": 8,
    "engine_gaps": 8,
    "engine_graphs": 12,
}
_FINDINGS: Final = 6
_IN_FULL: Final = ("sentence", "kernels", "remedy", "definition")
_LONGEST: Final = 120

#: The JSON Schema of what `summarize` prints.
SCHEMA: Final = Path(__file__).with_name("page.schema.json")

#: Schema version; raised by every breaking change, not by additions.
SCHEMA_VERSION: Final = 2


def render(shown: Sequence[Shown]) -> str:
    """Renders reports as one JSON object; each table is a list of objects with the columns of `kanalyze show`."""
    reports = [{"schema_version": SCHEMA_VERSION, **_CONTENTS[one.kind](one)} for one in shown]
    return outlets.json(reports[0] if len(reports) == 1 else {"schema_version": SCHEMA_VERSION, "reports": reports})


def _rows(tables: dict[str, pl.DataFrame]) -> Object:
    """The rows of each table by name."""
    return {name: frame.to_dicts() for name, frame in tables.items()}


def _of_time(shown: Summary | Instances, more: Object) -> Object:
    """What pages of a report begin with, and what this one has beside it."""
    window = shown.scope.window
    return {
        "report": _meta(shown.meta),
        "scope": {
            "window": window and window.name,
            "window_start_ns": window and window.start_ns,
            "window_end_ns": window and window.end_ns,
            "device": shown.scope.device,
            "process": shown.scope.process,
        },
        "answer": shown.answer,
        **more,
    }


def _summary(shown: Summary) -> Object:
    """The page with all tables; of several reports with what is joined."""
    parts = {
        **_rows({"windows": shown.windows, "processes": shown.processes, **shown.tables}),
        "findings": [*map(_finding, shown.findings)],
        "cannot_tell": _reasons(shown.cannot_tell),
        "not_recorded": shown.not_recorded,
    }
    if shown.joined is not None:
        parts |= {
            "joined_with": [outlets.line(str(meta.path)) for meta in shown.others],
            "joined_reports": [*map(_meta, shown.others)],
            "joined": shown.joined.to_dicts(),
            "gains": [] if shown.gains is None else shown.gains.to_dicts(),
        }
    return _of_time(shown, parts)


def _evidence(shown: Summary) -> Object:
    window = shown.window and shown.window.name
    return {"report": _meta(shown.meta), "window": window, "finding": _finding(shown.findings[0])} | _rows(shown.tables)


def _whatif(whatif: WhatIf) -> Object:
    """Result of a change: times of the whole window, in ns."""
    lists = {name: [one._asdict() for one in getattr(whatif, name)] for name in ("critical", "single")}
    values = {name: value for name, value in asdict(whatif).items() if name not in ("meta", "scope")}
    return {"report": _meta(whatif.meta), **values, "gain_ns": whatif.gain_ns, **lists}


def _job(job: Job) -> Object:
    """A job of several ranks: the answer, its late ranks, and all tables."""
    return {
        "answer": job_pages.answer(job),
        "reports": [outlets.line(one) for one in job.ranks.get_column("report")],
        "world_size": job.world_size,
        "missing_ranks": job.missing,
        "late_ranks": [one._asdict() | {"causes": dict(one.causes)} for one in late_ranks(job)],
        "findings": [one._asdict() for one in job_findings(job)],
        "doubts": [dict(zip(("check", "count", "effect"), doubt, strict=True)) for doubt in job.doubts],
        **_rows(job.tables),
    }


def _meta(meta: report.Meta) -> Object:
    """Metadata of a report, without what only comparisons of runs (turn) and the answer (wsl) use."""
    values = {name: value for name, value in asdict(meta).items() if name not in ("turn", "wsl")}
    return values | {name: outlets.line(str(value)) for name, value in values.items() if isinstance(value, Path)}


def _overview(summary: Summary) -> Object:
    """The first page: the largest rows of each table, with names cut, so that it stays small."""
    shown = {name: summary.tables[name].head(most) for name, most in _OVERVIEW.items() if name in summary.tables}
    doubts = summary.tables["health"].filter("doubt").select("check", "count") if "health" in summary.tables else None
    iteration = summary.bare and summary.bare.iteration
    bare = iteration and iteration._asdict() | {"mark": _cut(iteration.mark)}
    more = {"without_profiler": {"programs_ns": summary.bare.programs_ns, "iteration": bare}} if summary.bare else {}
    return _of_time(
        summary,
        {
            "iterations": None if summary.steady is None else _iterations(summary.steady),
            "windows": summary.windows.to_dicts(),
            **{name: _short_rows(rows) for name, rows in shown.items()},
            "findings": [
                {name: _cut(value) for name, value in _finding(one.brief).items() if name not in _IN_FULL}
                for one in summary.findings[:_FINDINGS]
            ],
            "health": [] if doubts is None else _short_rows(doubts.head(_FINDINGS)),
            "cannot_tell": _reasons(summary.cannot_tell),
            **more,
            **({"joined_with": [outlets.line(str(meta.path)) for meta in summary.others]} if summary.others else {}),
        },
    )


def _reasons(cannot_tell: dict[str, str]) -> dict[str, str]:
    """The reason for each missing table, and for findings without a ledger: that there are none says nothing then."""
    reason = cannot_tell.get("ledger")
    reasons = {} if reason is None else {"findings": reason.replace("cannot tell ledger", "cannot tell findings", 1)}
    return cannot_tell | reasons


def _iterations(steady: SteadyPart) -> Object:
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
        "first": _cut(steady.run.item(0, "window")),
        "last": _cut(steady.run.item(-1, "window")),
    }


def _short_rows(frame: pl.DataFrame) -> list[Object]:
    """Rows with texts cut, without what is missing."""
    return [{name: _cut(value) for name, value in row.items() if value is not None} for row in frame.to_dicts()]


def _cut(value: Any) -> Any:  # noqa: ANN401 - what is no text stays
    return outlets.cut(value, _LONGEST) if isinstance(value, str) else value


def _finding(finding: Finding) -> Object:
    numbers = ("rule", "device", "at_stake_ns", "at_most", "replayed_ns", "replayed_low_ns", "replayed_high_ns")
    return {
        **{name: getattr(finding, name) for name in numbers},
        "headline": finding.headline.format(*finding.names),
        "action": finding.action,
        "where": finding.place.format() or None,
        "sentence": finding.text.format(*finding.names),
        "kernels": list(finding.names),
        "remedy": finding.remedy,
        "table": finding.table,
        "definition": finding.definition,
    }


def _verdict(verdict: Verdict) -> Object:
    ends = {"ratio_low": verdict.low, "ratio_high": verdict.high, "base_ns": verdict.base_ns, "new_ns": verdict.new_ns}
    return {"verdict": verdict.word, "ratio": verdict.ratio, **ends}


def _comparison(compared: Comparison) -> Object:
    about, gate, cost = compared.base.about, compared.gate, compared.profiled
    sides = {"base": compared.base, "new": compared.new}
    return {
        **_verdict(compared.verdict),
        "scope": {
            "of": about.scope,
            "each": about.each or None,
            "without_profiler": about.unprofiled,
            "profiled": None if cost is None else cost._asdict() | {"explains_ns": cost.explains_ns},
            **{f"{name}_iterations": [one.about.iterations for one in side.digests] for name, side in sides.items()},
            "reason": compared.reason or None,
            "note": compared.note or None,
            "ranks": len(compared.pairs),
            "rank": about.rank,
        },
        "basis": compared.verdict.basis or None,
        "quick": None if compared.quick is None else _verdict(compared.quick),
        "repeats_needed": compared.verdict.repeats,
        "gate": None if gate is None else gate._asdict() | {"sentence": outlets.line(gate.sentence)},
        "runs": {
            name: {
                "used": [{"name": outlets.line(one.about.name), "ns": one.about.iteration_ns} for one in side.digests],
                "left_out": [{"name": outlets.line(name), "reason": reason} for name, reason in side.left_out],
            }
            for name, side in sides.items()
        },
        "differs": [{"kind": one.kind, "text": outlets.line(one.text)} for one in compared.doubts],
        "buckets": compared.table("compare").select("bucket", "detail", "base_ns", "new_ns", "delta_ns").to_dicts(),
        **_rows({name: frame for name, frame in compared.tables.items() if name != "compare"}),
    }


def _noise(noise: Noise) -> Object:
    """How much runs of one program differ: two single runs by these parts of an iteration, and of single kernels."""
    repeats = {f"{effect:.0%}": number for effect, number in noise.step.repeats.items()}
    parts = {"step": noise.floor, "rows": noise.rows, "repeats": repeats}
    return {"name": outlets.line(noise.name), "runs": noise.step.runs, **parts}


#: What the object of a kind of page has beside the version.
_CONTENTS: Final[dict[str, Callable[[Any], Object]]] = {
    "comparison": _comparison,
    "counters": lambda summary: _of_time(summary, _rows(summary.tables)),
    "evidence": _evidence,
    "instances": lambda instances: _of_time(
        instances, {"range": instances.name, **_rows({"instances": instances.instances, "spread": instances.spread})}
    ),
    "job": _job,
    "joint": _summary,
    "noise": _noise,
    "overview": _overview,
    "time": _summary,
    "whatif": _whatif,
}

#: What a verdict is as a test, where no gate was asked for.
_STATES: Final = {"faster": "held", "same": "held", "slower": "failed", "cannot tell": "cannot judge"}


def junit(comparisons: Mapping[str | None, Comparison]) -> str:
    """Renders comparisons, of several windows by name, as one test suite with a test case each.

    A case failed where new is slower, or as the gate says.
    """
    suite = ET.Element("testsuite", {"name": "kanalyze compare"})
    counts = {"tests": len(comparisons), "failures": 0, "skipped": 0, "errors": 0}
    for window, compared in comparisons.items():
        text = answer = outlets.line(comparison.answer(compared))
        state, metric = _STATES[compared.verdict.word], compared.each
        if compared.gate is not None:
            state, metric, text = compared.gate.state, compared.gate.metric, outlets.line(compared.gate.sentence)
        name = outlets.line(metric if window is None or window in metric else f"{metric} in {window}")
        case = ET.SubElement(suite, "testcase", classname="kanalyze.compare", name=name)
        failed, skipped = state == "failed", state == "cannot judge"
        counts["failures"] += failed
        counts["skipped"] += skipped
        if failed or skipped:
            ET.SubElement(case, "failure" if failed else "skipped", message=text)
        ET.SubElement(case, "system-out").text = answer
    suite.attrib.update({name: str(number) for name, number in counts.items()})
    ET.indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suite, encoding="unicode")}\n'
