"""The command line: parses, calls one library function, prints what a renderer made.

A command is a click command of its name in the module that :data:`_COMMANDS` says. Options and arguments that several
have are declared here, and how a shell completes them. Modules that begin with an underscore are what commands share.
"""

from __future__ import annotations

import gc
import io
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import click

from kanalyze import machinery, outlets
from kanalyze.cli import _answers, _process
from kanalyze.cli._process import InputPath, Out, OutputPath, emit, print_message, session
from kanalyze.errors import KanalyzeError, OutOfMemoryError, nearest
from kanalyze.tools import NAMES

with machinery.late():
    from kanalyze import catalog, readers, window
    from kanalyze.analyses.shared import analysis as one_thread
    from kanalyze.collectors import workload as shipped
    from kanalyze.renderers.tables import descriptions

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
    Choices = Iterable[tuple[str, str]]  # with a word about each

#: The commands by what they are for, each with its module and its line in the help.
_GROUPS: Final = {
    "Look": {
        "summarize": ("summarize", "one page: where the time went, and what to do first"),
        "show": ("tables", "a table, the call tree, a kernel's source; alone: a list"),
        "plot": ("tables", "a picture: ledger, timeline, steps, roofline and more"),
    },
    "Ask": {
        "explain": ("summarize", "a finding, a word of a page, or a kernel's name"),
        "whatif": ("summarize", "what a change would bring"),
        "sql": ("tables", "an SQL statement over the tables"),
    },
    "Compare": {
        "compare": ("summarize", "two sides of runs; a gate for CI"),
        "ranks": ("summarize", "the ranks of one job: who waits for whom, and why"),
        "verify": ("summarize", "what several tools tell of one program"),
    },
    "Record": {
        "collect": ("collect", "profile a program with every tool that is here"),
        "doctor": ("collect", "what is missing for that, and how to get it"),
        "cache": ("collect", "what is kept of reports; --clear empties it"),
    },
    "Share": {
        "html": ("export", "one file with page, timeline and tables for a browser"),
        "export": ("export", "Parquet, Arrow, CSV; traces for Perfetto, speedscope"),
        "redact": ("export", "a copy without what identifies machine and user"),
        "reduce": ("export", "what `ranks` needs of a thousand reports"),
        "mcp": ("mcp", "serve reports to an assistant, read-only"),
    },
}

#: The view of `show` that is a command of its own, as it takes no table, and in no list.
_SOURCE: Final = "source"
_COMMANDS: Final = {name: home for group in _GROUPS.values() for name, (home, _) in group.items()} | {_SOURCE: "tables"}

#: What former commands were called, for one release.
_FORMER: Final = {
    "name": ("explain",),
    "roofline": ("show", "roofline"),
    "tables": ("show",),
    "tree": ("show", "tree"),
    "workloads": ("collect", "--list"),
}

#: What can be drawn.
PICTURES: Final = ("ledger", "timeline", "steps", "durations", "laws", "roofline", "ranks", "compare")


class _Commands(click.Group):
    """The commands, each imported when it is called: the start of one does not wait for the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name, but for the view of `show`."""
        del ctx
        return [name for name in _COMMANDS if name != _SOURCE]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a line for each command, by what they are for."""
        widest = max(map(len, self.list_commands(ctx)))
        for heading, group in _GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(widest), line) for name, (_, line) in group.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:  # noqa: ANN401 - click's
        """The command that is meant: of a path alone its page."""
        args = [*_FORMER.get(args[0], args[:1]), *args[1:]]
        word, *further = args
        if word == "show" and further[:1] == [_SOURCE]:
            return super().resolve_command(ctx, further)
        if word not in _COMMANDS and (os.path.lexists(word) or os.sep in word or Path(word).suffix):
            args = ["summarize", *args]
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called `cmd_name`."""
        if cmd_name not in _COMMANDS:
            is_table = cmd_name in catalog.every_name()
            hint = f"show {cmd_name}" if is_table else nearest(cmd_name, self.list_commands(ctx))
            ctx.fail(f"No such command {cmd_name!r}." + (f" Did you mean {hint}?" if hint else ""))
        command: click.Command = getattr(import_module(f"{__name__}.{_COMMANDS[cmd_name]}"), cmd_name)
        return command


# What parameters may be, completed by a shell. A completion has to be quick and quiet: what takes long is not looked
# at, and an error completes nothing.

#: Largest reports of which ranges are read, in bytes: 0.2 s besides the start.
_MOST_BYTES: Final = {".sqlite": 128 << 20, ".json": 8 << 20, ".gz": 1 << 20}


