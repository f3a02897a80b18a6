"""The command line: parses, calls one library function, prints what a renderer made.

A command is a click command of its name in the module that :data:`_COMMANDS` says. Modules that begin with an
underscore are what commands share.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import warnings
from importlib import import_module
from typing import Final

import click

from kanalyze import outlets
from kanalyze.cli._memory import in_own_process, refused, tight
from kanalyze.cli._options import answering
from kanalyze.cli._output import flush, hold_closed_streams, print_message, unwritten
from kanalyze.errors import KanalyzeError, OutOfMemoryError, nearest
from kanalyze.machinery import PARENT, end_with, remove_at_signals

#: The status of a program that Ctrl-C ended.
_INTERRUPTED: Final = 130

#: The commands, by name, and the modules in which they are.
_COMMANDS: Final = {
    name: module
    for module, names in {
        "collect": ("collect", "doctor", "workloads"),
        "compare": ("compare", "verify"),
        "export": ("export", "html", "redact", "reduce"),
        "kernels": ("roofline", "source", "tree"),
        "mcp": ("mcp",),
        "summarize": ("explain", "ranks", "summarize", "whatif"),
        "tables": ("name", "plot", "show", "sql", "tables"),
    }.items()
    for name in names
}


class _Commands(click.Group):
    """The commands, each imported when it is called: the start of one does not wait for the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name."""
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called `cmd_name`."""
        if cmd_name not in _COMMANDS:
            hint = nearest(cmd_name, sorted(_COMMANDS))
            ctx.fail(f"No such command {cmd_name!r}." + (f" Did you mean {hint}?" if hint else ""))
        command: click.Command = getattr(import_module(f"{__name__}.{_COMMANDS[cmd_name]}"), cmd_name)
        return command


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - reads the installed packages, for --version only

    return f"kanalyze {version('kanalyze')}\n"


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[answering("--version", "Say the version and stop.", _version)],
)
def kanalyze() -> None:
    """Where did the GPU time go? Reads profiles and attributes every nanosecond."""


def main() -> None:
    """Run the command line; the one place where an error becomes text and an exit status."""
    try:
        sys.exit(kanalyze.main(prog_name="kanalyze", standalone_mode=False))
    except KanalyzeError as error:
        _print_error(error)
        sys.exit(error.exit_status)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        print_message(outlets.lines(said.getvalue().rstrip("\n")))
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        print_message("Aborted!")
        sys.exit(_INTERRUPTED)
    except BaseException as error:
        if not (told := OutOfMemoryError.anywhere() if refused(error) else unwritten(error)):
            raise
        _print_error(told)
        sys.exit(told.exit_status)


def _print_error(error: KanalyzeError) -> None:
    details = "".join(f"    {outlets.line(line)}\n" for line in error.details)
    message, remedy = outlets.line(str(error)), outlets.line(error.remedy)
    print_message(f"kanalyze: {message}\n{details}{remedy}  [{error.slug}]")


def entry() -> None:
    """The program: :func:`main` in a process of its own, which need not clean up after itself.

    Collecting garbage and taking down the interpreter cost a fifth of the time of a small report (benchmarks/).
    """
    if parent := os.environ.pop(PARENT, ""):
        end_with(int(parent))
    gc.disable()
    hold_closed_streams()
    os._exit(in_own_process(_ended, _print_error) if tight(sys.argv[1:]) else _ended())


def _ended() -> int:
    """The exit status of :func:`main`, after all that it said has been written."""
    status: object = 0
    remove_at_signals()
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # they are for who writes programs
    try:
        main()
    except SystemExit as stop:
        status = stop.code
    if archives := sys.modules.get("kanalyze.readers.archives"):
        archives.remove_unpacked()  # the process ends without cleaning up after itself
    flushed = flush(sys.stdout)
    flush(sys.stderr)
    status = status or not flushed
    return status if isinstance(status, int) else int(status is not None)
