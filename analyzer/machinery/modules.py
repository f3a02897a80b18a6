"""Modules of a package by room: tables and readers are found by walking the folders, without a list."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def modules(package: str, folders: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Room, name and dotted name of each module one level below the `folders` of a package; imports nothing."""
    for folder in folders:
        for room in pkgutil.iter_modules([folder]):
            if room.ispkg:
                for module in pkgutil.iter_modules([str(Path(folder, room.name))]):
                    if not module.ispkg:
                        yield room.name, module.name, f"{package}.{room.name}.{module.name}"
