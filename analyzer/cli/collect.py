"""``kanalyze collect``: profile a program with every tool that is here, and print the summary."""

from __future__ import annotations

import shlex
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kanalyze import outlets
from kanalyze.cli import _complete
from kanalyze.cli._late import late
from kanalyze.cli._options import tool_paths
from kanalyze.cli._output import Progress, emit, flush, print_message
from kanalyze.errors import IncomparableError
from kanalyze.turns import SIDES

with late():
    from kanalyze import collectors
    from kanalyze.cli import compare, summarize
    from kanalyze.collectors.base import errors
    from kanalyze.readers.capture import read_capture

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from kanalyze.collectors import Capture, Captures, Options

#: What ends the options.
_END: Final = "--"

#: The option that may stand behind the program, with others around it.
_AGAINST: Final = "--against"

#: As a workload: the first of the arguments is a module.
MODULE: Final = "-m"

F = TypeVar("F", bound="Callable[..., object]")

_FILE = click.Path(path_type=Path)


#: What an option has that is given several times.
_FLAG: Final[dict[str, Any]] = {"multiple": True, "metavar": "FLAG"}


#: Every option, by the attribute of kanalyze.collectors.Options that it fills.
_OPTIONS = (
    click.option("-o", "--output", type=_FILE, metavar="DIR", help="The folder to write; it must not exist yet."),
    click.option(
        "--with",
        "passes",
        metavar="PASSES",
        shell_complete=_complete.passes,
        help="Which of nsys, torch and ncu, with commas between them.",
    ),
    click.option("--bare/--no-bare", default=True, help="Run it without a profiler first, for its true times; on."),
    click.option("--lines/--no-lines", default=True, help="Note the lines that a Python program is in; on."),
    click.option(
        "--samples", is_flag=True, help="Also sample the host, in a run of its own: functions, Python, waits."
    ),
    click.option(
        "--metrics", is_flag=True, help="In that run, sample the GPU's counters: SMs, tensor cores, DRAM, PCIe."
    ),
    click.option(
        "--samples-for",
        "samples_for_s",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="That run records so long at most, and is ended then; 60 unless told.",
    ),
    click.option(
        "--prepare", is_flag=True, help="Run it once without a profiler first, so that what it builds is there."
    ),
    click.option(
        "--repeat", type=int, default=1, metavar="K", help="Run it bare, under nsys and under torch K times each."
    ),
    click.option(
        "--timeout", "timeout_s", type=float, default=3600.0, metavar="SECONDS", help="Longest time of a pass."
    ),
    click.option(
        "--arch", multiple=True, metavar="ARCH", help="Compile for sm_90 or the like; several make a fat binary."
    ),
    click.option("--nvcc", "nvcc_flags", **_FLAG, help="Further flags of nvcc, one or several in quotes."),
    click.option("--nsys-flag", "nsys_flags", **_FLAG, help="A further flag of nsys profile."),
    click.option("--ncu-flag", "ncu_flags", **_FLAG, help="A further flag of ncu."),
    click.option(
        "--recipe", default="plain", metavar="NAME", help="Recipe of torch.profiler: plain, schedule, toggle…"
    ),
    click.option("--recipe-flag", "recipe_flags", **_FLAG, help="A further flag of the torch pass, as --wait=2."),
    click.option("--kernels", type=int, default=5, metavar="N", help="So many kernels go to ncu; 5 unless told."),
    click.option("--launches", type=int, default=1, metavar="N", help="So many launches of each; 1 unless told."),
    click.option(
        "--ncu-budget", "ncu_budget_s", type=float, default=600.0, metavar="SECONDS", help="Longest time of ncu."
    ),
    click.option(
        "--clock-control", type=click.Choice(["base", "none"]), default="base", help="The GPU's clocks under ncu."
    ),
    click.option("--range", "range_name", metavar="NAME", help="Only the NVTX range NAME."),
    click.option("--cuda-profiler-api", is_flag=True, help="Only from cudaProfilerStart to cudaProfilerStop."),
    click.option("--delay", "delay_s", type=float, metavar="SECONDS", help="nsys begins so much later."),
    click.option(
        "--duration", "duration_s", type=float, metavar="SECONDS", help="nsys records so long, and ends the run."
    ),
)


