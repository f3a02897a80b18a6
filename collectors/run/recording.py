"""Records one program: compiles it, runs the passes turn by turn, and writes what was finished with its manifest."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.in_workload import compiled
from kanalyze.collectors.in_workload.torch_script import write_bytes
from kanalyze.collectors.options import BARE, NCU, NSYS, PASSES, SAMPLES, CompileError, Options
from kanalyze.collectors.process import Event, Progress, Starter
from kanalyze.collectors.run.passes import NO_KERNELS, Found, Pass, PassRecord, StepFailedError, masked
from kanalyze.collectors.run.plan import Plan, numbered
from kanalyze.collectors.tools import machine, nvcc
from kanalyze.collectors.tools.found import Tools, obstacles, wanted_passes
from kanalyze.errors import CollectError
from kanalyze.units import plural

if TYPE_CHECKING:
    from kanalyze.collectors.workload import Workload

#: Schema version of the manifest; docs/collect.md has its history, and describes every key.
_SCHEMA: Final = 1

_MANIFEST: Final = "manifest.json"

#: Most kernels named in a note.
_NAMED: Final = 3

#: Lock files of torch extension builds: one folder per extension, in the default location below one per Python and
#: CUDA version. A stale one makes every later run wait for ever.
_LOCKS: Final = ("lock", "*/lock", "*/*/lock")


@dataclass(frozen=True)
class Capture:
    """A finished capture.

    Attributes:
        folder: The capture folder.
        manifest: The content of manifest.json.
        problems: Failed passes and failed checks; empty if all succeeded.
        notes: Notes on single passes.
    """

    folder: Path
    manifest: dict[str, object] = field(repr=False)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def reports(self) -> list[Path]:
        """The reports in the capture that kanalyze reads: one per run of the nsys pass."""
        return sorted(self.folder.glob("nsys*.sqlite"), key=lambda path: (len(path.name), path.name))

    @property
    def checks(self) -> list[str]:
        """The program's distinct check lines."""
        rows: list[dict[str, object]] = self.manifest["checks"]  # type: ignore[assignment] # it is JSON
        return list(dict.fromkeys(str(check["line"]) for check in rows))


