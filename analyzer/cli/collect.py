"""``kanalyze collect``, ``doctor`` and ``cache``: profile a program with every tool that is here, and how to."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import Field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kanalyze import cli, errors, files, machinery, outlets, units
from kanalyze.cli._process import emit, flush, print_message, stderr_is_terminal, width
from kanalyze.collectors import options as declared

with machinery.late():
    from kanalyze import collectors
    from kanalyze.cli import summarize
    from kanalyze.collectors import workload as shipped
    from kanalyze.collectors.tools import found as doctors
    from kanalyze.readers import user_cache
    from kanalyze.readers.capture import reports as captures

if TYPE_CHECKING:
    from kanalyze.collectors import Capture, Captures, Options
    from kanalyze.collectors.process import Event
    from kanalyze.collectors.tools.found import Examined

#: What clears the line of a terminal; what ends the options; the option that may stand behind the program, with others.
_CLEAR, _END, _AGAINST = "\r\x1b[2K", "--", "--against"

#: What options take that are no texts, by their metavars.
_PATH: Final = click.Path(path_type=Path)
_TYPES: Final[dict[str, Any]] = {"SECONDS": float, "N": int, "K": int, "DIR": _PATH, "FILE": _PATH}


def _option(option: Field[Any]) -> click.Option:
    """The option of the command line that fills an attribute of kanalyze.collectors.Options."""
    metadata, metavar, default = option.metadata, option.metadata["metavar"], option.default
    return cli.option(
        f"{metadata['names']} {option.name}",
        metadata["text"],
        metavar,
        default=default,
        type=click.Choice(["base", "none"]) if option.name == "clock_control" else _TYPES.get(metavar),
        is_flag=isinstance(default, bool) or None,
        multiple=isinstance(default, tuple),
    )


#: Every option but for those of the command alone; where to write is said first.
_OPTIONS: Final = [_option(one) for one in sorted(fields(declared.Options), key=lambda one: one.name != "output")]


class _Collect(click.Command):
    """The command whose options stand before the program; what follows that is the program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As of any command, but that ``--`` or ``--against`` behind the program lets options stand there."""
        return super().parse_args(ctx, self._options_first(ctx, args))

    def _options_first(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words with the options before the program, if ``--`` ends them behind it or ``--against`` is one."""
        head = args[: args.index(_END)] if _END in args else args
        ends, rest = args[len(head) :][:1], args[len(head) + 1 :]
        places = (at for at, word in enumerate(head) if not word.startswith("-") and self._all_ours(ctx, head[:at]))
        if (at := next(places, None)) is None:
            return args
        behind = head[at + 1 :]
        for end in [len(behind)] if ends else range(len(behind), 0, -1):
            is_against = _AGAINST in {word.partition("=")[0] for word in behind[:end]}
            if (ends or is_against) and self._all_ours(ctx, behind[:end]):
                return [*head[:at], *behind[:end], *ends, head[at], *behind[end:], *rest]
        return args

    def _all_ours(self, ctx: click.Context, words: list[str]) -> bool:
        """Whether the words are options of this command, with their values, and nothing else."""
        options = click.Command(self.name, params=[param for param in self.params if isinstance(param, click.Option)])
        try:
            return not options.make_parser(ctx).parse_args(list(words))[1]
        except click.UsageError:
            return False


