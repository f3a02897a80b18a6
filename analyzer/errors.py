"""All errors that a user can cause, each with a slug, a remedy and an exit status.

The command line prints them in one place (:mod:`kanalyze.cli`): message, remedy, and the slug under which
``docs/errors.md`` explains the case. A test requires an entry there for every slug.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from kanalyze import outlets
from kanalyze.tools import TIMED, again

#: Longest output of another program quoted in an error, in lines.
_LINES: Final = 3
_WIDE: Final = 200

#: Remedy for a shortage of memory.
_LESS: Final = "Give it more memory, choose a part with --window, --device or --process, or record fewer steps."

#: Most names listed for a misspelled one.
_LISTED: Final = 100


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

    def __init__(self, message: str, remedy: str, details: Iterable[str] = ()) -> None:
        """Keep the message (what was found, and where) and the remedy (what to do)."""
        super().__init__(message)
        self.remedy = remedy
        self.details = [*details]

    def __reduce__(self) -> tuple[type[KanalyzeError], tuple[str, str, list[str]]]:
        """Keep the remedy when another process hands the error over."""
        return type(self), (str(self), self.remedy, self.details)


class ReportNotFoundError(KanalyzeError):
    """There is no file at the path."""

    slug = "report-not-found"

    @classmethod
    def at(cls, path: Path) -> ReportNotFoundError:
        """Error: the file `path` does not exist; suggests the most similar name beside it."""
        try:
            beside = [entry.name for entry in path.parent.iterdir()]
        except OSError:
            beside = []
        hint = nearest(path.name, beside)
        return cls(f"{path}: no such file.", f"Did you mean {path.parent / hint}?" if hint else "Check the path.")


class UnreadableReportError(KanalyzeError):
    """The operating system refuses to read the file."""

    slug = "report-unreadable"

    @classmethod
    def because(cls, path: Path | str, reason: str, remedy: str = "") -> UnreadableReportError:
        """Error: reading `path` failed with `reason`, the operating system's message."""
        usual = "Check the file's permissions, or copy it to a local disk."
        return cls(f"{path}: cannot be read ({reason}).", remedy or usual)

    @classmethod
    def of(cls, path: Path, error: OSError) -> UnreadableReportError | OutOfMemoryError:
        """Error: reading `path` failed with `error`; OutOfMemoryError where the system had no memory for it."""
        if error.errno == errno.ENOMEM:
            return OutOfMemoryError.anywhere()
        return cls.because(path, error.strerror or str(error))


class ClosedReportError(KanalyzeError):
    """A closed report was asked for a table that was not read before."""

    slug = "report-closed"

    @classmethod
    def of(cls, path: Path, what: str) -> ClosedReportError:
        """Error: the report at `path` is closed, and `what` was not read before."""
        return cls(f"{path}: the report is closed, and {what!r} was not read before.", "Ask before, or read it again.")


class UnknownFormatError(KanalyzeError):
    """The file is not a report that kanalyze reads."""

    slug = "unknown-format"

    @classmethod
    def of(cls, path: Path, found: str, remedy: str = "") -> UnknownFormatError:
        """Error: `path` holds `found`, a noun phrase, instead of a report."""
        usual = (
            "Give a .nsys-rep file, or what `nsys export` makes of it with --type=sqlite or --type=parquetdir; or a "
            "trace of torch.profiler (.json, .json.gz); or a .ncu-rep file of Nsight Compute, or its CSV pages."
        )
        return cls(f"{path}: {found}, not a report that kanalyze reads.", remedy or usual)

    @classmethod
    def no_trace(cls, path: Path) -> UnknownFormatError:
        """Error: `path` holds JSON without a list of trace events."""
        return cls(
            f"{path}: JSON without traceEvents, not a trace that kanalyze reads.",
            "Give what torch.profiler wrote: `prof.export_chrome_trace(...)`, or a file of tensorboard_trace_handler.",
        )


