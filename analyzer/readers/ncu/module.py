"""Reads ncu reports through NVIDIA's module ``ncu_report`` (on PyPI as ncu-report; installed by the extra ``ncu``).

The module opens a report lazily, and returns each metric of each kernel by a call; a report has some 2,200 metrics per
kernel. The type of a metric's value (number, text, none) is queried once per metric name. On damaged reports it raises
many types of errors, returns invalid text, or kills its process: so instructions and sources are read in a child
process, which runs this module, as ``python -m`` with what to read, the report and the file to write as arguments.
"""

import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar

import polars as pl

from kanalyze import errors, files, machinery, units
from kanalyze.counter_model import INSTRUCTIONS, RULE_RESULTS, SOURCE_FILES
from kanalyze.readers.ncu.tables import COUNTED, LAUNCHES, Measured, damaged, metrics_frame

T = TypeVar("T")

#: Objects of the module, which has no types.
Action: TypeAlias = Any
Rule: TypeAlias = Any

#: Name, value, text and unit of a metric.
Metric: TypeAlias = tuple[str, float | None, str | None, str]

#: Kinds of values in the module's numbering: 0 none, 1 any, 2 text; all others are numbers.
_TEXT: Final = 2

_RULE_KINDS: Final = {1: "information", 2: "optimization", 3: "warning", 4: "error"}
#: Links in rule messages, and how ncu prints them on its pages.
_LINK: Final = re.compile(r"@(url|sass|source|section):((?:\\.|[^@\\])*+)@")

_OF_LAUNCH: Final = {
    "device": "launch__device_id",
    "context_id": "launch__context_id",
    "stream": "launch__stream_id",
    **{f"{what}_{axis}": f"launch__{what}_dim_{axis}" for what in ("grid", "block") for axis in "xyz"},
}


def module() -> ModuleType | None:
    """The module ncu_report, if installed, loadable and recent enough (2026.3) to describe sections."""
    with suppress(ImportError, OSError):
        library = import_module("ncu_report")  # optional, and it loads libraries of 50 MB
        return library if hasattr(getattr(library, "IAction", None), "sections") else None
    return None


def unreadable(path: Path, program: str, said: Iterable[str]) -> errors.ExportError:
    """Error: `program` (a module or an ncu) cannot read `path` and printed `said`."""
    return errors.ExportError(
        f"{path}: {program} cannot read it: {errors.last_words(said) or 'it says nothing'}.",
        "A report of a newer ncu needs a module or an ncu as new (`pip install --upgrade ncu-report`); a file that was "
        "cut off has to be copied again.",
    )


def measured(path: Path, library: ModuleType, opened: Sequence[Any], *, cut: bool) -> Measured:
    """The content of the report at `path`; `opened` and `cut` are the results of :func:`actions`."""
    known, sections, damage = dict[str, tuple[int, str]](), dict[str, list[str]](), Damage()
    launches, metrics, rules = list[dict[str, object]](), list[tuple[object, ...]](), list[tuple[object, ...]]()
    for event_id, action in enumerate(opened):
        metrics += [(event_id, *row) for row in _metrics(action, known, damage)]
        damage.tried(partial(_learn_sections, action, sections), None)
        launches.append({"event_id": event_id, **_launch(action, library, damage)})
        rules += [(event_id, *row) for row in _rules(action, damage)]
    frame = pl.DataFrame(metrics, schema=_METRICS, orient="row")
    section_of = {metric: section for section, names in reversed(sections.items()) for metric in reversed(names)}
    results = RULE_RESULTS.check(pl.DataFrame(rules, schema=RULE_RESULTS.schema, orient="row"))
    lost = f"{path.name} was not written or copied whole: {len(opened)} of its kernels can be read, and others are lost"
    wrong = f"{path.name} is damaged: they are left out, and what is left may be wrong, too; copy it again"
    return Measured(
        pl.DataFrame(launches, schema=LAUNCHES, orient="row"),
        metrics_frame(
            frame.with_columns(
                section=pl.col("metric").replace_strict(section_of, default=None, return_dtype=pl.String)
            )
        ),
        results.sort("event_id", "section", "rule", "message"),
        [
            *([("report cut off", 1, None, lost)] if cut else []),
            *([("parts of a report that make no sense", damage.count, None, wrong)] if damage.count else []),
        ],
        instructions=lambda: read_apart("instructions", path, opened),
        files=lambda: read_apart("files", path, opened),
    )


