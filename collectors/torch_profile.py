"""Profiles a region of PyTorch code by a recipe, as a ``with`` block or a decorator."""

import functools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from kanalyze.collectors import process
from kanalyze.collectors.in_workload import torch_script, torch_sessions
from kanalyze.errors import CollectError, OutputError, refuse_unknown

P = ParamSpec("P")
T = TypeVar("T")


class TorchCapture:
    """Results of one profiled region: files laid out as in a capture of ``kanalyze collect``.

    Attributes:
        folder: The output folder once the region has ended; named ``…-partial`` if an exception ended it.
        traces: The Chrome traces, one per cycle.
        notes: Notes on the traces, in plain words.
    """

    def __init__(self, target: Path, running: torch_sessions.Session) -> None:
        """Created by :func:`torch_profile`."""
        self.folder, self._session = target, running
        self.traces: list[Path] = []
        self.notes: list[str] = []

    def step(self) -> None:
        """End a step; required after each one in recipes with steps."""
        self._session.step()

    @contextmanager
    def leave_out(self) -> Iterator[None]:
        """The part of an iteration that a toggle recipe leaves out; no effect in other recipes."""
        self._session.toggle(on=False)
        try:
            yield
        finally:
            self._session.toggle(on=True)

    @property
    def trace(self) -> Path:
        """The trace, the first one of several; a CollectError if no step was seen, or the recipe makes none."""
        if not self.traces:
            recipe = self._session.settings.recipe.name
            why = "; ".join(self.notes) or f"recipe {recipe} makes none, or the region has not ended"
            raise CollectError.no_steps(self.folder, f"no trace: {why}")
        return self.traces[0]

    def key_averages(self, **options: Any) -> Any:  # noqa: ANN401 - torch's own type
        """``torch.profiler``'s key averages of the last cycle, per operator; takes torch's options.

        Raises CollectError if nothing was recorded.
        """
        if self._session.last is None:
            raise CollectError.no_steps(self.folder, "nothing was recorded")
        return self._session.last.key_averages(**options)

    def __repr__(self) -> str:
        """Folder and number of traces."""
        return f"<TorchCapture {self.folder}: {len(self.traces)} trace{'' if len(self.traces) == 1 else 's'}>"


class TorchProfile:
    """A region that is profiled at each entry; see :func:`torch_profile`.

    Attributes:
        captures: Everything captured so far, in order.
    """

    def __init__(
        self, recipe: torch_sessions.Recipe, out: Path | None, request_options: dict[str, Any], calls: int
    ) -> None:
        """Created by :func:`torch_profile`."""
        self.captures: list[TorchCapture] = []
        self._recipe, self._out, self._options, self._calls = recipe, out, request_options, calls
        self._open: tuple[TorchCapture, torch_sessions.Session] | None = None

    def __enter__(self) -> TorchCapture:
        """Start the recipe.

        Raises CollectError without torch, or beside another torch profiler; OutputError if the folder cannot be made.
        """
        if self._open is not None:
            raise CollectError.profiler_busy("this very region is being profiled")
        if self._out is not None and self.captures:
            target = process.vacant(Path(f"{self._out}-{len(self.captures) + 1}"))
        else:
            target = process.target(f"torch-{self._recipe.name}", self._out)
        hidden = target.parent / f".{target.name}.{os.getpid()}.partial"
        try:
            import_module("torch")
            running = torch_sessions.session(torch_sessions.Settings(hidden, self._recipe, **self._options))
            hidden.mkdir(parents=True)
            try:
                running.start()
            except BaseException:
                hidden.rmdir()
                raise
        except ImportError as error:
            raise CollectError.without_torch(error) from None
        except torch_sessions.ProfilerBusyError as error:
            raise CollectError.profiler_busy(error) from None
        except OSError as error:
            raise OutputError.because(target, error.strerror or str(error)) from None
        capture = TorchCapture(target, running)
        self.captures.append(capture)
        self._open = capture, running
        return capture

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop, write the results, and rename the folder.

        Raises CollectError if not everything could be written, what could is kept; OutputError if something else has
        the folder's name by now.
        """
        if self._open is None:
            return
        (capture, running), self._open = self._open, None
        running.stop()
        folder = running.settings.out
        is_complete = error is None and not running.failures
        capture.notes = running.notes
        target = capture.folder if is_complete else process.vacant(Path(f"{capture.folder}-partial"))
        document = {"schema": torch_sessions.SCHEMA, **running.facts(), "complete": is_complete}
        running.attempt("torch-run.json", lambda: torch_script.write_json(folder / "torch-run.json", document))
        if target.exists():
            raise OutputError.exists(target)
        folder.rename(target)
        capture.folder = target
        capture.traces = [target / path.relative_to(folder) for path in running.traces]
        if error is None and running.failures:
            raise CollectError.not_all_written(target, running.failures)
        if error is None and self._recipe.cycle and not capture.traces and self._recipe.makes != torch_sessions.TIMES:
            warnings.warn(f"kanalyze: {'; '.join(running.notes)}; call capture.step() at each step's end", stacklevel=2)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Wraps `function`: its first calls (`calls` of them) are profiled, each into a folder of its own.

        What was captured is in the attribute `captures` of the function that this gives.
        """

        @functools.wraps(function)
        def profiled(*args: P.args, **kwargs: P.kwargs) -> T:
            if len(self.captures) >= self._calls or self._open is not None:
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        profiled.captures = self.captures  # type: ignore[attr-defined]
        return profiled


def torch_profile(
    recipe: str = "plain",
    *,
    out: str | os.PathLike[str] | None = None,
    activities: Sequence[str] | None = None,
    key_averages: bool = True,
    calls: int = 1,
    **changes: bool | int,
) -> TorchProfile:
    """Profiles a region of code, as a ``with`` block that gives a :class:`TorchCapture`, or as a decorator.

    The files are written under a hidden name beside the folder and appear under its own name once they are whole. Where
    the region ends by an exception, that goes on, and what was recorded until then is kept in ``FOLDER-partial``.

    Args:
        recipe: One of :data:`kanalyze.collectors.in_workload.torch_sessions.RECIPES`. With steps (schedule, events,
            tensorboard), the region calls ``capture.step()`` at the end of each; with toggle…, what is left out stands
            in ``with capture.leave_out():``.
        out: The folder, which must not exist; by default ``torch-RECIPE-DATE-TIME`` in the current one.
        activities: 'cpu', 'cuda', or both; by default what this torch and machine can.
        key_averages: Whether torch's table is written too.
        calls: As a decorator, how many calls are profiled; the others just run.
        changes: Switches of torch.profiler (as ``with_stack=True``) and counts of the cycle (as ``active=3``).

    Raises:
        UnknownNameError: No such recipe or activity.
        ValueError: Counts that make no cycle.
    """
    refuse_unknown("recipe", recipe, torch_sessions.RECIPES)
    for name in activities or ():
        refuse_unknown("activity", name, ("cpu", "cuda"))
    chosen = torch_sessions.RECIPES[recipe].with_changes(changes)
    options = {"activities": tuple(activities) if activities else None, "key_averages": key_averages}
    return TorchProfile(chosen, None if out is None else Path(out), options, calls)
