"""All errors that a user can cause, each with a slug, a remedy and an exit status.

The command line prints them in one place (:mod:`kanalyze.cli`): message, remedy, and the slug under which
``docs/errors.md`` explains the case. A test requires an entry there for every slug.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar, Final, TypeVar

from kanalyze import outlets
from kanalyze.tools import TIMED, again

E = TypeVar("E", bound="KanalyzeError")

#: Longest output of another program quoted in an error, in lines, and their longest length in characters.
_LINES, _WIDE = 3, 200

#: Remedy for a shortage of memory.
_LESS: Final = "Give it more memory, choose a part with --window, --device or --process, or record fewer steps."

#: Most names listed for an unknown one, each so long; of more the nearest, which are looked for among so many.
_ALL, _LONG, _NEAREST, _COMPARED = 12, 80, 5, 2000


class KanalyzeError(Exception):
    """Base of all errors that the user can act on.

    Attributes:
        slug: Stable name of the case, the anchor in ``docs/errors.md``.
        exit_status: What the command exits with; 2 for bad input or use.
        remedy: What to do about it, one sentence.
        details: What another program said, line by line, where that helps; printed before the message.
    """

    slug: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 2

    def __init_subclass__(cls, slug: str = "") -> None:
        """Name a kind of error."""
        cls.slug = slug or cls.slug

    def __init__(self, message: str, remedy: str, details: Iterable[str] = ()) -> None:
        """Keep the message (what was found, and where) and the remedy (what to do)."""
        super().__init__(message)
        self.remedy = remedy
        self.details = [*details]

    def __reduce__(self) -> tuple[type[KanalyzeError], tuple[str, str, list[str]]]:
        """Keep the remedy when another process hands the error over."""
        return type(self), (str(self), self.remedy, self.details)


class Case:
    """A case of an error as words, and a method of its class that makes it: ``NoJobError.of(path)``.

    The method takes what message and remedy have places for, in the order of these, or of `names`; what is left out is
    as `usual`. One more argument takes the place of the remedy.
    """

    def __init__(self, message: str, remedy: str, names: str = "", **usual: str) -> None:
        """Keep the words."""
        self._names, self._message, self._remedy, self._usual = names.split(), message, remedy, usual

    def __get__(self, _: object, kind: type[E]) -> Callable[..., E]:
        """What makes an error of a kind."""

        def made(*values: object, remedy: str = "", **named: object) -> E:
            words, places = _Words(), f"{self._message}{self._remedy}"
            names = self._names or [*dict.fromkeys(name for _, name, _, _ in words.parse(places) if name)]
            texts = self._usual | dict(zip(names, values, strict=False)) | named
            instead = remedy or "".join(map(str, values[len(names) :]))
            return kind(words.vformat(self._message, (), texts), instead or words.vformat(self._remedy, (), texts))

        return made


#: Commands of a path, by what stands behind the colon.
_COMMANDS: Final = {"export": ("nsys", "export", "--type=sqlite"), "counters": ("kanalyze", "show", "counters")}


class _Words(Formatter):
    """Puts values into words; of several all, with what stands behind the colon, else commas, between them.

    ``{path:export}`` is the command that exports a report, ``{path:counters}`` the one that shows its counters, and
    ``{number:s}`` the s of a plural.
    """

    def format_field(self, value: Any, spec: str) -> str:  # noqa: ANN401 - whatever an error tells
        """The text of a value."""
        if words := _COMMANDS.get(spec):
            return outlets.command(*words, value)
        if spec == "s":
            return "" if value == 1 else "s"
        value = map(": ".join, value.items()) if isinstance(value, Mapping) else value
        several = isinstance(value, Iterable) and not isinstance(value, str)
        return (spec or ", ").join(map(str, value)) if several else format(value, spec)


def last_words(output: Iterable[str], beginning: str = "") -> str:
    """The last lines that another program printed, on one line: those that begin so, if there are such."""
    lines = [" ".join(line.split()).rstrip(".") for line in output if line.strip()]
    words = ([line for line in lines if line.startswith(beginning)] or lines)[-_LINES:]
    return "; ".join(outlets.cut(word, _WIDE) for word in words)


class ReportNotFoundError(KanalyzeError, slug="report-not-found"):
    """There is no file at the path."""

    @classmethod
    def at(cls, path: Path) -> ReportNotFoundError:
        """Error: the file `path` does not exist; suggests the most similar name beside it."""
        beside: list[str] = []
        with suppress(OSError):
            beside = [entry.name for entry in path.parent.iterdir()]
        hint = nearest(path.name, beside)
        return cls(f"{path}: no such file.", f"Did you mean {path.parent / hint}?" if hint else "Check the path.")


class UnreadableReportError(KanalyzeError, slug="report-unreadable"):
    """The operating system refuses to read the file."""

    because = Case("{path}: cannot be read ({reason}).", "Check the file's permissions, or copy it to a local disk.")

    @classmethod
    def of(cls, path: Path, error: OSError) -> KanalyzeError:
        """Error: reading `path` failed with `error`; OutOfMemoryError where the system had no memory for it."""
        if error.errno == errno.ENOMEM:
            return OutOfMemoryError.anywhere()
        return cls.because(path, error.strerror or str(error))


class ClosedReportError(KanalyzeError, slug="report-closed"):
    """A closed report was asked for a table that was not read before."""

    of = Case("{path}: the report is closed, and {what!r} was not read before.", "Ask before, or read it again.")


class UnknownFormatError(KanalyzeError, slug="unknown-format"):
    """The file is not a report that kanalyze reads: it holds `found`, a noun phrase, or JSON without events."""

    of = Case(
        "{path}: {found}, not a report that kanalyze reads.",
        "Give a .nsys-rep file, or what `nsys export` makes of it with --type=sqlite or --type=parquetdir; or a "
        "trace of torch.profiler (.json, .json.gz); or a .ncu-rep file of Nsight Compute, or its CSV pages.",
    )
    no_trace = Case(
        "{path}: JSON without traceEvents, not a trace that kanalyze reads.",
        "Give what torch.profiler wrote: `prof.export_chrome_trace(...)`, or a file of tensorboard_trace_handler.",
    )


class DamagedReportError(KanalyzeError, slug="report-damaged"):
    """The report is damaged: part of it is missing or invalid."""

    @classmethod
    def at(cls, path: Path, where: str, what: str) -> DamagedReportError:
        """Error: `what` was found in `path`, at `where` (table, page or row)."""
        remedy = "Copy the file again."
        if path.suffix == ".sqlite":
            flags, report = ("--type=sqlite", "--force-overwrite=true"), path.with_suffix(".nsys-rep")
            export = outlets.command("nsys", "export", *flags, f"--output={path}", report)
            remedy = f"Copy the file again, or export it again: `{export}`."
        return cls(f"{path}: damaged at {where}: {what}.", remedy)


class DecoderEndedError(KanalyzeError, slug="decoder-ended"):
    """A worker process that decoded part of the report was killed."""

    @classmethod
    def of(cls, path: Path, status: int) -> DecoderEndedError:
        """Error: the worker process for `path` ended with `status`, a signal if negative."""
        ended = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return cls(
            f"{path}: a process that decoded it {ended}.",
            "Most often the machine has run out of memory: free some, or record fewer steps.",
        )


class ExportError(KanalyzeError, slug="export-failed"):
    """The report is in NVIDIA's own format and cannot be exported here."""

    unwritable = Case(
        "{path}: its export cannot be written to {cache} ({reason}).",
        "Set XDG_CACHE_HOME to a folder with space, or export it yourself and give the .sqlite file: `{path:export}`.",
    )
    _refused = Case(
        "{path}: {program} cannot export it: {reason}.",
        "A report of a newer nsys needs an nsys as new. Put that one first on PATH, or export the report where it "
        "was recorded and give the .sqlite file: `{path:export}`.",
    )
    _alone = Case(
        "{path}: an Nsight Systems report in NVIDIA's own format, and there is no nsys here that can export it.",
        "Install Nsight Systems (https://developer.nvidia.com/nsight-systems) or put its nsys on PATH, or export "
        "the report where it was recorded and give the .sqlite file: `{path:export}`.{hint}",
    )

    @classmethod
    def without_nsys(cls, path: Path, older: Path | None) -> ExportError:
        """Error: no nsys to export `path` with; `older` is an export that may be outdated."""
        return cls._alone(path, f" Or give {older}, which is older than the report." if older else "")

    @classmethod
    def failed(cls, path: Path, program: str, status: int, output: Iterable[str]) -> ExportError:
        """Error: `program` exited with `status`, or without a complete export, and printed `output`."""
        ended = f"it ended with status {status}" if status else "it left no whole export"
        return cls._refused(path, program, last_words(output, "Exportation error") or ended)