def actions(path: Path, library: ModuleType) -> tuple[list[Any], bool]:
    """Opens all results in the report at `path`, kernels or ranges, and says whether the file is truncated.

    Raises ExportError if the module cannot read it: the file is of a newer ncu, truncated, or not a report.
    """
    name = f"the module ncu_report {getattr(library, '__version__', '')}".strip()
    sound, cut = blocks(path)
    if not sound:
        damage = "it is damaged: a block of it has no beginning, or an impossible size"
        raise unreadable(path, name, [damage])
    try:
        report = library.load_report(str(path))
        ranges = [report.range_by_idx(number) for number in range(report.num_ranges())]
        results = [part.action_by_idx(number) for part in ranges for number in range(part.num_actions())]
        whole = [action for action in results if action.metric_names()]
    except DAMAGE as error:
        raise unreadable(path, name, [text(error)]) from error
    if not whole:  # the module says nothing of that
        raise unreadable(path, name, ["it is cut off" if results or cut else "no kernel is in it"])
    return whole, len(whole) < len(results) or cut


#: Columns of metrics as the module gives them.
_METRICS: Final = {"event_id": pl.Int64, "metric": pl.String, "value": pl.Float64, "text": pl.String, "unit": pl.String}

#: Exceptions raised by the module's functions for damaged parts of a report.
DAMAGE: Final = (
    *(ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, SystemError, TypeError, ValueError),
)

_BEYOND: Final = 1 << 63


class Damage:
    """Counts the parts of a report that could not be read."""

    count = 0

    def tried(self, ask: Callable[[], T], otherwise: T) -> T:
        """The result of `ask`; on failure `otherwise`, counted as one damaged part."""
        with suppress(*DAMAGE):
            return ask()
        self.count += 1
        return otherwise

    def text(self, given: object) -> str:
        """Valid text, as :func:`text` gives it; counted as one damaged part if it had to be repaired."""
        valid = text(given)
        self.count += valid != str(given)
        return valid


def text(given: object) -> str:
    """Text from the module with invalid bytes replaced."""
    string = str(given)
    return string if string.isascii() else string.encode(errors="replace").decode()


def count(value: int) -> int | None:
    """A count as Int64; None if it is out of range."""
    return value if -_BEYOND <= value < _BEYOND else None


def _learn_sections(action: Action, sections: dict[str, list[str]]) -> None:
    """Note the metrics that the headers of a kernel's sections print, by section, of those not seen before."""
    for section in sorted(action.sections(), key=lambda section: int(section.order())):
        identifier = text(section.identifier())
        if identifier not in sections:
            sections[identifier] = [text(metric.name()) for metric in section.header_metrics() if metric]


def _metrics(action: Action, known: dict[str, tuple[int, str]], damage: Damage) -> Iterator[Metric]:
    """Name, value, text and unit of each metric of a kernel that has a value."""
    names: list[str] = damage.tried(lambda: [*action.metric_names()], [])
    for name in names:
        if (row := damage.tried(partial(_metric, name, action, known, damage), None)) is not None:
            yield row


def _metric(name: str, action: Action, known: dict[str, tuple[int, str]], damage: Damage) -> Metric | None:
    """Name, value, text and unit of a metric; None if it has no value or is not a metric."""
    metric = action.metric_by_name(name)
    if name not in known:
        is_list = name.startswith(("group:", "breakdown:"))  # of metrics, for a section
        known[name] = (-1 if is_list else int(metric.kind()), damage.text(metric.unit()))
    kind, unit = known[name]
    if kind < 0:
        return None
    if kind in (0, 1):  # it may be of another kind than in the first kernel
        kind = int(metric.kind())
    if kind == _TEXT:
        string = damage.text(metric.as_string())
        return (name, None, string, unit) if string else None
    value = metric.as_double()
    # what has no value has the number 0
    return (name, value, None, unit) if math.isfinite(value) and (value or metric.has_value()) else None


def _launch(action: Action, library: ModuleType, damage: Damage) -> dict[str, object]:
    """Columns of :data:`kanalyze.readers.ncu.tables.LAUNCHES`; the module gives no process id."""
    row: dict[str, object] = dict.fromkeys(list(LAUNCHES)[1:])
    for column, name in _OF_LAUNCH.items():
        metric = action.metric_by_name(name)
        if metric is not None and metric.has_value():
            value = damage.tried(metric.as_uint64, None)
            row[column] = None if value is None else count(int(value))
    return row | {"name": damage.tried(lambda: damage.text(action.name(library.IAction.NameBase_DEMANGLED)), None)}


