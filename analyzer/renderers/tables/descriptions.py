"""Describes what there is to ask for: tables with their columns, findings and words of pages, names of kernels.

What findings mean is a text in Markdown for each, in the folder `explanations`, the one source of `kanalyze explain`
and of docs/findings.md: a heading (the rule's name), a headline, and paragraphs that begin with "Found when:", "At
stake:" and "What to do:", with code. What other words of a page mean is in words.toml beside them.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kanalyze import errors, outlets
from kanalyze.decoder.fields import KernelName

if TYPE_CHECKING:
    from kanalyze.schema import Column, Table

    #: A table, and variants of it.
    Described = tuple[Table, Sequence[Table]]

_INDENT: Final = "  "


def _wrapped(text: str, width: int, start: str = _INDENT, more: str | None = None, **how: Any) -> list[str]:  # noqa: ANN401 - of textwrap
    """A text behind a start, below which it goes on, or `more`."""
    below = " " * len(start) if more is None else more
    return textwrap.wrap(text, width, initial_indent=start, subsequent_indent=below, **how)


def _starts(cells: Sequence[tuple[str, ...]], indent: str = _INDENT) -> list[str]:
    """The cells of each row beside each other, padded to columns, for a text to stand behind."""
    wide = [max(map(len, texts)) for texts in zip(*cells, strict=True)]
    return [indent + "".join(f"{text.ljust(size)}  " for text, size in zip(row, wide, strict=True)) for row in cells]


def _ended(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


# Tables.

_READ: Final = (
    "The second column says what has it: reports of nsys, torch.profiler or ncu, of any of them, several of one "
    "program, or a capture of `kanalyze collect`."
)
_MORE: Final = "`kanalyze show NAME` has its columns with units and meaning, `kanalyze show NAME REPORT` its rows."


def listing(subjects: Mapping[str, Sequence[Table]], width: int) -> str:
    """Renders a line per table below each subject: name, the reports that give it, what it is for."""
    starts = iter(_starts([(table.name, table.inputs) for listed in subjects.values() for table in listed]))
    lines = []
    for subject, listed in subjects.items():
        lines.append(subject)
        for table in listed:
            lines += _wrapped(table.purpose or table.doc, width, next(starts))
        lines.append("")
    return _ended([*lines, *_wrapped(_READ, width, ""), *_wrapped(_MORE, width, "")])


def terminal(tables: Sequence[Described], width: int) -> str:
    """Renders every table with its columns as terminal text."""
    parts = []
    for table, forms in tables:
        lines = [table.name, *_wrapped(table.doc, width - 2)]
        lines += _wrapped(f"Equals {table.equals}.", width - 2) if table.equals else []
        lines += [f"  --by {', '.join(table.groupings)}"] if table.groupings else []
        lines += [f"  {', '.join(table.flags)}"] if table.options else []
        lines += _columns(table.columns, width)
        for form in forms:
            lines += [*_wrapped(f"{form.when}: {form.doc}", width - 2), *_columns(_further(form, table), width)]
        parts.append(_ended(lines))
    return "\n".join(parts)


def _columns(columns: Sequence[Column], width: int) -> list[str]:
    starts = _starts([(column.name, _type(column), column.unit) for column in columns], _INDENT * 2)
    return [line for start, one in zip(starts, columns, strict=True) for line in _wrapped(_meaning(one), width, start)]


def _meaning(column: Column) -> str:
    return column.doc if not column.nullable or "null" in column.doc else f"{column.doc} May be missing (null)."


def _further(form: Table, table: Table) -> list[Column]:
    """Columns of a variant that the table itself lacks."""
    return [column for column in form.columns if column not in table.columns]


def _type(column: Column) -> str:
    return str(column.dtype).partition("(")[0]


def _markdown(tables: Sequence[Described]) -> str:
    """Renders every table as a Markdown section with its columns; the source of the docs page."""
    parts = []
    for table, forms in tables:
        groupings, options = (", ".join(f"`{word}`" for word in words) for words in (table.groupings, table.flags))
        lines = [f"## {table.name}", "", table.doc]
        lines += ["", f"Equals {table.equals}."] if table.equals else []
        lines += ["", f"`--by` {groupings}"] if groupings else []
        lines += ["", f"Options: {options}"] if options else []
        lines += _markdown_columns(table.columns)
        for form in forms:
            lines += ["", f"With `{form.when}`: {form.doc}", *_markdown_columns(_further(form, table))]
        parts.append(_ended(lines))
    return "\n".join(parts)


def _markdown_columns(columns: Sequence[Column]) -> list[str]:
    rows = [f"| `{column.name}` | {_type(column)} | {column.unit} | {_meaning(column)} |" for column in columns]
    return ["", "| column | type | unit | meaning |", "| --- | --- | --- | --- |", *rows] if rows else []


def _json(tables: Sequence[Described]) -> str:
    """Renders the declarations as a JSON list."""

    def columns(table: Table) -> list[dict[str, object]]:
        return [
            {"name": one.name, "type": _type(one), "unit": one.unit, "doc": one.doc, "nullable": one.nullable}
            for one in table.columns
        ]

    return outlets.json(
        [
            {
                "table": table.name,
                "doc": table.doc,
                "equals": table.equals,
                "by": list(table.groupings),
                "options": table.flags,
                "columns": columns(table),
                "forms": [{"when": form.when, "doc": form.doc, "columns": columns(form)} for form in forms],
            }
            for table, forms in tables
        ]
    )


# Findings, and words of pages.

_FOLDER: Final = Path(__file__).parents[2] / "explanations"


class Explanation(NamedTuple):
    """Explanation of a finding: the rule's name, what it is in a sentence, and the rest, in Markdown."""

    name: str
    headline: str
    text: str


