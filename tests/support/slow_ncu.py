"""What ncu's pages of launches say, read a second time: record by record, and each number with all care.

Pages are made here, too, with whatever a field can hold; see :func:`made_pages`.
"""

import csv
import io
from typing import NamedTuple

import polars as pl
from hypothesis import strategies as st

from kanalyze.readers.ncu.csv import base_unit, missing, numbers, separators
from kanalyze.readers.ncu.tables import LABELS, SECTION_OF, SECTIONS

KEYS = ("ID", "Process ID", "Kernel Name", "Block Size", "Grid Size")
OF_LAUNCH = (*KEYS, "Process Name", "Host Name", "Context", "Stream", "Device", "CC")
OF_DETAIL = ("Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type", "Rule Description")
KNOWN = {"Grid Size": "Grid Size", "launch__grid_size": "Grid Size", "Block Size": "Block Size"}

Row = tuple[int, str | None, str, float | None, str | None, str | None]


class Cell(NamedTuple):
    """One value of a page: of which launch, what, and how the page says it."""

    event_id: int
    section: str | None
    metric: str
    text: str | None
    unit: str


def slow_metrics(page):
    """The metrics of a page, as rows of :data:`kanalyze.counter_model.METRICS`.

    Raises:
        AmbiguousError: Its numbers can be read in two ways.
    """
    head, *records = csv.reader(io.StringIO(_whole_records(page)))
    every = [dict(zip(head, record, strict=False)) for record in records]
    launches = {}
    cells, sizes = [], []
    for row in every:
        if not row["ID"].isdecimal():
            continue
        event_id = launches.setdefault(tuple(row[key] for key in KEYS), len(launches))
        if "Metric Name" in head:
            if row["Metric Name"]:
                section = SECTIONS.get(row["Section Name"], row["Section Name"])
                label = row["Metric Name"]
                metric = LABELS.get(section, {}).get(label, label)
                cells.append(Cell(event_id, section, metric, row["Metric Value"], row["Metric Unit"]))
                sizes += _size(row, label, row["Metric Value"])
        else:
            for name in head:
                if name not in OF_LAUNCH:
                    cells.append(Cell(event_id, None, name, row[name], every[0][name]))
                    sizes += _size(row, name, row[name])
    there = [cell for cell in cells if not _asked(missing("text"), (cell.text or "").strip())]
    way = separators(pl.Series([(cell.text or "").strip() for cell in there], dtype=pl.String), sizes)
    found = {}
    for cell in there:
        plain, (scale, unit) = (cell.text or "").strip(), base_unit(cell.unit)
        value = _asked(numbers("text", way), plain)
        section = SECTION_OF.get(cell.metric, cell.section)
        said = None if value is not None else plain
        row = (cell.event_id, section, cell.metric, None if value is None else value * scale, said, unit or None)
        found.setdefault((cell.event_id, cell.metric), row)
    return [found[key] for key in sorted(found)]


def _whole_records(page):
    """Without the lines of others between the records."""
    kept, within = [], False
    for line in page.split("\n"):
        if within or line.startswith('"'):
            kept.append(line)
            within ^= bool(line.count('"') % 2)
    return "\n".join([*kept, ""])


def _size(row, name, text):
    product = 1
    for part in row[KNOWN[name]].strip("()").split(",") if name in KNOWN else ["0"]:
        product *= int(part)
    return [(text.strip(), product)] if product else []


def _asked(expression, text):
    return pl.DataFrame({"text": [text]}, schema={"text": pl.String}).select(expression).item()


WHOLE = st.integers(-(10**7), 10**7).map(str)
GROUPED = st.integers(-(10**7), 10**7).map("{:,}".format)
DECIMALS = st.floats(-1e7, 1e7, allow_nan=False).map("{:,.2f}".format)
ODD = st.sampled_from(["", "n/a", "nan", "-inf", "no data", "1e-05", "1e999", " 7 ", "CachePreferNone", "0x10", "1.50"])
ANY = st.one_of(
    ODD,
    st.sampled_from(["16.896", "1,50", "1.234.567", "1 234,5", "1'234.50", "1,160 (3; 4)", "1,2,3"]),
    st.text(st.sampled_from('a",;.1 \n='), max_size=6),
)
UNITS = st.sampled_from(["", "%", "ns", "us", "Mbyte", "Ghz", "byte/s", "%/Kbyte"])
NAMES = st.sampled_from(
    ["sm__cycles_active.avg", "launch__grid_size", "gpu__time_duration.sum", "Duration", "Grid Size", "My Label", "a,b"]
)
KERNELS = st.sampled_from(["k(int)", "void f<(int)4, float>(T *)", 'say "hi"', "one\ntwo"])


@st.composite
def made_pages(draw):
    """A details page or a raw page with any values, now and then with the lines of others in it."""
    texts = draw(st.sampled_from([WHOLE | DECIMALS, DECIMALS | GROUPED | ODD, ANY | WHOLE | DECIMALS | GROUPED]))
    launches = [
        [str(number), "77", kernel, "(256, 1, 1)", f"({draw(st.sampled_from([1, 4, 4096]))}, 1, 1)", "app"]
        for number, kernel in enumerate(draw(st.lists(KERNELS, min_size=1, max_size=3)))
    ]
    of_launch = ["ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", "Process Name"]
    if draw(st.booleans()):
        names = draw(st.lists(NAMES.filter(lambda name: name not in OF_LAUNCH), min_size=1, unique=True))
        rows = [
            [*of_launch, *names],
            [*([""] * len(of_launch)), *(draw(UNITS) for _ in names)],
            *([*launch, *(draw(texts) for _ in names)] for launch in launches),
        ]
    else:
        sections = st.sampled_from(["GPU Speed Of Light Throughput", "Launch Statistics", "My Section"])
        rows = [
            [*of_launch, *OF_DETAIL],
            *(
                [*launch, draw(sections), draw(NAMES), draw(UNITS), draw(texts), ""]
                for launch in launches
                for _ in range(draw(st.integers(1, 4)))
            ),
        ]
    lines = [",".join(_field(text, last=place == len(row) - 1) for place, text in enumerate(row)) for row in rows]
    if draw(st.booleans()):
        lines.insert(draw(st.integers(1, len(lines))), draw(st.sampled_from(["==PROF== said", "12,34", "", "hello"])))
    return "\n".join([*lines, ""])


def _field(text, *, last):
    """A field as ncu prints it; what is empty at the end has no quotation marks."""
    doubled = text.replace('"', '""')
    return "" if last and not text else f'"{doubled}"'