def _completer(choices: Callable[[click.Context, str], Choices]) -> Completer:
    """A completer of the values that `choices` gives with a word about each; of none where anything goes wrong."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only where a shell asks

        try:
            matches = [(value, about) for value, about in choices(ctx, incomplete) if value.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - a traceback in the middle of a line that is being typed helps nobody
            return []
        # bash inserts a value as it is, the other shells quote it themselves
        if os.environ.get("_KANALYZE_COMPLETE", "").startswith("bash"):
            matches = [(shlex.quote(value) if re.search(r"\s", value) else value, about) for value, about in matches]
        return [CompletionItem(value, help=about or None) for value, about in matches]

    return complete


def _words(ctx: click.Context) -> list[str]:
    """The arguments on the line so far; click has not named them if the option before them lacks its value."""
    named = [ctx.params.get("table"), *(ctx.params.get("reports") or ()), ctx.params.get("report")]
    return [str(word) for word in named if word is not None] or [*ctx.args]


@_completer
def complete_tables(_: click.Context, incomplete: str) -> Choices:
    """Names of tables."""
    return [(name, catalog.table(name).purpose) for name in catalog.names() if name.startswith(incomplete)]


def _column_names(ctx: click.Context) -> dict[str, str]:
    """The columns of the table on the line, with what they hold: of the form that is asked for, or of all its forms."""
    name = _words(ctx)[0]
    forms = [catalog.table(name), *catalog.forms(name)]
    asked = [form for form in forms if form.when == f"--by {ctx.params.get('by')}"]
    return {column.name: column.doc for form in asked or forms for column in form.columns}


def _behind(incomplete: str, choices: Choices) -> Choices:
    """Lists with commas, whose last word is being typed: each choice behind the words before, which are none again."""
    before, comma, _ = incomplete.rpartition(",")
    return [(before + comma + word, about) for word, about in choices if word not in before.split(",")]


@_completer
def _columns(ctx: click.Context, incomplete: str) -> Choices:
    """Lists of columns; ``all`` alone."""
    every = [] if "," in incomplete else [("all", "every column")]
    return [*every, *_behind(incomplete, _column_names(ctx).items())]


@_completer
def _windows(ctx: click.Context, _: str) -> Choices:
    """The steady part, and ranges of the report on the line, all of a name together and each; steps of a profiler."""
    counts = _ranges(ctx)
    named = {name: count for name, count in counts.items() if not name.startswith(window.STEP_PREFIX)}
    return [
        ("steady", "the steady iterations"),
        *((name, f"{one} times") for name, one in named.items()),
        *((f"{name}#*", f"each of {count}") for name, count in named.items() if count > 1),
        *[("steps", f"each of {len(counts) - len(named)} steps")] * (len(counts) > len(named)),
    ]


def _ranges(ctx: click.Context) -> dict[str, int]:
    """The 60 ranges that occur most often in the first report on the line that is small enough, and how often."""
    words = _words(ctx)
    for path in map(Path, words[1:] if "table" in {param.name for param in ctx.command.params} else words):
        of_capture = (path / name for name in ("nsys.sqlite", "torch.json.gz"))
        file = next(filter(Path.is_file, of_capture), path)
        if file.is_file() and file.stat().st_size <= _MOST_BYTES.get(file.suffix, 0):
            with readers.read(file) as report:
                names = report.kind("range").get_column("name").drop_nulls().cast(str).value_counts(sort=True)
                return dict(names.head(60).rows())
    return {}


#: Names of findings.
complete_findings: Final = _completer(lambda *_: [(name, "") for name in descriptions.names()])

#: Names of reference workloads.
_references: Final = _completer(lambda *_: [(one.name, one.teaches) for one in shipped.references()])


#: Whatever files there are.
complete_files: Final = click.File().shell_complete


def complete_workloads(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of reference workloads, and files."""
    return [*complete_files(ctx, param, incomplete), *_references(ctx, param, incomplete)]


#: What completes the value of an option, by its metavar; to click a word that begins with a minus is an option.
_COMPLETED: Final = {
    "A,B": complete_tables,
    "A,B|all": _columns,
    "COLUMN": _completer(lambda ctx, _: _column_names(ctx).items()),
    "GROUPING": _completer(lambda ctx, _: [(by, "") for by in catalog.table(_words(ctx)[0]).groupings]),
    "OTHER": complete_workloads,
    "PASSES": _completer(lambda _, incomplete: _behind(incomplete, [(name, "") for name in NAMES])),
    "START..END|RANGE": _windows,
}


# Parameters.

#: In reports of fewer bytes doubts are looked for in all of it; of those in NVIDIA's own format, and of compressed
#: ones, ten times as much is made.
_SMALL_BYTES: Final = 1 << 21

