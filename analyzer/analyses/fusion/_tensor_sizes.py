"""How many elements and bytes an elementwise operator reads and writes, from the shapes and types of its inputs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from kanalyze.exact import LARGEST

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes of an element, by the type's name in a trace (C++ names of c10's scalar types).
_ELEMENT_BYTES: Final = {
    "bool": 1,
    "unsigned char": 1,
    "signed char": 1,
    "char": 1,
    "short": 2,
    "short int": 2,
    "unsigned short": 2,
    "int": 4,
    "unsigned int": 4,
    "long": 8,
    "long int": 8,
    "unsigned long": 8,
    "float": 4,
    "double": 8,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "c10::complex<c10::Half>": 4,
}

#: Operators of which the first input is only written.
_OVERWRITES: Final = ("aten::copy_", "aten::fill_", "aten::zero_", "aten::_foreach_copy_", "aten::_foreach_zero_")

#: What :func:`sizes` gives for an operator whose inputs do not tell.
_SCHEMA: Final = {"elements": pl.Int64, "read_bytes": pl.Int64, "written_bytes": pl.Int64}


class _Tensor(NamedTuple):
    """One tensor: its dimensions, its elements in memory (those that are broadcast count once), and their size."""

    shape: tuple[int, ...]
    stored: int
    element_bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def sizes(operators: pl.DataFrame) -> pl.DataFrame:
    """What each of some operators reads and writes.

    Args:
        operators: Columns name, input_shapes, input_types, input_strides (JSON lists as recorded, null for none), and
            element_bytes: the size of an element where the types do not tell, as of lists of tensors; null for unknown.

    Returns:
        A row for each of them: elements of the result, read_bytes and written_bytes. The result has the inputs'
        broadcast shape and their widest type. Null where shapes were not recorded, or a type is not known.
    """
    keys = ["name", "input_shapes", "input_types", "input_strides", "element_bytes"]
    distinct = operators.select(keys).unique()
    texts = distinct.with_columns(pl.col(keys[:4]).cast(pl.String))
    found = pl.DataFrame([_sizes(*row) for row in texts.iter_rows()], schema=_SCHEMA, orient="row")
    known = distinct.hstack(found)
    joined = operators.select(keys).join(known, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return joined.select(*_SCHEMA)


def _sizes(
    name: str, shapes: str | None, types: str | None, strides: str | None, element_bytes: int | None
) -> tuple[int | None, int | None, int | None]:
    inputs = _inputs(shapes, types, strides, element_bytes)
    tensors = [tensor for one in inputs or [] for tensor in one]
    if not tensors:
        return None, None, None
    lists = any(len(one) > 1 for one in inputs or [])
    first = max(inputs or [], key=len) if lists else [_broadcast(tensors)]
    widest = max(
        tensor.element_bytes for tensor in tensors if tensor.shape or not any(other.shape for other in tensors)
    )
    if name in _OVERWRITES:
        first, tensors = (inputs or [[]])[0] or first, [tensor for one in (inputs or [])[1:] for tensor in one]
        widest = first[0].element_bytes
    elements = sum(tensor.elements for tensor in first)
    found = elements, sum(tensor.stored * tensor.element_bytes for tensor in tensors), elements * widest
    return found if max(found) <= LARGEST else (None, None, None)


def _broadcast(tensors: list[_Tensor]) -> _Tensor:
    """What tensors of these shapes are together, after the rule of broadcasting."""
    rank = max(len(tensor.shape) for tensor in tensors)
    padded = [(1,) * (rank - len(tensor.shape)) + tensor.shape for tensor in tensors]
    return _Tensor(tuple(max(sizes) for sizes in zip(*padded, strict=True)), 0, 0)


def _inputs(
    shapes: str | None, types: str | None, strides: str | None, element_bytes: int | None
) -> list[list[_Tensor]] | None:
    """The tensors of each input; empty for what is no tensor. None where they are not known."""
    dims, names, steps = _list(shapes), _list(types), _list(strides)
    if dims is None or names is None or len(dims) != len(names):
        return None
    found: list[list[_Tensor]] = []
    for at, (dim, name) in enumerate(zip(dims, names, strict=True)):
        step = steps[at] if steps is not None and at < len(steps) else None
        size = _bytes_of(name) or (element_bytes if name == "TensorList" else None)
        if name == "TensorList":
            if size is None or not isinstance(dim, list):
                return None
            found.append(list(_tensors(dim, step, size)))
        elif size is None:
            found.append([])  # a number, a list of numbers, nothing
        else:
            found += [list(_tensors([dim], [step], size))]
    return found


def _tensors(dims: list[Any], steps: Any, size: int) -> Iterator[_Tensor]:  # noqa: ANN401 - what a file says
    for at, dim in enumerate(dims):
        if not isinstance(dim, list) or not all(isinstance(one, int) and one >= 0 for one in dim):
            continue
        step = steps[at] if isinstance(steps, list) and at < len(steps) else None
        once = dim
        if isinstance(step, list) and len(step) == len(dim):
            once = [1 if jump == 0 else length for length, jump in zip(dim, step, strict=True)]
        yield _Tensor(tuple(dim), math.prod(once), size)


def _bytes_of(name: object) -> int | None:
    if not isinstance(name, str):
        return None
    return 1 if name.startswith("c10::Float8") else _ELEMENT_BYTES.get(name)


def _list(text: str | None) -> list[Any] | None:
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    return found if isinstance(found, list) else None
