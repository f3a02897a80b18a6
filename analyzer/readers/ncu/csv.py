"""Parses the CSV pages of ncu: launches, metrics and rule results, in base units and by ncu's metric names.

The details page has a row per metric, with the label from its section, and per rule result. The raw page has a row per
launch and a column per metric, by ncu's metric name; its first row holds units. If both pages are present, values come
from the raw page, which is complete and has more digits.
"""

from __future__ import annotations

import re
from functools import cache, partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.counter_model import METRICS, RULE_RESULTS
from kanalyze.readers.ncu import errors as ncu_errors
from kanalyze.readers.ncu.labels import LABELS, SECTION_OF, SECTIONS
from kanalyze.readers.ncu.pages import KEYS, NO_PERMISSION, PERMISSION
from kanalyze.readers.ncu.printed_numbers import POINT, AmbiguousError, base_unit, missing, numbers, plainly, separators
from kanalyze.readers.ncu.tables import LAUNCHES, Measured, metrics_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kanalyze.readers.ncu.pages import Cells, Page, PagesFile
    from kanalyze.readers.ncu.tables import Note

    #: Numbers whose value is known from another column of the page, with their texts.
    Known = Iterable[tuple[str, int]]


#: Columns required of a page.
_HEADINGS: Final = {"details": ("Section Name", "Metric Name", "Metric Unit", "Metric Value"), "raw": ()}

_WITHOUT_RAW: Final = (
    "only what ncu's details page prints is known; print the raw page, too: ncu --import … --csv --page raw"
)

#: Sort order of rule results: kernel, section, rule; the same in every reader.
_RULE_ORDER: Final = ("event_id", "section", "rule", "message")

_RULE_KINDS: Final = {"OPT": "optimization", "INF": "information", "WRN": "warning", "ERR": "error"}


def measured(details: PagesFile | None, raw: PagesFile | None) -> Measured:
    """Parses the details page and the raw page of one run; either may be missing.

    Raises:
        DamagedReportError: They are of different runs, or their numbers can be read in two ways.
    """
    values: list[pl.DataFrame] = []
    notes: list[Note] = []
    launches = None
    if raw is not None:
        rows, cells = _raw_rows(raw)
        launches = _launches(rows)
        values.append(_raw_metrics(raw.path, rows, cells))
    rules = RULE_RESULTS.empty()
    if details is not None:
        rows = _numbered(details, pl.concat([page.rows for page in _of_kind(details, "details")], how="diagonal"))
        of_details = _launches(rows)
        if raw is not None and launches is not None:
            _same(details.path, raw.path, of_details, launches)
        launches = of_details if launches is None else launches
        found = _detail_metrics(details.path, rows)
        if unknown := found.select(pl.col("metric").filter(~pl.col("known")).n_unique()).item():
            effect = "they have their label for a name, and no table but metrics shows them"
            notes.append(("metrics of unknown label", unknown, None, effect))
        values.append(metrics_frame(found))
        rules = _rules(details.path, rows)
    if raw is None:
        notes.append(("missing page", 1, None, _WITHOUT_RAW))
    assert launches is not None, "there is one page or the other"  # noqa: S101 - the caller's contract
    notes += [note for file in (details, raw) if file is not None for note in _file_notes(file)]
    return Measured(launches.drop("key"), _together(values), rules, notes)


def _together(values: list[pl.DataFrame]) -> pl.DataFrame:
    """Merges metrics of both pages: all of the raw page, plus those only on the details page; each in page order."""
    first, *more = values
    if not more:
        return first
    (others,) = more
    key = ["event_id", "metric"]
    missing = others.join(first.select(key), on=key, how="anti")
    return first if missing.is_empty() else METRICS.check(pl.concat([first, missing]).sort(key))


def _warning(said: str) -> Note:
    """A warning printed by ncu, as a note with the number of metrics affected, or with its meaning."""
    left_out = re.match(r"Unable to access the following (\d+) metrics", said)
    if left_out is not None:
        return "metrics that ncu could not collect", int(left_out[1]), None, said
    if "unmodified GPU clocks" in said:
        return "run with clocks that vary", 1, None, said
    return "warning of ncu", 1, None, said


