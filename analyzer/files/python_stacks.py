"""Payloads in which nsys keeps the stacks that it samples of Python: marks of NVTX domains of its own.

Facts about the format: docs/formats.md. Texts are ids of StringIds.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

#: Domains of Python stacks, by whether they are taken at regular intervals.
DOMAINS: Final = {"Python Periodic Sampling": True, "Python Backtrace on CUDA": False}

#: Event types of NVTX: a mark, and a domain's name.
MARK: Final = 34
DOMAIN: Final = 75

#: A payload's header (count, schema, size, offset), its own (thread state id, state, frames), and a frame of it
#: (StringIds of function and file, line).
_HEADER: Final = struct.Struct("<4Q")
_STACK: Final = struct.Struct("<QiI")
_FRAME: Final = struct.Struct("<QQI4x")

Frame: TypeAlias = tuple[int, int, int]


class Stack(NamedTuple):
    """A stack of Python functions.

    Attributes:
        payloads: How many payloads there are, as its header says.
        schema: Id of the payload's schema.
        state: nsys' number for the thread's state.
        frames: StringIds of function and file, and the line; innermost first.
    """

    payloads: int
    schema: int
    state: int
    frames: tuple[Frame, ...]


def unpacked(data: bytes) -> Stack | None:
    """The stack of a payload; None for what is none."""
    if len(data) < _HEADER.size:
        return None
    number, schema, size, begin = _HEADER.unpack_from(data)
    if begin + size > len(data) or size < _STACK.size:
        return None
    _, state, count = _STACK.unpack_from(data, begin)
    if _STACK.size + count * _FRAME.size > size:
        return None
    frames = (_FRAME.unpack_from(data, begin + _STACK.size + at * _FRAME.size) for at in range(count))
    return Stack(number, schema, state, tuple((function, file, line) for function, file, line in frames))


def packed(stack: Stack) -> bytes:
    """The payload of a stack and nothing else: fillers, which hold memory of the program, are 0."""
    size = _STACK.size + len(stack.frames) * _FRAME.size
    head = _HEADER.pack(stack.payloads, stack.schema, size, _HEADER.size)
    own = _STACK.pack(0, stack.state, len(stack.frames))
    return head + own + b"".join(_FRAME.pack(*frame) for frame in stack.frames)
