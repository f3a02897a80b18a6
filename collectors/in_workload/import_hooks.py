"""Runs actions when the program imports a module, without importing it earlier, and around calls of its functions."""

from __future__ import annotations

import functools
import importlib.abc
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finder at the front of ``sys.meta_path``; handles only awaited modules, with Python's own finder."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[ModuleType], None]]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            # The loader belongs to this import only, so that replacing its method affects nothing else.
            loader: Any = spec.loader
            original = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                original(module)
                del loader.exec_module
                for action in self.waiting.pop(fullname, ()):
                    action(module)

            loader.exec_module = exec_module
        return spec


_finder = _AfterImport()


def when_imported(name: str, action: Callable[[ModuleType], None]) -> None:
    """Call `action` with the module `name` once it is imported, at once if it is loaded.

    A module that is built in, frozen or found by another finder than Python's own for files is not seen.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        action(module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.waiting.setdefault(name, []).append(action)


def hook(
    owner: Any,  # noqa: ANN401 - a module or class
    name: str,
    before: Callable[..., object] | None = None,
    after: Callable[..., object] | None = None,
) -> None:
    """Has a function of a module or class call `before` first and `after` at its end, with its own arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if before is not None:
            before(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            if after is not None:
                after(*args, **kwargs)

    setattr(owner, name, hooked)
