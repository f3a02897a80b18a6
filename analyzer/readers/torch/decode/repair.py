"""Repairs pieces of a trace that fail to decode: joins pieces cut within an event, recovers events from damaged ones.

A cut between events is found by a pattern, and may actually lie in a list inside an event, or in its text. Then neither
adjacent piece is valid. The list of events may also end earlier than assumed.
"""

from __future__ import annotations

import re
from collections import deque
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from kanalyze.readers.torch.decode.columns import Decoder
from kanalyze.readers.torch.decode.text import LONGEST_BYTES, is_tail

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kanalyze.readers.torch.decode.columns import Columns
    from kanalyze.readers.torch.decode.text import Around

#: Tokens for tracking nesting depth: strings, possibly unterminated, and brackets.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]++|[\]}]++', re.DOTALL)

#: Most candidates examined for the end of the list while events seem to follow.
_ENDS: Final = 3


class Part(NamedTuple):
    """Decoding result of one piece.

    Attributes:
        columns: The columns; None if the piece could not be decoded.
        texts: The interned texts by code; grows while the trace is read.
        piece: The undecodable piece, or one without any event, which a repair may need; else empty.
    """

    columns: Columns | None
    texts: list[str]
    piece: bytes = b""

    @classmethod
    def of(cls, columns: Columns | None, texts: list[str], piece: bytes) -> Part:
        """The result for a `piece`."""
        return cls(columns, texts, piece if columns is None or columns.hollow else b"")


def mended(parts: Iterable[Part], around: Around) -> Iterator[Part]:
    """Replaces undecodable parts: joined with their neighbours, or salvaged; all parts stay in order.

    After the last one `around` holds everything around the events.
    """
    decoder, run, size = Decoder(), list[bytes](), 0
    for part in parts:
        if part.columns is not None and not (run and part.columns.hollow):
            yield from _whole(decoder, run)
            yield part
        else:
            run.append(part.piece)
            size += len(part.piece)
            if size < LONGEST_BYTES:
                continue
            yield from _whole(decoder, run)
        run, size = [], 0
    run, cut = _ended(run, around)
    yield from _whole(decoder, run, cut=cut)
    if around.tail is None:
        around.damage.append("missing end of the list of events")
    else:
        around.add_tail(around.tail)


def _ended(run: list[bytes], around: Around) -> tuple[list[bytes], bool]:
    """The undecodable last pieces of a file, cut at the end of the list; and whether they were cut."""
    text = b"".join(run)
    if around.tail is not None:
        text += b"]" + around.tail
    end = next((at for at in outline(text, ())[1] if is_tail(text[at + 1 :])), None) if run else None
    if end is None:
        return run, False
    around.tail = text[end + 1 :]
    begins = accumulate(map(len, run), initial=0)
    return [piece[: end - begin] for piece, begin in zip(run, begins, strict=False) if begin < end], True


def _whole(decoder: Decoder, run: Sequence[bytes], *, cut: bool = False) -> Iterator[Part]:
    """Decodes adjacent undecodable pieces as one text, unless they were `cut` meanwhile.

    In damaged text, brackets and quotes do not show reliably where events begin, so everything between decodable pieces
    is salvaged.
    """
    if not run:
        return
    text, places = b"".join(run), list(accumulate(map(len, run)))
    tried = set() if cut else set(pairwise([0, *places]))
    damaged = b""
    for span in pairwise([0, *outline(text, places)[0]]):
        piece = text[slice(*span)]
        columns = None if span in tried else decoder.columns(piece)
        if columns is None:
            damaged += piece
            continue
        yield from _salvaged(decoder, damaged)
        yield Part(columns, decoder.texts.known)
        damaged = b""
    yield from _salvaged(decoder, damaged)


def _salvaged(decoder: Decoder, text: bytes) -> Iterator[Part]:
    if text:
        yield Part(decoder.salvaged(text), decoder.texts.known)


def outline(text: bytes, places: Sequence[int]) -> tuple[list[int], list[int]]:
    """The structure of a list's text: where it can be split, and where the list may end.

    Returns:
        Of the `places` those between two of the list's values, and the last one; and where a bracket closes that none
        opened, but of these only the first ones, and the first behind all events.
    """
    between: list[int] = []
    ends: list[int] = []
    depth, waiting, last = 0, deque(places), text.rfind(b'"ph"')
    for found in _TOKEN.finditer(text):
        at, token = found.start(), found[0]
        while waiting and waiting[0] <= at:
            place = waiting.popleft()
            if depth == 0:
                between.append(place)
        if token.startswith(b'"'):
            while waiting and waiting[0] < found.end():
                waiting.popleft()
        elif token[0] in b"[{":
            depth += len(token)
        else:
            if depth < len(token) and (len(ends) < _ENDS or ends[-1] < last < at):
                ends.append(at + depth)
            depth = max(0, depth - len(token))
    return [*(place for place in between if place < len(text)), len(text)], ends
