"""Every error that a user can cause, each a kind of its own with a slug, a remedy and an exit status.

The command line prints these in one place (:mod:`kanalyze.cli`): message, remedy, and the slug under which
``docs/errors.md`` explains the case. A test demands an entry there for every slug.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, ClassVar, Final

from kanalyze.recording import again

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

#: So much of what another program said is shown.
_LINES: Final = 3
_WIDE: Final = 200

#: What to do where memory is short.
_LESS: Final = "Give it more memory, choose a part with --window, --device or --process, or record fewer steps."

#: So many names are listed where one is wrong.
_LISTED: Final = 60


class KanalyzeError(Exception):
    """A cause that the user can do something about.

    Attributes:
        slug: Stable name of the case, the anchor in ``docs/errors.md``.
        exit_status: What the command exits with; 2 for bad input or use.
        remedy: What to do about it, one sentence.
        details: What another program said, line by line, where that helps; printed before the message.
    """

    slug: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 2

    def __init__(self, message: str, remedy: str) -> None:
        """Keep the message (what was found, and where) apart from the remedy (what to do)."""
        super().__init__(message)
        self.remedy = remedy
        self.details: list[str] = []


class ReportNotFoundError(KanalyzeError):
    """The path names nothing."""

    slug = "report-not-found"

    @classmethod
    def at(cls, path: Path) -> ReportNotFoundError:
        """The file `path` does not exist; names the nearest one beside it."""
        try:
            beside = [entry.name for entry in path.parent.iterdir()]
        except OSError:
            beside = []
        hint = nearest(path.name, beside)
        remedy = f"Did you mean {path.parent / hint}?" if hint else "Check the path."
        return cls(f"{path}: no such file.", remedy)


class UnreadableReportError(KanalyzeError):
    """The operating system does not let us read the file."""

    slug = "report-unreadable"

    @classmethod
    def because(cls, path: Path, reason: str) -> UnreadableReportError:
        """Reading `path` failed with `reason`, the operating system's own words."""
        remedy = "Check the file's permissions, or copy it to a local disk."
        return cls(f"{path}: cannot be read ({reason}).", remedy)


class ClosedReportError(KanalyzeError):
    """A report was closed before all of it was read that is asked for."""

    slug = "report-closed"

    @classmethod
    def of(cls, path: Path, what: str) -> ClosedReportError:
        """The report at `path` is closed, and `what` was not read before."""
        return cls(f"{path}: the report is closed, and {what!r} was not read before.", "Ask before, or read it again.")


class UnknownFormatError(KanalyzeError):
    """The file is not a report that kanalyze reads."""

    slug = "unknown-format"

    @classmethod
    def of(cls, path: Path, found: str, remedy: str = "") -> UnknownFormatError:
        """`path` holds `found`, a noun phrase, instead of a report."""
        usual = (
            "Give a .nsys-rep file, or what `nsys export` makes of it with --type=sqlite or --type=parquetdir; or a "
            "trace of torch.profiler (.json, .json.gz); or a .ncu-rep file of Nsight Compute, or its CSV pages."
        )
        return cls(f"{path}: {found}, not a report that kanalyze reads.", remedy or usual)

    @classmethod
    def no_trace(cls, path: Path) -> UnknownFormatError:
        """`path` holds JSON, or what begins like it, without a list of events."""
        return cls(
            f"{path}: JSON without traceEvents, not a trace that kanalyze reads.",
            "Give what torch.profiler wrote: `prof.export_chrome_trace(...)`, or a file of tensorboard_trace_handler.",
        )


class DamagedReportError(KanalyzeError):
    """The file is a report, but part of it is missing or makes no sense."""

    slug = "report-damaged"

    @classmethod
    def at(cls, path: Path, where: str, what: str) -> DamagedReportError:
        """In `path`, at `where` (table, page or row), `what` was found."""
        return cls(
            f"{path}: damaged at {where}: {what}.",
            "Copy the file again, or export it again: `nsys export --type=sqlite --force-overwrite=true REPORT`.",
        )


