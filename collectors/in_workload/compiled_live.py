"""Listens, inside the workload's process, to what Triton and inductor compile.

Nothing is imported for it: Triton is met when the program imports it, and inductor's code by its logger.

This file also runs beside :mod:`torch_runner`: the standard library only, and no syntax newer than Python 3.9.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
from typing import TYPE_CHECKING, Any

from . import compiled  # relative: the runner loads these files without their package
from .import_hooks import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: The logger behind TORCH_LOGS=output_code.
_OUTPUT_CODE = "torch._inductor.codecache.__output_code"
_CODE_BEGINS = "Output code: \n"


class Compilations:
    """Everything that Triton was asked to compile, by hash."""

    def __init__(self) -> None:
        """Listen to nothing yet."""
        self.said: dict[str, compiled.Compilation] = {}
        self.heard = False

    def listen(self) -> None:
        """Listen as soon as the program imports Triton (3.4 or newer: older ones have nobody to tell)."""
        when_imported("triton.knobs", self.attach)

    def attach(self, knobs: Any) -> None:  # noqa: ANN401
        """Be told by Triton's module `knobs`, beside whoever was told before."""
        others: Callable[..., None] | None = getattr(getattr(knobs, "compilation", None), "listener", None)
        if not hasattr(knobs, "compilation"):
            return

        def listener(**event: Any) -> None:  # noqa: ANN401 - the keywords differ between versions
            self._hear(event)
            if others is not None:
                others(**event)

        knobs.compilation.listener = listener
        self.heard = True

    def _hear(self, event: dict[str, Any]) -> None:
        metadata = event.get("metadata")
        key = metadata.get("hash") if isinstance(metadata, dict) else None
        spent_us = getattr(event.get("times"), "total", None)
        if isinstance(key, str) and isinstance(spent_us, int) and isinstance(event.get("cache_hit"), bool):
            self.said.setdefault(key, compiled.Compilation(event["cache_hit"], spent_us * 1000))


class OutputCode(logging.Handler):
    """Keeps what TORCH_LOGS=output_code would print: the code that inductor wrote for each graph."""

    def __init__(self, path: Path) -> None:
        """Write to `path`, once there is something to write."""
        super().__init__(logging.DEBUG)
        self.path = path
        self.graphs = 0
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")

    def listen(self) -> None:
        """Switch the logger on, for us alone: what the program prints stays as it is."""
        logger = logging.getLogger(_OUTPUT_CODE)
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Append a graph's code."""
        text = record.getMessage()
        if not text.startswith(_CODE_BEGINS):
            return
        self.graphs += 1
        try:
            self._part.parent.mkdir(parents=True, exist_ok=True)
            with self._part.open("a", encoding="utf-8") as file:
                file.write(f"# graph {self.graphs}\n{text[len(_CODE_BEGINS) :].rstrip()}\n\n\n")
        except OSError:
            self.handleError(record)

    def finish(self) -> list[Path]:
        """Give the file its name; gives what was written."""
        logging.getLogger(_OUTPUT_CODE).removeHandler(self)
        if not self._part.is_file():
            return []
        self._part.replace(self.path)
        return [self.path]


class Caches:
    """Where Triton and inductor keep what they compile while the program runs, and what of it is kept."""

    def __init__(self, folder: Path, suffix: str, *, fresh: bool) -> None:
        """Work for the capture in `folder`; with `fresh`, in caches of its own."""
        self.folder = folder
        self.suffix = suffix
        self.fresh = fresh
        self.own = folder / f".caches{suffix}"
        self.before: frozenset[str] = frozenset()
        self.compilations = Compilations()
        self.output_code = OutputCode(folder / "inductor" / f"output_code{suffix}.py")

    def begin(self) -> None:
        """Set the environment and listen; to be called before Triton or torch is imported."""
        if self.fresh:
            os.environ.update(compiled.environment(self.own))
            # Before torch is imported, so that it runs after what inductor does at exit, which makes folders again.
            atexit.register(self._remove, os.getpid())
        self.before = compiled.hashes(compiled.caches(os.environ))
        self.compilations.listen()
        self.output_code.listen()

    def finish(self) -> tuple[list[Path], list[dict[str, Any]]]:
        """Write what is kept and remove caches of our own; gives the files and the rows of ``compiled.json``."""
        found = compiled.entries(compiled.caches(os.environ))
        said = self.compilations.said if self.compilations.heard else None
        made = compiled.rows(found, before=self.before, said=said, fresh=self.fresh)
        files = [*compiled.keep(self.folder, found, made, suffix=self.suffix), *self.output_code.finish()]
        if self.fresh:
            self._remove(os.getpid())
        return files, made

    def _remove(self, owner: int) -> None:
        """Remove caches of our own; a process that was forked leaves them to its parent."""
        if os.getpid() == owner:
            shutil.rmtree(self.own, ignore_errors=True)
