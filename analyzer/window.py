"""Windows of time, by times or by names of ranges, and how times and counts of windows of iterations are told.

Ranges are named ``domain:name``, and ``name#3`` for one instance. Profiler steps have names of their own: ``step:5`` is
step 5, ``steps`` is every step.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from kanalyze.errors import BadWindowError, UnknownNameError
from kanalyze.units import instant, mean, parse_time_ns, plural, plural_of, time

#: Bound of times, so that differences fit int64 nanoseconds: some 146 years.
_LATEST_NS: Final = (1 << 62) - 1

#: What an iteration may be called that is no name of the program, and takes an article.
WORDS: Final = (
    *("step", "repetition", "iteration", "round", "request", "prefill", "decode", "pass"),
    *(f"{kind} step" for kind in ("prefill", "decode", "mixed", "draft", "diffusion", "other")),  # of serving engines
)

_STEPS: Final = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))


@dataclass(frozen=True)
class Window:
    """A time window ``[start_ns, end_ns)``; None leaves a side open.

    `name` is the range that it is an instance of, where it was asked for by name; `group` is what all windows that were
    asked for with it are called together, where their names do not say; `process` is the one whose range it is. Of a
    window of iterations, `count` is their number, and `each` what one of them is called (a step, the range's name).
    """

    start_ns: int | None = None
    end_ns: int | None = None
    name: str | None = None
    group: str | None = field(default=None, compare=False)
    process: int | None = field(default=None, compare=False)
    count: int | None = field(default=None, compare=False)
    each: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """The range's name, or the times in user syntax: ``120ms..250ms``."""
        return self.name or "..".join(map(_side_text, (self.start_ns, self.end_ns)))

    @property
    def empty(self) -> bool:
        """Whether the window has zero duration, as a range within one clock tick."""
        return self.start_ns is not None and self.end_ns is not None and self.end_ns <= self.start_ns

    def refuse_outside(self, text: str, path: Path, recorded: Iterable[tuple[int, int]], zero_ns: int) -> None:
        """Raise :class:`BadWindowError` if the window overlaps none of the `recorded` spans (first, last).

        `text` is the user's argument, of the report at `path`; `zero_ns` is the origin of displayed times.
        """
        edges: tuple[int, int] | None = None
        for first, last in recorded:  # lazily, since each span may require reading
            edges = (first, last) if edges is None else (min(first, edges[0]), max(last, edges[1]))
            begins = self.start_ns is None or self.start_ns <= edges[1]
            if begins and (self.end_ns is None or self.end_ns > edges[0]):
                return
        if edges is not None:
            raise BadWindowError.outside(text, path, *(instant(edge, zero_ns) for edge in edges))

    @classmethod
    def parse(cls, text: str, first_ns: int = 0) -> "Window":
        """Parses a window: ``120ms..250ms``, ``..1.5s``, ``300us..``, ``+10ms..+20ms``.

        A time with a plus sign is relative to `first_ns`. Raises BadWindowError for no ``..``, a time without unit, or
        an end that is not after the start.
        """
        start, dots, end = text.partition("..")
        if not dots:
            raise BadWindowError.of(text, "there is no '..' between start and end")
        window = cls(_side_ns(text, start, first_ns), _side_ns(text, end, first_ns))
        if window.empty:
            raise BadWindowError.of(text, "the end is not after the start")
        return window


#: How a mean of one is written.
_ONE: Final = ("1", "1.0")


class PerIteration(NamedTuple):
    """Times and counts of a window in words: per iteration, or in all where it is no window of iterations."""

    iterations: int | None  # their number; None in any other window
    each: str  # what one is called, such as ``step``, escaped for a sentence; empty where there are none

    def time(self, ns: float) -> str:
        """A time: ``10.93 ms a step``, or ``655.9 ms``."""
        return time(ns) if self.iterations is None else f"{time(ns / self.iterations)} {self._a}"

    def plural(self, number: int, noun: str, more: str = "") -> str:
        """A count: ``1,184 kernels a step``, ``2.5 kernels a step``, ``3 kernels in 60 steps``, or ``71,040 kernels``.

        A mean below one is told as a count of all, since nobody sees 0.05 kernels in a step. `more` follows the noun:
        ``2 copies of pinned memory a step``.
        """
        more = f" {more}" if more else ""
        if self.iterations is None:
            return f"{plural(number, noun)}{more}"
        if number < self.iterations:
            return f"{plural(number, noun)}{more} in {self.all}"
        if self._is_one(number):
            return f"1 {noun}{more} {self._a}"
        return f"{mean(number, self.iterations)} {plural_of(noun)}{more} {self._a}"

    def clause(self, number: int, noun: str, verb: str, more: str = "") -> str:
        """A count, as :meth:`plural` has it, with its verb: ``1 copy a step runs``, ``2 copies a step run``."""
        return f"{self.plural(number, noun, more)} {verb}{'s' if number == 1 or self._is_one(number) else ''}"

    def _is_one(self, number: int) -> bool:
        """Tells whether a count is one per iteration, by its mean as it is written."""
        return self.iterations is not None and number >= self.iterations and mean(number, self.iterations) in _ONE

    def mean(self, number: int) -> str:
        """A count where it is said elsewhere that it is per iteration: ``1,184``."""
        return mean(number, self.iterations or 1)

    def mean_time(self, ns: float) -> str:
        """A time where the sentence says elsewhere that it is per iteration: ``10.93 ms``."""
        return time(ns / (self.iterations or 1))

    @property
    def all(self) -> str:
        """The iterations: ``60 steps``, ``1 step``, ``60 × train_step``; empty where it is no window of any."""
        if self.iterations is None:
            return ""
        return plural(self.iterations, self.each) if self.each in WORDS else f"{self.iterations:,} × {self.each}"

    @property
    def _a(self) -> str:
        return with_article(self.each) if self.each in WORDS else f"per {self.each}"

    @property
    def of(self) -> str:
        """Of what a time is a part: ``of a step``, ``of each train_step``."""
        return f"of {self._a}" if self.each in WORDS else f"of each {self.each}"


def with_article(each: str) -> str:
    """One iteration: ``a step``, ``an iteration``."""
    return f"{'an' if each[:1] in 'aeiou' else 'a'} {each}"


@dataclass(frozen=True)
class Scope:
    """The selected scope: window, device, process; None selects everything. Beside it what is read in another way."""

    window: Window | None = None
    device: int | None = None
    process: int | None = None
    labels: tuple[str, ...] = field(default=(), compare=False)  # the user's own patterns of labels of engines' steps
    capture: Path | None = field(default=None, compare=False)  # the other report that names what CUDA graphs run

    @property
    def sides(self) -> tuple[int | None, int | None]:
        """Start and end of the window (ns); None for an open side."""
        return (None, None) if self.window is None else (self.window.start_ns, self.window.end_ns)

    def __str__(self) -> str:
        """The scope in words: ``window 'step#3', GPU 0``; empty for everything."""
        parts = {"window": self.window and repr(str(self.window)), "GPU": self.device, "process": self.process}
        return ", ".join(f"{name} {part}" for name, part in parts.items() if part is not None)


def _side_ns(text: str, side: str, first_ns: int) -> int | None:
    if not side.strip():
        return None
    time_ns = parse_time_ns(side)
    if time_ns is None:
        raise BadWindowError.of(text, f"{side.strip()!r} is not a time with a unit (ns, us, ms or s)")
    time_ns += first_ns if relative(side) else 0
    if abs(time_ns) > _LATEST_NS:
        raise BadWindowError.of(text, f"{side.strip()!r} is later than any time of a report")
    return time_ns


def _side_text(side_ns: int | None) -> str:
    """Formats a side of a window for :func:`_side_ns` to parse, in the largest unit without decimals."""
    if side_ns is None:
        return ""
    scale, unit = next((scale, unit) for scale, unit in _STEPS if side_ns % scale == 0)
    return f"{side_ns // scale}{unit}"


def relative(side: str) -> bool:
    """Whether a side of a window is relative to the report's first event."""
    return side.lstrip().startswith("+")


def lasting(text: str, windows: list[Window]) -> list[Window]:
    """Those of the `windows` named by `text` with a duration; BadWindowError if none has one."""
    nonempty = [window for window in windows if not window.empty]
    if not nonempty:
        raise BadWindowError.empty(text, len(windows))
    return nonempty


#: Separators of domain and name, and of name and instance number.
_DOMAIN, _NUMBER = ":", "#"

#: A range of the default domain without a name; it tells nothing of the host.
UNNAMED: Final = _DOMAIN

#: Numbers in names, masked as ``#`` so that all iterations of a loop share one name, and what stands before one.
NUMBER: Final = re.compile(r"\d+")
BEFORE_NUMBER: Final = "# _-:./="

#: Selects every instance of a range.
EVERY: Final = "*"

#: Prefix of torch's profiler step ranges, and the name under which they are summed.
STEP_PREFIX, ALL_STEPS = "ProfilerStep#", "ProfilerStep*"
_STEP_SCHEMA: Final = dict.fromkeys(("step", "event_id", "start", "end", "process_id", "thread_id"), pl.Int64)
_STEP: Final = rf"^{STEP_PREFIX}(\d{{1,18}})$"

#: User's spelling: all steps, or one by number.
STEPS: Final = "steps"


#: Suffix of operator names by torch.autograd.profiler.emit_nvtx (torch/csrc/autograd/profiler_legacy.cpp).
_IDS: Final = r"(?:, (?:seq = -?\d+|op_id = \d+|sizes = \[[\d\[\], -]*\]|input_op_ids = \[[\d(), -]*\]))+$"


def without_ids(name: pl.Expr) -> pl.Expr:
    """Strips emit_nvtx's ids and sizes, which make every range name unique."""
    return name.str.replace(_IDS, "")


def named(events: pl.DataFrame, details: pl.DataFrame) -> pl.DataFrame:
    """All ranges in `events` (of kind range) joined with `details` (range_detail), sorted by start, event_id.

    Columns: row (its number here), event_id, range (domain, colon and name, as nsys 2025 prints it: ``:step`` in the
    default domain), name (without domain), style, domain, start, end (of one that was never closed: the latest time of
    any NVTX event), open (whether it was never closed), process_id, thread_id (that started it), end_thread_id (that
    ended it, where that is another one).
    """
    joined = events.select("event_id", "name", "start_ns", "dur_ns", "process_id", "thread_id").join(
        details.select("event_id", "style", "domain", "end_thread_id", "open_until_ns"), on="event_id", how="left"
    )
    text, domain = pl.col("name").cast(pl.String), pl.col("domain").cast(pl.String)
    until = pl.max_horizontal("open_until_ns", "start_ns")
    frame = joined.sort("start_ns", "event_id").with_row_index("row")
    return frame.select(
        "row",
        "event_id",
        (domain.fill_null("") + _DOMAIN + text.fill_null("")).alias("range"),
        text.alias("name"),
        "style",
        domain.alias("domain"),
        start="start_ns",
        end=pl.when(pl.col("dur_ns").is_null()).then(until).otherwise(pl.col("start_ns") + pl.col("dur_ns")),
        open=pl.col("dur_ns").is_null(),
        process_id="process_id",
        thread_id="thread_id",
        end_thread_id="end_thread_id",
    )


def parsed(text: str) -> tuple[str, str]:
    """Splits a range's name from what follows its last ``#``: a number, which may be negative, or :data:`EVERY`."""
    name, mark, which = text.rpartition(_NUMBER)
    if mark and name and (which == EVERY or (which.isascii() and which.removeprefix("-").isdigit())):
        return name, which
    return text, ""


def chosen(instances: Sequence[Window], which: str, what: str) -> list[Window]:
    """Those of the `instances` that :func:`parsed` tells; UnknownNameError if there are not so many of `what`."""
    if which in ("", EVERY):
        return [*instances]
    number, count = int(which), len(instances)
    place = number - 1 if number > 0 else count + number  # negative numbers count from the end
    if not number or not 0 <= place < count:
        raise UnknownNameError.number(what, which, count)
    return [instances[place]]


def steps(events: pl.DataFrame) -> pl.DataFrame:
    """Profiler steps among `events`, sorted by start, event_id.

    Columns: step (its number), event_id, start, end, process_id, thread_id.
    """
    names = events.get_column("name").unique().cast(pl.String).drop_nulls()
    numbers = names.str.extract(_STEP).cast(pl.Int64).alias("step")
    numbered = pl.DataFrame([names.cast(pl.Categorical), numbers]).drop_nulls("step")
    if numbered.is_empty():
        return pl.DataFrame(schema=_STEP_SCHEMA)
    step_events = events.filter(pl.col("name").is_in(numbered.get_column("name").implode()))
    rows = step_events.join(numbered, on="name", how="left").select(
        "step",
        "event_id",
        pl.col("start_ns").alias("start"),
        end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0),
        process_id="process_id",
        thread_id="thread_id",
    )
    return rows.sort("start", "event_id")