def _rules(action: Action, damage: Damage) -> list[tuple[object, ...]]:
    """Rows of :data:`kanalyze.counter_model.RULE_RESULTS`, without the kernel."""
    results: list[Any] = damage.tried(lambda: [*action.rule_results()], [])
    marks: dict[str, list[str]] = damage.tried(partial(_marks, action), {})
    return [row for rule in results if (row := damage.tried(partial(_rule, rule, marks, damage), None)) is not None]


def _rule(rule: Rule, marks: dict[str, list[str]], damage: Damage) -> tuple[object, ...]:
    """A rule result; of one without a message, which ncu's pages leave out, the instructions that it marks."""
    section, name = damage.text(rule.section_identifier()), damage.text(rule.rule_identifier())
    if not rule.has_rule_message():
        title, marked = text(rule.name()), marks.get(name, [])
        sentence = f"{title}: a table of the source without a message."
        if marked:
            sentence = f"{title}: {units.plural(len(marked), 'instruction')} marked, the first: {marked[0]}"
        return section, name, "information", sentence, None, None
    message = rule.rule_message()
    scope, share = None, None
    if rule.has_speedup_estimation():
        estimate = rule.speedup_estimation()
        scope, share = {1: "local", 2: "global"}.get(int(estimate["type"])), float(estimate["speedup"]) / 100
    kind = _RULE_KINDS.get(int(message["type"]), "information")
    return section, name, kind, plain(damage.text(message["message"])).strip(), scope, share


def _marks(action: Action) -> dict[str, list[str]]:
    """The source markers (per instruction) of each rule; empty where the module has none."""
    messages: dict[str, list[str]] = {}
    for mark in getattr(action, "source_markers", list)():
        messages.setdefault(text(mark["rule_identifier"]), []).append(text(mark["message"]).strip())
    return messages


def plain(message: str) -> str:
    """A rule message as printed on ncu's pages: links become their text, and the address if it is on the web."""

    def shown(match: re.Match[str]) -> str:
        text, _, address = match[2].partition(":")
        return f"{text} ({address})" if match[1] == "url" else match[2].rpartition(":")[2]

    return _LINK.sub(shown, message)


# Instructions and source files of kernels, read in a child process.

_STALLED: Final = re.compile(r"^smsp__pcsamp_warps_issue_stalled_\w+_not_issued$")


def _instructions(event_id: int, action: Action) -> Iterator[dict[str, object]]:
    """Instruction rows of one kernel."""
    counted = {column: _by_address(action, metric) for column, (metric, _) in COUNTED.items()}
    stalled: dict[int, int] = {}
    for metric in filter(_STALLED.match, action.metric_names()):
        for address, value in _by_address(action, metric).items():
            stalled[address] = stalled.get(address, 0) + value
    for number, (address, sass) in enumerate(_sass(action, sorted(counted["instructions"] or counted["samples"]))):
        place = action.source_info(address)
        yield {
            "event_id": event_id,
            "number": number,
            "sass": sass,
            "ptx": text(action.ptx_by_pc(address)).strip() or None,
            "file": text(place.file_name()) if place and place.file_name() else None,
            "line": count(int(place.line())) if place and place.file_name() else None,
            "stalled_samples": count(stalled.get(address, 0)) if stalled else None,
            **{column: count(values.get(address, 0)) if values else None for column, values in counted.items()},
            "live_registers": None,
        }


def _sass(action: Action, counted: list[int]) -> Iterator[tuple[int, str]]:
    """The SASS instructions of a kernel with addresses, including padding after its end, which has no counts."""
    if len(counted) > 1:
        step = min(after - before for before, after in pairwise(counted))
        address = counted[0]
        while sass := action.sass_by_pc(address):
            yield address, text(sass).strip()
            address += step


def _by_address(action: Action, name: str) -> dict[int, int]:
    """Values of a metric keyed by instruction address; empty where it was not collected."""
    metric = action.metric_by_name(name)
    if metric is None or not metric.num_instances() or not metric.has_correlation_ids():
        return {}
    places = metric.correlation_ids()
    return {int(places.as_uint64(i)): int(metric.as_uint64(i)) for i in range(metric.num_instances())}


#: Tables that are read in a child process: of which columns, and what they are called in messages.
_PARTS: Final = {"instructions": (INSTRUCTIONS, "the instructions of a kernel"), "files": (SOURCE_FILES, "its sources")}
#: The child's arguments: this module, and nothing of the current folder in its place.
_CHILD: Final = ("-P", "-m", "kanalyze.readers.ncu.module")


