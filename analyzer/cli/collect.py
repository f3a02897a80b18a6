"""``kanalyze collect``: profile a program with every tool that is here, and print the summary."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kanalyze.cli._output import emit
from kanalyze.cli._progress import Progress
from kanalyze.errors import BadOptionError, IncompleteError
from kanalyze.units import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from kanalyze.collectors import Capture, Options

F = TypeVar("F", bound="Callable[..., object]")

_FILE = click.Path(path_type=Path)
_PASSES = ("nsys", "torch", "ncu")
_AGAIN = {"multiple": True, "metavar": "FLAG"}

#: Every option by the attribute of kanalyze.collectors.Options that it fills.
_OPTIONS = (
    click.option("-o", "--output", type=_FILE, metavar="DIR", help="The folder to write; it must not exist yet."),
    click.option("--with", "passes", metavar="PASSES", help="Which of nsys, torch and ncu, with commas between them."),
    click.option("--repeat", type=int, default=1, metavar="K", help="Run the nsys pass K times."),
    click.option("--timeout", "timeout_s", type=float, default=3600.0, metavar="SECONDS", help="Longest time of a pass."),
    click.option("--arch", multiple=True, metavar="ARCH", help="Compile for it (sm_90); give several for a fat binary."),
    click.option("--nvcc", "nvcc_flags", **_AGAIN, help="Further flags of nvcc, as one word or quoted."),
    click.option("--nsys-flag", "nsys_flags", **_AGAIN, help="A further flag of nsys profile."),
    click.option("--ncu-flag", "ncu_flags", **_AGAIN, help="A further flag of ncu."),
    click.option("--recipe", default="plain", metavar="NAME", help="Recipe of torch.profiler: plain, schedule, toggle…"),
    click.option("--recipe-flag", "recipe_flags", **_AGAIN, help="A further flag of the torch pass, as --wait=2."),
    click.option("--kernels", type=int, default=5, metavar="N", help="So many kernels go to ncu; 5 unless told."),
    click.option("--launches", type=int, default=1, metavar="N", help="So many launches of each; 1 unless told."),
    click.option("--ncu-budget", "ncu_budget_s", type=float, default=600.0, metavar="SECONDS", help="Longest time of ncu."),
    click.option("--clock-control", type=click.Choice(["base", "none"]), default="base", help="Clocks under ncu."),
    click.option("--range", "range_name", metavar="NAME", help="Only the NVTX range NAME."),
    click.option("--cuda-profiler-api", is_flag=True, help="Only from cudaProfilerStart to cudaProfilerStop."),
    click.option("--delay", "delay_s", type=float, metavar="SECONDS", help="nsys begins so much later."),
    click.option("--duration", "duration_s", type=float, metavar="SECONDS", help="nsys records so long, then stops the program."),
    click.option("--python", type=_FILE, metavar="FILE", help="The Python that runs a script."),
    click.option("--nvcc-path", "nvcc", type=_FILE, metavar="FILE", help="The nvcc to use."),
    click.option("--nsys", type=_FILE, metavar="FILE", help="The nsys to use."),
    click.option("--ncu", type=_FILE, metavar="FILE", help="The ncu to use."),
)  # fmt: skip


def _all_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("workload")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@_all_options
@click.option("--dry-run", is_flag=True, help="Print the commands, to copy and paste, and run none of them.")
def collect(workload: str, args: tuple[str, ...], dry_run: bool, **told: Any) -> None:  # noqa: ANN401, FBT001 - click's
    """Profile WORKLOAD, a .cu file, Python script, executable or name from `kanalyze workloads`.

    ARGS are its own; write -- before them: kanalyze collect train.py -- --epochs 2
    """
    from kanalyze import collectors  # noqa: PLC0415 - --help need not wait

    options = _options(told)
    if dry_run:
        emit("".join(f"{line}\n" for line in collectors.dry_run(workload, args, options)), None)
        return
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup asks for that
        signal.signal(signal.SIGHUP, _stop)
    capture = collectors.collect(workload, args, options, Progress())
    _show(capture)
    if capture.problems:
        raise IncompleteError.because(capture.folder, capture.problems)


def _stop(number: int, frame: FrameType | None) -> None:
    """End as Ctrl-C does."""
    del number, frame
    raise KeyboardInterrupt


def _options(told: dict[str, Any]) -> Options:
    """The options of the command line as those of the library."""
    from kanalyze.collectors import Options  # noqa: PLC0415 - --help need not wait

    passes = told.pop("passes")
    told["passes"] = tuple(name.strip() for name in passes.split(",")) if passes is not None else None
    try:
        told["nvcc_flags"] = tuple(word for text in told["nvcc_flags"] for word in shlex.split(text))
    except ValueError as error:
        raise BadOptionError.of("--nvcc", " ".join(told["nvcc_flags"]), "flags with closed quotes") from error
    return Options(**told)


def _show(capture: Capture) -> None:
    """The summary as `kanalyze summarize` prints it, and where everything is."""
    from kanalyze.cli.summarize import summarize  # noqa: PLC0415 - --help need not wait

    if capture.reports:
        context = click.get_current_context()
        context.invoke(summarize, reports=[capture.reports[0]], top=8, form="terminal", output=None, window=None, device=None, process=None)  # fmt: skip # noqa: E501
    for note in capture.notes:
        click.echo(f"note: {printable(note)}", err=True)
    sys.stdout.flush()
    click.echo(f"The capture is in {printable(str(capture.folder))}", err=True)