class DamagedReportError(KanalyzeError):
    """The report is damaged: part of it is missing or invalid."""

    slug = "report-damaged"

    @classmethod
    def at(cls, path: Path, where: str, what: str) -> DamagedReportError:
        """Error: `what` was found in `path`, at `where` (table, page or row)."""
        remedy = "Copy the file again."
        if path.suffix == ".sqlite":
            flags, report = ("--type=sqlite", "--force-overwrite=true"), path.with_suffix(".nsys-rep")
            export = outlets.command("nsys", "export", *flags, f"--output={path}", report)
            remedy = f"Copy the file again, or export it again: `{export}`."
        return cls(f"{path}: damaged at {where}: {what}.", remedy)


class DecoderEndedError(KanalyzeError):
    """A worker process that decoded part of the report was killed."""

    slug = "decoder-ended"

    @classmethod
    def of(cls, path: Path, status: int) -> DecoderEndedError:
        """Error: the worker process for `path` ended with `status`, a signal if negative."""
        ended = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return cls(
            f"{path}: a process that decoded it {ended}.",
            "Most often the machine has run out of memory: free some, or record fewer steps.",
        )


class ExportError(KanalyzeError):
    """The report is in NVIDIA's own format and cannot be exported here."""

    slug = "export-failed"

    @classmethod
    def without_nsys(cls, path: Path, older: Path | None) -> ExportError:
        """Error: no nsys to export `path` with; `older` is an export that may be outdated."""
        hint = f" Or give {older}, which is older than the report." if older else ""
        return cls(
            f"{path}: an Nsight Systems report in NVIDIA's own format, and there is no nsys here that can export it.",
            "Install Nsight Systems (https://developer.nvidia.com/nsight-systems) or put its nsys on PATH, or export "
            f"the report where it was recorded and give the .sqlite file: `{_export_command(path)}`.{hint}",
        )

    @classmethod
    def failed(cls, path: Path, program: str, status: int, said: Iterable[str]) -> ExportError:
        """Error: `program` exited with `status`, or without a complete export, and printed `said`."""
        lines = [" ".join(line.split()).rstrip(".") for line in said if line.strip()]
        words = ([line for line in lines if line.startswith("Exportation error")] or lines)[-_LINES:]
        reason = "; ".join(word if len(word) <= _WIDE else word[: _WIDE - 1] + "…" for word in words)
        ended = f"it ended with status {status}" if status else "it left no whole export"
        return cls(
            f"{path}: {program} cannot export it: {reason or ended}.",
            "A report of a newer nsys needs an nsys as new. Put that one first on PATH, or export the report where it "
            f"was recorded and give the .sqlite file: `{_export_command(path)}`.",
        )

    @classmethod
    def unwritable(cls, path: Path, cache: Path, reason: str) -> ExportError:
        """Error: the export of `path` cannot be written to the `cache` because of `reason`."""
        return cls(
            f"{path}: its export cannot be written to {cache} ({reason}).",
            "Set XDG_CACHE_HOME to a folder with space, or export it yourself and give the .sqlite file: "
            f"`{_export_command(path)}`.",
        )


def _export_command(path: Path) -> str:
    return outlets.command("nsys", "export", "--type=sqlite", path)


class BadBaselineError(KanalyzeError):
    """A file is no baseline that can be compared with."""

    slug = "bad-baseline"

    @classmethod
    def damaged(cls, path: Path, reason: str, what: str = "baseline", made: str = "--save FILE") -> BadBaselineError:
        """Error: `path` cannot be read because of `reason`; it should be `what` the option `made`."""
        return cls(f"{path}: no {what} ({reason}).", f"Make it again with `kanalyze compare {made} REPORT…`.")

    @classmethod
    def version(cls, path: Path, found: object, known: int) -> BadBaselineError:
        """Error: the baseline at `path` is of another version than the one that is `known`."""
        return cls(
            f"{path}: a baseline of version {found}; this kanalyze reads version {known}.",
            "Make it again from its reports with `kanalyze compare --save FILE REPORT…`.",
        )


