"""Reduces the reports of a job's ranks, on whatever engine, into a folder; see docs/ranks.md.

An engine works off tasks and gives an outcome for each as it comes: here one after the other, in processes of this
machine, or by any executor of :mod:`concurrent.futures`. What is finished is written at once by the program that asked,
so that workers need to see the reports and not the folder.
"""

import multiprocessing
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any, Final, NamedTuple, TypeAlias

import polars as pl

from kanalyze import errors, readers
from kanalyze.analyses.ranks._reducing import reduced
from kanalyze.errors import KanalyzeError, LostReportError
from kanalyze.readers.capture.reports import Run
from kanalyze.reduction import tables
from kanalyze.several.jobs import runs_of_ranks

#: Where polars looks for how many threads it may have.
_THREADS: Final = "POLARS_MAX_THREADS"

#: How the names of reports of one file end.
_REPORTS: Final = (".json", ".json.gz", ".sqlite", ".nsys-rep")

#: What to do where a store refuses, or what reads it is missing.
_REMEDY: Final = (
    "Reading from object stores takes `pip install 'kanalyze[objects]'` and the store's own package, such as s3fs; "
    "or copy the files to a disk."
)

#: What stores call a tag of an object's content, and the time of its change.
_TAGS: Final = ("ETag", "etag", "md5Hash", "content_md5")
_CHANGED: Final = ("mtime", "LastModified", "last_modified", "created")


class Task(NamedTuple):
    """A report to be reduced; can be handed to another process."""

    name: str  # the report, as people call it
    origin: tables.Origin  # its file, in the state in which it was found
    run: Run | None  # how it is opened; None of an address on an object store


Outcome: TypeAlias = tables.Packed | KanalyzeError

#: Works off tasks: gives each with its outcome, in any order.
Engine: TypeAlias = Callable[[Sequence[Task]], Iterator[tuple[Task, Outcome]]]


@dataclass(frozen=True)
class Reduced:
    """Outcomes of reports that were to be reduced."""

    out: Path  # the folder of the reductions
    made: list[Path] = field(default_factory=list)  # folders of reductions that were written
    #: Folders of those that were there, and still are what their reports would give.
    there: list[Path] = field(default_factory=list)
    left_out: list[KanalyzeError] = field(default_factory=list)  # what could not be reduced, and why


def reduce_reports(  # noqa: PLR0913 - what is reduced, how, and who is told of it
    sources: Iterable[str | Path],
    out: Path,
    engine: Engine,
    *,
    progress: Callable[[int, int], object] = lambda *_: None,
    left_out: Callable[[KanalyzeError], object] = lambda _: None,
    cache: bool = False,
) -> Reduced:
    """Reduces the reports at paths, in folders and captures, that `out` does not have yet.

    `progress` is told how many reports are done, of how many; `left_out` of each that cannot be reduced, at once.
    Raises NoJobError if there is no report; OutputError if `out` cannot be written; KanalyzeError, the first reason, if
    nothing could be reduced.
    """
    result = Reduced(out)

    def leave_out(error: KanalyzeError) -> None:
        result.left_out.append(error)
        left_out(error)

    tables.clear_forgotten(out)
    tasks = {task.origin.folder: task for source in sources for task in _tasks(source, leave_out, cache=cache)}
    whole = {folder for folder in tasks if tables.is_whole(out / folder)}
    result.there.extend(out / folder for folder in tasks if folder in whole)
    missing = [task for folder, task in tasks.items() if folder not in whole]
    progress(len(whole), len(tasks))
    for done, (_, outcome) in enumerate(engine(missing) if missing else (), len(whole) + 1):
        if isinstance(outcome, KanalyzeError):
            leave_out(outcome)
        else:
            result.made.append(tables.write(outcome, out))
        progress(done, len(tasks))
    if not result.made and not result.there:
        raise result.left_out[0] if result.left_out else errors.NoJobError.empty()
    return result


def _tasks(source: str | Path, leave_out: Callable[[KanalyzeError], object], *, cache: bool) -> Iterator[Task]:
    """The reports at a path or an address."""
    try:
        if isinstance(source, str) and is_address(source):
            yield from (Task(origin.path, origin, None) for origin in _reports_at(source))
            return
        for run in runs_of_ranks(Path(source), None, cache=cache):
            try:
                yield Task(str(run.file), tables.origin_of(run.file), run)
            except KanalyzeError as error:
                leave_out(error)
    except KanalyzeError as error:
        leave_out(error)


def work_on(task: Task) -> Outcome:
    """The files of the reduction of a report, or why there are none; what an engine calls, in whatever process."""
    try:
        if task.run is not None:
            with task.run.opened() as report:
                reduction = reduced(report)
        else:
            with _fetched(task.name) as copy, readers.read(copy, cache=False) as report:
                reduction = reduced(report)  # the copy has another name
                if reduction:
                    reduction["ranks"] = reduction["ranks"].with_columns(report=pl.lit(task.name))
        return tables.packed(reduction, task.origin) if reduction else errors.NoJobError.of(task.name)
    except KanalyzeError as error:
        return error
    except MemoryError:
        return LostReportError.of(task.name, str(errors.OutOfMemoryError.anywhere()).rstrip("."))