#: Reports of fewer bytes are worked on in threads of ours alone, without those of polars (benchmarks/).
_ONE_THREAD_BYTES: Final = 1 << 25

#: No report that is small consists of so many files.
_MANY_FILES: Final = 1 << 12


class _Count(click.IntRange):
    """How many there are at most; more than 31 bits say is as good as all."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        """The number."""
        return min(super().convert(value, param, ctx), (1 << 31) - 1)


COUNT: Final = _Count(min=1)

#: A path that is read, and a file that is written.
READ: Final = InputPath(path_type=Path)
WRITTEN: Final = OutputPath(path_type=Path, dir_okay=False)


def option(names: str, text: str, metavar: str | None = None, **attributes: Any) -> click.Option:  # noqa: ANN401 - of click.Option
    """An option of a command: its names, and that of its parameter where it has another one, with blanks between."""
    completed = _COMPLETED.get(metavar or "")
    return click.Option(names.split(), help=text, metavar=metavar, shell_complete=completed, **attributes)


def flag(names: str, text: str, *, default: bool | None = False) -> click.Option:
    """An option without a value."""
    return option(names, text, is_flag=True, default=default)


class Argument(click.Argument):
    """An argument; a report stands before or behind what it is asked for: ``plot ledger R`` and ``plot R ledger``."""

    def consume_value(self, ctx: click.Context, opts: Any) -> Any:  # noqa: ANN401 - click's
        """The value on the command line, once the report is where the command has it."""
        names = [param.name or "" for param in ctx.command.params if isinstance(param, click.Argument)]
        args = [opts.get(name) for name in names]
        words = [word for one in args for word in (one if isinstance(one, tuple) else (one,)) if isinstance(word, str)]
        if words and len(names) > 1 and not {"report", "reports"}.isdisjoint(names):
            meant, other = (-1, 0) if names[0].startswith("report") else (0, -1)
            if [args[meant]] == words and names[other] == "reports" and _is_path(words[0], names[meant]):
                opts[names[meant]], opts[names[other]] = args[other], (words[0],)  # what is asked for is missing
            elif len(words) > 1 and _is_path(words[meant], names[meant]) and not _is_path(words[other], names[meant]):
                opts[names[meant]] = words.pop(other)
                opts[names[other]] = tuple(words) if isinstance(args[other], tuple) else words[0]
        return super().consume_value(ctx, opts)


def _is_path(word: str, name: str) -> bool:
    """Whether a file is called so, and no value of the argument `name`, such as a table."""
    values = catalog.every_name() if name == "table" else PICTURES if name == "picture" else ()
    values = descriptions.names() if name == "name" else values
    return os.path.lexists(word) and word not in values


def output(text: str, metavar: str = "FILE", **attributes: Any) -> click.Option:  # noqa: ANN401 - of click.Option
    """The option ``-o``, what is written."""
    return option("-o --output", text, metavar, **{"type": WRITTEN, **attributes})


def formats(*names: str) -> list[click.Option]:
    """How a command prints and where: the option ``--format``, without it for the terminal, and those beside it."""
    form = click.Option(["--format", "form"], type=click.Choice(["terminal", *names]), default="terminal")
    formulas = flag("--no-formulas", "In CSV put an apostrophe before texts that a spreadsheet would run.")
    return [form, *[formulas] * ("csv" in names), output("Write to FILE, all of it or nothing.")]


def top(text: str = "Rows in each table of the page.") -> click.Option:
    """The option ``--top``."""
    return option("--top", text, "N", type=COUNT)


def answering(name: str, text: str, answer: Callable[[], str]) -> click.Option:
    """An option in place of all others: it prints its answer, and that is all."""

    def print_answer(ctx: click.Context, _: click.Parameter, is_on: bool) -> None:  # noqa: FBT001 - click's signature
        if is_on and not ctx.resilient_parsing:
            emit(answer())
            ctx.exit()

    return option(name, text, is_flag=True, is_eager=True, expose_value=False, callback=print_answer)


#: Tables, of which the names are completed; the report's path, and the paths of one report or more.
TABLE: Final = Argument(["table"], required=False, shell_complete=complete_tables)
REPORT: Final = Argument(["report"], type=READ)
REPORTS: Final = Argument(["reports"], nargs=-1, required=True, type=READ)

NO_CACHE: Final = flag("--no-cache", "Read the report itself, not what is kept of it; keep nothing.")
SCOPE: Final = (
    option(
        "--window",
        "Only this part: two times with units (120ms..250ms, ..1.5s; +1ms..+2ms since the first event), a range, one "
        "of several (step#3; step#* is each of them), or a step of a profiler (step:5; steps is each).",
        "START..END|RANGE",
    ),
    option("--device", "Only this GPU.", "GPU", type=int),
    option("--process", "Only this process.", "PID", type=int),
    option(
        "--steps",
        "Labels of a serving engine's steps, such as 'decode bs={batch}', besides those of known engines.",
        "PATTERN",
        multiple=True,
    ),
    option("--capture", "The trace in which CUDA graphs were captured: names for what they run.", "TRACE", type=READ),
    NO_CACHE,
)
UNPROFILED: Final = flag("--without-profiler", "Times as without the profiler, by the run without one of a capture.")


def command(*params: click.Parameter, small: bool = True) -> Callable[[Callable[..., object]], click.Command]:
    """Makes a command of a function that takes its parameters by name.

    Those of :data:`SCOPE` it takes as `where`, and those of its output as `to`. A command that takes REPORTS works on
    them in one thread where they are `small`, as of :func:`_worked_on`.
    """

    def made(run: Callable[..., object]) -> click.Command:
        @wraps(run)
        def work(**options: Any) -> object:  # noqa: ANN401 - each has its own type
            for name, kind in (("where", _answers.Where), ("to", Out)):
                if values := {field: options.pop(field) for field in kind._fields if field in options}:
                    options[name] = kind(**values)
            reports = options.get("reports", [options["report"]] if "report" in options else None)
            return run(**options) if reports is None or not small else _worked_on(reports, lambda: run(**options))

        return click.command(params=[*params])(work)

    return made


def _worked_on(reports: Sequence[Path], work: Callable[[], object]) -> object:
    """Does `work` on reports, if they are small without polars' threads; prints the doubts about them at the end."""
    size = sum(map(_bytes, reports))
    session().everything = size < _SMALL_BYTES

    def work_and_doubt() -> object:
        try:
            result = work()
        except click.exceptions.Exit:  # with a status that is an answer
            _answers.print_doubts()
            raise
        _answers.print_doubts()
        return result

    in_one_thread = one_thread.in_one_thread  # loads polars as a command is to have it, for large reports, too
    return work_and_doubt() if size >= _ONE_THREAD_BYTES else in_one_thread(work_and_doubt)