class DecoderEndedError(KanalyzeError):
    """A process that decoded a part of the report was ended by something else."""

    slug = "decoder-ended"

    @classmethod
    def of(cls, path: Path, status: int) -> DecoderEndedError:
        """The process worked on `path`, and ended with `status`: a signal where that is below 0."""
        ended = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return cls(
            f"{path}: a process that decoded it {ended}.",
            "Most often the machine has run out of memory: free some, or record fewer steps.",
        )


class ExportError(KanalyzeError):
    """The report is in NVIDIA's own format, and cannot be exported here."""

    slug = "export-failed"

    @classmethod
    def without_nsys(cls, path: Path, older: Path | None) -> ExportError:
        """There is no nsys to export `path` with; `older` is an export of it that may be out of date."""
        hint = f" Or give {older}, which is older than the report." if older else ""
        return cls(
            f"{path}: an Nsight Systems report in NVIDIA's own format, and there is no nsys here that can export it.",
            "Install Nsight Systems (https://developer.nvidia.com/nsight-systems) or put its nsys on PATH, or export "
            f"the report where it was recorded and give the .sqlite file: `{_export_command(path)}`.{hint}",
        )

    @classmethod
    def failed(cls, path: Path, program: str, status: int, said: Iterable[str]) -> ExportError:
        """The `program` ended with `status`, or without a whole export, and `said` this."""
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
        """The export of `path` cannot be kept in the `cache` because of `reason`."""
        return cls(
            f"{path}: its export cannot be written to {cache} ({reason}).",
            "Set XDG_CACHE_HOME to a folder with space, or export it yourself and give the .sqlite file: "
            f"`{_export_command(path)}`.",
        )


def _export_command(path: Path) -> str:
    return f"nsys export --type=sqlite {shlex.quote(str(path))}"


class BadWindowError(KanalyzeError):
    """The text given as ``--window`` names no part of the report's time."""

    slug = "bad-window"

    @classmethod
    def of(cls, text: str, reason: str) -> BadWindowError:
        """`text` cannot be a window because of `reason`."""
        return cls(
            f"--window {text!r}: {reason}.",
            "Write start..end with units, as in 120ms..250ms (a side may be left out; times are the report's own, with "
            "a plus sign since its first event), or the name of a range.",
        )

    @classmethod
    def several(cls, text: str, name: str, windows: Sequence[str]) -> BadWindowError:
        """`text` names several `windows`, all that are called `name`, where one is wanted."""
        return cls(
            f"--window {text!r}: {len(windows):,} ranges have that name.",
            f"Choose one of them, {windows[0]} to {windows[-1]}; `summarize --window {name}#*` compares all.",
        )

    @classmethod
    def outside(cls, text: str, path: Path, first: str, last: str) -> BadWindowError:
        """`text` names a part of the time before or after what was recorded, from `first` to `last`."""
        said, whole = f"recorded from {first} to {last}", f"{first}..{last}".replace(" ", "")
        return cls(f"--window {text!r}: {path} has nothing then, it was {said}.", f"Choose a part of it: {whole}.")

    @classmethod
    def empty(cls, text: str, count: int) -> BadWindowError:
        """`text` names a range, or `count` instances of one, that began and ended at the same time."""
        none = "this range has no duration" if count == 1 else f"none of these {count:,} ranges has a duration"
        return cls(f"--window {text!r}: {none}.", "Choose a range that takes time, or write start..end with units.")


class BadThresholdError(KanalyzeError):
    """The text given as ``--threshold`` is not what the table compares with."""

    slug = "bad-threshold"

    @classmethod
    def of(cls, text: str, what: str, example: str) -> BadThresholdError:
        """`text` is not `what` the table wants, such as `example`: it has no unit, another one, or is no number."""
        return cls(f"--threshold {text!r}: not {what}.", f"Write a number with its unit, as in {example}.")