def _file_notes(file: PagesFile) -> list[Note]:
    notes: list[Note] = [_warning(said) for said in file.warnings]
    remedies = {said: f" {PERMISSION}" if NO_PERMISSION in said else "" for said in file.errors}
    notes += [("error of ncu", 1, None, said + remedy) for said, remedy in remedies.items()]
    if file.cut:
        notes.append(("record cut off", 1, None, f"{file.path.name} ends within a record: it was not written whole"))
    return notes


def _of_kind(file: PagesFile, kind: str) -> list[Page]:
    """The pages of one kind in a file that is named as that kind, or contains one."""
    found = file.of(kind)
    if not found:
        raise ncu_errors.damaged(file.path, "its headings", f"no {kind} page is in it")
    lacking = [name for name in _HEADINGS[kind] if any(name not in page.rows.columns for page in found)]
    if lacking:
        raise ncu_errors.damaged(file.path, "its headings", f"no column {lacking[0]!r}")
    return found


def _numbered(file: PagesFile, rows: pl.DataFrame) -> pl.DataFrame:
    """Adds to rows of launches the columns key, which identifies a launch, and event_id, which numbers them."""
    held = rows.filter(pl.col("ID").str.contains(r"^\d+$"))
    if held.is_empty():
        raise ncu_errors.damaged(file.path, "the column ID", "no row has a number there")
    new = [pl.lit(None, dtype=pl.String).alias(name) for name in KEYS if name not in held.columns]
    keyed = held.with_columns(new).with_columns(key=pl.concat_str(KEYS, separator="\0", ignore_nulls=True))
    runs = keyed.get_column("key").rle().struct.unnest()  # the rows of a launch follow one another
    known: dict[str, int] = {}
    events = pl.Series([known.setdefault(key, len(known)) for key in runs.get_column("value")], dtype=pl.Int64)
    return keyed.with_columns(event_id=events.repeat_by(runs.get_column("len")).explode())


def _raw_rows(file: PagesFile) -> tuple[pl.DataFrame, list[Cells]]:
    """The launches and metrics of all raw pages in a file, page by page.

    Columns page and record of the launches locate their metrics.
    """
    units: dict[str, str] = {}
    parts, every = [], []
    for number, page in enumerate(_of_kind(file, "raw")):
        assert page.cells is not None, "a raw page has them"  # noqa: S101 - ncu_pages makes them
        if page.rows.height and page.rows.item(0, "ID"):
            raise ncu_errors.damaged(file.path, "the raw page", "its first row has no units")
        these = dict(zip(page.cells.names, page.cells.records[0], strict=True)) if page.cells.records else {}
        if any(units.setdefault(name, unit or "") != (unit or "") for name, unit in these.items()):
            raise ncu_errors.damaged(file.path, "the raw page", "two pages have different units")
        parts.append(page.rows.with_row_index("record").slice(1).with_columns(page=pl.lit(number)))
        every.append(page.cells)
    return _numbered(file, pl.concat(parts, how="diagonal")), every


def _column(rows: pl.DataFrame, name: str) -> pl.Expr:
    return pl.col(name) if name in rows.columns else pl.lit(None, dtype=pl.String)