def _bytes(report: Path) -> int:
    """Size of a file or of a folder's files; of many no less than that of a large one."""
    sizes = [size for _, size in islice(_process.file_sizes(report), _MANY_FILES)]
    return _ONE_THREAD_BYTES if len(sizes) == _MANY_FILES else sum(sizes)


# The program.


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        answering(
            "--version",
            "Say the version and stop.",
            lambda: f"kanalyze {import_module('importlib.metadata').version('kanalyze')}\n",
        )
    ],
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
        buffer = io.StringIO()
        error.show(buffer)
        print_message(outlets.lines(buffer.getvalue().rstrip("\n").expandtabs(2)))
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        print_message("Aborted!")
        sys.exit(130)  # as of any program that Ctrl-C ends
    except BaseException as error:
        if not (our_error := OutOfMemoryError.anywhere() if _process.refused(error) else _process.unwritten(error)):
            raise
        _print_error(our_error)
        sys.exit(our_error.exit_status)


def _print_error(error: KanalyzeError) -> None:
    details = "".join(f"    {outlets.line(line)}\n" for line in error.details)
    message, remedy = outlets.line(str(error)), outlets.line(error.remedy)
    print_message(f"kanalyze: {message}\n{details}{remedy}  [{error.slug}]")


def entry() -> None:
    """The program: :func:`main` in a process of its own, which need not clean up after itself.

    Collecting garbage and taking down the interpreter cost a fifth of the time of a small report (benchmarks/).
    """
    if parent := os.environ.pop(machinery.PARENT, ""):
        machinery.end_with(int(parent))
    gc.disable()
    _process.hold_closed_streams()
    os._exit(_process.in_own_process(_ended, _print_error) if _process.tight(sys.argv[1:]) else _ended())


def _ended() -> int:
    """The exit status of :func:`main`, after all that it said has been written."""
    status: object = 0
    machinery.remove_at_signals()
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # they are for who writes programs
    try:
        main()
    except SystemExit as stop:
        status = stop.code
    if type(readers := sys.modules.get("kanalyze.readers")) is ModuleType:  # else nothing was read
        readers.remove_unpacked()  # the process ends without cleaning up after itself
    flushed = _process.flush(sys.stdout)
    _process.flush(sys.stderr)
    status = status or not flushed
    return status if isinstance(status, int) else int(status is not None)
