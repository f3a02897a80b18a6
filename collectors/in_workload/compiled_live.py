"""Listens to compilations of Triton and inductor inside the workload's process.

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

#: Logger behind TORCH_LOGS=output_code.
_OUTPUT_CODE = "torch._inductor.codecache.__output_code"
_CODE_BEGINS = "Output code: \n"


class Compilations:
    """Compilations reported by Triton, by hash."""

    def __init__(self) -> None:
        """Start with none."""
        self.said: dict[str, compiled.Compilation] = {}
        self.heard = False

    def listen(self) -> None:
        """Attach when the program imports Triton (3.4 or newer: older versions have no listener)."""
        when_imported("triton.knobs", self.attach)

    def attach(self, knobs: Any) -> None:  # noqa: ANN401
        """Register with Triton's module `knobs`, chaining to a previously set listener."""
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
    """Log handler that saves what TORCH_LOGS=output_code prints: inductor's generated code of each graph."""

    def __init__(self, path: Path) -> None:
        """Write to `path`, created at the first record."""
        super().__init__(logging.DEBUG)
        self.path = path
        self.graphs = 0
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")

    def listen(self) -> None:
        """Enable the logger for this handler only; the program's own output is unchanged."""
        logger = logging.getLogger(_OUTPUT_CODE)
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Append a graph's generated code."""
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
        """Rename the file to its final name; returns the files written."""
        logging.getLogger(_OUTPUT_CODE).removeHandler(self)
        if not self._part.is_file():
            return []
        self._part.replace(self.path)
        return [self.path]


class Caches:
    """Caches of Triton and inductor during the run, and what is saved from them."""

    def __init__(self, folder: Path, suffix: str, *, fresh: bool) -> None:
        """Save into the capture `folder`; with `fresh`, use caches of its own."""
        self.folder = folder
        self.suffix = suffix
        self.fresh = fresh
        self.own = folder / f".caches{suffix}"
        self.before: frozenset[str] = frozenset()
        self.compilations = Compilations()
        self.output_code = OutputCode(folder / "inductor" / f"output_code{suffix}.py")

    def begin(self) -> None:
        """Set the environment and listeners; must be called before Triton or torch is imported."""
        if self.fresh:
            os.environ[compiled.TRITON_CACHE] = str(self.own / "triton")
            os.environ[compiled.INDUCTOR_CACHE] = str(self.own / "inductor")
            # Registered before torch is imported: runs after inductor's exit handler, which recreates folders.
            atexit.register(self._remove, os.getpid())
        self.before = frozenset(one.metadata["hash"] for one in compiled.entries(compiled.caches(os.environ)))
        self.compilations.listen()
        self.output_code.listen()

    def finish(self) -> tuple[list[Path], list[dict[str, Any]]]:
        """Save results and remove our own caches; returns the files and the rows of ``compiled.json``."""
        found = compiled.entries(compiled.caches(os.environ))
        said = self.compilations.said if self.compilations.heard else None
        made = compiled.rows(found, before=self.before, said=said, fresh=self.fresh)
        files = [*compiled.keep(self.folder, found, made, suffix=self.suffix), *self.output_code.finish()]
        if self.fresh:
            self._remove(os.getpid())
        return files, made

    def _remove(self, owner: int) -> None:
        """Remove our own caches; a forked process leaves them to its parent."""
        if os.getpid() == owner:
            shutil.rmtree(self.own, ignore_errors=True)
