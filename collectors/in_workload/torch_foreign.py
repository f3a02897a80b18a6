"""Handles torch profilers that the workload starts itself, beside or instead of ours.

torch lets a second profiler take the first one's events without a word. So ours ends first and keeps what it has; and
the traces that the program exports itself are copied into the capture.
"""

from __future__ import annotations

import functools
import gzip
import shutil
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .import_hooks import hook  # relative: the runner loads these files without their package
from .whole_files import whole

if TYPE_CHECKING:
    from collections.abc import Callable

_GZIP = b"\x1f\x8b"


class Foreign:
    """Tracks foreign profilers: their number, and the traces that they exported."""

    def __init__(self, folder: Path, suffix: str, before: Callable[[], None]) -> None:
        """Copy traces into `folder`; call `before` before the first foreign profiler starts."""
        self.folder = folder
        self.suffix = suffix
        self.before = before
        self.started = 0
        self.files: list[Path] = []
        self.failures: list[str] = []
        self._ours = True

    def watch(self) -> None:
        """Hook into torch.profiler, to see every profiler that starts."""
        kineto: Any = getattr(import_module("torch.profiler.profiler"), "_KinetoProfile", None)
        legacy: Any = import_module("torch.autograd.profiler")
        self._ours = False
        for owner, method in (
            (kineto, "prepare_trace"),
            (legacy.profile, "__enter__"),
            (legacy.emit_nvtx, "__enter__"),
        ):
            if owner is not None and hasattr(owner, method):
                hook(owner, method, self._starting)
        if kineto is not None:
            kineto.export_chrome_trace = self._exporting(kineto.export_chrome_trace)

    def done(self) -> None:
        """Stop tracking, as the next profiler is ours."""
        self._ours = True

    def _starting(self, profiler: Any, *_: Any) -> None:  # noqa: ANN401
        if self._is_foreign(profiler):
            self.started += 1
            if self.started == 1:
                self._ours = True
                self.before()
                self._ours = False

    def _is_foreign(self, profiler: Any) -> bool:  # noqa: ANN401
        return not self._ours and not getattr(profiler, "of_kanalyze", False)

    def _exporting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def exporting(profiler: Any, path: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            given = original(profiler, path, *args, **kwargs)
            if self._is_foreign(profiler):
                try:
                    self._copy(Path(path))
                except OSError as error:
                    self.failures.append(f"copy of {path}: {error}")
            return given

        return exporting

    def _copy(self, source: Path) -> None:
        target = self.folder / f"torch-own{len(self.files) + 1}{self.suffix}.json.gz"
        with source.open("rb") as file:
            packed = file.read(2) == _GZIP
        with (
            whole(target) as part,
            source.open("rb") as file,
            part.open("wb") if packed else gzip.open(part, "wb", 6) as out,
        ):
            shutil.copyfileobj(file, out, 1 << 20)
        self.files.append(target)