def step_name(number: int) -> str:
    """The user's name of a step."""
    return f"step:{number}"


def steps_asked(text: str, ranges: pl.DataFrame, read_steps: Callable[[], pl.DataFrame]) -> list[Window] | None:
    """The profiler steps of `read_steps` (as :func:`steps`) that `text` names.

    None if it names no steps, if one of `ranges` (as :func:`named`) has that very name, or if there are no steps.
    Raises UnknownNameError if there are some, but none of that number, or not so many.
    """
    name, which = parsed(text)
    match = re.fullmatch(rf"(?a){STEPS}|step:(\d{{1,18}})", name)
    if match is None or instances(ranges, text).height or instances(ranges, name).height:
        return None
    all_steps = read_steps()
    if all_steps.is_empty():
        return None
    # steps of several processes or recordings may share a number
    ordinal = pl.when(pl.len().over("step") > 1).then(pl.int_range(1, pl.len() + 1).over("step"))
    numbered = all_steps.select("start", "end", "step", "process_id", ordinal=ordinal)
    if match[1]:
        numbered = numbered.filter(pl.col("step") == int(match[1]))
    if numbered.is_empty():
        raise UnknownNameError.of("step", int(match[1]), all_steps.get_column("step").unique(maintain_order=True))
    group = STEPS if name == STEPS else None
    windows = [
        Window(start, end, step_name(step) + (f"{_NUMBER}{ordinal}" if ordinal else ""), group, process)
        for start, end, step, process, ordinal in numbered.iter_rows()
    ]
    return chosen(windows, which, "step")


