"""What the manifest of a capture says of how it was made: the commands of its passes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from kanalyze.counter_model import measured_some
from kanalyze.readers.ncu_selection import chooses, counts_from_call, records_all, selection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kanalyze.readers.ncu_selection import Selection

    #: The commands of a capture by the name of their step, as :func:`commands` gives them.
    Commands = Mapping[str, Sequence[str]]

#: What a capture's folder has, and no other.
MANIFEST: Final = "manifest.json"


def commands(folder: Path) -> dict[str, list[str]]:
    """The commands that ended well, by the name of their step; the last one of each name.

    Empty where there is no manifest, or one that says nothing of the sort: nothing but how sure a match is depends on
    it.
    """
    try:
        told = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        steps = [step for done in told["passes"] for step in done["steps"] if step["exit_status"] == 0]
        found = {step["name"]: [*map(str, step["command"])] for step in steps}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
    return {name: command for name, command in found.items() if isinstance(name, str)}


def recorded_all(told: Commands) -> bool:
    """Whether the nsys pass recorded the whole run of the program, as far as its command says."""
    return records_all(told.get("nsys", []))


def selections(told: Commands) -> dict[str, Selection]:
    """Which launches each run of ncu profiled, by the name of its files, where its command says so.

    They are those of the capture's nsys pass: it has to have recorded from the same moment on.
    """
    from_call = counts_from_call(told.get("nsys", []))
    asked = {name: selection(command) for name, command in told.items() if name.startswith("ncu")}
    return {name: one for name, one in asked.items() if one is not None and one.from_call is from_call}


def selective(told: Commands, names: Iterable[str]) -> bool | None:
    """Whether these runs of ncu profiled some launches only; None where their commands do not say."""
    return measured_some([chooses(told.get(name, [])) for name in names])
