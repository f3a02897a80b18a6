"""Renders a kernel's source or assembly annotated with metrics per line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kanalyze import outlets, units

if TYPE_CHECKING:
    import polars as pl

    from kanalyze.renderers.text.grid import Look

#: Context lines around annotated lines.
_AROUND: Final = 2

#: Metric columns: share of samples, warp executions, active threads, ideal share of sectors.
_HEAD: Final = f"{'samples':>8}{'executed':>10}{'thr.':>5}{'coal.':>8}"
_LEGEND: Final = "thr.: threads of 32 that take part; coal.: sectors needed of those touched"

#: Column of live registers, where the report has it.
_LIVE: Final = f"{'live':>5}"
_LIVE_LEGEND: Final = "; live: registers in use"

_BOLD, _DIM = "1", "2"

#: Share of samples from which a line is highlighted.
_HOT: Final = 0.1


def lines(kernel: str, rows: pl.DataFrame, texts: dict[str, list[str]], look: Look) -> str:
    """Renders annotated source lines, by file: rows of `hot_lines`, and file contents by name."""
    blocks = [look.paint(outlets.line(kernel), _BOLD)]
    head, legend = _frame(rows)
    for (file,), found in rows.partition_by("file", as_dict=True, maintain_order=True).items():
        blocks += [
            "",
            look.paint(outlets.line(str(file)), _BOLD),
            *_file(found, texts.get(str(file), []), head, look),
        ]
    return "\n".join([*blocks, "", look.paint(legend, _DIM)]) + "\n"


def _frame(rows: pl.DataFrame) -> tuple[str, str]:
    """The header of the metric columns, and the legend below."""
    if rows.get_column("live_registers").null_count() == rows.height:
        return _HEAD, _LEGEND
    return _HEAD + _LIVE, _LEGEND + _LIVE_LEGEND


def _file(rows: pl.DataFrame, text: list[str], head: str, look: Look) -> list[str]:
    by_line = {row["line"]: row for row in rows.iter_rows(named=True)}
    around = {line + step for line in by_line for step in range(-_AROUND, _AROUND + 1)}
    lines, before = [look.paint(f"{head}   line", _DIM)], None
    for number in sorted({*by_line, *(line for line in around if 1 <= line <= len(text))}):
        if before is not None and number > before + 1:
            lines.append(look.paint(f"{'':{len(head)}}    ...", _DIM))
        source = outlets.line(text[number - 1].expandtabs(4)) if number <= len(text) else ""
        lines.append(_line(by_line.get(number), f"{number:>7} {source}", head, look))
        before = number
    return lines


def _line(row: dict[str, Any] | None, source: str, head: str, look: Look) -> str:
    """Formats a line: metrics below the `head`, line number, text."""
    if row is None:
        return _cut(f"{'':{len(head)}}{source}", look.width)
    executed = units.short_count(row["instructions"]) if row["instructions"] else ""
    threads = "" if row["threads_per_instruction"] is None else f"{row['threads_per_instruction']:.1f}"
    figures = f"{_share(row['share']):>8}{executed:>10}{threads:>5}{_share(row['ideal_share']):>8}"
    if head.endswith(_LIVE):
        figures += f"{row['live_registers'] if row['live_registers'] is not None else '':>{len(_LIVE)}}"
    hot = (row["share"] or 0) >= _HOT
    text = _cut(f"{figures}{source}", look.width)
    return look.paint(text, _BOLD) if hot else text


def instructions(kernel: str, rows: pl.DataFrame, column: str, look: Look) -> str:
    """Renders a kernel's SASS or PTX (`column`), annotated per instruction."""
    samples = max(int(rows.get_column("samples").sum()), 1)
    head, legend = _frame(rows)
    blocks = [
        look.paint(outlets.line(kernel), _BOLD),
        look.paint(f"{head}  {column}", _DIM),
    ]
    for row in rows.iter_rows(named=True):
        threads, ideal = None, None
        if row["instructions"]:
            threads = (row["thread_instructions"] or 0) / row["instructions"]
        if row["sectors"]:
            ideal = (row["ideal_sectors"] or 0) / row["sectors"]
        told = {
            "share": (row["samples"] or 0) / samples,
            "instructions": row["instructions"],
            "threads_per_instruction": threads,
            "ideal_share": ideal,
            "live_registers": row["live_registers"],
        }
        blocks.append(_line(told, f"  {outlets.line((row[column] or '').expandtabs(1))}", head, look))
    return "\n".join([*blocks, "", look.paint(legend, _DIM)]) + "\n"


def json(kernel: str, rows: pl.DataFrame) -> str:
    """Renders the rows as JSON."""
    return outlets.json({"kernel": kernel, "rows": rows.to_dicts()})


def _cut(text: str, width: int) -> str:
    return text.rstrip() if len(text) <= width else f"{text[: width - 1]}…"


def _share(value: float | None) -> str:
    return "" if not value else units.percent(value)