def _all_options(command: F) -> F:
    command = tool_paths(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class _Collect(click.Command):
    """The command whose options stand before the program; what follows that is the program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As of any command, but that ``--`` or ``--against`` behind the program lets options stand there."""
        return super().parse_args(ctx, self._options_first(ctx, args))

    def _options_first(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words with the options before the program, if ``--`` ends them behind it or ``--against`` is one."""
        if _END not in args:
            return self._against_first(ctx, args)
        head, rest = args[: args.index(_END)], args[args.index(_END) + 1 :]
        for at in range(len(head)):
            options = head[:at] + head[at + 1 :]
            if self._all_ours(ctx, options) and self._all_ours(ctx, head[:at]):
                return [*options, _END, head[at], *rest]
        return args

    def _against_first(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The same without ``--``: options right behind the program are ours if ``--against`` is among them."""
        places = (at for at, word in enumerate(args) if not word.startswith("-") and self._all_ours(ctx, args[:at]))
        if (at := next(places, None)) is None:
            return args
        rest = args[at + 1 :]
        for end in range(len(rest), 0, -1):
            named = {word.partition("=")[0] for word in rest[:end]}
            if _AGAINST in named and self._all_ours(ctx, rest[:end]):
                return [*args[:at], *rest[:end], args[at], *rest[end:]]
        return args

    def _all_ours(self, ctx: click.Context, words: list[str]) -> bool:
        """Whether the words are options of this command, with their values, and nothing else."""
        options = click.Command(self.name, params=[one for one in self.params if isinstance(one, click.Option)])
        try:
            return not options.make_parser(ctx).parse_args(list(words))[1]
        except click.UsageError:
            return False


def _note_ours(ctx: click.Context, workload: str, args: Sequence[str]) -> None:
    """Says which options of ours stand behind the program and are passed on to it."""
    known = {name for option in ctx.command.params for name in option.opts if name.startswith("-")}
    named = dict.fromkeys(word for word in (word.partition("=")[0] for word in args) if word in known)
    if named and _END not in sys.argv:
        passed = f"passed on to {outlets.line(workload)}: {', '.join(named)}"
        print_message(f"Note: {passed}. Options of kanalyze stand before the program.")


@click.command(cls=_Collect, context_settings={"allow_interspersed_args": False})
@_all_options
@click.option("-m", "module", is_flag=True, help="WORKLOAD is a module, as in python -m.")
@click.option(
    _AGAINST,
    metavar="OTHER",
    shell_complete=_complete.workloads,
    help="Record OTHER too, run by run in turns: a program with its arguments in quotes, or only arguments.",
)
@click.option("--dry-run", is_flag=True, help="Print the commands, for any machine, and run none of them.")
@click.argument("workload", shell_complete=_complete.workloads)
@click.argument("args", nargs=-1, type=click.UNPROCESSED, shell_complete=_complete.files)
def collect(
    workload: str,
    args: tuple[str, ...],
    *,
    module: bool,
    against: str | None,
    dry_run: bool,
    **told: Any,  # noqa: ANN401 - each has its own type
) -> None:
    """Profile WORKLOAD, a .cu file, Python script, executable or name from `kanalyze workloads`.

    What follows it is its own: kanalyze collect train.py --epochs 2
    """
    _note_ours(click.get_current_context(), workload, args)
    if module:
        workload, args = MODULE, (workload, *args)

    options = _options(told)
    if dry_run:
        run_dry = collectors.dry_run if against is None else partial(collectors.dry_run_against, other=against)
        emit("".join(f"{line}\n" for line in run_dry(workload, args=args, options=options)), None)
        return
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup asks for that
        signal.signal(signal.SIGHUP, _stop)
    try:
        if against is None:
            found: Capture | Captures = collectors.collect(workload, args, options, Progress())
        else:
            found = collectors.collect_against(workload, against, args, options, Progress())
    except KeyboardInterrupt:  # before anything was begun
        raise errors.InterruptedCaptureError.during("the checks", None) from None
    _finish(found)


def _finish(found: Capture | Captures) -> None:
    """Print what was recorded, or the comparison of two programs, and what to do with it.

    Raises:
        IncompleteError: A pass failed, or a program says that its result is wrong.
    """
    if isinstance(found, collectors.Captures):
        sides, show = dict(zip(SIDES, (found.base, found.new), strict=True)), partial(_compare, found)
    else:
        sides, show = {"": found}, partial(_summarize, found)
    two = len(sides) > 1
    try:
        show()
    finally:
        for side, capture in sides.items():
            prefix = f"{side}: " if side else ""
            for check in capture.checks:
                print_message(f"The program says: {prefix}{outlets.line(check)}")
            for note in capture.notes:
                print_message(f"Note: {prefix}{outlets.line(note)}")
        folder, words = outlets.line(str(found.folder)), partial(outlets.command, "kanalyze")
        print_message(f"The captures are in {folder}" if two else f"The capture is in {folder}")
        if two:
            print_message(f"Compare them: {words('compare', *(capture.folder for capture in sides.values()))}")
        print_message(f"See it: {words('html', found.folder, '-o', f'{found.folder.name}.html', '--open')}")
    if found.problems:
        raise errors.IncompleteError.because(found.folder, found.problems, sides)


def _stop(number: int, frame: FrameType | None) -> None:
    """End as Ctrl-C does."""
    del number, frame
    raise KeyboardInterrupt


def _options(told: dict[str, Any]) -> Options:
    """The options of the command line as those of the library."""
    passes = told.pop("passes")
    told["passes"] = tuple(name.strip() for name in passes.split(",")) if passes is not None else None
    try:
        told["nvcc_flags"] = tuple(word for text in told["nvcc_flags"] for word in shlex.split(text))
    except ValueError as error:
        raise errors.BadOptionError.of("--nvcc", " ".join(told["nvcc_flags"]), "flags with closed quotes") from error
    return collectors.Options(**told)


def _summarize(capture: Capture) -> None:
    """Print the summary as `kanalyze summarize` does, of all that the passes recorded."""
    if read_capture.holds_reports(capture.folder):
        summarize.shown([capture.folder])
        flush(sys.stdout)


def _compare(found: Captures) -> None:
    """Print the comparison as `kanalyze compare` does, or why there is none."""
    try:
        compare.shown(found.base.folder, found.new.folder)
    except IncomparableError as error:
        print_message(f"Note: not compared: {error}")
    flush(sys.stdout)
