"""Hooks into a program without changes to its script: modules that it imports, functions, recurring parts.

A part (step, phase) is one of: the optimizer's step, the top-level module's call, a record_function or NVTX range by
name, a function by name. :func:`watch` calls back right before and right after each occurrence, outside of what the
profiler records of it, so that no range of the trace is cut in two.
"""

from __future__ import annotations

import functools
import importlib.abc
import inspect
import sys
import threading
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NamedTuple


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


#: Kinds of parts, in words for messages.
_KINDS = {
    "auto": "the optimizer's step, or the top-level module's call",
    "optimizer": "the optimizer's step",
    "forward": "the top-level module's call",
    "range": "the range {}",
    "function": "the function {}",
}


class Part(NamedTuple):
    """The part to hook: `kind` is 'auto', 'optimizer', 'forward', 'range' (with a pattern) or 'function'.

    `auto` is the optimizer's step where an optimizer exists by the time that a module is first called, else the
    top-level module's call.
    """

    kind: str = "auto"
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Part:
        """Parses the argument of ``--step-on``; raises ArgumentTypeError."""
        if text in ("auto", "optimizer", "forward"):
            return cls(text)
        module, colon, function = text.partition(":")
        if not (colon and module and all(name.isidentifier() for name in function.split("."))):
            raise ArgumentTypeError(f"{text!r} is neither optimizer, forward nor MODULE:FUNCTION")
        return cls("function", text)

    @property
    def text(self) -> str:
        """Description for messages."""
        return _KINDS[self.kind].format(self.name)


AUTO, OPTIMIZER, FORWARD = Part("auto"), Part("optimizer"), Part("forward")


@dataclass
class Watched:
    """Callbacks around each occurrence of a part, and a count of occurrences.

    `before` and `after` are called on the program's own thread, and of a call `given` with its arguments before; they
    must not raise.
    """

    part: Part
    before: Callable[[], None]
    after: Callable[[], None]
    given: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None
    seen: int = 0
    found: Part | None = None
    _inside: threading.local = field(default_factory=threading.local)

    def __enter__(self) -> None:
        """Begin an occurrence; one that is nested in another one of the same part is not counted."""
        depth = getattr(self._inside, "depth", 0)
        self._inside.depth = depth + 1
        if depth == 0:
            self.before()

    def __exit__(self, *_: object) -> None:
        """End an occurrence."""
        self._inside.depth = getattr(self._inside, "depth", 1) - 1
        if self._inside.depth == 0:
            self.seen += 1
            self.after()


def watch(
    part: Part,
    before: Callable[[], None],
    after: Callable[[], None],
    given: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None,
) -> Watched:
    """Call `before` and `after` around each occurrence of `part`, for the rest of the process, and `given` of calls."""
    watched = Watched(part, before, after, given, found=None if part.kind == "auto" else part)
    if part.kind in ("auto", "optimizer"):
        _watch_optimizer(watched)
    if part.kind in ("auto", "forward"):
        _watch_forward(watched)
    if part.kind == "range":
        compiling = compiling_test()
        ranges = Ranges(
            lambda name: not compiling() and fnmatchcase(str(name), part.name),
            lambda _: watched.__enter__(),
            watched.__exit__,
        )
        ranges.of_torch(import_module("torch"))
        when_imported("nvtx.nvtx", ranges.of_nvtx)
    if part.kind == "function" and not part.name.startswith("__main__:"):
        module, _, name = part.name.partition(":")
        when_imported(module, functools.partial(_wrap_function, name=name, watched=watched))
    return watched


def compiling_test() -> Callable[[], bool]:
    """torch.compiler.is_compiling or its predecessor: whether torch.compile is tracing, when hooks must do nothing.

    It is called by its own name, so that torch.compile knows it and sees a constant.
    """
    test: Callable[[], bool] = getattr(getattr(import_module("torch"), "compiler", None), "is_compiling", bool)
    return test


