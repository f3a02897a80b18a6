"""Reads ncu reports through NVIDIA's module ``ncu_report`` (on PyPI as ncu-report; installed by the extra ``ncu``).

The module opens a report lazily, and returns each metric of each kernel by a call; a report has some 2,200 metrics per
kernel. The type of a metric's value (number, text, none) is queried once per metric name.
"""

from __future__ import annotations

import math
import re
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.counter_model import RULE_RESULTS
from kanalyze.readers.ncu import errors as ncu_errors
from kanalyze.readers.ncu.errors import DAMAGE, Damage, count, text
from kanalyze.readers.ncu.labels import SECTION_OF
from kanalyze.readers.ncu.rep_blocks import is_cut, is_sound
from kanalyze.readers.ncu.tables import LAUNCHES, Measured, metrics_frame
from kanalyze.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

#: Names of metric lists that define sections; not metrics themselves.
_NO_METRIC: Final = ("group:", "breakdown:")

#: Value kinds in the module's numbering: none, any, text; all others are numbers.
_NO_VALUE: Final = (0, 1)
_TEXT: Final = 2

_RULE_KINDS: Final = {1: "information", 2: "optimization", 3: "warning", 4: "error"}
_SCOPES: Final = {1: "local", 2: "global"}

#: Links in rule messages, and how ncu prints them on its pages.
_LINK: Final = re.compile(r"@(url|sass|source|section):((?:\\.|[^@\\])*+)@")

_COUNTS: Final = tuple(f"launch__{what}_dim_{axis}" for what in ("grid", "block") for axis in "xyz")
_OF_LAUNCH: Final = {
    "device": "launch__device_id",
    "context_id": "launch__context_id",
    "stream": "launch__stream_id",
    **{name.removeprefix("launch__").replace("_dim", ""): name for name in _COUNTS},
}


def module() -> ModuleType | None:
    """The module ncu_report, if installed, loadable and recent enough (2026.3) to describe sections."""
    try:
        found = import_module("ncu_report")  # optional, and it loads libraries of 50 MB
    except (ImportError, OSError):
        return None
    return found if hasattr(getattr(found, "IAction", None), "sections") else None


def measured(path: Path, library: ModuleType, opened: Sequence[Any], *, cut: bool) -> Measured:
    """The content of the report at `path`; `opened` and `cut` are the results of :func:`actions`."""
    names, damage = _Names(), Damage()
    launches: list[dict[str, object]] = []
    values: list[pl.DataFrame] = []
    rules: list[tuple[object, ...]] = []
    for event_id, action in enumerate(opened):
        values.append(_metrics(event_id, action, names, damage))
        damage.tried(partial(names.learn_sections, action), None)
        launches.append(_launch(event_id, action, library, damage))
        rules += _rules(event_id, action, damage)
    found = pl.DataFrame(rules, schema=RULE_RESULTS.schema, orient="row")
    lost = f"{path.name} was not written or copied whole: {len(opened)} of its kernels can be read, and others are lost"
    return Measured(
        pl.DataFrame(launches, schema=LAUNCHES, orient="row"),
        metrics_frame(
            pl.concat(values).with_columns(section=pl.col("metric").replace_strict(names.sections, default=None))
        ),
        RULE_RESULTS.check(found.sort("event_id", "section", "rule", "message")),
        [*([("report cut off", 1, None, lost)] if cut else []), *damage.notes(path.name)],
    )


def actions(path: Path, library: ModuleType) -> tuple[list[Any], bool]:
    """Opens all results in the report at `path`, kernels or ranges, and says whether the file is truncated.

    Raises:
        ExportError: The module cannot read it: the file is of a newer ncu, truncated, or not a report.
    """
    name = f"the module ncu_report {getattr(library, '__version__', '')}".strip()
    if not is_sound(path):
        damage = "it is damaged: a block of it has no beginning, or an impossible size"
        raise ncu_errors.unreadable(path, name, [damage])
    try:
        report = library.load_report(str(path))
        ranges = [report.range_by_idx(number) for number in range(report.num_ranges())]
        found = [part.action_by_idx(number) for part in ranges for number in range(part.num_actions())]
        whole = [action for action in found if action.metric_names()]
    except DAMAGE as error:
        raise ncu_errors.unreadable(path, name, [text(error)]) from error
    if not whole:  # the module says nothing of that
        said = "it is cut off" if found or is_cut(path) else "no kernel is in it"
        raise ncu_errors.unreadable(path, name, [said])
    return whole, len(whole) < len(found) or is_cut(path)


class _Names:
    """Cache of what a metric has in common over all kernels of a report: kind, unit and section."""

    def __init__(self) -> None:
        """Start empty."""
        self.known: dict[str, tuple[int, str]] = {}
        self.sections: dict[str, str] = {}
        self._seen: set[str] = set()

    def learn_sections(self, action: Any) -> None:  # noqa: ANN401 - the module has no types
        """Note the section of metrics that section headers print and our own list lacks."""
        for section in sorted(action.sections(), key=lambda section: int(section.order())):
            identifier = text(section.identifier())
            if identifier not in self._seen:
                self._seen.add(identifier)
                for metric in filter(None, section.header_metrics()):
                    name = text(metric.name())
                    self.sections.setdefault(name, SECTION_OF.get(name, identifier))


