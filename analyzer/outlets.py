r"""Escapes untrusted texts for output: one function per format.

Names of kernels, ranges, files and machines are untrusted input. In a terminal they could move the cursor or fill the
clipboard; in Markdown and HTML be a link, an image, a mention or a script; in a plot a formula; in a spreadsheet a
program. Every text is escaped for its format by a function here:

=========================  =============================================================================
:func:`line`               one line for people: terminals, error messages, and what the others begin with
:func:`lines`              several lines for people, with our own colours
:func:`markdown`           a text in Markdown; :func:`paragraph` as a block of its own, :func:`code` as code
:func:`html`               a text between tags, or in a quoted attribute
:func:`json`               a value as JSON: exact, with what could reach a terminal as ``\u009b``
:func:`picture`            a text that matplotlib draws
:func:`spreadsheet`        a column of CSV for a spreadsheet, which must run none of it
:func:`name`               the path of a file, as tables and files of ours hold it
:func:`command`            words as a line to paste into a shell: exact, and none of them active
=========================  =============================================================================
"""

import json as encoder
import re
from collections.abc import Sequence
from pathlib import PurePath
from shlex import quote
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import polars as pl

#: Longest text on a page, in characters.
LONGEST: Final = 1000

#: Letters that render as nothing: Hangul fillers and the Braille blank.
_INVISIBLE: Final = str.maketrans(dict.fromkeys("\u115f\u1160\u3164\uffa0\u2800", "?"))

#: Quick check: characters other than printable ASCII.
_ODD: Final = re.compile(r"[^ -~]")

#: Our own ANSI colour codes, and all other non-printable sequences.
_COLOUR_OR_ODD: Final = re.compile(r"\x1b\[[0-9;]{1,8}m|[^ -~\n]")

#: Matches what GitHub-flavoured Markdown would interpret in a word: markup, URLs, issue and commit ids.
_ACTIVE: Final = (
    r"(?i)[`*~>\[\]\\|@#$^]|<(?![\d=]|$)|&(?=\S)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:/|www\.|:[\w+-]+:|\bGH-\d"
    r"|(?<![0-9A-Za-z])(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,40}(?![0-9A-Za-z])"
)
#: Punctuation around a word.
_AROUND: Final = "()\"',.;:!?"

#: Line beginnings that Markdown takes for a list or rule: text before and after the inserted backslash.
_BLOCK: Final = r"\A(\d{0,9})([-+=.)])(?=[-+=\s]|\Z)"


def line(text: str) -> str:
    """`text` on one line, with each non-printable character replaced by a question mark.

    Replaced are control characters, which a terminal would obey, those of direction or zero width, unpaired surrogates.
    """
    return text if text.isascii() and text.isprintable() else _ODD.sub(lambda match: _shown(match[0]), text)


def lines(text: str) -> str:
    """`text` with non-printable characters replaced, except for line ends and our own ANSI colours."""
    return _COLOUR_OR_ODD.sub(lambda match: match[0] if len(match[0]) > 1 else _shown(match[0]), text)


def _shown(character: str) -> str:
    return character.translate(_INVISIBLE) if character.isprintable() else "?"


def short(text: str) -> str:
    """Like :func:`line`, and truncated to the longest text on a page."""
    return cut(line(text[: LONGEST + 1]), LONGEST)


def cut(text: str, longest: int) -> str:
    """The text, without its end if it is longer."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def name(path: object) -> str:
    """A file's path as text that every format can hold: bytes of it that are no UTF-8 are escaped."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def command(*words: object) -> str:
    """A line to paste into a shell: words and paths quoted, what is not printable in ANSI-C quotes."""
    return " ".join(map(_shell_word, map(str, words)))


def _shell_word(text: str) -> str:
    if line(text) == text:
        return quote(text)
    escaped = text.translate({ord("\\"): "\\\\", ord("'"): "\\'"})
    return f"$'{_ODD.sub(lambda match: _octets(match[0]), escaped)}'"


