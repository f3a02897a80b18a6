"""Reports of ncu through the module ``ncu_report``, NVIDIA's own (on PyPI as ncu-report; the extra ``ncu`` has it).

It opens a report without reading it, and gives each metric of each kernel by a call; a report has some 2,200 of them
per kernel. What a metric's value is (a number, a text, nothing) is asked once for each name.
"""

from __future__ import annotations

import math
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.counter_model import RULE_RESULTS
from kanalyze.readers import ncu_errors
from kanalyze.readers.ncu_blocks import is_cut
from kanalyze.readers.ncu_labels import SECTION_OF
from kanalyze.readers.ncu_tables import LAUNCHES, Measured, metrics_frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import ModuleType

#: Lists of names that sections are made of, and no metrics.
_NO_METRIC: Final = ("group:", "breakdown:")

#: Kinds of values in the module's numbering: none, any, text; all others are numbers.
_NO_VALUE: Final = (0, 1)
_TEXT: Final = 2

_RULE_KINDS: Final = {1: "information", 2: "optimization", 3: "warning", 4: "error"}
_SCOPES: Final = {1: "local", 2: "global"}

#: Links in the messages of rules, and how ncu prints them on its pages.
_LINK: Final = re.compile(r"@(url|sass|source|section):((?:\\.|[^@])*)@")

_COUNTS: Final = tuple(f"launch__{what}_dim_{axis}" for what in ("grid", "block") for axis in "xyz")
_OF_LAUNCH: Final = {
    "device": "launch__device_id",
    "context_id": "launch__context_id",
    "stream": "launch__stream_id",
    **{name.removeprefix("launch__").replace("_dim", ""): name for name in _COUNTS},
}


def module() -> ModuleType | None:
    """The module, if it is installed and can be loaded here."""
    try:
        return import_module("ncu_report")  # optional, and it loads libraries of 50 MB
    except (ImportError, OSError):
        return None


def measured(path: Path, library: ModuleType, opened: Sequence[Any], *, cut: bool) -> Measured:
    """What the report at `path` holds, of which `opened` and `cut` are what :func:`actions` gives."""
    names = _Names()
    launches: list[dict[str, object]] = []
    values: list[pl.DataFrame] = []
    rules: list[tuple[object, ...]] = []
    for event_id, action in enumerate(opened):
        values.append(_metrics(event_id, action, names))
        launches.append(_launch(event_id, action, library))
        rules += _rules(event_id, action)
    found = pl.DataFrame(rules, schema=RULE_RESULTS.schema, orient="row")
    return Measured(
        pl.DataFrame(launches, schema=LAUNCHES, orient="row"),
        metrics_frame(
            pl.concat(values).with_columns(section=pl.col("metric").replace_strict(names.sections, default=None))
        ),
        RULE_RESULTS.check(found.sort("event_id", "section", "rule", "message")),
        [("report cut off", 1, None, _cut(path, len(opened)))] if cut else [],
    )


def _cut(path: Path, whole: int) -> str:
    return f"{path.name} was not written or copied whole: {whole} of its kernels can be read, and others are lost"


def actions(path: Path, library: ModuleType) -> tuple[list[Any], bool]:
    """Every result in the report at `path`: a kernel, or a range of them; and whether the file is cut off behind them.

    Raises:
        ExportError: The module cannot read it: it is of a newer ncu, cut off, or no report.
    """
    name = f"the module ncu_report {getattr(library, '__version__', '')}".strip()
    try:
        report = library.load_report(str(path))
        ranges = [report.range_by_idx(number) for number in range(report.num_ranges())]
        found = [part.action_by_idx(number) for part in ranges for number in range(part.num_actions())]
        whole = [action for action in found if action.metric_names()]
    except (RuntimeError, ValueError, OSError, AttributeError, TypeError) as error:
        raise ncu_errors.refused(path, name, [str(error)]) from error
    if not whole:  # the module says nothing of that
        said = "it is cut off" if found or is_cut(path) else "no kernel is in it"
        raise ncu_errors.refused(path, name, [said])
    return whole, len(whole) < len(found) or is_cut(path)


