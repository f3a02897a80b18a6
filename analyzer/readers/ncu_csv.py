"""What the CSV pages of ncu hold: launches, metrics and results of rules, in base units and with ncu's own names.

The details page has a row per metric, by the label that its section gives it, and per result of a rule. The raw page
has a row per launch and a column per metric, by ncu's name for it, the first row being units. Where both are there,
values are those of the raw page, which has them all and with more digits.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.counter_model import RULE_RESULTS
from kanalyze.readers import ncu_errors
from kanalyze.readers.ncu_labels import LABELS, SECTIONS
from kanalyze.readers.ncu_numbers import AmbiguousError, base_unit, missing, numbers, separators
from kanalyze.readers.ncu_tables import LAUNCHES, Measured, metrics_frame

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.readers.ncu_numbers import Separators
    from kanalyze.readers.ncu_pages import PagesFile

#: What the pages say of a launch, before its metrics.
_KEYS: Final = ("ID", "Process ID", "Kernel Name", "Block Size", "Grid Size")
_OF_LAUNCH: Final = (
    *_KEYS,
    *("Process Name", "Host Name", "Kernel Time", "Context", "Stream", "Device", "CC", "Demangled Name"),
    *("thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",),
)

#: What a page has to have.
_HEADINGS: Final = {"details": ("Section Name", "Metric Name", "Metric Unit", "Metric Value"), "raw": ()}

_RULE_KINDS: Final = {"OPT": "optimization", "INF": "information", "WRN": "warning", "ERR": "error"}

#: Metrics that the columns of a launch tell, too: they show how numbers are written where nothing else does.
_KNOWN: Final = {"Grid Size": "grid", "launch__grid_size": "grid", "Block Size": "block", "launch__block_size": "block"}


def measured(details: PagesFile | None, raw: PagesFile | None) -> Measured:
    """What the details page and the raw page of one run hold; one of them may be missing.

    Raises:
        DamagedReportError: They are of different runs, or their numbers can be read in two ways.
    """
    values, notes = [], []
    launches = None
    if raw is not None:
        rows, units = _raw_rows(raw)
        launches = _launches(rows)
        values.append(_raw_metrics(raw.path, rows, units))
    rules = RULE_RESULTS.empty()
    if details is not None:
        rows = _details_rows(details)
        of_details = _launches(rows)
        if raw is not None and launches is not None:
            _same(details.path, raw.path, of_details, launches)
        launches = of_details if launches is None else launches
        numbered = rows.join(of_details.select("key", "event_id"), on="key", how="left", maintain_order="left")
        found = _detail_metrics(details.path, numbered)
        unknown = found.filter(~pl.col("known")).get_column("metric").n_unique()
        notes += _label_notes(unknown)
        values.append(found.drop("known"))
        rules = _rules(details.path, numbered)
    if raw is None:
        notes.append(_without_raw())
    assert launches is not None, "there is one page or the other"  # noqa: S101 - the caller's contract
    notes += [note for file in (details, raw) if file is not None for note in _file_notes(file)]
    every = metrics_frame(pl.concat(values, how="diagonal"))
    return Measured(launches.drop("key"), every, rules, notes)


def _without_raw() -> tuple[str, int | None, int | None, str]:
    effect = "only what ncu's details page prints is known; print the raw page, too: ncu --import … --csv --page raw"
    return ("missing page", 1, None, effect)


def _label_notes(unknown: int) -> list[tuple[str, int | None, int | None, str]]:
    effect = "they have their label for a name, and no table but metrics shows them"
    return [("metrics of unknown label", unknown, None, effect)] if unknown else []


def _warning(said: str) -> tuple[str, int | None, int | None, str]:
    """A warning of ncu's, with how many metrics it is about, or what it means."""
    left_out = re.match(r"Unable to access the following (\d+) metrics", said)
    if left_out is not None:
        return "metrics that ncu could not collect", int(left_out[1]), None, said
    if "unmodified GPU clocks" in said:
        return "run with clocks that vary", 1, None, said
    return "warning of ncu", 1, None, said


def _file_notes(file: PagesFile) -> list[tuple[str, int | None, int | None, str]]:
    notes: list[tuple[str, int | None, int | None, str]] = [_warning(said) for said in file.warnings]
    if file.cut:
        notes.append(("record cut off", 1, None, f"{file.path.name} ends within a record: it was not written whole"))
    return notes