class BadBaselineError(KanalyzeError, slug="bad-baseline"):
    """A file is no baseline that can be compared with."""

    damaged = Case("{path}: no baseline ({reason}).", "Make it again with `kanalyze compare --save FILE REPORT…`.")
    version = Case(
        "{path}: a baseline of version {found!s}; this kanalyze reads version {readable}.",
        "Make it again from its reports with `kanalyze compare --save FILE REPORT…`.",
    )


class NoJobError(KanalyzeError, slug="no-job"):
    """Reports hold no ranks of one job."""

    empty = Case(
        "None of the reports has work on a GPU, or a collective.",
        "Give the traces or nsys reports of all ranks, a folder of them, or what `kanalyze reduce` wrote.",
    )
    of = Case(
        "{path}: no work on a GPU, and so no rank of a job.",
        "Leave it out, or record it with the activities of the GPU.",
    )


class BadReductionError(KanalyzeError, slug="bad-reduction"):
    """Output of ``kanalyze reduce`` is damaged, or of another version."""

    damaged = Case(
        "{folder}: a damaged reduction ({reason}); `kanalyze reduce` of its report makes it again.",
        "Run the `kanalyze reduce` that made it once more: it replaces what is damaged, and leaves the others.",
    )
    version = Case(
        "{folder}: a reduction of version {found!s}; this kanalyze reads version {readable}, and its `kanalyze reduce` "
        "makes it again.",
        "Run `kanalyze reduce` of its report with this version: it replaces what others made.",
    )


