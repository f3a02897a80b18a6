"""Scores what tools say of programs with a known fault: the cause, its place, and what mending it gains.

CAPTURES has a folder for each program of `programs/`, which `collect.sh` makes. kanalyze is scored by the findings of
its page, in their order, and any tool, kanalyze too, by its text: which cause it names first, by words of causes.toml.

Run: python benchmarks/diagnosis/score.py CAPTURES [--tool kanalyze|text|nsys|hta|tracelens|nsys-ai]… [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from truth import HERE, PLACE_NEAR, Program, causes, programs_in, sentences

import tools

if TYPE_CHECKING:
    from collections.abc import Callable

GAIN_NEAR: Final = 0.15
FEW: Final = 3

#: Steps of a program of CUDA C++, with those that warm it up; Python's loops tell theirs.
_STEPS: Final = 25

#: A run without a profiler that took so much longer than the recording was held up by something else.
_HELD_UP: Final = 1.12

#: The loop over the steps of a program of Python.
_OF_STEPS: Final = re.compile(r"loop _run(?:_other)?\.py:")

#: What is counted, and which share of the programs is aimed at; of healthy ones the largest claim as a share of a step.
BARS: Final[dict[str, tuple[str, float | None]]] = {
    "read": ("captures that it reads", None),
    "first": ("cause named first", 0.90),
    "among_three": (f"cause among the first {FEW}", 0.98),
    "second": (f"second cause among the first {FEW + 1}", None),
    "place": ("place where lines are recorded: line or function", 0.80),
    "line": (f"place: line within {PLACE_NEAR}", None),
    "gain": (f"gain told within {GAIN_NEAR:.0%} of the measured", 0.80),
    "of_step": (f"the same as a share of the step, within {GAIN_NEAR:.0%}", 0.80),
    "interval": ("measured gain in the interval told", None),
    "interval_of_step": ("measured gain in it as a share of the step", 0.80),
    "silent": ("healthy programs of which no cause is named", None),
    "healthy": ("largest claim on a healthy program", 0.02),
}

_SAVED: Final = re.compile(
    r"(?:→ ?|\b(?:save[sd]?|savings?|gains?|recover\w*)\b\D{0,24}?)(\d[\d,.]*) ?(ns|us|µs|ms|s)\b", re.IGNORECASE
)
_MS: Final = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}

#: What an iteration takes without the profiler, where no run without it tells.
_ESTIMATE: Final = re.compile(r"takes ([\d.,]+) (\w+) to ([\d.,]+) (\w+), by estimate")


class Claim(NamedTuple):
    """A cause that a tool names, the texts that say where, and what mending it gains in ms of a step."""

    cause: str
    where: str = ""
    gain: tuple[float, float, float] | None = None


@dataclass
class Score:
    """What a tool said of one program, held against what is true."""

    name: str
    cause: str
    also: tuple[str, ...] = ()
    first: str = ""
    rank: int | None = None
    also_rank: int | None = None
    lines: bool = False
    place: str = ""
    told_ms: tuple[float, float, float] | None = None
    measured_ms: float | None = None
    ratio: float | None = None
    of_step: float | None = None
    largest_claim: float | None = None
    read: bool = True
    named: list[str] = field(default_factory=list)


def text_claims(text: str, words: dict[str, tuple[str, re.Pattern[str]]]) -> list[Claim]:
    """The causes that a text names, in its order, each with the paragraph or lines that follow it up to the next."""
    shown = sentences(text)
    at = {cause: match.start() for cause, (_, pattern) in words.items() if (match := pattern.search(shown))}
    order = sorted(at, key=lambda cause: at[cause])
    ends = [*(at[cause] for cause in order[1:]), len(shown)][: len(order)]
    claims = []
    for cause, end in zip(order, ends, strict=True):
        start = shown.rfind("\n", 0, at[cause]) + 1
        passage = shown[start : max(end, shown.find("\n", at[cause]))]
        before = shown[shown.rfind("\n", 0, max(start - 1, 0)) + 1 : start]  # a remedy may stand below what it mends
        saved = _SAVED.search(passage)
        ms = float(saved[1].rstrip(".,").replace(",", "")) * _MS[saved[2].lower()] if saved else None
        claims.append(Claim(cause, before + passage, None if ms is None else (ms, ms, ms)))
    return claims


def page_claims(page: dict[str, Any]) -> list[Claim]:
    """The findings of kanalyze's page in its order, each rule once; gains are of an iteration."""
    iterations = page.get("iterations") or {}
    count = iterations.get("steady_count") or 1
    claims: dict[str, Claim] = {}
    for one in page.get("findings", []):
        told = [one["replayed_ns"], one["replayed_low_ns"], one["replayed_high_ns"]]
        usual = one["at_stake_ns"] if told[0] is None else told[0]
        low, high = (usual if bound is None else bound for bound in told[1:])
        gain = (usual / count / 1e6, low / count / 1e6, high / count / 1e6)
        where = " ".join(str(one.get(key) or "") for key in ("where", "line", "headline", "action"))
        claims.setdefault(one["rule"], Claim(one["rule"], where, gain))
    return [*claims.values()]