def names() -> list[str]:
    """The names of all findings, sorted."""
    return sorted(file.stem for file in _FOLDER.glob("*.md"))


@cache
def words() -> dict[str, str]:
    """What each word of a page means, besides the names of findings."""
    return tomllib.loads((_FOLDER / "words.toml").read_text(encoding="utf-8"))


def meanings(word: str) -> list[tuple[str, str]]:
    """A word of a page as it stands there, and what it means; small letters may be a column, capitals a section."""
    return [(one, text) for one, text in words().items() if one.casefold() == word.casefold()]


def explanation(name: str) -> Explanation:
    """The explanation of the finding `name`; UnknownNameError if there is no such finding."""
    errors.refuse_unknown("finding", name, names())
    _, headline, text = (_FOLDER / f"{name}.md").read_text(encoding="utf-8").split("\n\n", maxsplit=2)
    return Explanation(name, headline, text)


def headlines(explanations: Sequence[Explanation], width: int) -> str:
    """Renders a line per explanation for a terminal: name and headline, which wraps."""
    starts = zip(_starts([(one.name,) for one in explanations], ""), explanations, strict=True)
    return _ended(line for start, one in starts for line in _wrapped(_plain(one.headline), width, start))


def explained(one: Explanation, width: int) -> str:
    """Renders an explanation for a terminal: paragraphs and lists wrapped, code as it is."""
    lines = [one.name, *_wrapped(_plain(one.headline), width)]
    for part in re.split(r"^(```.*?^```)$", one.text, flags=re.MULTILINE | re.DOTALL):
        if part.startswith("```"):  # it keeps its empty lines
            lines += ["", *(f"{_INDENT * 2}{line}" if line else "" for line in part.splitlines()[1:-1])]
            continue
        for block in filter(None, re.split(r"\n\n+", part.strip())):
            items = filter(None, re.split(r"^(?=- )", block, flags=re.MULTILINE))
            lines += ["", *(line for item in items for line in _paragraph(item, width))]
    return outlets.lines(_ended(lines))


def meant(meanings: Sequence[tuple[str, str]], width: int) -> str:
    """Renders what words of a page mean for a terminal."""
    return outlets.lines(_ended(line for word, text in meanings for line in (word, *_paragraph(text, width))))


def _paragraph(text: str, width: int) -> list[str]:
    more = _INDENT * 2 if text.startswith("- ") else _INDENT
    plain = _plain(" ".join(text.split()))
    return _wrapped(plain, width, _INDENT, more, break_long_words=False, break_on_hyphens=False)


def _plain(text: str) -> str:
    """A text without marks of code, and of links the text alone."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).replace("`", "")


# Names of kernels.

#: Fields that are sizes, printed as 128 × 64 × 32.
_SIZES: Final = ("tile", "warps", "warpgroups", "cluster", "instruction")


def decoded(decoded_name: tuple[str, KernelName], width: int) -> str:
    """Renders a name in full with its known fields below."""
    name, said = decoded_name
    lines = textwrap.wrap(outlets.line(name), width, break_on_hyphens=False)
    fields = {field: _text(field, value) for field, value in said._asdict().items() if value not in (None, ())}
    if fields["function"] in {"", name}:
        del fields["function"]
    starts = _starts([(field.replace("_", " "),) for field in fields])
    for start, text in zip(starts, fields.values(), strict=True):
        lines += _wrapped(text, max(width, 20 + len(start)), start, break_on_hyphens=False) or [start]
    return _ended(lines)


def _text(field: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return (" × " if field in _SIZES else ", ").join(outlets.line(str(part)) for part in value)
    return outlets.line(str(value))


#: What renders each of these for programs: declarations of tables, explanations, words with meanings, and a
#: decoded name, with null or empty lists for fields that are not known.
TABLES: Final = {"markdown": _markdown, "json": _json}
FINDINGS: Final = {
    "markdown": lambda every: "\n".join(f"## {one.name}\n\n{one.headline}\n\n{one.text}" for one in every),
    "json": lambda every: outlets.json([one._asdict() for one in every]),
}
WORDS: Final = {
    "markdown": lambda meanings: "".join(f"**{word}**: {text}\n" for word, text in meanings),
    "json": lambda meanings: outlets.json([{"word": word, "meaning": text} for word, text in meanings]),
}
NAMES: Final = {
    "json": lambda one: outlets.json([{"name": one[0].encode("utf-8", "replace").decode(), **one[1]._asdict()}])
}