def _metrics(event_id: int, action: Any, names: _Names, damage: Damage) -> pl.DataFrame:  # noqa: ANN401 - as above
    """The metrics of one kernel: columns event_id, metric, value, text, unit."""
    rows: list[tuple[str, float | None, str | None, str]] = []
    metric_names: list[str] = damage.tried(lambda: [*action.metric_names()], [])
    for name in metric_names:
        try:
            row = _metric(name, action, names.known, damage)
        except DAMAGE:
            damage.count += 1
            continue
        if row is not None:
            rows.append(row)
    schema = {"metric": pl.String, "value": pl.Float64, "text": pl.String, "unit": pl.String}
    found = pl.DataFrame(rows, schema=schema, orient="row")
    return found.select(pl.lit(event_id, dtype=pl.Int64).alias("event_id"), pl.all())


def _metric(
    name: str,
    action: Any,  # noqa: ANN401 - as above
    known: dict[str, tuple[int, str]],
    damage: Damage,
) -> tuple[str, float | None, str | None, str] | None:
    """Name, value, text and unit of a metric; None if it has no value or is not a metric."""
    metric = action.metric_by_name(name)
    if name not in known:
        known[name] = (-1 if name.startswith(_NO_METRIC) else int(metric.kind()), damage.text(metric.unit()))
    kind, unit = known[name]
    if kind < 0:
        return None
    if kind in _NO_VALUE:  # it may be of another kind than in the first kernel
        kind = int(metric.kind())
    if kind == _TEXT:
        said = damage.text(metric.as_string())
        return (name, None, said, unit) if said else None
    value = metric.as_double()
    # what has no value has the number 0
    return (name, value, None, unit) if math.isfinite(value) and (value or metric.has_value()) else None


def _launch(
    event_id: int,
    action: Any,  # noqa: ANN401 - as above
    library: ModuleType,
    damage: Damage,
) -> dict[str, object]:
    """A row of :data:`kanalyze.readers.ncu.tables.LAUNCHES`; the module gives no process id."""
    row: dict[str, object] = dict.fromkeys(LAUNCHES)
    for column, name in _OF_LAUNCH.items():
        metric = action.metric_by_name(name)
        known = metric is not None and metric.has_value()
        row[column] = damage.tried(partial(_number, metric), None) if known else None
    named = damage.tried(lambda: damage.text(action.name(library.IAction.NameBase_DEMANGLED)), None)
    return row | {"event_id": event_id, "name": named}


def _number(metric: Any) -> int | None:  # noqa: ANN401 - as above
    return count(int(metric.as_uint64()))


def _rules(event_id: int, action: Any, damage: Damage) -> list[tuple[object, ...]]:  # noqa: ANN401 - as above
    """Rows of :data:`kanalyze.counter_model.RULE_RESULTS`."""
    results: list[Any] = damage.tried(lambda: [*action.rule_results()], [])
    marks: dict[str, list[str]] = damage.tried(partial(_marks, action), {})
    rows = [damage.tried(partial(_rule, event_id, rule, marks, damage), None) for rule in results]
    return [row for row in rows if row is not None]


def _rule(
    event_id: int,
    rule: Any,  # noqa: ANN401 - as above
    marks: dict[str, list[str]],
    damage: Damage,
) -> tuple[object, ...]:
    """A rule result of one kernel; `marks` are the source markers by rule."""
    section, name = damage.text(rule.section_identifier()), damage.text(rule.rule_identifier())
    if not rule.has_rule_message():
        return event_id, section, name, "information", _places(text(rule.name()), marks.get(name, [])), None, None
    said = rule.rule_message()
    scope, share = None, None
    if rule.has_speedup_estimation():
        estimate = rule.speedup_estimation()
        scope, share = _SCOPES.get(int(estimate["type"])), float(estimate["speedup"]) / 100
    kind = _RULE_KINDS.get(int(said["type"]), "information")
    return event_id, section, name, kind, plain(damage.text(said["message"])).strip(), scope, share


def _marks(action: Any) -> dict[str, list[str]]:  # noqa: ANN401 - as above
    """The source markers (per instruction) of each rule; empty where the module has none."""
    found: dict[str, list[str]] = {}
    for mark in getattr(action, "source_markers", list)():
        found.setdefault(text(mark["rule_identifier"]), []).append(text(mark["message"]).strip())
    return found


def _places(name: str, marks: list[str]) -> str:
    """A message for a rule result that has none: the table of instructions that the rule marks.

    ncu's pages leave it out.
    """
    if not marks:
        return f"{name}: a table of the source without a message."
    return f"{name}: {plural(len(marks), 'instruction')} marked, the first: {marks[0]}"


def plain(message: str) -> str:
    """A rule message as printed on ncu's pages: links become their text, and the address if it is on the web."""
    return _LINK.sub(_link, message)


def _link(match: re.Match[str]) -> str:
    if match[1] == "url":
        text, _, address = match[2].partition(":")
        return f"{text} ({address})"
    return match[2].rpartition(":")[2]