@dataclass
class Recording:
    """A program that is being recorded.

    `runs` says how many runs each pass has finished, `turns` the place of each run among those of both programs, by the
    name of its report; `content` is the manifest so far.
    """

    plan: Plan
    progress: Progress
    starter: Starter = subprocess.Popen
    records: list[PassRecord] = field(default_factory=list)
    runs: dict[str, int] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    content: dict[str, object] = field(default_factory=dict)
    _possible: list[str] = field(default_factory=list)
    _found: Found = field(default_factory=Found)
    _begun: Pass | None = None
    _compiled: frozenset[Path] = frozenset()
    _last_words: list[str] = field(default_factory=list)
    _began_unix_s: float = field(default_factory=time.time)

    # Stages, in order

    def compile(self) -> None:
        """Compile a CUDA source; raises CompileError."""
        plan, compiler = self.plan, self.plan.tools.nvcc
        if plan.workload.kind != "cuda" or plan.workload.path is None:
            return
        source = plan.workload.path
        if not compiler.usable:
            remedy = f"{compiler.remedy[0].upper()}{compiler.remedy[1:]}."
            raise CompileError(f"{source}: cannot be compiled: nvcc: {compiler.problem}.", remedy)

        def compile_with(command: Sequence[str]) -> float:
            work, step = self._pass_of(PassRecord("compile")), plan.step("compile", command)
            try:
                work.run(step)
            except StepFailedError as error:
                printed = step.log.read_text(encoding="utf-8", errors="replace").splitlines()
                stopped = [f"nvcc {error.why}"] if error.status is None else []
                raise CompileError.of(source, stopped or nvcc.errors(printed), printed) from error
            return work.spent_s

        binary, build = nvcc.build(compiler, source, plan.arch, plan.options.nvcc_flags, compile_with)
        if build["cached"]:
            self.progress(Event("note", "compile", "compiled before"))
        self.content["build"] = build
        self.plan = replace(plan, binary=binary)

    def begin(self) -> None:
        """Look which passes can run; the others are reported and recorded with their reason; raises CollectError."""
        workload, options, tools = self.plan.workload, self.plan.options, self.plan.tools
        self.content |= _beginning(workload, options, tools, self.plan.command)
        missing, wanted = obstacles(workload, options, tools), wanted_passes(workload, options)
        if {*wanted} <= {*missing, BARE}:
            reasons = {self.plan.with_side(name): obstacle.why for name, obstacle in missing.items()}
            raise CollectError.impossible(reasons, [*dict.fromkeys(one.remedy for one in missing.values())])
        for name, obstacle in missing.items():
            self._skip(name, *obstacle)
        self._possible = [name for name in wanted if name not in missing]

    def prepare(self) -> None:
        """Run the program without a profiler first; if it fails there, it fails in every pass; raises CollectError."""
        plan, work = self.plan, self._pass_of(PassRecord("prepare"))
        try:
            with self._compiling():
                work.run(plan.step("prepare", plan.command, program=True))
        except StepFailedError as error:
            self._note_locks(work, error)
            if error.of_program and error.status is not None:
                raise CollectError.program_failed(plan.label, error.status, error.last_words) from error
            reason = plan.with_side(f"without a profiler it {error.why}")
            raise CollectError.every_pass_failed([reason], error.last_words) from error
        self.content["prepare"] = work.record.steps[0]

    def begin_pass(self, name: str) -> Pass | None:
        """Begin a pass; None if it cannot run."""
        if name not in self._possible:
            return None
        if name == NCU and self._found.launches == []:
            self._skip(name, NO_KERNELS)
            return None
        self.records.append(PassRecord(name, before=machine.state(self.plan.tools.gpus.smi)))
        self._begun = self._pass_of(self.records[-1])
        self._begun.stopped = name == SAMPLES or (name == NSYS and self.plan.options.duration_s is not None)
        return self._begun

    def run(self, begun: Pass, number: int, turn: int) -> bool:
        """Run a begun pass for the `number`-th time; `turn` is the place among all runs. False if it failed."""
        record = begun.record
        try:
            with self._compiling():
                getattr(begun, record.name)(number)
        except StepFailedError as error:
            self._last_words = error.last_words
            record.status, record.why = "failed", error.reason(record.name)
            # without a profiler it may be the marks that a program does not bear: the other passes tell
            if error.of_program and error.status is not None and not self.recorded and record.name != BARE:
                raise CollectError.program_failed(self.plan.label, error.status, error.last_words) from error
            self.progress(Event("note", record.name, f"failed: {record.why}"))
            self._note_locks(begun, error)
            return False
        self.runs[record.name] = number
        self.turns[numbered(record.name, number)] = turn
        return True

    def end_pass(self, begun: Pass, why: str = "") -> None:
        """End a begun pass; with `why` it was interrupted."""
        record = begun.record
        if why:
            record.status, record.why = "interrupted", why
            self._note_locks(begun)
        elif record.name == NSYS and self.runs.get(NSYS):
            begun.list_launches()
        record.duration_ns = int(begun.spent_s * 1e9)
        record.after = machine.state(self.plan.tools.gpus.smi)
        self._begun = None

    def interrupt(self) -> None:
        """Record that the user stopped the begun pass, and those that did not begin."""
        if self._begun is not None:
            self.end_pass(self._begun, "stopped by the user")
        reached = {record.name for record in self.records}
        for rest in wanted_passes(self.plan.workload, self.plan.options):
            if rest not in reached:
                self.records.append(PassRecord(rest, "interrupted", "stopped by the user before it began"))

    def write(self, status: str, seconds: float, final: Path) -> None:
        """Write the manifest, with paths as they will be in the folder `final`."""
        folder = self.plan.folder
        recorded = [record for record in self.records if record.name in self.recorded]
        if self.plan.workload.kind != "cuda" and not any(record.torch for record in recorded):
            launched = {launch.kernel for launch in self._found.launches or ()}
            recorded[0].notes += keep_compiled(folder, cached_kernels() - self._compiled, launched)
        self.records.sort(key=lambda record: PASSES.index(record.name))
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        self.content |= {
            "status": status,
            "duration_ns": int(seconds * 1e9),
            "checks": [{"step": step, **one._asdict()} for step, every in self._found.checks.items() for one in every],
            "passes": [vars(record) for record in self.records],
            "files": {str(path.relative_to(folder)): path.stat().st_size for path in paths},
        }
        write_manifest(folder, self.content, final.absolute())

    def capture(self, final: Path) -> Capture:
        """The finished capture, which lies in `final`."""
        notes = tuple(f"{record.name}: {note}" for record in self.records for note in record.notes)
        content: dict[str, object] = json.loads((final / _MANIFEST).read_text(encoding="utf-8"))
        return Capture(final, content, tuple(self.problems()), notes)

    # What came of it

    @property
    def recorded(self) -> set[str]:
        """The passes that recorded something."""
        return {*self.runs} - {BARE}

    def problems(self) -> list[str]:
        """Failed passes and failed checks."""
        wrong = [check.line for found in self._found.checks.values() for check in found if not check.passed]
        return [*self._reasons(), *(f"the program says that its result is wrong: {line}" for line in wrong)]

    def nothing(self) -> CollectError | None:
        """The error of a program of which nothing was recorded; None if there is a run of any pass."""
        if self.recorded:
            return None
        return CollectError.every_pass_failed(map(self.plan.with_side, self._reasons()), self._last_words)

    def _reasons(self) -> list[str]:
        return [f"{record.name} failed: {record.why}" for record in self.records if record.status == "failed"]

    # Parts of the stages

    def _pass_of(self, record: PassRecord) -> Pass:
        return Pass(self.plan, record, self._found, self.progress, self.starter)

    def _skip(self, name: str, why: str, remedy: str = "") -> None:
        self.records.append(PassRecord(name, "skipped", why, remedy))
        more = f". To get it: {remedy}" if remedy else ""
        self.progress(Event("note", name, f"skipped: {why}{more}"))

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Note what comes new into Triton's caches meanwhile; another program may fill them between two runs."""
        before = cached_kernels()
        try:
            yield
        finally:
            self._compiled |= cached_kernels() - before

    def _note_locks(self, work: Pass, error: StepFailedError | None = None) -> None:
        """Note lock files of torch extension builds that were stopped with the program."""
        of_program = error is not None and error.status is not None and error.status >= 0
        if self.plan.workload.kind == "cuda" or of_program:
            return
        for path in sorted({path for pattern in _LOCKS for path in extensions_folder().glob(pattern)}):
            with suppress(OSError):
                if path.stat().st_mtime >= self._began_unix_s:
                    text = "left of a build that was stopped: remove it, or later runs wait for it for ever"
                else:
                    text = "older than this run, which may have waited for it: remove it, unless something is built"
                work.note(f"{path} is {text}", show=True)