class LostReportError(KanalyzeError, slug="report-lost"):
    """The process that read a report ended before it was done."""

    of = Case(
        "{path}: what read it ended before it was done ({reason}).",
        "Run `kanalyze reduce` again, which does only what is missing; if memory was short, with a smaller -j.",
    )


class EngineError(KanalyzeError, slug="no-engine"):
    """Engine for work side by side cannot be reached, or is not installed."""

    unreachable = Case(
        "{address}: no scheduler of dask answers ({reason}).",
        "Give the address that `dask scheduler` prints, such as tcp://host:8786, or leave --dask out: the work is "
        "then done here.",
    )
    without_package = Case("{package} is not installed.", "Install it: pip install 'kanalyze[{extra}]'.")


class IncomparableError(KanalyzeError, slug="not-comparable"):
    """Two sides have nothing in common that could be compared: neither a tool nor a rank nor an iteration."""

    empty = Case("No report of {side}.", "Give BASE and NEW: a report, a folder of reports, or a baseline each.")
    unclear = Case(
        "{number:,} report{number:s}: which of them are base, and which new?",
        "Give BASE and NEW; of several runs a side, a folder each, or --base RUN for each of base.",
    )
    steps = Case(
        "A baseline holds its iterations alone, and {reason}.",
        "Compare the reports themselves, or make the baseline of a part that both sides have, with --window.",
    )
    few_runs = Case(
        "{number:,} run{number:s} with a time: how much runs vary cannot be told.",
        "Give two or more runs of the same program; six or more say it well.",
    )
    ranks = Case(
        "Base has the ranks {base}, new {new}.",
        "Give reports of the same ranks; one of each is compared with --allow ranks (other_ranks=True in Python).",
    )

    @classmethod
    def tools(cls, base: Iterable[str], new: Iterable[str]) -> IncomparableError:
        """Error: no tool recorded both sides."""
        return cls(
            f"Base is of {' and '.join(base) or 'nothing'}, new of {' and '.join(new) or 'nothing'}.",
            "Give reports of one tool on both sides, or on each of one that tells when things ran.",
        )