def read_here(name: str, path: Path, opened: Sequence[Any]) -> pl.DataFrame:
    """As :func:`read_apart`, in this process."""
    declared, what = _PARTS[name]
    try:
        if name == "files":
            sources = (item for action in opened for item in dict(action.source_files()).items())
            rows: list[Any] = [*{text(file): text(source) for file, source in sources if source}.items()]
        else:
            rows = [row for event_id, action in enumerate(opened) for row in _instructions(event_id, action)]
        return declared.check(pl.DataFrame(rows, schema=declared.schema, orient="row"))
    except DAMAGE as error:
        raise damaged(path, what, text(error)) from error


def read_apart(name: str, path: Path, opened: Sequence[Any]) -> pl.DataFrame:
    """The ``instructions`` or source ``files`` of the report at `path`, read in a child process.

    Columns: :data:`kanalyze.counter_model.INSTRUCTIONS`, :data:`kanalyze.counter_model.SOURCE_FILES`. `opened` are its
    kernels in this process, from which they are read if no child process can be started.

    Raises DamagedReportError if they are invalid.
    """
    declared, what = _PARTS[name]
    if not sys.executable or getattr(sys, "frozen", False):
        return read_here(name, path, opened)
    command = [sys.executable, *_CHILD, str(os.getpid()), name, str(path.absolute())]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "table.arrow"
        try:
            ended = subprocess.run(  # noqa: S603 - Python itself, with a module of ours
                [*command, str(out)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        except OSError:
            return read_here(name, path, opened)
        if ended.returncode or not out.is_file():
            raise damaged(path, what, "what reads them ended" if ended.returncode < 0 else "what reads them fails")
        return declared.check(pl.read_ipc(out.read_bytes()))


def write(name: str, report: str, out: str) -> None:
    """Write the named table of a report to a file; exits with status 1 if it is damaged."""
    library = module()
    if library is None:
        sys.exit("the module ncu_report is gone")
    try:
        read_here(name, Path(report), actions(Path(report), library)[0]).write_ipc(out)
    except errors.KanalyzeError as error:
        sys.exit(str(error))


# Whether a report's file is complete, since the module silently gives kernels without metrics if it is not.
#
# The file begins with ``NVR`` and a header; then come blocks, each a size, a head of that size and a payload, whose
# size the head tells in its field 5. Heads are messages of protocol buffers; a payload is such messages, each behind
# its size.

MAGIC: Final = b"NVR\0"

_SIZE, _PAYLOAD = 4, 5
#: Upper bound of a block head; a larger one means an unknown layout.
_MOST: Final = 1 << 24
#: Sizes above this overflow to negative in the module.
_LARGEST: Final = (1 << 31) - 1


class _BlockError(ValueError):
    """A block that is invalid or of an impossible size."""


def blocks(path: Path) -> tuple[bool, bool]:
    """Whether the file is a valid sequence of blocks, or of an unknown layout; and whether it ends within a block.

    On an impossible block size the module would abort the whole process.
    """
    length, known = path.stat().st_size, False
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return True, False
            head = _head(file, length)
            while head is not None and file.tell() < length:
                head, known = _pass_block(file, length), True
            return True, head is None or file.tell() > length
    except (IndexError, ValueError) as error:  # behind a block that is valid it is damage
        return not (known or isinstance(error, _BlockError)), False


def _pass_block(file: BinaryIO, length: int) -> bytes | None:
    """Skip a block; returns its head, None if the file ends within that. Raises ValueError if it is none."""
    head = _head(file, length)
    if head is None:
        return None
    payloads = [field for field in files.fields(head, 0, len(head)) if field.key == _PAYLOAD]
    if len(payloads) != 1 or payloads[0].sized:
        raise ValueError
    if payloads[0].number > _LARGEST:
        raise _BlockError
    end = file.tell() + payloads[0].number
    while file.tell() + _SIZE <= min(end, length):
        size = int.from_bytes(file.read(_SIZE), "little")
        if file.tell() + size > end:
            raise _BlockError
        file.seek(size, 1)
    file.seek(end)
    return head


def _head(file: BinaryIO, length: int) -> bytes | None:
    """Reads a length-prefixed block head; None if the file ends before it does. Raises ValueError if it is none."""
    size = file.read(_SIZE)
    announced = int.from_bytes(size, "little")
    if announced > _LARGEST or announced > max(_MOST, length):
        raise _BlockError
    if announced > _MOST:
        raise ValueError
    head = file.read(announced)
    return head if len(size) == _SIZE and len(head) == announced else None


if __name__ == "__main__":
    machinery.end_with(int(sys.argv[1]))
    write(*sys.argv[2:])