def cached_kernels() -> frozenset[Path]:
    """The kernels in the user's caches, unread."""
    return frozenset(path for cache in compiled.caches(os.environ) for path in cache.glob("*/*.json"))


def keep_compiled(folder: Path, before: frozenset[Path], launched: Iterable[str]) -> list[str]:
    """Write ``compiled.json`` and the PTX of cache entries that were not there before, unless the torch pass did.

    A run without the torch pass uses the user's own caches, as without a profiler. New entries were compiled in the
    run; for older entries it is unknown whether the run used them.

    Returns:
        Notes: which of the `launched` kernels came from the caches and are not among them.
    """
    if (folder / compiled.FILE).exists():
        return []
    found = compiled.entries(compiled.caches(os.environ))
    old = frozenset(entry.metadata["hash"] for entry in found if entry.path in before)
    made = compiled.rows(found, before=old, fresh=False)
    compiled.keep(folder, found, made)
    cached_names = {str(entry.metadata.get("name") or entry.path.stem) for entry in found}
    names = sorted((set(launched) & cached_names) - {row["name"] for row in made})
    if not names:
        return []
    named = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    told = f"{plural(len(names), 'kernel')} ({named}) came from Triton's cache, so that compiled.json does not have "
    return [f"{told}{'it' if len(names) == 1 else 'them'}; the torch pass compiles everything afresh"]


def extensions_folder() -> Path:
    """The folder in which torch builds extensions."""
    chosen = os.environ.get("TORCH_EXTENSIONS_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "torch_extensions"


def _beginning(workload: Workload, options: Options, tools: Tools, command: tuple[str, ...]) -> dict[str, object]:
    """The part of the manifest that is known before the run."""
    own, digest, path = None, None, workload.path
    with suppress(PackageNotFoundError):
        own = version("kanalyze")
    if path:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    chosen = {name: value for name, value in asdict(options).items() if value not in (None, ())}
    return {
        "schema": _SCHEMA,
        "kind": "kanalyze capture",
        "kanalyze": own,
        "status": "complete",
        "began": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "duration_ns": 0,
        "workload": {
            "name": workload.name,
            "kind": workload.kind,
            "path": str(path) if path else None,
            "sha256": digest,
            "args": masked(workload.args),
            "command": masked(command),
            "cwd": str(Path.cwd()),
        },
        "options": {name: str(value) if isinstance(value, os.PathLike) else value for name, value in chosen.items()},
        "machine": machine.host(),
        "gpus": [dict(row) for row in tools.gpus.rows],
        "tools": {
            **{
                program.name: {"path": str(program.path) if program.path else None, "version": program.version}
                for program in (tools.nvcc, tools.nsys, tools.ncu)
            },
            "python": {"path": str(tools.python), "version": tools.python_version},
            "torch": {**tools.torch_facts},
        },
        "git": machine.git(path.parent if path else Path.cwd()),
        "environment": machine.environment(),
    }


def write_manifest(folder: Path, content: dict[str, object], final: Path) -> None:
    """Write the manifest atomically into `folder`, with paths as they will be in `final`."""
    before, after = (json.dumps(str(path), ensure_ascii=False)[1:-1] for path in (folder, final))
    text = json.dumps(content, indent=1, ensure_ascii=False).replace(before, after) + "\n"
    # undecodable bytes in paths or arguments can only be escaped in JSON
    write_bytes(folder / _MANIFEST, text.encode(errors="backslashreplace"))