class BadWindowError(KanalyzeError, slug="bad-window"):
    """The argument of ``--window`` is invalid."""

    of = Case(
        "--window {text!r}: {reason}.",
        "Write start..end with units, as in 120ms..250ms (a side may be left out; times are the report's own, with "
        "a plus sign since its first event), or the name of a range.",
    )

    @classmethod
    def several(cls, text: str, name: str, windows: Sequence[str], path: Path) -> BadWindowError:
        """Error: `text` names several `windows` of the report at `path`, instances of `name`, where one is required."""
        command = outlets.command("kanalyze", "summarize", path, "--window", f"{name}#*")
        remedy = f"Choose one of them, {windows[0]} to {windows[-1]}; `{command}` compares all."
        return cls.of(text, f"{len(windows):,} ranges have that name", remedy)

    @classmethod
    def outside(cls, text: str, path: Path, first: str, last: str) -> BadWindowError:
        """Error: `text` lies outside of the recording, which spans `first` to `last`."""
        reason = f"{path} has nothing then, it was recorded from {first} to {last}"
        return cls.of(text, reason, "Choose a part of it: " + f"{first}..{last}.".replace(" ", ""))

    @classmethod
    def empty(cls, text: str, count: int) -> BadWindowError:
        """Error: `text` names a range, or `count` instances of one, of zero duration."""
        none = "this range has no duration" if count == 1 else f"none of these {count:,} ranges has a duration"
        return cls.of(text, none, "Choose a range that takes time, or write start..end with units.")


class BadThresholdError(KanalyzeError, slug="bad-threshold"):
    """An option has no time or share with its unit: not `what` it takes."""

    of = Case(
        "{option} {text!r}: not {what}.",
        "Write a number with its unit, as in {example}.",
        names="text what example option",
        option="--threshold",
    )


class UnknownNameError(KanalyzeError, slug="unknown-name"):
    """A table, column, device, process or grouping does not exist."""

    @classmethod
    def of(cls, what: str, name: object, known: Iterable[object]) -> UnknownNameError:
        """Error: there is no `what` called `name`; suggests the nearest of the `known` ones, and lists all, or some."""
        choices = [*map(str, known)]
        hint = nearest(str(name), choices)
        choices = [f"{choice[: _LONG - 20]}…{choice[-19:]}" if len(choice) > _LONG else choice for choice in choices]
        listed = "There are: " + (", ".join(choices) or "none")
        if len(choices) > _ALL:
            listed = f"Nearest: {', '.join(_similar(str(name), choices))}"
        return cls(f"no {what} {str(name)!r}.", f"{f'Did you mean {hint}? ' if hint else ''}{listed}.")

    @classmethod
    def number(cls, what: str, number: str, count: int) -> UnknownNameError:
        """Error: there is no `what` of that `number`; they are numbered from 1 to `count`."""
        return cls(f"no {what} {number!r}.", f"There are: 1 to {count:,}." if count > 1 else "There is: 1.")


def refuse_unknown(what: str, name: object, known: Collection[object]) -> None:
    """Raises UnknownNameError unless `name` is one of the `known` ones."""
    if name not in known:
        raise UnknownNameError.of(what, name, known)