def instances(ranges: pl.DataFrame, name: str) -> pl.DataFrame:
    """The rows of :func:`named` that match `name`: ``domain:name`` exactly, else in the default or any domain.

    If no range has the exact name, names are compared without the ids of emit_nvtx.
    """
    qualified, alone = without_ids(pl.col("range")), without_ids(pl.col("name"))
    exact = (pl.col("range") == name, pl.col("range") == _DOMAIN + name, pl.col("name") == name)
    for meant in (*exact, qualified == name, qualified == _DOMAIN + name, alone == name):
        rows = ranges.filter(meant)
        if rows.height:
            break
    return rows


def like(ranges: pl.DataFrame, pattern: str) -> list[str]:
    """Names of ranges that a pattern with ``*`` stands for, such as ``decode_*``, in the order of their first start."""
    choices = map(plain, ranges.get_column("range").drop_nulls().unique(maintain_order=True))
    return [name for name in choices if EVERY in pattern and fnmatchcase(name, pattern)]


def of_module(name: str) -> tuple[str, str] | None:
    """What a range of XLA tells of a module, and the module; None of any other range."""
    # ranges of XLA about a module: ``TSL:XlaModule:#prefix=args[0],hlo_module=jit_step,program_id=0#``
    match = re.fullmatch(r"TSL:(\w+):#(?:[^#]*,)?(?:hlo_)?module=([^,#]+)[^#]*#", name)
    return None if match is None else (match[1], match[2])