class _Names:
    """What is the same of a metric in all kernels of a report: kind, unit and section."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.known: dict[str, tuple[int, str]] = {}
        self.sections: dict[str, str] = {}
        self._seen: set[str] = set()

    def learn_sections(self, action: Any) -> None:  # noqa: ANN401 - the module has no types
        """Note which sections' heads print metrics that are not in our own list."""
        for section in sorted(action.sections(), key=lambda section: int(section.order())):
            identifier = str(section.identifier())
            if identifier not in self._seen:
                self._seen.add(identifier)
                for metric in section.header_metrics():
                    self.sections.setdefault(str(metric.name()), SECTION_OF.get(str(metric.name()), identifier))


def _metrics(event_id: int, action: Any, names: _Names) -> pl.DataFrame:  # noqa: ANN401 - as above
    """Columns event_id, metric, value, text, unit of one kernel."""
    metrics: list[str] = []
    values: list[float | None] = []
    texts: list[str | None] = []
    units: list[str] = []
    known, by_name = names.known, action.metric_by_name
    for name in action.metric_names():
        metric = by_name(name)
        if name not in known:
            known[name] = (-1 if name.startswith(_NO_METRIC) else int(metric.kind()), str(metric.unit()))
        kind, unit = known[name]
        if kind < 0:
            continue
        if kind in _NO_VALUE:  # it may be of another kind than in the first kernel
            kind = int(metric.kind())
        value, text = (None, metric.as_string()) if kind == _TEXT else (metric.as_double(), None)
        # what has no value has an empty text, or the number 0
        if text or (value is not None and math.isfinite(value) and (value or metric.has_value())):
            metrics.append(name)
            values.append(value)
            texts.append(text)
            units.append(unit)
    names.learn_sections(action)
    return pl.DataFrame(
        {"metric": metrics, "value": values, "text": texts, "unit": units},
        schema={"metric": pl.String, "value": pl.Float64, "text": pl.String, "unit": pl.String},
    ).select(pl.lit(event_id, dtype=pl.Int64).alias("event_id"), pl.all())


def _launch(event_id: int, action: Any, library: ModuleType) -> dict[str, object]:  # noqa: ANN401 - as above
    """A row of :data:`kanalyze.readers.ncu_tables.LAUNCHES`; the module does not tell processes."""
    row: dict[str, object] = dict.fromkeys(LAUNCHES)
    for column, name in _OF_LAUNCH.items():
        metric = action.metric_by_name(name)
        row[column] = None if metric is None or not metric.has_value() else int(metric.as_uint64())
    return row | {"event_id": event_id, "name": str(action.name(library.IAction.NameBase_DEMANGLED))}


def _rules(event_id: int, action: Any) -> Iterator[tuple[object, ...]]:  # noqa: ANN401 - as above
    """Rows of :data:`kanalyze.counter_model.RULE_RESULTS`."""
    for rule in action.rule_results():
        if not rule.has_rule_message():
            continue
        said = rule.rule_message()
        scope, share = None, None
        if rule.has_speedup_estimation():
            estimate = rule.speedup_estimation()
            scope, share = _SCOPES.get(int(estimate["type"])), float(estimate["speedup"]) / 100
        kind = _RULE_KINDS.get(int(said["type"]), "information")
        section, name = str(rule.section_identifier()), str(rule.rule_identifier())
        yield event_id, section, name, kind, plain(str(said["message"])).strip(), scope, share


def plain(message: str) -> str:
    """A message as ncu's pages print it: of a link its text, and where it leads if that is in the world outside."""
    return _LINK.sub(_link, message)


def _link(match: re.Match[str]) -> str:
    if match[1] == "url":
        text, _, address = match[2].partition(":")
        return f"{text} ({address})"
    return match[2].rpartition(":")[2]