class OtherCaptureError(KanalyzeError, slug="other-capture"):
    """What captured the CUDA graphs of a report is not in the one given for that."""

    of = Case(
        "{path}: of none of the CUDA graphs that it launches {capture} tells the capture: numbers, kinds or kernels "
        "differ, or several fit, as where it has no shapes.",
        "Give the trace in which the same program captured its graphs, of the same shapes, with record_shapes=True.",
    )


class SqlError(KanalyzeError, slug="bad-sql"):
    """A statement of `kanalyze sql` is no SQL that can be answered."""

    of = Case("SQL: {why}.", "`kanalyze show TABLE` has a table's columns; docs/sql.md has examples.")


class OutputError(KanalyzeError, slug="output-failed"):
    """The output cannot be written: no partial file was left."""

    because = Case("{path}: cannot be written ({reason}).", "Choose another place with -o, or free some space.")
    exists = Case("{path}: exists already, and is not overwritten.", "Choose another place with -o, or move it away.")
    needs_file = Case("--format {form} is binary and is not printed.", "Say where it goes: -o FILE.")
    without_package = Case(
        "{what} needs {package}, which is not installed.", "Install it: pip install 'kanalyze[{extra}]'."
    )


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Convert OSError in the block into OutputError of what is written to `path`."""
    try:
        yield
    except OSError as error:
        raise OutputError.because(path, error.strerror or str(error)) from error


class CannotTellError(KanalyzeError, slug="cannot-tell"):
    """The report lacks the data to answer the question, as opposed to an empty answer."""

    without_counters = Case(
        "{path}: cannot tell {table}, because the report has no {which}.",
        "Record them with ncu: `ncu --set full --import-source yes --export REPORT …`, or `kanalyze collect`.",
        names="table path which",
        which="counters",
    )
    without_bandwidth = Case(
        "{path}: cannot tell what another GPU would bring, because the bandwidth of the recorded one is not known.", ""
    )
    without_peak = Case(
        "{path}: cannot tell what another GPU would bring, because {gpu} has no units for products in {type}.",
        "Give a type that it has, such as `--dtype fp16`.",
    )
    without_log = Case(
        "{path}: cannot tell requests, because no log of a client is given.",
        "Give one with --log: CSV or JSON lines of request, arrival, first, end; or what vLLM's benchmark saved.",
    )
    without_first = Case(
        "{path}: cannot tell requests, because the log has neither times of the epoch, nor first tokens of which most "
        "come as a step of prompts ends.",
        "Its clock is brought to the report's by either: log time.time(), or when first tokens came.",
    )
    without_size = Case(
        "{path}: cannot tell what another {what} would bring, because no {which} of operators tell the recorded one.",
        "{remedy}",
    )
    without_law = Case(
        "{path}: cannot tell a decode step at another batch, because {why}.",
        "Record an engine that decodes at several batch sizes; `kanalyze show step_laws` says what is known.",
    )
    without_source = Case("{path}: cannot tell source, because the report has no {what}.", "")
    without_capture = Case(
        "{path}: cannot tell {table}, because nothing was recorded of what Triton and inductor compiled.",
        "Record it with `kanalyze collect`, the torch pass among its passes, and give the capture's folder.",
        names="table path",
    )
    without_ops = Case(
        "{path}: cannot tell {table}, because the report's operators are ranges of NVTX, which other tables know.",
        "`kanalyze show roofs` has their kernels, shapes and times, `kanalyze show range_gpu --by name` their spans.",
        names="table path",
    )
    without_lines = Case(
        "{path}: cannot tell {table}, because neither lines of the program nor Python functions were recorded.",
        "Record a Python program with `kanalyze collect`, and give the capture's folder.",
        names="table path",
    )
    without_second = Case(
        "{path}: cannot tell {table}, because there is no second report to compare it with.",
        "Give reports of the same program by different tools, or a folder of `kanalyze collect` with several.",
        names="table path",
    )
    without_time = Case(
        "{paths}: cannot tell {table}, because no report gives the time of the program.",
        f"Give a report of {TIMED} of the same program with it, or a folder of `kanalyze collect`.",
        names="table paths",
    )

    timeless = Case(
        "{path}: cannot tell {table}, because ncu measures kernels one by one, each run again and again: when they ran "
        "in the program is not in its report.",
        f"Give a report of {TIMED} for that; of this one, `{{path:counters}}` tells most.",
        names="table path",
    )

    @classmethod
    def without(cls, table: str, path: Path, missing: Iterable[str], tool: str = "") -> CannotTellError:
        """Error: `table` cannot be computed, as the report of `tool` at `path` has no events of the kinds `missing`."""
        kinds = list(missing)
        reason = f"the report records no events of kind {', '.join(kinds)}"
        return cls(f"{path}: cannot tell {table}, because {reason}.", again(kinds, tool))


class CollectError(KanalyzeError, slug="nothing-collected"):
    """Collecting failed, nothing was recorded."""

    without_torch = Case("torch cannot be imported ({reason}).", "Install PyTorch in this Python: https://pytorch.org.")
    without_gpu = Case(
        "torch finds no GPU here.", 'Run it where there is one, or time by the host\'s clock: device="cpu".'
    )
    profiler_busy = Case(
        "nothing can be profiled here: {why}.",
        "End the other profiler first; under `kanalyze collect`, --recipe own leaves the profiler to the program.",
    )
    no_steps = Case("{folder}: {why}.", "Call capture.step() at the end of each step.")
    not_all_written = Case("{folder}: not all of it could be written: {failures:; }.", "See what is there.")
    impossible = Case("nothing can be collected here ({reasons:; }).", "To get it: {remedies:; or: }.")

    @classmethod
    def program_failed(cls, name: str, status: int, tail: Iterable[str]) -> CollectError:
        """Error: the program `name` exited with `status`; `tail` is the end of its output."""
        lines = list(tail)
        ended = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        last = f": {' '.join(lines[-1].split())[:_WIDE].rstrip('.')}" if lines else ""
        tried = "Run it without a profiler first; nothing of it was kept."
        return cls(f"{name}: the program {ended}{last}.", tried, lines)

    @classmethod
    def every_pass_failed(cls, reasons: Iterable[str], tail: Iterable[str]) -> CollectError:
        """Error: every pass failed, for these `reasons`; `tail` is the end of the last one's output."""
        none = f"nothing was collected: {'; '.join(reasons)}."
        return cls(none, "Nothing was kept. `kanalyze doctor` looks at the tools.", tail)


class OutOfMemoryError(KanalyzeError, slug="out-of-memory"):
    """The report needs more memory than is available to this process."""

    anywhere = Case("there is not enough memory.", _LESS)
    of = Case("{path}: needs about {need} of memory, and {limit} leaves {have}.", _LESS, names="path need have limit")


class RedactError(KanalyzeError, slug="cannot-redact"):
    """The file cannot be redacted, or not reliably."""

    of = Case("{path}: {what}, which cannot be redacted.", "")


def _similar(name: str, choices: Sequence[str]) -> list[str]:
    """The choices that are most like a name, those that hold it first; long ones shortened."""
    import difflib  # noqa: PLC0415 - for mistakes only

    word = name.casefold()[:_WIDE]
    like = {
        choice: (word in choice.casefold(), difflib.SequenceMatcher(None, word, choice.casefold()).ratio())
        for choice in choices[:_COMPARED]
    }
    return sorted(like, key=lambda choice: like[choice], reverse=True)[:_NEAREST]


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The most similar of `choices`, or None if none is close."""
    import difflib  # noqa: PLC0415 - for mistakes only

    matches = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return matches[0] if matches else None