def _launches(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per launch, :data:`kanalyze.readers.ncu.tables.LAUNCHES`, and its key."""
    told = partial(_column, rows)
    sizes = {
        f"{what}_{axis}": told(f"{what.title()} Size").str.extract_all(r"\d+").list.get(place, null_on_oob=True)
        for what in ("grid", "block")
        for place, axis in enumerate("xyz")
    }
    named = {
        "event_id": pl.col("event_id"),
        "name": told("Kernel Name"),
        "process_id": told("Process ID"),
        "process_name": told("Process Name"),
        "device": told("Device"),
        "context_id": told("Context"),
        "stream": told("Stream"),
        "compute_capability": told("CC"),
        **sizes,
    }
    columns = [named[name].cast(dtype, strict=False).alias(name) for name, dtype in LAUNCHES.items()]
    return rows.filter(pl.col("event_id").is_first_distinct()).select(*columns, "key")


def _same(path: Path, other: Path, these: pl.DataFrame, those: pl.DataFrame) -> None:
    """Raise DamagedReportError if two pages do not list the same launches."""
    if these.get_column("key").equals(those.get_column("key")):
        return
    processes, others = (set(frame.get_column("process_id").unique()) for frame in (these, those))
    what = f"{these.height:,} kernels here, {those.height:,} there"
    if processes.isdisjoint(others):
        what = f"process {min(processes, key=str)} here, {min(others, key=str)} there"
    raise ncu_errors.mixed(path, other, what)


def _raw_metrics(path: Path, rows: pl.DataFrame, pages: list[Cells]) -> pl.DataFrame:
    """The metrics of all launches, :data:`kanalyze.counter_model.METRICS`; of a repeated metric the first value."""
    launches = rows.filter(pl.col("event_id").is_first_distinct())
    found = []
    for number, cells in enumerate(pages):
        if not cells.names or not cells.records:  # headings alone, as at the end of a page that was cut
            continue
        of_page = launches.filter(pl.col("page") == number)
        order = sorted(range(len(cells.names)), key=cells.names.__getitem__)
        in_order = itemgetter(*order) if len(order) > 1 else tuple
        texts = pl.Series(
            chain.from_iterable(in_order(cells.records[record]) for record in of_page.get_column("record")),
            dtype=pl.String,
        )
        names = [cells.names[place] for place in order]
        values = parsed(path, "the raw page", texts, _sizes(of_page, cells))
        found.append(
            _named(values, of_page.get_column("event_id"), names, [cells.records[0][place] or "" for place in order])
        )
    every = pl.concat([METRICS.empty(), *found])
    return METRICS.check(every if len(found) == 1 else every.sort("event_id", "metric"))


def _named(values: pl.DataFrame, events: pl.Series, names: list[str], units: list[str]) -> pl.DataFrame:
    """Parses the text `values` of each event and metric into metric rows."""
    known = scales(set(units))
    named = pl.DataFrame({"metric": names, "unit": units}).join(known, on="unit", how="left", maintain_order="left")
    named = named.select(
        "metric",
        "scale",
        section=pl.col("metric").replace_strict(SECTION_OF, default=None, return_dtype=pl.String),
        unit=pl.when(pl.col("base") != "").then("base"),
    )
    place = values.get_column("place")
    of_name = named[place % len(names)]
    return METRICS.select(
        pl.concat([values, of_name], how="horizontal").with_columns(
            events.gather(place // len(names)), value=pl.col("value") * pl.col("scale"), text="plain"
        )
    )


def _sizes(rows: pl.DataFrame, cells: Cells) -> Iterator[tuple[str, int]]:
    """Metrics that repeat a launch column, with text and known value: they reveal the number format."""
    for place, name in enumerate(cells.names):
        if name in KNOWN:
            for record, size in rows.select("record", KNOWN[name]).iter_rows():
                yield cells.records[record][place] or "", product(size)


@cache
def _labels() -> pl.DataFrame:
    """Maps labels of the details page to ncu metric names: columns section, label, named."""
    return pl.DataFrame(
        [(section, label, metric) for section, labels in LABELS.items() for label, metric in labels.items()],
        schema=["section", "label", "named"],
        orient="row",
    )


def _detail_metrics(path: Path, rows: pl.DataFrame) -> pl.DataFrame:
    """The metrics of the details page, by ncu metric name: columns event_id, metric, section, value, text, unit.

    Column known is false for labels without a known metric name.
    """
    held = rows.filter(pl.col("Metric Name") != "").select(
        "event_id",
        "Grid Size",
        "Block Size",
        section=pl.col("Section Name").replace(SECTIONS),
        label="Metric Name",
        text="Metric Value",
        unit=pl.col("Metric Unit").fill_null(""),
    )
    values = parsed(path, "the details page", held.get_column("text"), _told_sizes(held))
    raw_name = pl.col("label").str.contains("__", literal=True)  # a metric collected with --metrics has no label
    return (
        pl.concat([values, held[values.get_column("place")]], how="horizontal")
        .join(_labels(), on=["section", "label"], how="left", maintain_order="left")
        .join(scales(held.get_column("unit").unique()), on="unit", how="left", maintain_order="left")
        .select(
            "event_id",
            "section",
            metric=pl.coalesce("named", "label"),
            known=pl.col("named").is_not_null() | raw_name,
            value=pl.col("value") * pl.col("scale"),
            text="plain",
            unit="base",
        )
    )


def _told_sizes(held: pl.DataFrame) -> Iterator[tuple[str, int]]:
    """Metrics of the details page that repeat a launch column, as :func:`_sizes` gives them for the raw page."""
    for label, column in KNOWN.items():
        known = held.filter(pl.col("label") == label).select(pl.col("text").str.strip_chars(), column).unique()
        for text, size in known.drop_nulls().iter_rows():
            yield text, product(size)


def _rules(path: Path, rows: pl.DataFrame) -> pl.DataFrame:
    """Rule results of the details page, as :data:`kanalyze.counter_model.RULE_RESULTS`."""
    if "Rule Name" not in rows.columns:
        return RULE_RESULTS.empty()
    told = partial(_column, rows)
    # ncu writes estimates with a point, or with its locale's sign, and never with thousands
    share = told("Estimated Speedup").str.replace(",", ".", literal=True).cast(pl.Float64, strict=False) / 100
    held = rows.filter(pl.col("Rule Name") != "").select(
        "event_id",
        section=pl.col("Section Name").replace(SECTIONS),
        rule="Rule Name",
        kind=told("Rule Type").replace(_RULE_KINDS),
        message=told("Rule Description").fill_null("").str.strip_chars(),
        scope=pl.when(told("Estimated Speedup Type") != "").then(told("Estimated Speedup Type")),
        speedup_share=share,
    )
    found = held.sort(_RULE_ORDER)
    known = pl.col("kind").is_in(_RULE_KINDS.values()).fill_null(value=False)
    strange = found.filter(~known).get_column("kind").unique().fill_null("")
    if len(strange):
        raise ncu_errors.damaged(path, "the details page", f"a rule of type {strange[0]!r}")
    return RULE_RESULTS.select(found)


# Parses metric values on ncu's pages, each distinct text once.
#
# Nearly all are plain numbers, with a point for decimals; what is none is looked at more closely.

#: Metrics that repeat a launch column: they reveal the number format where nothing else does.
KNOWN: Final = {
    "Grid Size": "Grid Size",
    "launch__grid_size": "Grid Size",
    "Block Size": "Block Size",
    "launch__block_size": "Block Size",
}


def parsed(path: Path, where: str, texts: pl.Series, known: Known) -> pl.DataFrame:
    """Parses `texts`, without missing values: columns place (index in `texts`), plain and value.

    Value is null if the text is not a number; plain is the text then.

    Raises:
        DamagedReportError: The numbers can be read in two ways, and `known` decides nothing.
    """
    every = pl.DataFrame({"text": texts})
    value = pl.col("value")
    different = every.unique().select("text", plain=pl.col("text").str.strip_chars())
    different = different.with_columns(value=plainly("plain")).with_columns(
        value=pl.when(value.is_finite()).then("value")
    )
    try:
        way = separators(different.get_column("plain"), known)
    except AmbiguousError as error:
        raise ncu_errors.damaged(path, where, f"{error}; print it with LC_ALL=C") from error
    odd = value.is_null() if way == POINT else pl.lit(value=True)
    careful = different.filter(odd).filter(~missing("plain")).with_columns(value=numbers("plain", way))
    read = pl.concat([different.filter(~odd), careful])
    return (
        every.with_row_index("place")
        .join(read, on="text", how="inner", maintain_order="left")
        .select("place", plain=pl.when(value.is_null()).then("plain"), value="value")
    )


def scales(units: Iterable[str]) -> pl.DataFrame:
    """Factor of each unit to its base unit: columns unit, scale, base."""
    rows = [(unit, *base_unit(unit)) for unit in units]
    return pl.DataFrame(rows, schema={"unit": pl.String, "scale": pl.Float64, "base": pl.String}, orient="row")


def product(size: str | None) -> int:
    """The product of a launch dimension such as ``(4096, 1, 1)``; 0 where there is none."""
    found = 1 if size else 0
    for part in (size or "").strip("()").split(","):
        found *= int(part) if part.strip().isdigit() else 0
    return found