def _octets(character: str) -> str:
    """A character as what it is if it is printable, else as the escaped bytes that a file's name has there."""
    if _shown(character) == character:
        return character
    return "".join(f"\\x{octet:02x}" for octet in character.encode("utf-8", "surrogateescape"))


def code(text: str) -> str:
    """`text` as an inert Markdown code span, also within a table."""
    plain = line(text)
    if not plain.strip():
        return "(no name)"
    if "|" in plain:  # escaped, since it would end a table cell; outside of tables the escape is visible
        return f"<code>{re.sub('[^A-Za-z0-9 ]', lambda match: f'&#{ord(match[0])};', plain)}</code>"
    if "`" not in plain:
        return f"`{plain}`"
    fence = "`" * (max(map(len, re.findall("`+", plain))) + 1)
    return f"{fence} {plain} {fence}"


def markdown(text: str) -> str:
    """`text` escaped inline in Markdown: active words become code spans; our own code spans stay."""
    plain, parts, at = line(text), [], 0
    for match in re.finditer(r"(?<!`)`([^`]+)`(?!`)", plain):  # our own code spans within a sentence
        parts += [_words(plain[at : match.start()]), code(match[1])]
        at = match.end()
    return "".join([*parts, _words(plain[at:])]).strip()


def paragraph(text: str) -> str:
    """`text` escaped as a Markdown paragraph: like :func:`markdown`, and neither list nor rule."""
    return re.sub(_BLOCK, lambda match: f"{match[1]}\\{match[2]}", markdown(text), count=1)


def _words(text: str) -> str:
    """Wraps each word that would be active in a code span."""

    def word(match: re.Match[str]) -> str:
        text = match[0]
        if re.search(_ACTIVE, text) is None:
            return text
        bare = text.strip(_AROUND)
        before, _, after = text.partition(bare) if bare else ("", "", "")
        active = not bare or re.search(_ACTIVE, before + after)
        return code(text) if active else f"{before}{code(bare)}{after}"

    return re.sub(r"\S+", word, text) if re.search(_ACTIVE, text) else text


def html(text: str) -> str:
    """`text` escaped for HTML content and quoted attributes."""
    from html import escape  # noqa: PLC0415 - reads a table of 2,000 entities, which a page for the terminal has no use for

    return escape(line(text), quote=True)


def json(value: object, indent: int | None = 2) -> str:
    """Serialises to JSON with non-printable characters escaped; ends with a newline."""
    return escaped_json(encoder.dumps(value, indent=indent, ensure_ascii=False)) + "\n"


def escaped_json(document: str) -> str:
    """Escapes every non-printable character in a JSON document."""

    def escape(match: re.Match[str]) -> str:
        units = match[0].encode("utf-16-be", "surrogatepass")  # pairs of surrogates beyond the first plane
        escaped = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        return match[0] if match[0].isprintable() else escaped

    return document if document.isascii() and document.isprintable() else re.sub(r"[^ -~\n]", escape, document)


def picture(text: str) -> str:
    """`text` escaped for matplotlib: a dollar sign starts no formula."""
    return line(text).replace("$", r"\$")


def spreadsheet(frame: "pl.DataFrame") -> "pl.DataFrame":
    """Prefixes texts that a spreadsheet would take for a formula with an apostrophe."""
    import polars as pl  # noqa: PLC0415 - the command line needs `line`, and not polars

    # first characters of formulas, half- and full-width
    formula = r"^[\s\x00]*[=+\-@\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}]|^[\t\r\n]"
    texts = pl.col(pl.String, pl.Categorical, pl.Enum).cast(pl.String)
    return frame.with_columns(texts.str.replace(formula, "'${0}"))


def short_paths(paths: Sequence[str]) -> list[str]:
    """The ends of paths that tell them apart, of as many parts as that takes; equal paths stay equal."""
    parts = {path: PurePath(path).parts for path in paths}
    ends = {}
    for path, own in parts.items():
        others = [other for other in parts.values() if other != own]
        length = next((n for n in range(1, len(own)) if all(own[-n:] != other[-n:] for other in others)), len(own))
        ends[path] = str(PurePath(*own[-length:])) if own else path
    return [ends[path] for path in paths]
