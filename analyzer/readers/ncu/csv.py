"""Parses the CSV pages of ncu: launches, metrics and rule results, in base units and by ncu's metric names.

``ncu --csv`` prints its page to standard output, mixed with the program's output and its own log lines (``==PROF==
…``). A page begins with its header line; records begin with a quotation mark, and may span lines.

The details page has a row per metric, with the label from its section, and per rule result. The raw page has a row per
launch and a column per metric, by ncu's metric name; its first row holds units. Both become rows of one metric of one
launch each, with text and unit as printed. If both pages are present, values come from the raw page, which is complete
and has more digits.
"""

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from kanalyze import counter_model, files, model
from kanalyze.errors import DamagedReportError, UnknownFormatError
from kanalyze.readers.ncu.tables import LABELS, LAUNCHES, SECTIONS, Measured, damaged, metrics_frame

#: First lines of pages: the header of pages of launches, and the kernel line of the source page.
_SOURCE: Final = b'"Kernel Name","'
_BEGINNINGS: Final = (b'"ID","', _SOURCE)
#: Messages of ncu in a log.
_WARNING: Final = re.compile(rb"^==WARNING==(.*)$", re.MULTILINE)
_ERROR: Final = re.compile(rb"^==ERROR== *(.*\S)", re.MULTILINE)
_OWN: Final = re.compile(rb"^==(?:PROF|WARNING|ERROR)==", re.MULTILINE)

NO_PERMISSION: Final = "ERR_NVGPUCTRPERM"
PERMISSION: Final = (
    "Let an administrator allow it with `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in "
    "/etc/modprobe.d/nvidia-profiling.conf and a reboot, or run ncu as root; in a container, start it with "
    "--cap-add=SYS_ADMIN (https://developer.nvidia.com/ERR_NVGPUCTRPERM)."
)
_NOTHING: Final = "Run it again with a filter (--kernel-name, --launch-skip, --launch-count) that some launch passes."

#: Columns that identify a launch.
KEYS: Final = ("ID", "Process ID", "Kernel Name", "Block Size", "Grid Size")

#: Launch columns that precede the metrics of a raw page.
OF_LAUNCH: Final = (
    *KEYS,
    *("Process Name", "Host Name", "Kernel Time", "Context", "Stream", "Device", "CC", "Demangled Name"),
    *("thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",),
)


class Page(NamedTuple):
    """One page of a file: its kind (details, raw or source) and its records as text columns.

    The columns of a source page are those of one kernel's instructions; `kernel` is the kernel's name.
    """

    kind: str
    rows: pl.DataFrame
    kernel: str = ""


class PagesFile(NamedTuple):
    """Content of one file: its pages, ncu's warnings and errors, and whether the file is truncated."""

    path: Path
    pages: Sequence[Page]
    warnings: tuple[str, ...] = ()
    cut: bool = False
    errors: tuple[str, ...] = ()

    def of(self, kind: str) -> list[Page]:
        """The pages of one kind, in file order."""
        return [page for page in self.pages if page.kind == kind]


def looks_like_ncu(text: bytes) -> bool:
    """Whether the (beginning of a) file is a page or a log of ncu."""
    return _has_page(text) or _OWN.search(text) is not None


def content(path: Path) -> bytes:
    """The file at `path` decoded to UTF-8 with LF line ends.

    Raises UnreadableReportError if the operating system refuses to read it.
    """
    with files.readable(path):
        text = files.regular(path).read_bytes()
    encodings = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
    for mark, encoding in encodings.items():  # what PowerShell makes of `ncu … > file`
        if text.startswith(mark):
            text = text.decode(encoding, errors="replace").encode()
            break
    return text.replace(b"\r\n", b"\n") if b"\r" in text else text