@click.command(
    cls=_Collect,
    context_settings={"allow_interspersed_args": False},
    params=[
        *_OPTIONS,
        cli.flag("-m module", "WORKLOAD is a module, as in python -m."),
        cli.option(
            _AGAINST,
            "Record OTHER too, run by run in turns: a program with its arguments in quotes, or only arguments.",
            "OTHER",
        ),
        cli.flag("--dry-run", "Print the commands, for any machine, and run none of them."),
        cli.flag("--list listed", "List the reference workloads, or describe WORKLOAD, and run nothing."),
        cli.Argument(["workload"], required=False, shell_complete=cli.complete_workloads),
        cli.Argument(["args"], nargs=-1, type=click.UNPROCESSED, shell_complete=cli.complete_files),
    ],
)
def collect(  # noqa: PLR0913 - a click command has a parameter per option
    workload: str | None,
    args: tuple[str, ...],
    *,
    listed: bool,
    module: bool,
    against: str | None,
    dry_run: bool,
    **values: Any,  # noqa: ANN401 - each has its own type
) -> None:
    """Profile WORKLOAD, a .cu file, Python script, executable or name from `kanalyze collect --list`.

    What follows it is its own: kanalyze collect train.py --epochs 2
    """
    if listed:
        _list_references(workload)
        return
    if workload is None:
        raise click.UsageError("Missing argument 'WORKLOAD'.")
    _note_ours(click.get_current_context(), workload, args)
    if module:
        workload, args = shipped.MODULE, (workload, *args)

    options = _options(values)
    if dry_run:
        emit("".join(f"{line}\n" for line in collectors.dry_run(workload, args, options, against=against)))
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as Ctrl-C does
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup asks for that
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        if against is None:
            captured: Capture | Captures = collectors.collect(workload, args, options, _draw_event)
        else:
            captured = collectors.collect_against(workload, against, args, options, _draw_event)
    except KeyboardInterrupt:  # before anything was begun
        raise declared.InterruptedCaptureError.during("the checks") from None
    _finish(captured)


def _note_ours(ctx: click.Context, workload: str, args: Sequence[str]) -> None:
    """Says which options of ours stand behind the program and are passed on to it."""
    ours = {name for option in ctx.command.params for name in option.opts if name.startswith("-")}
    named = dict.fromkeys(word for word in (word.partition("=")[0] for word in args) if word in ours)
    if named and _END not in sys.argv:
        passed = f"passed on to {outlets.line(workload)}: {', '.join(named)}"
        print_message(f"Note: {passed}. Options of kanalyze stand before the program.")


def _options(raw: dict[str, Any]) -> Options:
    """The options of the command line as those of the library."""
    passes = raw.pop("passes")
    raw["passes"] = tuple(name.strip() for name in passes.split(",")) if passes is not None else None
    try:
        raw["nvcc_flags"] = tuple(word for text in raw["nvcc_flags"] for word in shlex.split(text))
    except ValueError as error:
        raise declared.BadOptionError.of("--nvcc", " ".join(raw["nvcc_flags"]), "flags with closed quotes") from error
    return collectors.Options(**raw)


def _draw_event(event: Event) -> None:
    """Shows how far a run is on standard error: one line that changes on a terminal, plain lines elsewhere."""
    minutes, seconds = divmod(event.elapsed_s, 60)
    elapsed = f"{int(minutes)} min {seconds:02.0f} s" if minutes else f"{seconds:.1f} s"
    line = {
        "tick": f"{event.step}  {elapsed}  {event.text}",
        "begin": f"{event.step} …",
        "end": f"{event.step}: {event.text} after {elapsed}",
        "note": f"{event.step}: {event.text}",
    }[event.kind]
    live, columns = stderr_is_terminal(), shutil.get_terminal_size((80, 24)).columns
    if live and event.kind in ("tick", "begin"):
        print_message(f"{_CLEAR}{outlets.line(line)[: columns - 1]}", newline=False)
    elif event.kind != "tick":
        print_message(f"{_CLEAR if live else ''}{outlets.line(line)}")