class UnknownNameError(KanalyzeError):
    """A table, column, device, process or grouping that does not exist."""

    slug = "unknown-name"

    @classmethod
    def of(cls, what: str, name: object, known: Iterable[object]) -> UnknownNameError:
        """There is no `what` called `name`; says the nearest of the `known` ones, or all of them."""
        choices = [str(choice) for choice in known]
        hint = nearest(str(name), choices)
        more = f" and {len(choices) - _LISTED:,} more" if len(choices) > _LISTED else ""
        listed = ", ".join(choices[:_LISTED]) + more if choices else "none"
        remedy = f"Did you mean {hint}? There are: {listed}." if hint else f"There are: {listed}."
        return cls(f"no {what} {str(name)!r}.", remedy)

    @classmethod
    def number(cls, what: str, number: str, count: int) -> UnknownNameError:
        """There is no `what` of that `number`: they count from 1 to `count`."""
        return cls(f"no {what} {number!r}.", f"There are: 1 to {count:,}." if count > 1 else "There is: 1.")


class OutputError(KanalyzeError):
    """The result cannot be written where it was asked for."""

    slug = "output-failed"

    @classmethod
    def because(cls, path: Path, reason: str) -> OutputError:
        """Writing `path` failed with `reason`; nothing was left under that name."""
        return cls(f"{path}: cannot be written ({reason}).", "Choose another place with -o, or free some space.")

    @classmethod
    def exists(cls, path: Path) -> OutputError:
        """There is something at `path` already, and captures overwrite nothing."""
        return cls(f"{path}: exists already, and is not overwritten.", "Choose another place with -o, or move it away.")

    @classmethod
    def needs_file(cls, form: str) -> OutputError:
        """The format `form` is binary and goes to a file only."""
        return cls(f"--format {form} is binary and is not printed.", "Say where it goes: -o FILE.")

    @classmethod
    def without_package(cls, what: str, package: str, extra: str) -> OutputError:
        """Making `what` needs a `package` that is not installed, and that the `extra` of kanalyze brings."""
        return cls(f"{what} needs {package}, which is not installed.", f"Install it: pip install 'kanalyze[{extra}]'.")


class CannotTellError(KanalyzeError):
    """The report does not hold what the question needs; not the same as an empty answer."""

    slug = "cannot-tell"

    @classmethod
    def without(cls, table: str, path: Path, missing: Iterable[str], tool: str = "nsys") -> CannotTellError:
        """The `table` cannot be made of the report of `tool` at `path`, which has no events of the kinds `missing`."""
        kinds = list(missing)
        return cls(
            f"{path}: cannot tell {table}, because the report records no events of kind {', '.join(kinds)}.",
            again(kinds, tool),
        )

    @classmethod
    def timeless(cls, table: str, path: Path) -> CannotTellError:
        """The `table` is of time, and ncu recorded the report at `path`."""
        return cls(
            f"{path}: cannot tell {table}, because ncu measures kernels one by one, each run again and again: when "
            "they ran in the program is not in its report.",
            "Give a report of nsys or torch.profiler for that; of this one, `kanalyze show counters` tells most.",
        )

    @classmethod
    def without_counters(cls, table: str, path: Path, which: str = "") -> CannotTellError:
        """The `table` is of counters, which the report at `path` does not have: none, or none of `which`."""
        return cls(
            f"{path}: cannot tell {table}, because the report has no counters{which and ' '}{which}.",
            "Record them with ncu: `ncu --set full --import-source yes --export REPORT …`, or `kanalyze collect`.",
        )

    @classmethod
    def without_source(cls, path: Path, what: str, remedy: str) -> CannotTellError:
        """The report at `path` does not have `what` the source of a kernel is shown with; the `remedy` says how."""
        return cls(f"{path}: cannot tell source, because the report has no {what}.", remedy)

    @classmethod
    def without_capture(cls, table: str, path: Path) -> CannotTellError:
        """The `table` needs what was compiled, and no torch pass recorded that with the report at `path`."""
        return cls(
            f"{path}: cannot tell {table}, because nothing was recorded of what Triton and inductor compiled.",
            "Record it with `kanalyze collect`, the torch pass among its passes, and give the capture's folder.",
        )

    @classmethod
    def without_second(cls, table: str, path: Path) -> CannotTellError:
        """The `table` compares reports of one program, and only the one at `path` was given."""
        return cls(
            f"{path}: cannot tell {table}, because there is no second report to compare it with.",
            "Give reports of the same program by different tools, or a folder of `kanalyze collect` with several.",
        )

    @classmethod
    def without_time(cls, table: str, paths: Sequence[Path]) -> CannotTellError:
        """The `table` needs a report that gives time, and none of those at `paths` does."""
        return cls(
            f"{', '.join(map(str, paths))}: cannot tell {table}, because no report gives the time of the program.",
            "Give a report of nsys or torch.profiler of the same program with it, or a folder of `kanalyze collect`.",
        )