def pages_in(path: Path, text: bytes | None = None) -> PagesFile:
    """Extracts the pages of the file at `path`, or from the `text` that was printed of it.

    Raises UnknownFormatError if it has none: it is something else, or a log of a run that profiled nothing, and why;
    DamagedReportError if a page is no CSV; UnreadableReportError if the operating system refuses to read it.
    """
    text = content(path) if text is None else text
    pages, cut = list[Page](), False
    for records in _records_of_pages(text):
        endless = records.count(b'"') % 2 == 1  # the last record has no end
        pages += _page(path, records[: records.rfind(b'\n"') + 1] if endless else records)
        cut |= endless
    if not any(page.rows.height for page in pages):
        raise _without_kernels(path, text)
    return PagesFile(path, pages, _said(_WARNING, text), cut, _said(_ERROR, text))


def _said(pattern: re.Pattern[bytes], text: bytes) -> tuple[str, ...]:
    """The messages of ncu that match `pattern`, deduplicated."""
    return tuple(dict.fromkeys(line.decode(errors="replace").strip() for line in pattern.findall(text)))


def _has_page(text: bytes) -> bool:
    return any(text.startswith(beginning) or b"\n" + beginning in text for beginning in _BEGINNINGS)


def _records_of_pages(text: bytes) -> list[bytes]:
    """The records of each page, which extends from its header to the next one, without lines of the log in between."""
    lines = text.split(b"\n")
    # a page of launches has no further line that begins like this, since an ID is a number
    starts = [number for number, line in enumerate(lines) if line.startswith(_BEGINNINGS)]
    pages = []
    for start, end in pairwise([*starts, len(lines)]):
        kept, within = [], False
        for line in lines[start:end]:
            if within or line.startswith(b'"'):
                kept.append(line)
                within ^= bool(line.count(b'"') % 2)
        pages.append(b"\n".join([*kept, b""]))
    return pages


def _page(path: Path, records: bytes) -> list[Page]:
    if records.startswith(_SOURCE):
        first, _, rest = records.partition(b"\n")
        name = _read(path, b'"a","b"\n' + first.rstrip(b",") + b"\n").item(0, "b")
        return [Page("source", _read(path, rest), str(name))] if rest.strip() else []
    kind = "details" if records.find(b'"Metric Name"', 0, records.find(b"\n")) >= 0 else "raw"
    return [Page(kind, _read(path, records))]


