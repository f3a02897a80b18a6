"""Profiles processes started with ``torch.multiprocessing.spawn``, each as a rank.

Such a process is a fresh Python that knows nothing of the runner. The function that it is to call is handed over inside
a :class:`Child`, which unpickles by running :mod:`torch_runner` by its path.
"""

from __future__ import annotations

import functools
import operator
import runpy
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .torch_arguments import Settings

_RUNNER = str(Path(__file__).with_name("torch_runner.py"))


class _Globals:
    """Pickles as the globals of torch_runner.py."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return runpy.run_path, (_RUNNER,)


class _Rebuild:
    """Pickles as the function `child` of torch_runner.py; pickle requires a callable."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[_Globals, str]]:
        return operator.getitem, (_Globals(), "child")

    def __call__(self, *_: object) -> None:
        """Nothing: it is never called."""


class Child:
    """Picklable wrapper that profiles a function in a spawned process."""

    def __init__(self, function: Callable[..., Any], settings: Settings) -> None:
        """Profile `function`, whose first argument is the process index, by `settings`."""
        self.function = function
        self.settings = settings

    def __reduce__(self) -> tuple[_Rebuild, tuple[Any, ...]]:
        """Pickles as the function and the command line for these settings."""
        return _Rebuild(), (self.function, self.settings.arguments())

    def __call__(self, number: int, *args: Any) -> Any:  # noqa: ANN401
        """Profile the call as rank `number`, in the spawned process."""
        run: Any = import_module(f"{__package__}.torch_run").Run
        return run(replace(self.settings, rank=number)).call(lambda: self.function(number, *args))


def follow(settings: Settings) -> None:
    """Profile processes spawned by torch.multiprocessing from now on; forked ones are not profiled."""
    spawn: Any = import_module("torch.multiprocessing.spawn")
    package: Any = import_module("torch.multiprocessing")
    original = spawn.start_processes

    @functools.wraps(original)
    def start_processes(  # noqa: PLR0913 - torch's own signature
        fn: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        nprocs: int = 1,
        join: bool = True,  # noqa: FBT001, FBT002
        daemon: bool = False,  # noqa: FBT001, FBT002
        start_method: str = "spawn",
        **more: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        # A forked process inherits our profiler's state, which torch cannot use.
        followed = fn if start_method == "fork" or settings.rank is not None else Child(fn, settings)
        return original(followed, args, nprocs, join, daemon, start_method, **more)

    spawn.start_processes = start_processes
    package.start_processes = start_processes
