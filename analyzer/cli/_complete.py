"""Shell completion: tables, groupings, columns, windows of the report on the line, workloads, findings.

Each function is click's ``shell_complete`` of a parameter. A completion has to be quick and quiet: what takes long is
not looked at, and an error completes nothing.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.machinery import late
from kanalyze.tools import NAMES

with late():
    from kanalyze import catalog, explanations, readers
    from kanalyze.collectors import workload as shipped

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

    from kanalyze.schema import Table

    Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
    Choices = Iterable[tuple[str, str]]  # with a word about each

#: Largest reports of which ranges are read, in bytes: 0.2 s besides the start.
_MOST_SQLITE: Final = 128 << 20
_MOST_JSON: Final = 8 << 20
_MOST_PACKED: Final = 1 << 20

#: Most ranges, and instances of one, that are offered.
_MOST_RANGES: Final = 60
_MOST_INSTANCES: Final = 30

#: Windows that are no range's name, and the name of the ranges that are steps of a profiler.
_STEADY: Final = "steady"
_STEPS: Final = "steps"
_STEP: Final = "ProfilerStep#"


def _completer(choices: Callable[[click.Context, str], Choices]) -> Completer:
    """A completer of the values that `choices` gives with a word about each; of none where anything goes wrong."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only where a shell asks

        try:
            found = [(value, about) for value, about in choices(ctx, incomplete) if value.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - a traceback in the middle of a line that is being typed helps nobody
            return []
        # bash inserts a value as it is, the other shells quote it themselves
        if os.environ.get("_KANALYZE_COMPLETE", "").startswith("bash"):
            found = [(shlex.quote(value) if re.search(r"\s", value) else value, about) for value, about in found]
        return [CompletionItem(value, help=about or None) for value, about in found]

    return complete


def _words(ctx: click.Context) -> list[str]:
    """The arguments on the line so far; click has not named them if the option before them lacks its value."""
    named = [ctx.params.get("table"), *(ctx.params.get("reports") or ()), ctx.params.get("report")]
    return [str(word) for word in named if word is not None] or [*ctx.args]


def _declared(ctx: click.Context) -> list[Table]:
    """The table on the line: the form that is asked for, or all of its forms."""
    name = _words(ctx)[0]
    forms = [catalog.table(name), *catalog.forms(name)]
    by = ctx.params.get("by")
    return [form for form in forms if form.when == f"--by {by}"] or forms


@_completer
def tables(_: click.Context, incomplete: str) -> Choices:
    """Names of tables."""
    return [(name, catalog.table(name).purpose) for name in catalog.names() if name.startswith(incomplete)]


#: Groupings of the table on the line.
groupings: Final = _completer(lambda ctx, _: [(by, "") for by in catalog.table(_words(ctx)[0]).groupings])


def _column_names(ctx: click.Context) -> dict[str, str]:
    return {column.name: column.doc for form in _declared(ctx) for column in form.columns}


@_completer
def columns(ctx: click.Context, incomplete: str) -> Choices:
    """Lists of columns, the last of which is being typed."""
    before, comma, _ = incomplete.rpartition(",")
    chosen = before.split(",")
    every = [] if comma else [("all", "every column")]
    return [*every, *((before + comma + name, doc) for name, doc in _column_names(ctx).items() if name not in chosen)]


#: Single columns; to click a word that begins with a minus is an option.
sorted_columns: Final = _completer(lambda ctx, _: _column_names(ctx).items())


@_completer
def windows(ctx: click.Context, incomplete: str) -> Choices:
    """The steady part and ranges of the report on the line; of the range that is being typed its instances."""
    counts = _ranges(ctx)
    name, mark, which = incomplete.partition("#")
    if not mark:
        return _named(counts)
    count = counts.get(name, 0)
    numbers = range(1, count + 1)
    first, dots, _ = which.partition("..")
    if first.isdigit() and (dots or count >= int(first)):
        after = [number for number in numbers if number > int(first)]
        spans = [(f"{name}#{first}..{name}#{number}", "") for number in (after if dots else after[-1:])]
        return [*([] if dots else [(incomplete, "")]), *spans[:_MOST_INSTANCES]]
    ends = [(f"{name}#*", f"each of {count}"), (f"{name}#-1", "the last one")] if count else []
    return [*ends, *((f"{name}#{number}", "") for number in numbers[:_MOST_INSTANCES])]


def _named(counts: dict[str, int]) -> Choices:
    """Windows by name: steady, ranges, steps of a profiler."""
    steps = sorted(int(number) for name in counts if (number := name.removeprefix(_STEP)) != name and number.isdigit())
    counts = {name: count for name, count in counts.items() if not name.startswith(_STEP)}
    yield _STEADY, "the steady iterations"
    yield from ((name, f"{count} times") for name, count in counts.items())
    yield from ((f"{name}#*", f"each of {count}") for name, count in counts.items() if count > 1)
    yield from [(_STEPS, f"each of {len(steps)} steps")] * bool(steps)
    yield from ((f"step:{number}", "") for number in steps[:_MOST_INSTANCES])


def _ranges(ctx: click.Context) -> dict[str, int]:
    """The ranges of the first report on the line that is small enough, and how often each occurs."""
    words = _words(ctx)
    for path in map(Path, words[1:] if "table" in {param.name for param in ctx.command.params} else words):
        if (found := _quick(path)) is not None:
            with readers.read(found) as report:
                names = report.kind("range").get_column("name").drop_nulls().cast(str).value_counts(sort=True)
                return dict(names.head(_MOST_RANGES).rows())
    return {}


def _quick(path: Path) -> Path | None:
    """The report at `path`, of a capture that of nsys, if its ranges are read in no time."""
    if path.is_dir():
        path = next((path / name for name in ("nsys.sqlite", "torch.json.gz") if (path / name).is_file()), path)
    most = {".sqlite": _MOST_SQLITE, ".json": _MOST_JSON, ".gz": _MOST_PACKED}.get(path.suffix, 0)
    return path if path.is_file() and path.stat().st_size <= most else None


#: Names of findings.
findings: Final = _completer(lambda *_: [(name, "") for name in explanations.names()])

#: Names of reference workloads.
references: Final = _completer(lambda *_: [(one.name, one.teaches) for one in shipped.references()])


@_completer
def passes(_: click.Context, incomplete: str) -> Choices:
    """Lists of tools with commas between them."""
    before, comma, _last = incomplete.rpartition(",")
    return [(before + comma + word, "") for word in NAMES if word not in before.split(",")]


def files(_: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Whatever files there are."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415 - only where a shell asks

    return [CompletionItem(incomplete, type="file")]


def workloads(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of reference workloads, and files."""
    return [*files(ctx, param, incomplete), *references(ctx, param, incomplete)]