def _finish(captured: Capture | Captures) -> None:
    """Print what was recorded, or the comparison of two programs, and what to do with it.

    Raises IncompleteError if a pass failed, or a program says that its result is wrong.
    """
    sides = {"": captured} if isinstance(captured, collectors.Capture) else {"base": captured.base, "new": captured.new}
    two = len(sides) > 1
    try:
        if two:
            summarize.shown_compared(*(capture.folder for capture in sides.values()))
        elif captures.ways(captured.folder):
            summarize.shown([captured.folder])
    except errors.IncomparableError as error:
        print_message(f"Note: not compared: {error}")
    finally:
        flush(sys.stdout)
        for side, capture in sides.items():
            prefix = f"{side}: " if side else ""
            for check in capture.checks:
                print_message(f"The program says: {prefix}{outlets.line(check)}")
            for note in capture.notes:
                print_message(f"Note: {prefix}{outlets.line(note)}")
        folder, words = outlets.line(str(captured.folder)), partial(outlets.command, "kanalyze")
        print_message(f"The captures are in {folder}" if two else f"The capture is in {folder}")
        if two:
            print_message(f"Compare them: {words('compare', *(capture.folder for capture in sides.values()))}")
        print_message(f"See it: {words('html', captured.folder, '-o', f'{captured.folder.name}.html', '--open')}")
    if captured.problems:
        raise declared.IncompleteError.because(captured.folder, captured.problems, sides)


@cli.command(
    cli.flag("--measure", "Time large products and a large copy on the GPU: its roofs."),
    *(one for one in _OPTIONS if one.metavar == "FILE"),  # the paths of tools
)
def doctor(*, measure: bool, **paths: Any) -> None:  # noqa: ANN401 - as of Options
    """Check what `kanalyze collect` needs: found or missing, what for, and how to get it.

    The exit status is 1 if anything is missing that a capture needs; what only CPU samples and GPU metrics need is
    told too.
    """
    lines = doctors.doctor(collectors.Options(**paths))
    roofs = doctors.measured(collectors.Options(**paths)) if measure else []
    emit("".join(_text(line) for line in (*lines, *doctors.extras(), *roofs)))
    sys.exit(0 if doctors.complete(lines) else 1)


def _text(line: Examined) -> str:
    """One thing: what was found, what for, and how to get it where it is missing."""
    state = "found" if line.ok else "not here" if line.optional else "MISSING"
    rows = [f"{line.found}: {line.means}"]
    if not line.ok:
        rows = [line.found, f"What for: {line.means}.", f"To get it: {line.remedy}."]
    return _filled(f"{line.name:<16}{state}", rows, margin=25)


def _filled(head: str, rows: Sequence[str], margin: int) -> str:
    """Rows behind a head and a margin, each filled to the width of the terminal."""
    filled = (
        textwrap.fill(outlets.line(row), width(), initial_indent=start.ljust(margin), subsequent_indent=" " * margin)
        for start, row in zip((head, *("" for _ in rows)), rows, strict=False)
    )
    return "".join(f"{text}\n" for text in filled)


def _list_references(name: str | None) -> None:
    """The reference workloads, each with what it teaches and its variants; of one its file and its description."""
    references = shipped.references()
    if name is None:
        margin = max((len(workload.name) for workload in references), default=0) + 2
        for workload in references:
            variants = [f"--variant {', '.join(workload.variants)}"] if workload.variants else []
            emit(_filled(workload.name, [workload.teaches, *variants], margin))
        return
    reference = shipped.reference(name)
    if reference is None:
        raise errors.UnknownNameError.of("workload", name, [workload.name for workload in references])
    emit(f"{reference.path}\n\n{reference.doc}\n")


@cli.command(cli.flag("--clear", "Remove it."))
def cache(*, clear: bool) -> None:
    """Show what is kept of reports so that they open faster: exports of .nsys-rep files, and decoded traces.

    Beyond the most that is kept, what was used longest ago goes first.
    """
    folder = files.cache_folder()
    sizes = [kept for _, _, kept in user_cache.entries(folder)]
    if clear:
        with user_cache.alone(folder):
            user_cache.make_room(folder, "", most=-1)
    text = f"{units.plural(len(sizes), 'report')}, {units.size(sum(sizes))}"
    emit(f"{folder}: {f'{text} removed' if clear else f'{text} of at most {units.size(user_cache.MOST_BYTES)}'}.\n")
