"""Commands to paste that lead on from a page: whole, with the path and the part that the page is of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze import outlets

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.window import Scope


def show(table: str, *paths: Path, scope: Scope | None = None) -> str:
    """The command that shows `table`, with its options, of the reports at `paths` or of the part in `scope`."""
    return outlets.command("kanalyze", "show", *table.split(), *paths, *options(scope))


def summarize(*paths: Path, scope: Scope | None = None) -> str:
    """The command that prints the page of the reports at `paths`, or of the part in `scope`."""
    return outlets.command("kanalyze", "summarize", *paths, *options(scope))


def options(scope: Scope | None) -> list[str]:
    """The options that choose what is in `scope`."""
    if scope is None:
        return []
    chosen = {"window": scope.window, "device": scope.device, "process": scope.process}
    return [word for name, value in chosen.items() if value is not None for word in (f"--{name}", str(value))]
