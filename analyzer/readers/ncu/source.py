"""Instructions of kernels and source files, from the module or from the source page, and the full names on that."""

from __future__ import annotations

import csv
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.counter_model import INSTRUCTIONS, SOURCE_FILES
from kanalyze.readers.ncu import errors as ncu_errors
from kanalyze.readers.ncu.errors import DAMAGE, count, text
from kanalyze.readers.ncu.pages import content, pages_of
from kanalyze.readers.ncu.printed_numbers import POINT, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kanalyze.readers.ncu.pages import Page

#: Columns, each with its per-instruction metric and its heading on the source page.
_COUNTED: Final = {
    "samples": ("smsp__pcsamp_sample_count", "# Samples"),
    "instructions": ("inst_executed", "Instructions Executed"),
    "thread_instructions": ("thread_inst_executed_true", "Predicated-On Thread Instructions Executed"),
    "sectors": ("memory_l2_theoretical_sectors_global", "L2 Theoretical Sectors Global"),
    "ideal_sectors": ("memory_l2_theoretical_sectors_global_ideal", "L2 Theoretical Sectors Global Ideal"),
}
_STALLED: Final = re.compile(r"^smsp__pcsamp_warps_issue_stalled_\w+_not_issued$")
#: Headings present on every source page.
_TOLD: Final = ("number", "event_id", "sass")

#: From static analysis of the assembly: on pages of some versions only, never in the module's metrics.
_LIVE_HEADINGS: Final = ("Live Registers", "# Live Registers")

_STALLED_HEADING: Final = "Warp Stall Sampling (Not-issued Samples)"


def instructions_of_actions(path: Path, opened: Sequence[Any]) -> pl.DataFrame:
    """The instructions of every kernel of the report at `path`, as :data:`kanalyze.counter_model.INSTRUCTIONS`.

    Args:
        path: For messages.
        opened: The kernels that :func:`kanalyze.readers.ncu.module.actions` gives.

    Raises:
        DamagedReportError: They are invalid.
    """
    try:
        rows = [row for event_id, action in enumerate(opened) for row in _instructions(event_id, action)]
    except DAMAGE as error:
        raise ncu_errors.damaged(path, "the instructions of a kernel", text(error)) from error
    return INSTRUCTIONS.check(pl.DataFrame(rows, schema=INSTRUCTIONS.schema, orient="row"))


def files_of_actions(path: Path, opened: Sequence[Any]) -> pl.DataFrame:
    """The source files in a report, as :data:`kanalyze.counter_model.SOURCE_FILES`; arguments and errors as above."""
    found: dict[str, str] = {}
    try:
        for action in opened:
            found |= {text(name): text(source) for name, source in dict(action.source_files()).items() if source}
    except DAMAGE as error:
        raise ncu_errors.damaged(path, "its sources", text(error)) from error
    return pl.DataFrame([*found.items()], schema=SOURCE_FILES.schema, orient="row")


def _instructions(event_id: int, action: Any) -> Iterator[dict[str, object]]:  # noqa: ANN401 - the module has no types
    """Instruction rows of one kernel."""
    counted = {column: _by_address(action, metric) for column, (metric, _) in _COUNTED.items()}
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


def _sass(action: Any, counted: list[int]) -> Iterator[tuple[int, str]]:  # noqa: ANN401 - as above
    """The SASS instructions of a kernel with addresses, including padding after its end, which has no counts."""
    if len(counted) > 1:
        step = min(after - before for before, after in pairwise(counted))
        address = counted[0]
        while sass := action.sass_by_pc(address):
            yield address, text(sass).strip()
            address += step


def _by_address(action: Any, name: str) -> dict[int, int]:  # noqa: ANN401 - as above
    """Values of a metric keyed by instruction address; empty where it was not collected."""
    metric = action.metric_by_name(name)
    if metric is None or not metric.num_instances() or not metric.has_correlation_ids():
        return {}
    places = metric.correlation_ids()
    return {int(places.as_uint64(i)): int(metric.as_uint64(i)) for i in range(metric.num_instances())}