def in_steps(page: dict[str, Any], claims: list[Claim], step_ms: float | None) -> tuple[list[Claim], float | None]:
    """The claims with gains of a step of the program, of which an iteration may be a part, or several; and its ms.

    A pass of the loop over steps is one, whatever it took where it was recorded; of what repeats in a program of CUDA
    C++ all together are the steps that it takes. Of others, and where the page has no iterations, a step is taken to be
    as large a part of the GPU's work as of that of all steps (starting up, and waiting for the lock, are no step's),
    but no larger than of the steps that a program takes.
    """
    iterations = page.get("iterations") or {}
    without = (page.get("without_profiler") or {}).get("iteration") or {}
    bare = without.get("ns")
    if bare and bare > without["recorded_ns"] * _HELD_UP:
        bare = None  # gains are of the recorded step
    if (told := _ESTIMATE.search(page.get("answer") or "")) is not None:
        bare = sum(float(told[at].replace(",", "")) * _MS[told[at + 1]] for at in (1, 3)) / 2 * 1e6
    windows = page.get("windows") or [{}]
    ns = bare or iterations.get("mean_ns") or windows[0].get("busy_ns")
    if not step_ms or not ns:
        return claims, step_ms
    parts, many = step_ms * 1e6 / ns, sum(iterations.get("kinds", {}).values())
    if not iterations:
        whole, own_ms = min(parts, 1 / _STEPS), step_ms
    else:
        if _OF_STEPS.match(iterations.get("found_by", "")):
            whole = 1.0
        elif many and (many % _STEPS == 0 or _STEPS % many == 0):
            whole = many / _STEPS
        else:
            whole = max(round(parts), 1) if parts >= 1 else 1 / max(round(1 / parts), 1)
        own_ms = ns * whole / 1e6
    return [one._replace(gain=one.gain and tuple(ms * whole for ms in one.gain)) for one in claims], own_ms


def scored(
    one: Program, claims: list[Claim], times: dict[str, list[float]] | None, own_ms: float | None = None
) -> Score:
    """Holds a tool's claims on a program, of a step of `own_ms`, against its cause, its place and its measured gain."""
    named = [claim.cause for claim in claims]
    score = Score(one.name, one.cause, one.also, named[0] if named else "", lines=one.recorded, named=named[:5])
    if not one.cause:
        gains = [claim.gain[0] for claim in claims if claim.gain]
        if times and (gains or not claims):  # a text may name causes and tell no gains
            score.largest_claim = max(gains, default=0.0) / times["fault"][0]
        return score
    if times:
        score.measured_ms = times["fault"][0] - times.get("main", times["fixed"])[0]
    score.also_rank = min((named.index(cause) + 1 for cause in one.also if cause in named), default=None)
    if one.cause in named:
        score.rank = named.index(one.cause) + 1
        score.told_ms = claims[score.rank - 1].gain
    score.ratio = score.told_ms[0] / score.measured_ms if score.told_ms and score.measured_ms else None
    if score.ratio is not None and times and own_ms:
        score.of_step = score.ratio * times["fault"][0] / own_ms
    if claims:  # the place of the cause, or of what is told in its stead
        score.place = one.place_right(claims[(score.rank or 1) - 1].where)
    return score


