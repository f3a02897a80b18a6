"""Range names as users write them: ``domain:name``, and ``name#3`` for one instance.

Profiler steps have names of their own: ``step:5`` is step 5, ``steps`` is every step.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Separators of domain and name, and of name and instance number.
_DOMAIN: Final = ":"
_NUMBER: Final = "#"

#: A range of the default domain without a name; it tells nothing of the host.
UNNAMED: Final = _DOMAIN

#: Numbers in names, masked as ``#`` so that all iterations of a loop share one name, and what stands before one.
NUMBER: Final = re.compile(r"\d+")
BEFORE_NUMBER: Final = "# _-:./="

#: Selects every instance of a range.
EVERY: Final = "*"

#: Label of host time outside of any named range.
_BESIDE: Final = ("between ", "before ", "after ")

#: Prefix of torch's profiler step ranges, and the name under which they are summed.
STEP_PREFIX: Final = "ProfilerStep#"
ALL_STEPS: Final = "ProfilerStep*"
_STEPS: Final = dict.fromkeys(("step", "event_id", "start", "end", "process_id", "thread_id"), pl.Int64)
_STEP: Final = rf"^{STEP_PREFIX}(\d{{1,18}})$"

#: User's spelling: all steps, or one by number.
STEPS: Final = "steps"
_STEP_ASKED: Final = rf"(?a){STEPS}|step:(\d{{1,18}})"


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
    known = events.select("event_id", "name", "start_ns", "dur_ns", "process_id", "thread_id").join(
        details.select("event_id", "style", "domain", "end_thread_id", "open_until_ns"), on="event_id", how="left"
    )
    text, domain = pl.col("name").cast(pl.String), pl.col("domain").cast(pl.String)
    until = pl.max_horizontal("open_until_ns", "start_ns")
    frame = known.sort("start_ns", "event_id").with_row_index("row")
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


def place(number: int, count: int) -> int | None:
    """Place of the instance with this number among `count`, from 0 on; negative numbers count from the end."""
    found = number - 1 if number > 0 else count + number
    return found if number and 0 <= found < count else None


def steps(events: pl.DataFrame) -> pl.DataFrame:
    """Profiler steps among `events`, sorted by start, event_id.

    Columns: step (its number), event_id, start, end, process_id, thread_id.
    """
    names = events.get_column("name").unique().cast(pl.String).drop_nulls()
    numbers = names.str.extract(_STEP).cast(pl.Int64).alias("step")
    known = pl.DataFrame([names.cast(pl.Categorical), numbers]).drop_nulls("step")
    if known.is_empty():
        return pl.DataFrame(schema=_STEPS)
    found = events.filter(pl.col("name").is_in(known.get_column("name").implode()))
    rows = found.join(known, on="name", how="left").select(
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


def steps_asked(
    text: str, ranges: pl.DataFrame, known: Callable[[], pl.DataFrame]
) -> list[tuple[int, int, str, int | None]] | None:
    """Resolves `text` to profiler steps in `known` (as :func:`steps`): start, end, name, process.

    None if `text` does not name steps, if one of `ranges` (as :func:`named`) has that very name, or if there are no
    steps.

    Raises:
        UnknownNameError: There are steps, but none of that number, or not so many.
    """
    name, which = parsed(text)
    match = re.fullmatch(_STEP_ASKED, name)
    if match is None or instances(ranges, text).height or instances(ranges, name).height:
        return None
    found = known()
    number = int(match[1]) if match[1] else None
    return None if found.is_empty() else _chosen(found, number, which)


def _chosen(found: pl.DataFrame, number: int | None, which: str) -> list[tuple[int, int, str, int | None]]:
    # steps of several processes or recordings may share a number
    often, ordinal = pl.len().over("step") > 1, pl.int_range(1, pl.len() + 1).over("step")
    named = found.select("start", "end", "step", "process_id", often=often, ordinal=ordinal)
    own = named if number is None else named.filter(pl.col("step") == number)
    if own.is_empty():
        raise UnknownNameError.of("step", number, found.get_column("step").unique(maintain_order=True))
    rows = [
        (start, end, f"{step_name(step)}{_NUMBER}{ordinal}" if several else step_name(step), process)
        for start, end, step, process, several, ordinal in own.iter_rows()
    ]
    if which in ("", EVERY):
        return rows
    at = place(int(which), len(rows))
    if at is None:
        raise UnknownNameError.number("step", which, len(rows))
    return [rows[at]]


def instances(ranges: pl.DataFrame, name: str) -> pl.DataFrame:
    """The rows of :func:`named` that match `name`: ``domain:name`` exactly, else in the default or any domain.

    If no range has the exact name, names are compared without the ids of emit_nvtx.
    """
    known, alone = without_ids(pl.col("range")), without_ids(pl.col("name"))
    exact = (pl.col("range") == name, pl.col("range") == _DOMAIN + name, pl.col("name") == name)
    for meant in (*exact, known == name, known == _DOMAIN + name, alone == name):
        found = ranges.filter(meant)
        if found.height:
            break
    return found


#: Ranges of XLA about a module: ``TSL:XlaModule:#prefix=args[0],hlo_module=jit_step,program_id=0#``.
_OF_MODULE: Final = r"TSL:(\w+):#(?:[^#]*,)?(?:hlo_)?module=([^,#]+)[^#]*#"


def of_module(name: str) -> tuple[str, str] | None:
    """What a range of XLA tells of a module, and the module; None of any other range."""
    found = re.fullmatch(_OF_MODULE, name)
    return None if found is None else (found[1], found[2])


def plain(name: str) -> str:
    """A range's display name: without the colon of the default domain, of XLA's ranges what it is and the module."""
    return " ".join(of_module(name) or [name.removeprefix(_DOMAIN)])


def located(culprit: str, range_name: str | None) -> str:
    """Phrase for the location of host time, from culprit and range of the table `culprits`."""
    beside = culprit.startswith(_BESIDE) and culprit != range_name
    return culprit if beside else f"in {culprit}"


def of_iteration(where: str, each: str) -> str:
    """``in step`` for ``in step 103``, a range that numbers the iteration called ``step``; else `where`."""
    own = f"in {each}"
    return own if each and NUMBER.sub("#", where).rstrip(BEFORE_NUMBER) == own else where


def names(ranges: pl.DataFrame) -> Iterable[str]:
    """Distinct names, most frequent first."""
    counted = ranges.drop_nulls("range").group_by(without_ids(pl.col("range")), maintain_order=True).len()
    most = counted.sort("len", descending=True, maintain_order=True).get_column("range")
    return [plain(name) or name for name in most]
