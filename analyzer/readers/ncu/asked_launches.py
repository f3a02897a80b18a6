"""Launches that an ncu command line profiles, parsed from the commands in a capture's manifest.

ncu counts launches by function, in the order of the calls that launch them, in each process by itself and over all its
streams; a node of a CUDA graph counts whenever the graph is launched, and with ``--profile-from-start off`` counting
begins where the program says (seen with ncu 2025.3, on programs whose k-th launch has k blocks). ``--launch-count`` and
``--launch-skip`` count all launches that the filter lets through.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kanalyze.counter_model import measured_some
from kanalyze.files.regular import open_regular

if TYPE_CHECKING:
    #: The commands of a capture, keyed by step name, as :func:`commands` returns them.
    Commands = Mapping[str, Sequence[str]]


#: ncu flags with a value that do not affect which launches are profiled.
_HARMLESS: Final = frozenset(
    (
        *("--set", "--section", "--metrics", "--import-source", "--source-folders", "--clock-control"),
        *("--cache-control", "--export", "-o", "--log-file", "--print-units", "--page", "--target-processes"),
    )
)

#: ncu flags without a value that do not; ``--nvtx`` alone filters nothing.
_HARMLESS_ALONE: Final = frozenset(("--csv", "--force-overwrite", "-f", "--nvtx"))

#: Flags that select launches, and their short forms.
_SHORT: Final = {"-k": "--kernel-name", "-s": "--launch-skip", "-c": "--launch-count"}
_CHOOSING: Final = ("--kernel-id", "--kernel-name-base", "--profile-from-start", *_SHORT.values())

#: `nsys profile` flags that do not affect which launches are recorded, nor their order.
_HARMLESS_IN_NSYS: Final = re.compile(
    r"--(cuda-um-(cpu|gpu)-page-faults|sample|cpuctxsw|output|duration|export|stats|force-overwrite)=.*"
    r"|--trace=(.*,)?cuda(,.*)?|--cuda-graph-trace=node|--capture-range-end=stop"
)
_FROM_CALL: Final = "--capture-range=cudaProfilerApi"

#: The words of `nsys profile` and a program.
_LEAST: Final = 3

#: A regular expression that matches exactly one mangled name.
_ESCAPED: Final = r"(?:\w|\\[.$])+"

#: Whether ncu counts launches from program start, by the value of --profile-from-start.
_STARTS: Final = {"on": True, "yes": True, "1": True, "off": False, "no": False, "0": False}


class Selection(NamedTuple):
    """The launches selected by one ncu run.

    Attributes:
        numbers: The launch numbers, counted from 1 per function; None for the first launches.
        skip: How many launches are skipped before the first ones; if any, the launches are of one function.
        from_call: Whether launches are counted from the call of cudaProfilerStart on, not from program start.
        symbols: Mangled names of the functions that pass the filter; empty if unknown.
    """

    numbers: tuple[int, ...] | None
    skip: int = 0
    from_call: bool = False
    symbols: tuple[str, ...] = ()

    def numbers_of(self, names: Sequence[str | None]) -> list[int | None]:
        """The launch number (from 1, per function) of each profiled kernel; None where the report contradicts this."""
        seen: Counter[str | None] = Counter()
        counts, found = Counter(names), list[int | None]()
        for name in names:
            seen[name] += 1
            if name is None or (self.numbers is not None and counts[name] != len(self.numbers)):
                found.append(None)
            else:
                found.append(self.skip + seen[name] if self.numbers is None else self.numbers[seen[name] - 1])
        return found if not self.skip or len(counts) == 1 else [None] * len(found)


def selection(command: Sequence[str]) -> Selection | None:
    """Parses the launch selection of an ncu command line; None where it cannot be determined."""
    flags = _flags(command)
    if flags is None:
        return None
    from_start = _from_start(flags)
    found = _by_number(flags) if "--kernel-id" in flags else _first_ones(flags)
    return None if found is None or from_start is None else found._replace(from_call=not from_start)


def chooses(command: Sequence[str]) -> bool | None:
    """Whether an ncu command line profiles only a subset of the launches; None if unknown."""
    flags = _flags(command)
    if flags is None:
        return None
    if flags.keys() - {"--profile-from-start", "--kernel-name-base"}:
        return True
    from_start = _from_start(flags)
    return None if from_start is None else not from_start


def _from_start(flags: Mapping[str, str]) -> bool | None:
    """Whether launches are counted from program start; None for an unknown value of the flag."""
    return _STARTS.get(flags.get("--profile-from-start", "on"))


def _by_number(flags: Mapping[str, str]) -> Selection | None:
    """The selection by launch number, in any context and on any stream."""
    of_all = re.fullmatch(r"::(.+):(\d+(?:\|\d+)*)", flags["--kernel-id"])
    mixed = {*_SHORT.values()} & flags.keys()
    if of_all is None or mixed or flags.get("--kernel-name-base") != "mangled":
        return None
    numbers = {int(number) for number in of_all[2].split("|")}
    return Selection(tuple(sorted(numbers)), symbols=_symbols(of_all[1])) if 0 not in numbers else None


def _first_ones(flags: Mapping[str, str]) -> Selection | None:
    """The selection of the first launches that pass a name filter, after skipped ones if it names one function."""
    skip = flags.get("--launch-skip", "0")
    if not (skip.isdecimal() and flags.get("--launch-count", "0").isdecimal()):
        return None
    mangled = flags.get("--kernel-name-base") == "mangled"
    symbols = _symbols(flags.get("--kernel-name", "")) if mangled else ()
    return Selection(None, int(skip), symbols=symbols) if not int(skip) or len(symbols) == 1 else None


def _symbols(pattern: str) -> tuple[str, ...]:
    """The mangled names in a name filter: a plain name, ``regex:^NAME$`` or ``regex:^(NAME|NAME)$``.

    Empty for other expressions, in which a dot or dollar sign that is not escaped has its own meaning.
    """
    if re.fullmatch(r"[\w$.]+", pattern):
        return (pattern,)
    whole = re.fullmatch(rf"regex:\^(?:\(({_ESCAPED}(?:\|{_ESCAPED})*)\)|({_ESCAPED}))\$", pattern)
    return tuple((whole[1] or whole[2]).replace("\\", "").split("|")) if whole else ()


def _flags(command: Sequence[str]) -> dict[str, str] | None:
    """The flags that select launches, with values; None if any flag is unknown or repeated."""
    if not command or not PurePath(command[0]).name.startswith("ncu"):
        return None
    found: dict[str, str] = {}
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-"):
            return found
        flag, equals, value = word.partition("=")
        if flag in _HARMLESS_ALONE and not equals:
            continue
        value, flag = value if equals else next(words, ""), _SHORT.get(flag, flag)
        if flag in _CHOOSING and flag not in found:
            found[flag] = value
        elif flag not in _HARMLESS:
            return None
    return None  # there is no program


def counts_from_call(command: Sequence[str]) -> bool | None:
    """Whether an `nsys profile` command records from cudaProfilerStart on; None where it records otherwise.

    False if it records from program start. Either way every launch from there on has to be recorded, with graph nodes
    recorded individually.
    """
    if len(command) < _LEAST or not PurePath(command[0]).name.startswith("nsys") or command[1] != "profile":
        return None
    flags = [*takewhile(lambda word: word.startswith("-"), command[2:])]
    others = [flag for flag in flags if flag != _FROM_CALL]
    return None if any(_HARMLESS_IN_NSYS.fullmatch(flag) is None for flag in others) else len(others) < len(flags)


# The commands of a capture's passes, read from its manifest.

#: The file that marks a folder as a capture.
MANIFEST: Final = "manifest.json"


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the capture in `folder`, whatever is in it.

    Raises:
        OSError, ValueError, RecursionError: There is none, or it is no JSON.
    """
    with open_regular(folder / MANIFEST) as file:
        content: dict[str, Any] = json.loads(file.read())
    return content