class NoJobError(KanalyzeError):
    """Reports hold no ranks of one job."""

    slug = "no-job"

    @classmethod
    def empty(cls) -> NoJobError:
        """Error: no report has a rank."""
        return cls(
            "None of the reports has work on a GPU, or a collective.",
            "Give the traces or nsys reports of all ranks, a folder of them, or what `kanalyze reduce` wrote.",
        )

    @classmethod
    def of(cls, path: Path | str) -> NoJobError:
        """Error: the report at `path` has no rank."""
        return cls(
            f"{path}: no work on a GPU, and so no rank of a job.",
            "Leave it out, or record it with the activities of the GPU.",
        )


class BadReductionError(KanalyzeError):
    """Output of ``kanalyze reduce`` is damaged, or of another version."""

    slug = "bad-reduction"

    @classmethod
    def damaged(cls, folder: Path, reason: str) -> BadReductionError:
        """Error: the reduction in `folder` is damaged, because of `reason`."""
        return cls(
            f"{folder}: a damaged reduction ({reason}); `kanalyze reduce` of its report makes it again.",
            "Run the `kanalyze reduce` that made it once more: it replaces what is damaged, and leaves the others.",
        )

    @classmethod
    def version(cls, folder: Path, found: object, known: int) -> BadReductionError:
        """Error: the reduction in `folder` is of another version than the one that is `known`."""
        return cls(
            f"{folder}: a reduction of version {found}; this kanalyze reads version {known}, and its `kanalyze reduce` "
            "makes it again.",
            "Run `kanalyze reduce` of its report with this version: it replaces what others made.",
        )


class LostReportError(KanalyzeError):
    """The process that read a report ended before it was done."""

    slug = "report-lost"

    @classmethod
    def of(cls, path: Path | str, reason: str) -> LostReportError:
        """Error: the process that read the report at `path` ended for `reason`."""
        return cls(
            f"{path}: what read it ended before it was done ({reason}).",
            "Run `kanalyze reduce` again, which does only what is missing; if memory was short, with a smaller -j.",
        )


class EngineError(KanalyzeError):
    """Engine for work side by side cannot be reached, or is not installed."""

    slug = "no-engine"

    @classmethod
    def unreachable(cls, address: str, reason: str) -> EngineError:
        """Error: there is no scheduler at `address`, because of `reason`."""
        return cls(
            f"{address}: no scheduler of dask answers ({reason}).",
            "Give the address that `dask scheduler` prints, such as tcp://host:8786, or leave --dask out: the work is "
            "then done here.",
        )

    @classmethod
    def without_package(cls, package: str, extra: str) -> EngineError:
        """Error: `package` is not installed; the `extra` of kanalyze installs it."""
        return cls(f"{package} is not installed.", f"Install it: pip install 'kanalyze[{extra}]'.")


class IncomparableError(KanalyzeError):
    """Two sides have nothing in common that could be compared."""

    slug = "not-comparable"

    @classmethod
    def tools(cls, base: Iterable[str], new: Iterable[str]) -> IncomparableError:
        """Error: no tool recorded both sides."""
        return cls(
            f"Base is of {' and '.join(base) or 'nothing'}, new of {' and '.join(new) or 'nothing'}.",
            "Give reports of one tool on both sides: each tool slows the program in its own way.",
        )

    @classmethod
    def empty(cls, side: str) -> IncomparableError:
        """Error: `side` has no report."""
        return cls(f"No report of {side}.", "Give BASE and NEW: a report, a folder of reports, or a baseline each.")

    @classmethod
    def unclear(cls, number: int) -> IncomparableError:
        """Error: `number` paths are not a path of each side."""
        return cls(
            f"{number:,} report{'' if number == 1 else 's'}: which of them are base, and which new?",
            "Give BASE and NEW; of several runs a side, a folder each, or --base RUN for each of base.",
        )

    @classmethod
    def steps(cls, reason: str) -> IncomparableError:
        """Error: a baseline is of iterations, and the sides have none in common because of `reason`."""
        return cls(
            f"A baseline holds its iterations alone, and {reason}.",
            "Compare the reports themselves, or make the baseline of a part that both sides have, with --window.",
        )

    @classmethod
    def few_runs(cls, number: int) -> IncomparableError:
        """Error: `number` runs do not show how much runs of a program vary."""
        return cls(
            f"{number:,} run{'' if number == 1 else 's'} with a time: how much runs vary cannot be told.",
            "Give two or more runs of the same program; six or more say it well.",
        )

    @classmethod
    def ranks(cls, base: Iterable[int], new: Iterable[int]) -> IncomparableError:
        """Error: no rank is on both sides."""
        return cls(
            f"Base has the ranks {', '.join(map(str, base))}, new {', '.join(map(str, new))}.",
            "Give reports of the same ranks; one of each is compared with --allow ranks (other_ranks=True in Python).",
        )