def instructions_of_page(path: Path, names: list[str | None]) -> pl.DataFrame:
    """The instructions of the kernels `names` on the source page at `path`.

    Empty if the page does not list these kernels in this order.

    Raises:
        UnknownFormatError: It is no such page.
        DamagedReportError: It is no CSV.
    """
    page = content(path)
    blocks = pages_of(path, page).of("source")
    found = places(names, names_of_sources(page))
    if found is None:
        return INSTRUCTIONS.empty()
    parts = [_of_block(path, event_id, blocks[place]) for event_id, place in enumerate(found)]
    return pl.concat([INSTRUCTIONS.empty(), *parts])


def _of_block(path: Path, event_id: int, page: Page) -> pl.DataFrame:
    if "Source" not in page.rows.columns:
        raise ncu_errors.damaged(path, f"the page of {page.kernel or 'a kernel'}", "no column 'Source'")
    headings = {column: heading for column, (_, heading) in _COUNTED.items()} | {"stalled_samples": _STALLED_HEADING}
    known = {
        column: numbers(heading, POINT).cast(pl.Int64, strict=False).fill_null(0)
        for column, heading in headings.items()
        if heading in page.rows.columns
    }
    live = next((heading for heading in _LIVE_HEADINGS if heading in page.rows.columns), None)
    if live is not None:
        known["live_registers"] = numbers(live, POINT).cast(pl.Int64, strict=False)
    unknown = {name: pl.lit(None) for name in INSTRUCTIONS.schema if name not in (*known, *_TOLD)}
    rows = page.rows.with_row_index("number")
    return INSTRUCTIONS.select(
        rows.select(
            "number",
            event_id=pl.lit(event_id),
            sass=pl.col("Source").fill_null("").str.strip_chars(),
            **known,
            **unknown,
        )
    )


# Full kernel names, which ncu shortens on its pages of launches but not on the source page.
#
# For example, ``void at::native::vectorized_elementwise_kernel<(int)4, …>`` becomes ``void
# at::vectorized_elementwise_kernel<4, …>``: some namespaces and casts are dropped, occasionally a bracket. nsys, torch
# and NVIDIA's module print full names.

_BLOCK: Final = b'"Kernel Name","'
_WORD: Final = re.compile(r"\w+")


def names_of_sources(text: bytes) -> list[str]:
    """The kernel names on a source page, in order; a kernel of several functions has several blocks."""
    lines: list[str] = []
    begin = 0 if text.startswith(_BLOCK) else text.find(b"\n" + _BLOCK) + 1 or -1
    while begin >= 0:
        end = text.find(b"\n", begin)
        lines.append(text[begin : end if end >= 0 else len(text)].decode(errors="replace"))
        begin = text.find(b"\n" + _BLOCK, begin) + 1 or -1
    return [row[1] for row in csv.reader(lines)]


def with_whole_names(launches: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """`launches` with full names from `names`, matched in order; unchanged unless every launch has a match."""
    found = places(launches.get_column("name").to_list(), names)
    if found is None:
        return launches
    return launches.with_columns(pl.Series("name", [names[place] for place in found], dtype=pl.String))


def places(short: Sequence[str | None], whole: Sequence[str]) -> list[int] | None:
    """The index of each launch's full name, matched in order; None unless every launch has a match.

    A kernel of which ncu prints the block several times has them one after the other.
    """
    if len(short) == len(whole):
        pairs = zip(short, whole, strict=True)
        return [*range(len(short))] if all(name and _shortened(name, one) for name, one in pairs) else None
    found: list[int] = []
    place = 0
    for name in short:
        while place < len(whole) and not (name and _shortened(name, whole[place])):
            place += 1
        if place == len(whole):
            return None
        found.append(place)
        place += 1
    return found


def _shortened(name: str, whole: str) -> bool:
    """Whether `name` is `whole` with words left out."""
    words = iter(_WORD.findall(whole))
    return all(word in words for word in _WORD.findall(name))