def commands(folder: Path) -> dict[str, list[str]]:
    """The successful commands in the manifest, keyed by step name; of a repeated name the last one.

    Empty if the manifest is missing or lacks commands, which only makes matches less certain.
    """
    try:
        passes = read_manifest(folder)["passes"]
        steps = [step for done in passes for step in done["steps"] if step["exit_status"] == 0]
        found = {step["name"]: [*map(str, step["command"])] for step in steps}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
    return {name: command for name, command in found.items() if isinstance(name, str)}


def recorded_all(told: Commands) -> bool:
    """Whether the nsys pass recorded the whole program run, judged by its command line."""
    command = told.get("nsys", [])
    flags = takewhile(lambda word: word.startswith("-"), command[2:])
    return counts_from_call(command) is False and not any(flag.startswith("--duration") for flag in flags)


def selections(told: Commands) -> dict[str, Selection]:
    """The launch selection of each ncu run, keyed by the stem of its files, where the command line determines it.

    The launch numbers are those of the capture's nsys pass, which has to have recorded from the same moment on.
    """
    from_call = counts_from_call(told.get("nsys", []))
    asked = {name: selection(command) for name, command in told.items() if name.startswith("ncu")}
    return {name: one for name, one in asked.items() if one is not None and one.from_call is from_call}


def selective(told: Commands, names: Iterable[str]) -> bool | None:
    """Whether these ncu runs profiled only a subset of the launches; None where the commands do not say."""
    return measured_some([chooses(told.get(name, [])) for name in names])
