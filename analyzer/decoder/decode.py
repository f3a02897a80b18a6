"""Decodes a kernel name: tries each library's decoder in turn; the first match wins."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from kanalyze.decoder import communication, engines, libraries, products, pytorch
from kanalyze.decoder.fields import OTHER, KernelName
from kanalyze.decoder.spelling import spelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from kanalyze.decoder.spelling import Spelled

#: Most specific first: NCCL's pattern occurs in no other name; a cuDNN name may contain one of CUTLASS.
_DECODERS: Final[tuple[Callable[[Spelled], dict[str, Any] | None], ...]] = (
    communication.communication,
    pytorch.inductor,
    *libraries.AMD,
    *engines.ATTENTION,
    *products.PRINTED,
    *libraries.IMAGES,
    *products.TEMPLATES,
    pytorch.aten,
    *libraries.PRIMITIVES,
    *libraries.ARRAYS,
    *engines.ENGINES,
)

#: Libraries whose functions are all listed; an unlisted one is not guessed by the words in its name.
_EXACT: Final = ("aten", "inductor", "deep_ep", "cudnn", "cub", "thrust", "xla", "cupy")


#: Names that are kept; rules ask for all names of a report one after the other, so that fewer would keep none of them.
_KEPT: Final = 1 << 16


@lru_cache(maxsize=_KEPT)
def decode(name: str) -> KernelName:
    """Decodes a kernel name, see :class:`kanalyze.decoder.fields.KernelName`.

    Accepts any text, in nsys', torch's or ncu's spelling or mangled; unrecognised names have the family ``other``.
    """
    apart = spelled(name)
    found = next((fields for decoder in _DECODERS if (fields := decoder(apart))), {})
    vague = bool(found) and found.get("family", OTHER) == OTHER and found.get("library") not in _EXACT
    if vague and (more := engines.words(apart)):
        found = {**more, **{field: value for field, value in found.items() if field != "family" and value}}
    return KernelName(function=apart.function, **{"family": OTHER, **found})