class BadWindowError(KanalyzeError):
    """The argument of ``--window`` is invalid."""

    slug = "bad-window"

    @classmethod
    def of(cls, text: str, reason: str) -> BadWindowError:
        """Error: `text` is not a window because of `reason`."""
        return cls(
            f"--window {text!r}: {reason}.",
            "Write start..end with units, as in 120ms..250ms (a side may be left out; times are the report's own, with "
            "a plus sign since its first event), or the name of a range.",
        )

    @classmethod
    def several(cls, text: str, name: str, windows: Sequence[str], path: Path) -> BadWindowError:
        """Error: `text` names several `windows` of the report at `path`, instances of `name`, where one is required."""
        every = outlets.command("kanalyze", "summarize", path, "--window", f"{name}#*")
        return cls(
            f"--window {text!r}: {len(windows):,} ranges have that name.",
            f"Choose one of them, {windows[0]} to {windows[-1]}; `{every}` compares all.",
        )

    @classmethod
    def outside(cls, text: str, path: Path, first: str, last: str) -> BadWindowError:
        """Error: `text` lies outside of the recording, which spans `first` to `last`."""
        said, whole = f"recorded from {first} to {last}", f"{first}..{last}".replace(" ", "")
        return cls(f"--window {text!r}: {path} has nothing then, it was {said}.", f"Choose a part of it: {whole}.")

    @classmethod
    def empty(cls, text: str, count: int) -> BadWindowError:
        """Error: `text` names a range, or `count` instances of one, of zero duration."""
        none = "this range has no duration" if count == 1 else f"none of these {count:,} ranges has a duration"
        return cls(f"--window {text!r}: {none}.", "Choose a range that takes time, or write start..end with units.")


class BadThresholdError(KanalyzeError):
    """The argument of ``--threshold``, or of an option that takes a share, is invalid."""

    slug = "bad-threshold"

    @classmethod
    def of(cls, text: str, what: str, example: str, option: str = "--threshold") -> BadThresholdError:
        """Error: `text` is not `what` the `option` takes, such as `example`: unit missing or wrong, or not a number."""
        return cls(f"{option} {text!r}: not {what}.", f"Write a number with its unit, as in {example}.")


class UnknownNameError(KanalyzeError):
    """A table, column, device, process or grouping does not exist."""

    slug = "unknown-name"

    @classmethod
    def of(cls, what: str, name: object, known: Iterable[object]) -> UnknownNameError:
        """Error: there is no `what` called `name`; suggests the nearest of the `known` ones, or lists them."""
        choices = [str(choice) for choice in known]
        hint = nearest(str(name), choices)
        more = f" and {len(choices) - _LISTED:,} more" if len(choices) > _LISTED else ""
        listed = ", ".join(choices[:_LISTED]) + more if choices else "none"
        remedy = f"Did you mean {hint}? There are: {listed}." if hint else f"There are: {listed}."
        return cls(f"no {what} {str(name)!r}.", remedy)

    @classmethod
    def number(cls, what: str, number: str, count: int) -> UnknownNameError:
        """Error: there is no `what` of that `number`; they are numbered from 1 to `count`."""
        return cls(f"no {what} {number!r}.", f"There are: 1 to {count:,}." if count > 1 else "There is: 1.")


