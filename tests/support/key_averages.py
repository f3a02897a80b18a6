"""What torch's profiler prints as its table, read back: names are cut there, and times rounded to three decimals."""

import re
from dataclasses import dataclass
from decimal import Decimal

_LONGEST = 52  # of a name; what is cut off is "..."
_TIMES = {
    "Self CPU": "self_cpu_ns", "CPU total": "cpu_ns", "CPU time avg": "avg_cpu_ns", "Self CUDA": "self_device_ns",
    "CUDA total": "device_ns", "CUDA time avg": "avg_device_ns",
}  # fmt: skip
_SHARES = {"Self CPU %": "self_cpu_share", "CPU total %": "cpu_share", "Self CUDA %": "self_device_share"}


@dataclass(frozen=True)
class Printed:
    """A row: its name, perhaps cut, its calls, and the other cells by our names for them, as printed."""

    name: str
    count: int
    cells: dict[str, str]

    def is_of(self, row):
        """Whether `row` of our own table would print so."""
        name = str(row["name"])
        shown = name if len(name) < _LONGEST else f"{name[:_LONGEST]}..."
        return (shown, row["count"]) == (self.name, self.count) and all(
            _agrees(text, row[column]) for column, text in self.cells.items()
        )


def _agrees(text, value):
    if text.endswith("%"):
        return abs(Decimal(text[:-1]) - Decimal(value) * 100) <= Decimal("0.00501")
    number, unit = re.fullmatch(r"(-?[\d.]+)([mu]?s)", text).groups()
    step = {"us": 10**3, "ms": 10**6, "s": 10**9}[unit]
    # half of the last digit, and what torch's own sums of floating-point microseconds may be off
    return abs(Decimal(number) * step - Decimal(value)) <= Decimal(step) / 2000 + Decimal("0.01")


def parsed(path):
    """The rows of a printed table, in its order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    first, head, last = [place for place, line in enumerate(lines) if line.startswith("-----")]
    assert head == first + 2
    names = re.split(r"\s{2,}", lines[first + 1].strip())
    rows = []
    for line in lines[head + 1 : last]:
        parts = re.split(r"\s{2,}", line.strip())
        name, cells = "  ".join(parts[: 1 - len(names)]), dict(zip(names[1:], parts[1 - len(names) :], strict=True))
        told = {ours: cells[theirs] for theirs, ours in (_TIMES | _SHARES).items() if theirs in cells}
        rows.append(Printed(name, int(cells["# of Calls"]), told))
    return rows