#: Ranges of XLA about one operation: ``TSL:Thunk:#name=jit(step)/dot_general,hlo_op=gemm_fusion.3,…#``; and names of
#: operators of PyTorch, and of kernels, each of which inductor calls in a range of its name.
_OF_THUNK: Final = re.compile(r"TSL:Thunk:#(?:name=([^#]*?),)?hlo_op=([^,#]+)[^#]*#")
_OPERATOR: Final = re.compile(r"(?:.*[: ])?(\w+::\w+|\w+Backward\d*|triton_[a-z]{2,4}_\w+)")


def operator_of(name: str) -> tuple[str, str | None] | None:
    """The operator that a range is of, by emit_nvtx or XLA, and the shapes of its inputs; None of any other range."""
    if thunk := _OF_THUNK.fullmatch(name):
        return (f"{thunk[1]} {thunk[2]}" if thunk[1] else thunk[2]), None
    alone = re.sub(_IDS, "", name)
    operator = None if alone == name else _OPERATOR.fullmatch(alone)
    sizes = re.search(r"sizes = (\[[\d\[\], -]*\])", name)
    return operator and (operator[1], sizes and sizes[1])


#: Ranges that vLLM, SGLang and TensorRT-LLM make of each layer: a module with the shapes of its parameters and inputs.
_OF_LAYER: Final = re.compile(r":?\{'Module': '([^']+)'.*\}", re.DOTALL)


def plain(name: str) -> str:
    """A range's display name: without the colon of the default domain, of XLA's ranges and of layers the module."""
    layer = _OF_LAYER.fullmatch(name)
    return layer[1] if layer else " ".join(of_module(name) or [name.removeprefix(_DOMAIN)])


def located(culprit: str, range_name: str | None) -> str:
    """Phrase for the location of host time, from culprit and range of the table `culprits`."""
    beside = culprit.startswith(("between ", "before ", "after ", "while ", "wait for ")) and culprit != range_name
    return culprit if beside else f"in {culprit}"


def of_iteration(where: str, each: str) -> str:
    """``in step`` for ``in step 103``, a range that numbers the iteration called ``step``; else `where`."""
    in_each = f"in {each}"
    return in_each if each and NUMBER.sub("#", where).rstrip(BEFORE_NUMBER) == in_each else where


def names(ranges: pl.DataFrame) -> Iterable[str]:
    """Distinct names, most frequent first."""
    counted = ranges.drop_nulls("range").group_by(without_ids(pl.col("range")), maintain_order=True).len()
    most = counted.sort("len", descending=True, maintain_order=True).get_column("range")
    return [plain(name) or name for name in most]