class SqlError(KanalyzeError):
    """A statement of `kanalyze sql` is no SQL that can be answered."""

    slug = "bad-sql"

    @classmethod
    def of(cls, why: str, remedy: str = "") -> SqlError:
        """Error: the statement has no answer, and `why` says so."""
        return cls(f"SQL: {why}.", remedy or "`kanalyze tables TABLE` has a table's columns; docs/sql.md has examples.")


class OutputError(KanalyzeError):
    """The output cannot be written."""

    slug = "output-failed"

    @classmethod
    def because(cls, path: Path, reason: str) -> OutputError:
        """Error: writing `path` failed with `reason`; no partial file was left."""
        return cls(f"{path}: cannot be written ({reason}).", "Choose another place with -o, or free some space.")

    @classmethod
    def exists(cls, path: Path) -> OutputError:
        """Error: `path` exists, and captures never overwrite."""
        return cls(f"{path}: exists already, and is not overwritten.", "Choose another place with -o, or move it away.")

    @classmethod
    def needs_file(cls, form: str) -> OutputError:
        """Error: the format `form` is binary and cannot be printed to a terminal."""
        return cls(f"--format {form} is binary and is not printed.", "Say where it goes: -o FILE.")

    @classmethod
    def without_package(cls, what: str, package: str, extra: str) -> OutputError:
        """Error: `what` requires `package`, which is not installed; the `extra` of kanalyze installs it."""
        return cls(f"{what} needs {package}, which is not installed.", f"Install it: pip install 'kanalyze[{extra}]'.")


class CannotTellError(KanalyzeError):
    """The report lacks the data to answer the question, as opposed to an empty answer."""

    slug = "cannot-tell"

    @classmethod
    def without(cls, table: str, path: Path, missing: Iterable[str], tool: str = "") -> CannotTellError:
        """Error: `table` cannot be computed, as the report of `tool` at `path` has no events of the kinds `missing`."""
        kinds = list(missing)
        return cls(
            f"{path}: cannot tell {table}, because the report records no events of kind {', '.join(kinds)}.",
            again(kinds, tool),
        )

    @classmethod
    def timeless(cls, table: str, path: Path) -> CannotTellError:
        """Error: `table` needs a timeline, but the report at `path` is of ncu."""
        return cls(
            f"{path}: cannot tell {table}, because ncu measures kernels one by one, each run again and again: when "
            "they ran in the program is not in its report.",
            f"Give a report of {TIMED} for that; of this one, "
            f"`{outlets.command('kanalyze', 'show', 'counters', path)}` tells most.",
        )

    @classmethod
    def without_counters(cls, table: str, path: Path, which: str = "") -> CannotTellError:
        """Error: `table` needs counters, which the report at `path` lacks: all of them, or those in `which`."""
        return cls(
            f"{path}: cannot tell {table}, because the report has no counters{which and ' '}{which}.",
            "Record them with ncu: `ncu --set full --import-source yes --export REPORT …`, or `kanalyze collect`.",
        )

    @classmethod
    def without_source(cls, path: Path, what: str, remedy: str) -> CannotTellError:
        """Error: the report at `path` lacks `what`, required to show source; `remedy` says how to get it."""
        return cls(f"{path}: cannot tell source, because the report has no {what}.", remedy)

    @classmethod
    def without_capture(cls, table: str, path: Path) -> CannotTellError:
        """Error: `table` needs compiled kernels, and no torch pass recorded them with the report at `path`."""
        return cls(
            f"{path}: cannot tell {table}, because nothing was recorded of what Triton and inductor compiled.",
            "Record it with `kanalyze collect`, the torch pass among its passes, and give the capture's folder.",
        )

    @classmethod
    def without_second(cls, table: str, path: Path) -> CannotTellError:
        """Error: `table` compares several reports of a program, and only the one at `path` was given."""
        return cls(
            f"{path}: cannot tell {table}, because there is no second report to compare it with.",
            "Give reports of the same program by different tools, or a folder of `kanalyze collect` with several.",
        )

    @classmethod
    def without_time(cls, table: str, paths: Sequence[Path]) -> CannotTellError:
        """Error: `table` needs a report with a timeline, and none of `paths` has one."""
        return cls(
            f"{', '.join(map(str, paths))}: cannot tell {table}, because no report gives the time of the program.",
            f"Give a report of {TIMED} of the same program with it, or a folder of `kanalyze collect`.",
        )