class CollectError(KanalyzeError):
    """Nothing was recorded."""

    slug = "nothing-collected"

    @classmethod
    def impossible(cls, reasons: Mapping[str, str], remedies: Iterable[str]) -> CollectError:
        """No pass can run here, each for its reason; the `remedies` say how one could."""
        told = "; ".join(f"{name}: {why}" for name, why in reasons.items())
        return cls(f"nothing can be collected here ({told}).", f"To get it: {'; or: '.join(remedies)}.")

    @classmethod
    def program_failed(cls, name: str, status: int, said: Iterable[str]) -> CollectError:
        """The program `name` ended with `status`; `said` is the end of its output."""
        lines = list(said)
        ended = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        last = f": {' '.join(lines[-1].split())[:_WIDE].rstrip('.')}" if lines else ""
        error = cls(f"{name}: the program {ended}{last}.", "Run it without a profiler first; nothing of it was kept.")
        error.details = lines
        return error

    @classmethod
    def every_pass_failed(cls, reasons: Iterable[str], said: Iterable[str]) -> CollectError:
        """Each pass failed, for these `reasons`; `said` is the end of what the last one said."""
        error = cls(
            f"nothing was collected: {'; '.join(reasons)}.", "Nothing was kept. `kanalyze doctor` looks at the tools."
        )
        error.details = list(said)
        return error

    @classmethod
    def without_torch(cls, reason: object) -> CollectError:
        """PyTorch cannot be imported, for that `reason`."""
        return cls(f"torch cannot be imported ({reason}).", "Install PyTorch in this Python: https://pytorch.org.")

    @classmethod
    def without_gpu(cls) -> CollectError:
        """PyTorch sees no GPU to time on."""
        return cls("torch finds no GPU here.", 'Run it where there is one, or time by the host\'s clock: device="cpu".')

    @classmethod
    def profiler_busy(cls, why: object) -> CollectError:
        """A process can have one profiler of torch's at a time, and there is one: `why`."""
        return cls(
            f"nothing can be profiled here: {why}.",
            "End the other profiler first; under `kanalyze collect`, --recipe own leaves the profiler to the program.",
        )

    @classmethod
    def no_steps(cls, folder: Path, why: str) -> CollectError:
        """The region that was to be profiled into `folder` left no trace: `why`."""
        return cls(f"{folder}: {why}.", "Call capture.step() at the end of each step.")

    @classmethod
    def not_all_written(cls, folder: Path, failures: Iterable[str]) -> CollectError:
        """Not everything of a region could be written into `folder`."""
        return cls(f"{folder}: not all of it could be written: {'; '.join(failures)}.", "See what is there.")


class OutOfMemoryError(KanalyzeError):
    """The report takes more memory than there is for this process."""

    slug = "out-of-memory"

    @classmethod
    def anywhere(cls) -> OutOfMemoryError:
        """Memory was refused."""
        return cls("there is not enough memory.", _LESS)

    @classmethod
    def of(cls, path: Path, need: str, have: str, limit: str) -> OutOfMemoryError:
        """What is asked of the report at `path` takes about `need`, and the `limit`, a noun phrase, leaves `have`."""
        return cls(f"{path}: needs about {need} of memory, and {limit} leaves {have}.", _LESS)


class RedactError(KanalyzeError):
    """What identifies cannot be taken out of the file, or not with certainty."""

    slug = "cannot-redact"

    @classmethod
    def of(cls, path: Path, found: str, remedy: str) -> RedactError:
        """`path` is `found`, a noun phrase; the `remedy` says what to give instead."""
        return cls(f"{path}: {found}, which cannot be redacted.", remedy)


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The one of `choices` that looks most like `name`, or None where none is close."""
    import difflib  # noqa: PLC0415 - for mistakes only

    found = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return found[0] if found else None