def wrap(function: Callable[..., Any], watched: Watched) -> Callable[..., Any]:
    """Wraps `function` with the callbacks; a coroutine or generator ends with its last value."""
    compiling = compiling_test()

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with watched:
            return await function(*args, **kwargs)

    @functools.wraps(function)
    def generated(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with watched:
            return (yield from function(*args, **kwargs))

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if compiling():
            return function(*args, **kwargs)
        if watched.given is not None:
            watched.given(args, kwargs)
        with watched:
            return function(*args, **kwargs)

    if inspect.iscoroutinefunction(function):
        return awaited
    return generated if inspect.isgeneratorfunction(function) else called


def _wrap_function(module: ModuleType, name: str, watched: Watched) -> None:
    """Replace the function `name` (dots for classes) of `module`; nothing happens if it does not exist."""
    *owners, last = name.split(".")
    owner: Any = module
    for step in owners:
        owner = getattr(owner, step, None)
    function = inspect.getattr_static(owner, last, None) if owner is not None else None
    if isinstance(function, (staticmethod, classmethod)):
        setattr(owner, last, type(function)(wrap(function.__func__, watched)))
    elif callable(function):
        setattr(owner, last, wrap(function, watched))


def _watch_optimizer(watched: Watched) -> None:
    """Wrap every optimizer class's step when its first object is created; with several objects one is counted.

    That is the first one, until another steps twice without it. Not by torch's global step hooks: they run inside the
    range that torch records around the step.
    """
    compiling = compiling_test()
    chosen: object = None
    others: set[int] = set()

    def ends_step(optimizer: object) -> bool:
        nonlocal chosen
        if chosen is not None and optimizer is not chosen and id(optimizer) not in others:
            others.add(id(optimizer))
            return False
        chosen = optimizer
        others.clear()
        return True

    def created(optimizer: Any, *_: Any, **__: Any) -> None:  # noqa: ANN401
        watched.found = watched.found or OPTIMIZER
        step = type(optimizer).__dict__.get("step")
        if callable(step) and not hasattr(step, "of_kanalyze"):
            type(optimizer).step = of_step(step)

    def of_step(step: Callable[..., Any]) -> Callable[..., Any]:
        around = wrap(step, watched)

        @functools.wraps(step)
        def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if compiling() or watched.found != OPTIMIZER:
                return step(self, *args, **kwargs)
            return (around if ends_step(self) else step)(self, *args, **kwargs)

        stepped.of_kanalyze = True  # type: ignore[attr-defined]
        return stepped

    hook(import_module("torch.optim").Optimizer, "__init__", after=created)


def _watch_forward(watched: Watched) -> None:
    """Hook the first module that is called from outside of any module, and only that one.

    For `auto` this first call also decides: no optimizer was made before it, so the calls are the steps. Not by torch's
    global module hooks: torch.compile warns of them, and traces them.
    """
    base: Any = import_module("torch.nn").Module
    call = base.__call__
    compiling = compiling_test()

    def first_call(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if compiling() or base.__call__ is not first_call:
            return call(self, *args, **kwargs)
        base.__call__ = call
        if watched.found is not None and watched.found.kind != "forward":
            return call(self, *args, **kwargs)
        watched.found = FORWARD
        kind = type(self)
        original = kind.__call__
        around = wrap(original, watched)

        def watched_call(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            return (original if compiling() or module is not self else around)(module, *args, **kwargs)

        kind.__call__ = watched_call
        return wrap(call, watched)(self, *args, **kwargs)

    base.__call__ = first_call


class Ranges(NamedTuple):
    """What is done at ranges of record_function, torch.cuda.nvtx and the package nvtx, of the names that match.

    `opens` is called with the name before the range begins, `closes` after its end; None where ends do not matter.
    """

    matches: Callable[[object], bool]
    opens: Callable[[object], object]
    closes: Callable[[], object] | None = None

    def of_torch(self, torch: Any) -> None:  # noqa: ANN401 - a module
        """Hook the ranges of torch."""
        self._of_class(torch.autograd.profiler.record_function, lambda one: one.name)
        self._of_stack(torch.cuda.nvtx, "range_push", "range_pop")

    def of_nvtx(self, nvtx: Any) -> None:  # noqa: ANN401 - a module
        """Hook the ranges of the package nvtx."""
        if isinstance(getattr(nvtx, "annotate", None), type):
            self._of_class(nvtx.annotate, lambda one: getattr(getattr(one, "attributes", None), "message", ""))
        if hasattr(nvtx, "push_range") and hasattr(nvtx, "pop_range"):
            self._of_stack(nvtx, "push_range", "pop_range")

    def _of_class(self, manager: Any, name_of: Callable[[Any], object]) -> None:  # noqa: ANN401 - a class
        """Hook a class of context managers."""
        matches, opens, closes = self
        hook(manager, "__enter__", lambda one: matches(name_of(one)) and opens(name_of(one)))
        if closes is not None:
            hook(manager, "__exit__", after=lambda one, *_: matches(name_of(one)) and closes())

    def _of_stack(self, module: Any, push: str, pop: str) -> None:  # noqa: ANN401 - a module
        """Hook ranges that two functions open and close."""
        matches, opens, closes = self
        opened = threading.local()

        def pushing(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401
            name = args[0] if args else next((kwargs[key] for key in ("msg", "message") if key in kwargs), "")
            ours = matches(name)
            if ours:
                opens(name)
            if closes is not None:
                opened.__dict__.setdefault("stack", []).append(ours)

        def popped(*_: Any, **__: Any) -> None:  # noqa: ANN401
            stack = opened.__dict__.setdefault("stack", [])
            if stack and stack.pop() and closes is not None:
                closes()

        hook(module, push, pushing)
        if closes is not None:
            hook(module, pop, after=popped)
