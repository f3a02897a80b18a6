"""Renders decoded kernel names: one field per line, or JSON."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Final

from kanalyze import outlets
from kanalyze.decoder.fields import OTHER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.decoder.fields import KernelName

#: Fields that are sizes, printed as 128 × 64 × 32.
_SIZES: Final = ("tile", "warps", "warpgroups", "cluster", "instruction")


def terminal(names: Sequence[tuple[str, KernelName]], width: int) -> str:
    """Renders each name in full with its known fields below."""
    return "\n".join(_block(name, said, width) for name, said in names)


def _block(name: str, said: KernelName, width: int) -> str:
    lines = wrap(outlets.line(name), width, break_on_hyphens=False) or ["(no name)"]
    fields = {field: _text(field, value) for field, value in said._asdict().items() if value not in (None, ())}
    if fields["function"] in {"", name}:
        del fields["function"]
    column = max(map(len, fields)) + 2
    for field, text in fields.items():
        first, *rest = wrap(text, max(width - column - 2, 20), break_on_hyphens=False) or [""]
        lines.append(f"  {field.replace('_', ' '):<{column}}{first}")
        lines += [" " * (column + 2) + line for line in rest]
    return "".join(f"{line}\n" for line in lines)


def _text(field: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return (" × " if field in _SIZES else ", ").join(outlets.line(str(part)) for part in value)
    return f"{value} (the name does not say)" if (field, value) == ("family", OTHER) else outlets.line(str(value))


def as_json(names: Sequence[tuple[str, KernelName]]) -> str:
    """Renders a JSON list with one object per name; unknown fields are null or empty lists."""
    return outlets.json([{"name": name.encode("utf-8", "replace").decode(), **said._asdict()} for name, said in names])