def totals(scores: list[Score]) -> dict[str, tuple[int, int] | float | None]:
    """Of how many programs a tool is right, and of how many it could be; the largest claim on a healthy one."""
    faulty, healthy = [one for one in scores if one.cause], [one for one in scores if not one.cause]
    ratios = [one.ratio for one in faulty if one.ratio is not None]
    known = (one for one in faulty if one.told_ms and one.measured_ms is not None)
    gains = [(one.told_ms, one.measured_ms, (one.ratio or 1) / (one.of_step or one.ratio or 1)) for one in known]
    right = {
        "read": [one.read for one in scores],
        "first": [one.rank == 1 for one in faulty],
        "among_three": [0 < (one.rank or 0) <= FEW for one in faulty],
        "second": [0 < (one.also_rank or 0) <= FEW + 1 for one in faulty if one.also],
        "place": [bool(one.place) for one in faulty if one.lines],
        "line": [one.place == "line" for one in faulty if one.lines],
        "gain": [abs(ratio - 1) <= GAIN_NEAR for ratio in ratios],
        "of_step": [abs(one.of_step - 1) <= GAIN_NEAR for one in faulty if one.of_step is not None],
        "interval": [told[1] <= measured <= told[2] for told, measured, _ in gains],
        "interval_of_step": [told[1] <= measured * longer <= told[2] for told, measured, longer in gains],
        "silent": [not one.named for one in healthy],
    }
    largest = max((one.largest_claim for one in healthy if one.largest_claim is not None), default=None)
    return {key: (sum(each), len(each)) for key, each in right.items()} | {"healthy": largest}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def table(scores: list[Score]) -> str:
    """One row for each program, as Markdown; what a healthy one is told to gain stands below `ratio`."""
    titles = "| program | cause | named first | rank | place | told, ms | measured, ms | ratio |"
    rows = [titles, "| --- | --- | --- | --: | --- | --: | --: | --: |"]
    for one in sorted(scores, key=lambda one: (not one.cause, one.name)):
        told = one.told_ms and f"{one.told_ms[0]:.4g} ({one.told_ms[1]:.4g} to {one.told_ms[2]:.4g})"
        measured = "" if one.measured_ms is None else f"{one.measured_ms:.4g}"
        last = "" if one.ratio is None else f"{one.ratio:.2f}"
        last = last if one.largest_claim is None else _percent(one.largest_claim)
        cells = (one.name, one.cause or "(healthy)", one.first, one.rank or "", one.place, told or "", measured, last)
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def summary(sums: dict[str, dict[str, tuple[int, int] | float | None]]) -> str:
    """The totals of tools side by side, as Markdown."""

    def cell(total: tuple[int, int] | float | None) -> str:
        if isinstance(total, tuple):
            return f"{_percent(total[0] / total[1])} of {total[1]}" if total[1] else ""
        return "" if total is None else _percent(total)

    rows = [f"| | bar | {' | '.join(sums)} |", "| --- | --: |" + " --: |" * len(sums)]
    for key, (title, bar) in BARS.items():
        aim = "" if bar is None else f"{'<' if key == 'healthy' else '≥'} {100 * bar:.0f} %"
        rows.append(f"| {title} | {aim} | " + " | ".join(cell(one[key]) for one in sums.values()) + " |")
    return "\n".join(rows)


def scores_of(
    tool: str, programs: list[Program], measured: dict[str, Any], said_of: Callable[[str, Program], str], jobs: int
) -> list[Score]:
    """Scores one tool on programs, by what it says of each."""
    words = causes()

    def of_one(one: Program) -> Score:
        times = measured.get(one.name)
        try:
            said = said_of(tool, one)
        except tools.UnreadableError:
            return replace(scored(one, [], times), read=False)
        if tool != "kanalyze":
            return scored(one, text_claims(said, words), times)
        page = json.loads(said) if said.startswith("{") else {}
        if not page:  # an error's text
            print(f"{tool}, {one.name}: {said.strip()}", file=sys.stderr)
        claims, own_ms = in_steps(page, page_claims(page), times["fault"][0] if times else None)
        return scored(one, claims, times, own_ms)

    with ThreadPoolExecutor(jobs) as pool:
        return [*pool.map(of_one, programs)]


def main() -> None:
    """Prints the tables, or all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captures", type=Path)
    parser.add_argument("--tool", action="append", choices=[*tools.TEXTS], help="kanalyze unless told; may be repeated")
    parser.add_argument("--programs", type=Path, default=HERE / "programs")
    parser.add_argument("--measured", type=Path, default=HERE / "measured.json")
    parser.add_argument("--texts", type=Path, help="keeps answers of tools here, and takes those that are here already")
    parser.add_argument("--only", default="", help="programs whose names this regular expression matches")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="so many captures at once")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    programs = programs_in(options.programs, options.captures, options.only)
    measured = json.loads(options.measured.read_text(encoding="utf-8"))
    chosen = options.tool or ["kanalyze"]
    said_of = partial(tools.answer, captures=options.captures, texts=options.texts)
    scores = {tool: scores_of(tool, programs, measured, said_of, options.jobs) for tool in chosen}
    sums = {tool: totals(found) for tool, found in scores.items()}
    if options.json:
        told = {tool: {"totals": sums[tool], "programs": [asdict(one) for one in scores[tool]]} for tool in chosen}
        print(json.dumps(told, ensure_ascii=False, indent=1))
        return
    for tool, found in scores.items():
        print(f"### {tool}\n\n{table(found)}\n")
    print(f"### {len(programs)} programs\n\n{summary(sums)}")


if __name__ == "__main__":
    main()