class CollectError(KanalyzeError):
    """Collecting failed, nothing was recorded."""

    slug = "nothing-collected"

    @classmethod
    def impossible(cls, reasons: Mapping[str, str], remedies: Iterable[str]) -> CollectError:
        """Error: no pass can run here, for these `reasons`; the `remedies` say how to enable one."""
        told = "; ".join(f"{name}: {why}" for name, why in reasons.items())
        return cls(f"nothing can be collected here ({told}).", f"To get it: {'; or: '.join(remedies)}.")

    @classmethod
    def program_failed(cls, name: str, status: int, said: Iterable[str]) -> CollectError:
        """Error: the program `name` exited with `status`; `said` is the end of its output."""
        lines = list(said)
        ended = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        last = f": {' '.join(lines[-1].split())[:_WIDE].rstrip('.')}" if lines else ""
        tried = "Run it without a profiler first; nothing of it was kept."
        return cls(f"{name}: the program {ended}{last}.", tried, lines)

    @classmethod
    def every_pass_failed(cls, reasons: Iterable[str], said: Iterable[str]) -> CollectError:
        """Error: every pass failed, for these `reasons`; `said` is the end of the last one's output."""
        none = f"nothing was collected: {'; '.join(reasons)}."
        return cls(none, "Nothing was kept. `kanalyze doctor` looks at the tools.", said)

    @classmethod
    def without_torch(cls, reason: object) -> CollectError:
        """Error: PyTorch cannot be imported, because of `reason`."""
        return cls(f"torch cannot be imported ({reason}).", "Install PyTorch in this Python: https://pytorch.org.")

    @classmethod
    def without_gpu(cls) -> CollectError:
        """Error: PyTorch finds no GPU to time on."""
        return cls("torch finds no GPU here.", 'Run it where there is one, or time by the host\'s clock: device="cpu".')

    @classmethod
    def profiler_busy(cls, why: object) -> CollectError:
        """Error: another torch profiler is active in this process: `why`."""
        return cls(
            f"nothing can be profiled here: {why}.",
            "End the other profiler first; under `kanalyze collect`, --recipe own leaves the profiler to the program.",
        )

    @classmethod
    def no_steps(cls, folder: Path, why: str) -> CollectError:
        """Error: the region to be profiled into `folder` left no trace: `why`."""
        return cls(f"{folder}: {why}.", "Call capture.step() at the end of each step.")

    @classmethod
    def not_all_written(cls, folder: Path, failures: Iterable[str]) -> CollectError:
        """Error: some files of a region could not be written into `folder`."""
        return cls(f"{folder}: not all of it could be written: {'; '.join(failures)}.", "See what is there.")


class OutOfMemoryError(KanalyzeError):
    """The report needs more memory than is available to this process."""

    slug = "out-of-memory"

    @classmethod
    def anywhere(cls) -> OutOfMemoryError:
        """Error: a memory allocation failed."""
        return cls("there is not enough memory.", _LESS)

    @classmethod
    def of(cls, path: Path, need: str, have: str, limit: str) -> OutOfMemoryError:
        """Error: the report at `path` needs about `need`, and `limit`, a noun phrase, leaves `have`."""
        return cls(f"{path}: needs about {need} of memory, and {limit} leaves {have}.", _LESS)


class RedactError(KanalyzeError):
    """The file cannot be redacted, or not reliably."""

    slug = "cannot-redact"

    @classmethod
    def of(cls, path: Path, found: str, remedy: str) -> RedactError:
        """Error: `path` is `found`, a noun phrase; `remedy` says what to pass instead."""
        return cls(f"{path}: {found}, which cannot be redacted.", remedy)


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The most similar of `choices`, or None if none is close."""
    import difflib  # noqa: PLC0415 - for mistakes only

    found = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return found[0] if found else None