def _pages(file: PagesFile, kind: str) -> list[pl.DataFrame]:
    """The pages of one kind in a file that is called so, or holds one."""
    found = [page.rows for page in file.of(kind)]
    if not found:
        raise ncu_errors.damaged(file.path, "its headings", f"no {kind} page is in it")
    lacking = [name for name in _HEADINGS[kind] if any(name not in rows.columns for rows in found)]
    if lacking:
        raise ncu_errors.damaged(file.path, "its headings", f"no column {lacking[0]!r}")
    return found


def _numbered(file: PagesFile, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of launches, with the column key, which tells launches apart."""
    held = rows.filter(pl.col("ID").str.contains(r"^\d+$"))
    if held.is_empty():
        raise ncu_errors.damaged(file.path, "the column ID", "no row has a number there")
    new = [pl.lit(None, dtype=pl.String).alias(name) for name in _KEYS if name not in held.columns]
    return held.with_columns(new).with_columns(key=pl.concat_str(_KEYS, separator="\0", ignore_nulls=True))


def _raw_rows(file: PagesFile) -> tuple[pl.DataFrame, dict[str, str]]:
    """The launches of all raw pages in a file, and the unit of each metric."""
    pages = _pages(file, "raw")
    units: dict[str, str] = {}
    parts = []
    for rows in pages:
        first = rows.row(0, named=True) if rows.height else {}
        if first.get("ID"):
            raise ncu_errors.damaged(file.path, "the raw page", "its first row has no units")
        these = {name: unit or "" for name, unit in first.items()}
        if any(units.get(name, unit) != unit for name, unit in these.items()):
            raise ncu_errors.damaged(file.path, "the raw page", "two pages have different units")
        units |= these
        parts.append(rows.slice(1))
    return _numbered(file, pl.concat(parts, how="diagonal")), units


def _details_rows(file: PagesFile) -> pl.DataFrame:
    return _numbered(file, pl.concat(_pages(file, "details"), how="diagonal"))


def _launches(rows: pl.DataFrame) -> pl.DataFrame:
    """A row per launch, :data:`kanalyze.readers.ncu_tables.LAUNCHES`, and its key."""
    first = rows.unique("key", keep="first", maintain_order=True).with_row_index("event_id")

    def told(name: str) -> pl.Expr:
        return pl.col(name) if name in first.columns else pl.lit(None, dtype=pl.String)

    sizes = {
        f"{what}_{axis}": told(f"{what.title()} Size").str.extract_all(r"\d+").list.get(place, null_on_oob=True)
        for what in ("grid", "block")
        for place, axis in enumerate("xyz")
    }
    named = first.select(
        "event_id",
        "key",
        name=told("Kernel Name"),
        process_id=told("Process ID"),
        process_name=told("Process Name"),
        device=told("Device"),
        context_id=told("Context"),
        stream=told("Stream"),
        compute_capability=told("CC"),
        **sizes,
    )
    cast = [pl.col(name).cast(dtype, strict=False) for name, dtype in LAUNCHES.items()]
    return named.select(*cast, "key")


def _same(path: Path, other: Path, these: pl.DataFrame, those: pl.DataFrame) -> None:
    """Raise where two pages do not list the same launches."""
    if these.get_column("key").equals(those.get_column("key")):
        return
    processes, others = (set(frame.get_column("process_id").unique()) for frame in (these, those))
    what = f"{these.height:,} kernels here, {those.height:,} there"
    if processes.isdisjoint(others):
        what = f"process {min(processes, key=str)} here, {min(others, key=str)} there"
    raise ncu_errors.mixed(path, other, what)


def _raw_metrics(path: Path, rows: pl.DataFrame, units: dict[str, str]) -> pl.DataFrame:
    ids = rows.with_row_index("event_id").with_columns(pl.col("event_id").cast(pl.Int64))
    names = [name for name in rows.columns if name not in _OF_LAUNCH and name != "key"]
    long = ids.unpivot(names, index=["event_id", "Grid Size", "Block Size"], variable_name="metric", value_name="text")
    return _valued(path, "the raw page", long.with_columns(unit=pl.col("metric").replace_strict(units, default="")))


def _detail_metrics(path: Path, rows: pl.DataFrame) -> pl.DataFrame:
    """The metrics of the details page by ncu's own names, and whether that is known of each."""
    names = pl.DataFrame(
        [(section, label, metric) for section, labels in LABELS.items() for label, metric in labels.items()],
        schema=["section", "label", "named"],
        orient="row",
    )
    held = rows.filter(pl.col("Metric Name").fill_null("") != "")
    section = pl.col("Section Name").replace(SECTIONS)
    long = held.select(
        "event_id",
        "Grid Size",
        "Block Size",
        section=section,
        label="Metric Name",
        text="Metric Value",
        unit=pl.col("Metric Unit").fill_null(""),
    ).join(names, on=["section", "label"], how="left", maintain_order="left")
    raw_name = pl.col("label").str.contains("__", literal=True)  # what --metrics collects has no label
    found = long.with_columns(metric=pl.coalesce("named", "label"), known=pl.col("named").is_not_null() | raw_name)
    return _valued(path, "the details page", found)


_SCALES: Final = {"unit": pl.String, "scale": pl.Float64, "base": pl.String}


def _valued(path: Path, where: str, long: pl.DataFrame) -> pl.DataFrame:
    """Columns event_id, metric, value, text, unit (and section and known, where given), in base units."""
    texts = long.select("text").unique().with_columns(plain=pl.col("text").str.strip_chars()).filter(~missing("plain"))
    held = long.join(texts, on="text", how="inner", maintain_order="left")
    way = _separators(path, where, held)
    known = texts.select("text", value=numbers("plain", way))
    scales = {unit: base_unit(unit) for unit in held.get_column("unit").unique()} or {"": (1.0, "")}
    units = pl.DataFrame([(unit, *scale) for unit, scale in scales.items()], schema=_SCALES, orient="row")
    columns = [name for name in ("section", "known") if name in held.columns]
    return (
        held.join(known, on="text", how="left", maintain_order="left")
        .join(units, on="unit", how="left", maintain_order="left")
        .select(
            "event_id",
            "metric",
            *columns,
            text=pl.when(pl.col("value").is_null()).then("plain"),
            value=pl.col("value") * pl.col("scale"),
            unit="base",
        )
    )


def _separators(path: Path, where: str, held: pl.DataFrame) -> Separators:
    sizes = pl.col("label") if "label" in held.columns else pl.col("metric")
    known = held.with_columns(what=sizes.replace_strict(_KNOWN, default=None, return_dtype=pl.String)).drop_nulls(
        "what"
    )
    pairs = []
    for text, what, grid, block in known.select("plain", "what", "Grid Size", "Block Size").unique().iter_rows():
        size = _product(grid if what == "grid" else block)
        pairs += [(text, size)] if size else []
    try:
        return separators(held.get_column("plain"), pairs)
    except AmbiguousError as error:
        raise ncu_errors.damaged(path, where, f"{error}; print it with LC_ALL=C") from error


def _product(size: str | None) -> int:
    """The product of a launch dimension such as ``(4096, 1, 1)``; 0 where there is none."""
    product = 1 if size else 0
    for part in (size or "").strip("()").split(","):
        product *= int(part) if part.strip().isdigit() else 0
    return product


def _rules(path: Path, rows: pl.DataFrame) -> pl.DataFrame:
    """The results of rules on the details page, as :data:`kanalyze.counter_model.RULE_RESULTS`."""
    if "Rule Name" not in rows.columns:
        return RULE_RESULTS.empty()
    held = rows.filter(pl.col("Rule Name").fill_null("") != "")

    def told(name: str) -> pl.Expr:
        return pl.col(name) if name in held.columns else pl.lit(None, dtype=pl.String)

    # ncu writes estimates with a point, or with its locale's sign, and never with thousands
    share = told("Estimated Speedup").str.replace(",", ".", literal=True).cast(pl.Float64, strict=False) / 100
    found = held.select(
        "event_id",
        section=pl.col("Section Name").replace(SECTIONS),
        rule="Rule Name",
        kind=told("Rule Type").replace(_RULE_KINDS),
        message=told("Rule Description").fill_null("").str.strip_chars(),
        scope=pl.when(told("Estimated Speedup Type") != "").then(told("Estimated Speedup Type")),
        speedup_share=share,
    )
    known = pl.col("kind").is_in(_RULE_KINDS.values()).fill_null(value=False)
    strange = found.filter(~known).get_column("kind").unique().fill_null("")
    if len(strange):
        raise ncu_errors.damaged(path, "the details page", f"a rule of type {strange[0]!r}")
    return RULE_RESULTS.select(_in_order(found))


def _in_order(rules: pl.DataFrame) -> pl.DataFrame:
    """By kernel, then section and rule, so that every reader gives the same rows."""
    return rules.sort("event_id", "section", "rule", "message")