def one_by_one(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
    """Works off the tasks in this process."""
    for task in tasks:
        yield task, work_on(task)


def by_executor(executor: Executor) -> Engine:
    """An engine of any executor of :mod:`concurrent.futures`, which its owner shuts down.

    Raises ValueError if its processes are forks, in which polars would wait for ever.
    """
    context = getattr(executor, "_mp_context", None)
    if isinstance(executor, ProcessPoolExecutor) and context is not None and context.get_start_method() == "fork":
        raise ValueError(
            "polars does not work in forked processes: give "
            "ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn'))"
        )

    def engine(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        futures: dict[Future[Outcome], Task] = {}
        try:
            for number, task in enumerate(tasks):
                try:
                    futures[executor.submit(work_on, task)] = task
                except RuntimeError as error:  # it is broken, or was shut down
                    yield from ((left, _lost(left, error)) for left in tasks[number:])
                    break
            for future in as_completed(futures):
                try:
                    outcome = future.result()
                except Exception as error:  # noqa: BLE001 - engines have types of their own
                    outcome = _lost(futures[future], error)
                yield futures[future], outcome
        finally:
            for future in futures:
                future.cancel()

    return engine


def by_processes(number: int) -> Engine:
    """An engine of `number` processes of this machine; a single task, or one process, is worked on in this one.

    A process that is killed, as for want of memory, costs the report that kills it again when it is alone, no other.
    """

    def engine(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        if len(tasks) == 1 or number == 1:
            yield from one_by_one(tasks)
            return
        waiting = [*tasks]
        while waiting:
            done = set()
            with _pool(min(number, len(waiting))) as pool:
                for task, outcome in by_executor(pool)(waiting):
                    if not isinstance(outcome, Exception) or not isinstance(outcome.__cause__, BrokenProcessPool):
                        done.add(task.name)
                        yield task, outcome
            waiting = [task for task in waiting if task.name not in done]
            # a pool works in the order of its tasks: when one was killed, no others than these were at work
            for task in waiting[:number]:
                with _pool(1) as pool:
                    yield from by_executor(pool)([task])
            waiting = waiting[number:]

    return engine


@contextmanager
def _pool(number: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that share the machine's processors; they end when it is left, whatever they do."""
    before = {*multiprocessing.active_children()}
    setting = os.environ.get(_THREADS)
    os.environ[_THREADS] = setting or str(max(1, (os.cpu_count() or 1) // number))
    pool = ProcessPoolExecutor(number, multiprocessing.get_context("spawn"), _begin)
    try:
        yield pool
    except BaseException:
        for child in {*multiprocessing.active_children()} - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)  # its own thread waits for its processes: a second waiter would miss them
        if setting is None:
            del os.environ[_THREADS]


def _begin() -> None:
    """Begins a process of a pool: Ctrl-C is for its parent, and it ends when that does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with(parent: BaseProcess) -> None:
        parent.join()
        os._exit(1)

    Thread(target=end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _lost(task: Task, error: BaseException) -> LostReportError:
    message = " ".join(str(error).split())
    lost = LostReportError.of(task.name, f"{type(error).__name__}: {message}" if message else type(error).__name__)
    lost.__cause__ = error
    return lost


@contextmanager
def by_dask(address: str) -> Iterator[Engine]:
    """An engine of the workers of a scheduler of dask.distributed.

    Raises EngineError if dask.distributed is not installed, or no scheduler answers.
    """
    try:
        distributed = import_module("distributed")  # heavy, and of an extra
    except ImportError as error:
        raise errors.EngineError.without_package("dask.distributed", "dask") from error
    try:
        client = distributed.Client(address)
    except (OSError, ValueError) as error:
        raise errors.EngineError.unreachable(address, " ".join(str(error).split()) or type(error).__name__) from error
    with client, client.get_executor(pure=False) as executor:
        yield by_executor(executor)


def is_address(text: str) -> bool:
    """Whether `text` is an address on an object store, not a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text) is not None


def _reports_at(address: str) -> list[tables.Origin]:
    """The reports at an address: of that file, of a folder, or of a pattern with ``*``; by name."""
    with _told(address):
        store, path = import_module("fsspec.core").url_to_fs(address)
        if re.search(r"[*?\[]", path):
            paths = store.glob(path)
        elif store.isdir(path):
            paths = [one for one in store.ls(path, detail=False) if one.endswith(_REPORTS)]
        else:
            paths = [path]
        origins = []
        for one in sorted(paths):
            info: dict[str, Any] = store.info(one)
            tag = next((str(info[name]) for name in _TAGS if info.get(name)), "")
            changed = next((info[name] for name in _CHANGED if name in info), None)
            seconds = changed.timestamp() if isinstance(changed, datetime) else changed
            mtime_ns = int(seconds * 1_000_000) * 1000 if isinstance(seconds, int | float) else 0  # 0: not told
            origins.append(tables.origin_of_address(str(store.unstrip_protocol(one)), int(info["size"]), mtime_ns, tag))
        return origins


@contextmanager
def _fetched(address: str) -> Iterator[Path]:
    """A copy of the file at an address on a local disk, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="kanalyze-") as folder:
        with _told(address):
            store, path = import_module("fsspec.core").url_to_fs(address)
            copy = Path(folder) / path.rstrip("/").rpartition("/")[2]
            store.get_file(path, str(copy))
        yield copy


@contextmanager
def _told(address: str) -> Iterator[None]:
    """Turns what fsspec and the packages of stores raise, of whatever type, into our error."""
    try:
        yield
    except ImportError as error:
        missing = "fsspec is not installed" if error.name and error.name.startswith("fsspec") else str(error)
        raise errors.UnreadableReportError.because(address, missing, _REMEDY) from error
    except Exception as error:
        message = " ".join(str(error).split()) or type(error).__name__
        reason = "no such file" if isinstance(error, FileNotFoundError) else message
        raise errors.UnreadableReportError.because(address, reason, _REMEDY) from error
