"""Runs a collection of one program, or of two in turns, and saves what was finished in one folder."""

from __future__ import annotations

import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kanalyze.collectors import files
from kanalyze.collectors.options import PASSES, InterruptedCaptureError, Options, checked
from kanalyze.collectors.process import Event, Progress, Starter
from kanalyze.collectors.run.plan import Plan, in_order, portable_script
from kanalyze.collectors.run.recording import Capture, Recording
from kanalyze.collectors.tools.found import Tools, find_tools, python_of, wants_torch
from kanalyze.collectors.workload import resolve, resolve_other
from kanalyze.errors import OutputError
from kanalyze.tools import SIDES

if TYPE_CHECKING:
    from os import PathLike


@dataclass(frozen=True)
class Captures:
    """Finished captures of two programs whose runs were interleaved.

    Attributes:
        folder: The folder that both are in.
        base: The capture of the first program.
        new: The capture of the other one.
    """

    folder: Path
    base: Capture
    new: Capture

    @property
    def problems(self) -> tuple[str, ...]:
        """Failed passes and failed checks of both, each with its side; empty if all succeeded."""
        sides = zip(SIDES, (self.base, self.new), strict=True)
        return tuple(f"{side}: {problem}" for side, capture in sides for problem in capture.problems)


def collect(
    workload: str | PathLike[str],
    args: Sequence[str] = (),
    options: Options | None = None,
    progress: Progress = lambda _: None,
    *,
    starter: Starter = subprocess.Popen,
    **changes: Any,  # noqa: ANN401 - of Options
) -> Capture:
    """Profiles a program with every available tool, into one capture folder.

    Args:
        workload: A .cu file, a Python script, an executable, or the name of a reference workload.
        args: The program's arguments.
        options: How; see :class:`kanalyze.collectors.Options`.
        progress: Receives progress events.
        starter: Starts processes, as :class:`subprocess.Popen` does.
        changes: Single options, overriding `options`.

    Raises:
        WorkloadError: There is no such program.
        BadOptionError: An option is invalid.
        CompileError: The source does not compile, or there is no nvcc.
        OutputError: The folder exists, or cannot be written.
        CollectError: No pass can run here, the program fails, or every pass failed; nothing was saved.
        InterruptedCaptureError: The user interrupted it; finished passes are saved.
    """
    plans, final = _planned([workload], args, options, changes)
    return _recorded(plans, final, progress, starter)[0]


def collect_against(  # noqa: PLR0913 - as of collect, and the other program
    workload: str | PathLike[str],
    other: str | PathLike[str],
    args: Sequence[str] = (),
    options: Options | None = None,
    progress: Progress = lambda _: None,
    *,
    starter: Starter = subprocess.Popen,
    **changes: Any,  # noqa: ANN401 - of Options
) -> Captures:
    """Profiles two programs with the same tools and options, in turns (A B B A …), into one folder.

    What is not said here is as of :func:`collect`, which raises the same errors.

    Args:
        workload: The first program.
        other: The other one: a program with its arguments in one text (``"train.py --fused"``), or only arguments, for
            the first program (``"--fused"``).
        args: Arguments of both programs; the other one's own come behind them.
        options: How, of both.
        progress: Receives progress events, with the side before the step.
        starter: Starts processes.
        changes: Single options.

    Raises:
        CollectError: Of one of the programs nothing could be recorded; nothing was saved.
        InterruptedCaptureError: The user interrupted it; finished runs are saved if there are some of both programs.
    """
    plans, final = _planned([workload, other], args, options, changes)
    base, new = _recorded(plans, final, progress, starter)
    return Captures(base.folder.parent, base, new)


def dry_run(
    workload: str | PathLike[str],
    args: Sequence[str] = (),
    options: Options | None = None,
    **changes: Any,  # noqa: ANN401 - of Options
) -> list[str]:
    """The commands of a run as shell lines for any machine; starts nothing but the tools' ``--version``.

    Raises:
        WorkloadError: There is no such program.
        BadOptionError: An option is invalid.
        OutputError: The folder exists.
    """
    return portable_script(_planned([workload], args, options, changes, dry=True)[0])


def dry_run_against(
    workload: str | PathLike[str],
    other: str | PathLike[str],
    args: Sequence[str] = (),
    options: Options | None = None,
    **changes: Any,  # noqa: ANN401 - of Options
) -> list[str]:
    """The commands of :func:`collect_against` as shell lines, as :func:`dry_run` gives and raises."""
    return portable_script(_planned([workload, other], args, options, changes, dry=True)[0])


