"""Runs the steps of a pass within its time limit, and records the results."""

from __future__ import annotations

import os
import re
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze import outlets
from kanalyze.collectors.base import process
from kanalyze.collectors.base.checks import checks
from kanalyze.collectors.base.files import NO_SPACE, discard, entries, full, incomplete
from kanalyze.collectors.base.step import Event, Progress
from kanalyze.collectors.tools import ncu, nsys
from kanalyze.collectors.tools.manifest import PassRecord, step_record
from kanalyze.collectors.tools.torch_pass import RUNNER_FAILED

if TYPE_CHECKING:
    from kanalyze.collectors.base.process import Ended, Starter
    from kanalyze.collectors.base.step import Step

#: Longest program line quoted within a sentence, in characters.
_WIDE: Final = 200

#: Prefix of the torch runner's messages.
_RUNNER_SAYS: Final = "kanalyze: "

#: Lines shown of a failure's output.
_LINES: Final = 12

#: Lines at the end of a log that are searched: a tool may print much after the program's end.
_LOOKED_AT: Final = 200

#: The tool whose messages stand in a step's log, by the first word of its name.
_TOOLS: Final = {"nsys": nsys, "samples": nsys, "ncu": ncu}


class StepFailedError(Exception):
    """A step failed; `of_program` says that the workload failed, not the tool."""

    def __init__(self, why: str, step: Step, status: int | None = None, *, of_program: bool = False) -> None:
        """Keep reason and step; without `status` the step was stopped or never started."""
        super().__init__(why)
        self.why = why
        self.step = step
        self.status = status
        self.of_program = of_program

    def reason(self, name: str) -> str:
        """The reason, for the pass `name`; with the program's last output if that failed."""
        last = self.said[-1:] if self.of_program else []
        inside = "" if self.step.name == name else f"{self.step.name}: "
        return f"{inside}{self.why}" + "".join(f": {' '.join(line.split())[:_WIDE]}" for line in last)

    @property
    def said(self) -> list[str]:
        """The end of the step's output; of the program's output if that failed."""
        return last_words(self.step, of_program=self.of_program)


@dataclass
class Runner:
    """Runs the steps of one pass, and records the result of each.

    Attributes:
        timeout_s: Time limit of the pass, in seconds.
        stopped: Whether the tool stops the program at the end, so that its exit status is meaningless.
        spent_s: Seconds that its steps took, without what other programs ran in between.
    """

    record: PassRecord
    progress: Progress
    timeout_s: float
    starter: Starter = subprocess.Popen
    stopped: bool = False
    spent_s: float = 0.0

    @property
    def left_s(self) -> float:
        """Seconds left of the pass's time."""
        return self.timeout_s - self.spent_s

    def note(self, text: str) -> None:
        """Add a note to the pass, deduplicated."""
        if text not in self.record.notes:
            self.record.notes.append(text)

    def say(self, text: str) -> None:
        """Add a note to the pass, and show it."""
        self.note(text)
        self.progress(Event("note", self.record.name, text))

    def run(self, step: Step, limit_s: float | None = None) -> None:
        """Run a step to its end.

        Args:
            step: The command, with the outputs that it must produce.
            limit_s: Time limit in seconds; None for the rest of the pass's time.

        Raises:
            StepFailedError: It could not be started, exceeded the time limit, or failed. Its outputs are removed.
        """
        before, began = entries(step.log.parent.parent), time.monotonic()
        with ExitStack() as failed:
            failed.callback(lambda: discard(entries(step.log.parent.parent) - before))
            try:
                self._run(step, max(self.left_s if limit_s is None else min(limit_s, self.left_s), 0.0))
            finally:
                self.spent_s += time.monotonic() - began
            failed.pop_all()  # what it made stays

    def _run(self, step: Step, limit_s: float) -> None:
        self.progress(Event("begin", step.name))

        def tick(elapsed_s: float, line: str) -> None:
            self.progress(Event("tick", step.name, outlets.line(line), elapsed_s))

        try:
            ended = process.run(step.argv, step.log, step.env, limit_s, tick, stdout=step.stdout, starter=self.starter)
        except OSError as error:
            self.record.steps.append(step_record(step, None, 0.0, timed_out=False))
            self.progress(Event("end", step.name, "failed"))
            raise StepFailedError(f"{step.argv[0]} cannot be started ({error.strerror or error})", step) from error
        self.record.steps.append(step_record(step, ended.status, ended.seconds, timed_out=ended.timed_out))
        if ended.shortened:
            kept = f"the first and the last {process.KEPT_BYTES >> 20} MiB"
            self.note(f"logs/{step.log.name} keeps {kept} of what was printed, and leaves out the rest")
        failed = self._judged(step, ended, limit_s)
        self.progress(Event("end", step.name, "failed" if failed else "done", ended.seconds))
        if failed is not None:
            raise failed

    def _judged(self, step: Step, ended: Ended, limit_s: float) -> StepFailedError | None:
        """The error for a step's result; None if it succeeded."""
        if ended.status is None:
            left = f" that were left of {self.timeout_s:g} s" if limit_s == self.left_s < self.timeout_s else ""
            return StepFailedError(f"took longer than {limit_s:.4g} s{left}, and was stopped", step)
        missing = [f"{path.name} {flaw}" for path in step.outputs if (flaw := incomplete(path))]
        if missing:
            return StepFailedError(_why_missing(step, ended.status, missing), step, ended.status)
        if ended.status == 0 or (step.runs_workload and self.stopped):
            return None
        of_runner = ended.status == RUNNER_FAILED and step.has_runner
        if of_runner or not step.runs_workload or ended.status < 0:
            why = f"{Path(step.argv[0]).name} {_how(ended.status)}"
            if of_runner:  # which says why itself
                said = [line for line in last_words(step) if line.startswith(_RUNNER_SAYS)]
                why = said[-1].removeprefix(_RUNNER_SAYS) if said else "the script could not be profiled"
            return StepFailedError(why, step, ended.status)
        if any(not check.passed for check in checks(step.log)):
            return None  # the program reports a wrong result, but was recorded
        return StepFailedError(f"the program {_how(ended.status)}", step, ended.status, of_program=True)


def _why_missing(step: Step, status: int, missing: list[str]) -> str:
    """Reason for missing outputs: the meaning of the tool's messages, else the exit status."""
    if full(step.log.parent):
        return NO_SPACE
    tool, log = _TOOLS.get(step.name.partition("-")[0]), read_end(step.log)
    meant = next((meant for pattern, meant in tool.MESSAGES if re.search(pattern, log)), "") if tool else ""
    return meant or ", and ".join([*([f"{Path(step.argv[0]).name} {_how(status)}"] if status else []), *missing])


def _how(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"


def read_end(log: Path) -> str:
    """The end of a log, for searching messages."""
    return process.end_of(log).decode(errors="replace")


def last_words(step: Step, *, of_program: bool = False) -> list[str]:
    """The last lines of a step's log; with `of_program` only the program's own, if there are any.

    The temporary capture folder is removed from paths, since it is renamed at the end.
    """
    said = process.tail(step.log, _LOOKED_AT)
    tool = _TOOLS.get(step.name.partition("-")[0])
    if of_program and tool is not None:
        said = [line for line in said if not tool.OWN_LINE.search(line)] or said
    inside = f"{step.log.parent.parent}{os.sep}"
    return [line.replace(inside, "") for line in said[-_LINES:]]