def _read(path: Path, records: bytes) -> pl.DataFrame:
    """Parses CSV records into text columns, with polars."""
    try:
        rows = pl.read_csv(records, infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy")
    except pl.exceptions.PolarsError as error:
        raise damaged(path, "a page of CSV", str(error).splitlines()[0]) from error
    unnamed = [name for name in rows.columns if name == "" or name.startswith("_duplicated_")]
    return rows.drop(unnamed) if unnamed else rows


def _without_kernels(path: Path, text: bytes) -> UnknownFormatError:
    """The error for a file without kernels, with the reason."""
    if NO_PERMISSION.encode() in text:
        what = "a log of ncu, which was not allowed to read the GPU's performance counters (ERR_NVGPUCTRPERM)"
        return UnknownFormatError.of(path, what, PERMISSION)
    if b"No kernels were profiled" in text or _has_page(text):
        return UnknownFormatError.of(path, "a log of ncu, which profiled no kernel", _NOTHING)
    errors = _said(_ERROR, text)
    if errors:
        causes = "; ".join(line.rstrip(".") for line in errors[:2])  # the first errors are the cause
        remedy = "Do what it says, and run ncu again."
        return UnknownFormatError.of(path, f"a log of ncu, which failed ({causes})", remedy)
    if _OWN.search(text):
        remedy = "Give the page that `ncu --import REPORT --csv --page details` prints, or the .ncu-rep file."
        return UnknownFormatError.of(path, "a log of ncu without a page in CSV", remedy)
    return UnknownFormatError.of(path, "no page of ncu")


# What pages of launches tell: launches, metrics and results of rules.

#: Columns required of the details page.
_HEADINGS: Final = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")

_RULE_KINDS: Final = {"OPT": "optimization", "INF": "information", "WRN": "warning", "ERR": "error"}


def measured(details: PagesFile | None, raw: PagesFile | None) -> Measured:
    """Parses the details page and the raw page of one run; either may be missing.

    Raises DamagedReportError if they are of different runs, or their numbers can be read in two ways.
    """
    notes: list[model.Note] = []
    values, rules = [], counter_model.RULE_RESULTS.empty()
    launches: list[pl.DataFrame] = []
    if raw is not None:
        rows, printed = _raw(raw)
        launches.append(_launches(rows))
        values.append(_metrics(raw.path, "the raw page", printed))
    if details is not None:
        pages = _of_kind(details, "details")
        if lacking := [name for name in _HEADINGS if any(name not in page.rows.columns for page in pages)]:
            raise damaged(details.path, "its headings", f"no column {lacking[0]!r}")
        rows = _numbered(details, pl.concat([page.rows for page in pages], how="diagonal"))
        launches.append(_launches(rows))
        if raw is not None:
            _check_same(details.path, raw.path, *reversed(launches))
        detailed = rows.filter(pl.col("Metric Name") != "").select(
            *("event_id", "Grid Size", "Block Size"),
            label="Metric Name",
            text="Metric Value",
            unit=pl.col("Metric Unit").fill_null(""),
            section=pl.col("Section Name").replace(SECTIONS),
        )
        metrics = _metrics(details.path, "the details page", detailed)
        if unknown := metrics.select(pl.col("metric").filter(~pl.col("known")).n_unique()).item():
            effect = "they have their label for a name, and no table but metrics shows them"
            notes.append(("metrics of unknown label", unknown, None, effect))
        values.append(metrics)
        rules = _rules(details.path, rows)
    if raw is None:
        remedy = "print the raw page, too: ncu --import … --csv --page raw"
        notes.append(("missing page", 1, None, f"only what ncu's details page prints is known; {remedy}"))
    notes += [note for file in (details, raw) if file is not None for note in _file_notes(file)]
    return Measured(launches[0].drop("key"), metrics_frame(pl.concat(values)), rules, notes)


def _file_notes(file: PagesFile) -> Iterator[model.Note]:
    """Warnings of ncu, as notes with the number of metrics affected or with their meaning; errors; and a cut."""
    for warning in file.warnings:
        left_out = re.match(r"Unable to access the following (\d+) metrics", warning)
        if left_out is not None:
            yield "metrics that ncu could not collect", int(left_out[1]), None, warning
        else:
            clocks = "unmodified GPU clocks" in warning
            yield "run with clocks that vary" if clocks else "warning of ncu", 1, None, warning
    for error in file.errors:
        yield "error of ncu", 1, None, f"{error} {PERMISSION}" if NO_PERMISSION in error else error
    if file.cut:
        yield "record cut off", 1, None, f"{file.path.name} ends within a record: it was not written whole"


def _of_kind(file: PagesFile, kind: str) -> list[Page]:
    """The pages of one kind in a file that is named as that kind, or contains one."""
    pages = file.of(kind)
    if not pages:
        raise damaged(file.path, "its headings", f"no {kind} page is in it")
    return pages


def _numbered(file: PagesFile, rows: pl.DataFrame) -> pl.DataFrame:
    """Adds to rows of launches the columns key, which identifies a launch, and event_id, which numbers them."""
    held = rows.filter(pl.col("ID").str.contains(r"^\d+$"))
    if held.is_empty():
        raise damaged(file.path, "the column ID", "no row has a number there")
    new = [pl.lit(None, dtype=pl.String).alias(name) for name in KEYS if name not in held.columns]
    keyed = held.with_columns(new).with_columns(key=pl.concat_str(KEYS, separator="\0", ignore_nulls=True))
    runs = keyed.get_column("key").rle().struct.unnest()  # the rows of a launch follow one another
    known: dict[str, int] = {}
    events = pl.Series([known.setdefault(key, len(known)) for key in runs.get_column("value")], dtype=pl.Int64)
    return keyed.with_columns(event_id=events.repeat_by(runs.get_column("len")).explode())


def _raw(file: PagesFile) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The launches on all raw pages of a file, and a row for each of their metrics, as :func:`_metrics` takes them."""
    pages = _of_kind(file, "raw")
    units: dict[str, str] = {}
    for page in pages:
        if page.rows.height and page.rows.item(0, "ID"):
            raise damaged(file.path, "the raw page", "its first row has no units")
        for name, unit in zip(page.rows.columns, next(page.rows.iter_rows(), ()), strict=False):
            if name not in OF_LAUNCH and units.setdefault(name, unit or "") != (unit or ""):
                raise damaged(file.path, "the raw page", "two pages have different units")
    rows = _numbered(file, pl.concat([page.rows.slice(1) for page in pages], how="diagonal"))
    launches, keys = rows.filter(pl.col("event_id").is_first_distinct()), ["event_id", "Grid Size", "Block Size"]
    texts = launches.unpivot([*units], index=keys, variable_name="label", value_name="text")
    unit = pl.col("label").replace_strict(units, default="", return_dtype=pl.String)
    return rows, texts.with_columns(pl.col("label", "text").cast(pl.String), unit=unit, section=pl.lit(None, pl.String))


def _column(rows: pl.DataFrame, name: str) -> pl.Expr:
    return pl.col(name) if name in rows.columns else pl.lit(None, dtype=pl.String)


#: Columns of launches as pages call them.
_LAUNCH: Final = {
    "name": "Kernel Name",
    "process_id": "Process ID",
    "process_name": "Process Name",
    "device": "Device",
    "context_id": "Context",
    "stream": "Stream",
    "compute_capability": "CC",
}


def _launches(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per launch, :data:`kanalyze.readers.ncu.tables.LAUNCHES`, and its key."""
    column = partial(_column, rows)
    sizes = {
        f"{what}_{axis}": column(f"{what.title()} Size").str.extract_all(r"\d+").list.get(place, null_on_oob=True)
        for what in ("grid", "block")
        for place, axis in enumerate("xyz")
    }
    named = {"event_id": pl.col("event_id"), **sizes, **{name: column(heading) for name, heading in _LAUNCH.items()}}
    columns = [named[name].cast(dtype, strict=False).alias(name) for name, dtype in LAUNCHES.items()]
    return rows.filter(pl.col("event_id").is_first_distinct()).select(*columns, "key")


def _check_same(path: Path, other: Path, these: pl.DataFrame, those: pl.DataFrame) -> None:
    """Raise DamagedReportError if two pages do not list the same launches."""
    if these.get_column("key").equals(those.get_column("key")):
        return
    processes, others = (set(frame.get_column("process_id").unique()) for frame in (these, those))
    what = f"{these.height:,} kernels here, {those.height:,} there"
    if processes.isdisjoint(others):
        what = f"process {min(processes, key=str)} here, {min(others, key=str)} there"
    raise DamagedReportError(
        f"{path}: not of the same run as {other} ({what}).",
        "Give the pages that were printed of one report, or each alone.",
    )


#: Metric names by section and label of the details page.
_NAMED: Final = pl.DataFrame(
    [(section, label, metric) for section, labels in LABELS.items() for label, metric in labels.items()],
    schema=["section", "label", "named"],
    orient="row",
)


def _metrics(path: Path, where: str, printed: pl.DataFrame) -> pl.DataFrame:
    """The metrics of a page, by ncu metric name: columns event_id, section, metric, value, text, unit, known.

    `printed` has the columns event_id, section, label, text, unit, and the launch's columns of :data:`_REPEATED`; rows
    without a value are left out. Column known is false for labels without a known metric name.
    """
    plain = pl.col("text").str.strip_chars()
    texts = printed.select("text", plain=plain).unique().filter(~missing("plain"))
    repeated = (
        (text, product(size))
        for column, metric in _REPEATED.items()
        for label in (column, metric)
        for text, size in printed.filter(label=label).select(plain, column).unique().drop_nulls().iter_rows()
    )
    try:
        way = separators(texts.get_column("plain"), repeated)
    except AmbiguousError as error:
        raise damaged(path, where, f"{error}; print it with LC_ALL=C") from error
    units = {unit: base_unit(unit) for unit in printed.get_column("unit").unique()}
    scale, base = ({unit: known[place] for unit, known in units.items()} for place in (0, 1))
    return (
        printed.join(texts.with_columns(value=numbers("plain", way)), on="text", maintain_order="left")
        .join(_NAMED, on=["section", "label"], how="left", maintain_order="left")
        .select(
            "event_id",
            "section",
            metric=pl.coalesce("named", "label"),
            # a metric collected with --metrics has no label
            known=pl.col("named").is_not_null() | pl.col("label").str.contains("__", literal=True),
            value=pl.col("value") * pl.col("unit").replace_strict(scale, default=None, return_dtype=pl.Float64),
            text=pl.when(pl.col("value").is_null()).then("plain"),
            unit=pl.col("unit").replace_strict(base, default=None, return_dtype=pl.String),
        )
    )


#: Launch columns, and the metric that repeats each: it reveals the number format where nothing else does.
_REPEATED: Final = {"Grid Size": "launch__grid_size", "Block Size": "launch__block_size"}


def _rules(path: Path, rows: pl.DataFrame) -> pl.DataFrame:
    """Rule results of the details page, as :data:`kanalyze.counter_model.RULE_RESULTS`."""
    column = partial(_column, rows)
    # ncu writes estimates with a point, or with its locale's sign, and never with thousands
    share = column("Estimated Speedup").str.replace(",", ".", literal=True).cast(pl.Float64, strict=False) / 100
    held = rows.filter(column("Rule Name") != "").select(
        "event_id",
        section=pl.col("Section Name").replace(SECTIONS),
        rule=column("Rule Name"),
        kind=column("Rule Type").replace(_RULE_KINDS),
        message=column("Rule Description").fill_null("").str.strip_chars(),
        scope=pl.when(column("Estimated Speedup Type") != "").then(column("Estimated Speedup Type")),
        speedup_share=share,
    )
    # in the same order as in every reader
    results = held.sort(("event_id", "section", "rule", "message"))
    strange = [kind for kind in results.get_column("kind").unique() if kind not in _RULE_KINDS.values()]
    if strange:
        raise damaged(path, "the details page", f"a rule of type {strange[0] or ''!r}")
    return counter_model.RULE_RESULTS.select(results)


def product(size: str | None) -> int:
    """The product of a launch dimension such as ``(4096, 1, 1)``; 0 where there is none."""
    return prod(int(part) if part.strip().isdigit() else 0 for part in (size or "").strip("()").split(","))


# Numbers and units as ncu prints them: thousands separators of any locale, and SI prefixes.
#
# ncu separates thousands as the locale does (``16,896.50``, ``16.896,50``, ``16 896,50``) and does not say which one
# that was. It prints no number with three decimals on the details page, and six or two of them on the raw page, so that
# a group of three digits behind a separator is one of thousands; where only such numbers occur, and all with points, it
# could still be a number of another program's making, and nothing is guessed.
#
# Unless it is told ``--print-units base``, ncu divides a value by 1,000 for each step of the prefix that it puts before
# the unit, wherever that stands: ``2614 %/byte`` becomes ``2.614 %/Kbyte``. That is undone as it was done.


#: Thousands separator and decimal separator.
POINT: Final = (",", ".")
COMMA: Final = (".", ",")
#: Characters that can only be thousands separators.
_SPACES: Final = "[\\s\u00a0\u2009\u202f'\u2019]"

#: Unambiguous numbers for one decimal separator ({1}; {0} is the other sign).
_SURE: Final = (
    r"^[+-]?\d{{1,3}}(?:{0}\d{{3}})+{1}\d+$"  # both signs
    r"|^[+-]?\d{{1,3}}(?:{0}\d{{3}}){{2,}}$"  # a sign that occurs twice separates thousands
    r"|^[+-]?\d+{1}(?:\d{{1,2}}|\d{{4,}})(?:[eE][+-]?\d+)?$"  # not three digits
    r"|^[+-]?(?:0|\d{{4,}}){1}\d+(?:[eE][+-]?\d+)?$"  # no group of thousands before it
)

_GROUP: Final = r"^[+-]?[1-9]\d{{0,2}}{0}\d{{3}}$"

#: Printed for a metric that could not be collected.
MISSING: Final = ("", "n/a", "N/A", "no data")


class AmbiguousError(ValueError):
    """Numbers whose separators are ambiguous or contradictory; says which."""


def separators(texts: pl.Series, known: Iterable[tuple[str, int]] = ()) -> tuple[str, str]:
    """Detects the separators used in `texts`.

    Args:
        texts: All values of a file, numbers and others.
        known: Values that are known from elsewhere in the file, with their texts; they decide where nothing else does.

    Raises:
        AmbiguousError: Some are written one way and some the other, or all of them can be read either way.
    """
    every = texts.drop_nulls().unique().str.replace_all(_SPACES, "")
    every = every.filter(every.str.contains("[.,]"))  # without either a number is the same any way
    point, comma, comma_groups, point_groups = (
        every.filter(every.str.contains(pattern))
        for pattern in (_SURE.format(",", r"\."), _SURE.format(r"\.", ","), _GROUP.format(","), _GROUP.format(r"\."))
    )
    if len(point) and len(comma):
        raise AmbiguousError(f"{point.sort()[0]!r} has a decimal point, {comma.sort()[0]!r} a decimal comma")
    if len(point) or len(comma) or not len(point_groups):
        return COMMA if len(comma) else POINT
    sizes = [(text, size) for text, size in known if size]
    printed = pl.DataFrame(sizes, schema={"text": pl.String, "size": pl.Float64}, orient="row")
    printed = printed.filter(pl.col("text").str.contains("[.,]"))
    for way in (POINT, COMMA):
        if printed.select((numbers("text", way) == pl.col("size")).any()).item():
            return way
    example = point_groups.sort()[0]
    other = f", and {comma_groups.sort()[0]!r} occurs, too" if len(comma_groups) else ""
    raise AmbiguousError(f"{example!r} can be a number of thousands or one with decimals{other}")


def numbers(column: str, way: tuple[str, str]) -> pl.Expr:
    """Parses a text column with given separators; null where it is not a finite number."""
    thousands, decimal = way
    # behind the sum of a metric's instances stand these, with ``--print-metric-instances``
    plain = pl.col(column).str.replace(r"^(\S+) \(.*\)$", "${1}").str.replace_all(_SPACES, "")
    plain = plain.str.replace_all(thousands, "", literal=True).str.replace_all(decimal, ".", literal=True)
    value = plain.cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def missing(column: str) -> pl.Expr:
    """Whether a text means "no value": empty, n/a or NaN."""
    text = pl.col(column)
    return text.is_null() | text.is_in(MISSING) | text.str.contains(r"^[+-]?(?i:nan|inf(?:inity)?)$")


#: Units that ncu scales by a prefix; other units that begin with these letters are not scaled.
_SCALED: Final = re.compile(r"([KMGTP])(byte|hz|inst|sector)|\b([numµ]?)(?:second|s)\b")
_STEPS: Final = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SECONDS: Final = {"n": 1.0, "u": 1e3, "µ": 1e3, "m": 1e6, "": 1e9}
#: Older spellings of hz and /s.
_OLD_RATES: Final = {"cycle/nsecond": (1e9, "hz"), "cycle/usecond": (1e6, "hz"), "cycle/second": (1.0, "hz")}
_PER: Final = {"n": 1e9, "u": 1e6, "m": 1e3, "": 1.0}


def base_unit(unit: str) -> tuple[float, str]:
    """The factor from `unit` to ncu's base unit, and that unit: ``us`` is 1,000 ``ns``."""
    if unit in _OLD_RATES:
        return _OLD_RATES[unit]
    factor, rate = 1.0, re.search(r"/([num]?)(?:second|s)$", unit)
    if rate is not None:
        factor, unit = _PER[rate[1]], unit[: rate.start()] + "/s"
    elif (time := _SCALED.fullmatch(unit)) is not None and time[1] is None:
        return _SECONDS[time[3]], "ns"
    match = _SCALED.search(unit)
    if match is None or match[1] is None:
        return factor, unit
    return factor * _STEPS[match[1]], unit[: match.start()] + unit[match.start() + 1 :]