def _planned(
    programs: Sequence[str | PathLike[str]],
    args: Sequence[str],
    options: Options | None,
    changes: dict[str, Any],
    *,
    dry: bool = False,
) -> tuple[list[Plan], Path]:
    """Plans of one program, or of two that share a look for tools, and the folder; a `dry` run looks for no torch."""
    chosen = checked(replace(options or Options(), **changes))
    works = [resolve(str(programs[0]), args)]
    works += [resolve_other(str(other), works[0]) for other in programs[1:]]
    final = files.target("-against-".join(work.name for work in works), chosen.output)
    plans, tools = list[Plan](), dict[object, Tools]()
    for side, work in zip(SIDES if len(works) > 1 else ("",), works, strict=True):
        torch = not dry and wants_torch(work, chosen)
        key = work.kind, python_of(work, chosen), torch
        tools[key] = tools.get(key) or find_tools(chosen, work, torch=torch)
        plans.append(Plan(work, chosen, tools[key], final / side, side=side))
    return plans, final


def _recorded(plans: Sequence[Plan], final: Path, progress: Progress, starter: Starter) -> list[Capture]:
    """Record one program, or two in turns, into the folder `final`; raises OutputError."""

    def recording(plan: Plan) -> Recording:
        def with_side(event: Event) -> None:
            progress(replace(event, step=f"{plan.side} {event.step}".strip()))

        return Recording(replace(plan, folder=made / plan.side), with_side, starter)

    made = files.scratch(final, [plan.side for plan in plans])
    try:
        if scarce := files.scarce(made):
            progress(Event("note", "disk", scarce))
        return _Turns([recording(plan) for plan in plans], made, final).whole()
    except OSError as error:
        raise OutputError.because(final, error.strerror or str(error)) from error
    finally:
        files.discard({made})


@dataclass
class _Turns:
    """The runs of one program, or of two in turns, so that drift of the machine is the same for both."""

    sides: Sequence[Recording]
    made: Path
    final: Path
    current: str = "compiling"
    turns: int = 0

    def whole(self) -> list[Capture]:
        """Run all stages in order, and keep what was recorded."""
        began = time.monotonic()
        try:
            self._stages()
        except KeyboardInterrupt:
            for side in self.sides:
                side.interrupt()
            are_some_of_each = all(side.recorded for side in self.sides)
            if are_some_of_each:
                self._kept(time.monotonic() - began, "interrupted")
            raise InterruptedCaptureError.during(self.current, self.final if are_some_of_each else None) from None
        for error in (side.nothing() for side in self.sides):
            if error is not None:
                raise error
        return self._kept(time.monotonic() - began)

    def _stages(self) -> None:
        for side in self.sides:
            side.compile()
        for side in self.sides:
            side.begin()
        for side in (side for side in self.sides if side.plan.options.prepare):
            self._come_to("prepare", side)
            side.prepare()
        for name in PASSES:
            self._pass(name)

    def _come_to(self, name: str, one: Recording) -> None:
        """Note which pass or stage is run, and of which side."""
        self.current = f"{name} of {one.plan.side}" if one.plan.side else name

    def _pass(self, name: str) -> None:
        """Run a pass as often as requested, until a run fails; the other program has its turn then nevertheless."""
        self.current = name
        taking_part = [(side, begun) for side in self.sides if (begun := side.begin_pass(name))]
        count = max((side.plan.repetitions(name) for side, _ in taking_part), default=0)
        for number in range(1, count + 1):
            finished = []
            for turn, (side, begun) in enumerate(in_order(taking_part, number), self.turns + 1):
                self._come_to(name, side)
                if side.run(begun, number, turn):
                    finished.append(begun)
            self.turns += len(SIDES)  # also where one takes part, so that a pair of turns is a pair of runs
            if len(finished) < len(taking_part):
                for begun in finished if number < count else ():
                    why = f"ended after {number} of {count} runs, as the other program's failed"
                    begun.note(why, show=True)
                break
        for side, begun in taking_part:
            side.end_pass(begun)

    def _kept(self, seconds: float, status: str = "") -> list[Capture]:
        """Write the manifests and move the folder to its place; signals are deferred meanwhile."""
        collection, signals = uuid.uuid4().hex, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            self.final = files.vacant(self.final)
            for side in self.sides:
                name = side.plan.side
                if name:
                    side.content["against"] = {"collection": collection, "side": name, "turns": side.turns}
                side.write(status or ("partial" if side.problems() else "complete"), seconds, self.final / name)
            self.made.rename(self.final)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return [side.capture(self.final / side.plan.side) for side in self.sides]
