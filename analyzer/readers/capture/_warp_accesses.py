"""What the code of a Triton kernel (PTX) tells of its accesses to global memory, lane by lane of a warp.

Integer arithmetic is followed for the 32 threads of one warp, with a number in place of each argument that is no
pointer; what depends on values in memory stays unknown.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

_LANES: Final = range(32)
_SECTOR: Final = 32  # bytes that the memory gives at once
_FULL: Final = (1 << _SECTOR) - 1
_LARGEST: Final = 1 << 64
_APART: Final = 4  # what lies apart takes so many times the sectors at least
_ARGUMENT: Final = 4112  # a length or stride: many sectors, and a multiple of 16 as most are

#: A value of each lane; None where nobody knows it.
_Values = list[int] | None

_LINE: Final = re.compile(
    r"^\s*\.loc\b.*?//.*?(?P<place>[\w.-]+\.py:\d+)(?=:\d+[ \]]*$)"
    r"|^\s*\.param\s+\.(?:u64|b64)\s+(?:\.ptr\b.*\s)?(?P<pointer>\w+),?$"
    r"|^\s*(?:@(?P<not>!?)(?P<guard>%p\d+)\s+)?(?P<op>[a-z]\w*)(?P<how>[\w.:]*)\s+(?P<operands>[^;\n]+);",
    re.MULTILINE,
)
_WIDTH: Final = re.compile(r"(?:\.v(?P<many>\d))?\.(?:bf|[bfsu])(?P<bits>\d+)(?P<two>x2)?$")
_ADDRESS: Final = re.compile(r"\[\s*(?P<base>[%\w]+)\s*(?:\+\s*(?P<offset>-?\d+)\s*)?\]")
_COMPARE: Final[dict[str, Callable[[int, int], bool]]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_SAME: Final = dict.fromkeys(("mov", "cvt", "cvta"), int)
_BY_NAME: Final = {"add": "add", "sub": "sub", "mul": "mul", "and": "and_", "or": "or_", "xor": "xor", "neg": "neg"}
_COMPUTE: Final[dict[str, Callable[..., int]]] = {
    **_SAME,
    **{name: getattr(operator, of) for name, of in _BY_NAME.items()},
    "min": min,
    "max": max,
    "mad": lambda a, b, c: a * b + c,
    "shl": lambda a, b: a << min(b, 64),
    "shr": lambda a, b: a >> min(b, 64),
    "div": lambda a, b: a // b,
    "rem": lambda a, b: a % b,
    "selp": lambda a, b, chosen: a if chosen else b,
    "bfe": lambda a, at, many: a >> at & (1 << many) - 1,
}


class Access(NamedTuple):
    """One access of a warp to global memory, at an address that is known."""

    place: str  # file:line of the program, empty where the code does not say
    sectors: dict[int, int]  # which bytes of each, as bits

    @property
    def bytes_asked(self) -> int:
        """How many different bytes are accessed."""
        return sum(bits.bit_count() for bits in self.sectors.values())

    @property
    def is_apart(self) -> bool:
        """Whether its bytes lie in so many times as many sectors as would hold them."""
        return len(self.sectors) >= _APART * -(-self.bytes_asked // _SECTOR)


def together(several: Iterable[Access]) -> Access:
    """What several accesses access in all."""
    found: dict[int, int] = {}
    for one in several:
        for sector, bits in one.sectors.items():
            found[sector] = found.get(sector, 0) | bits
    return Access("", found)


def accesses(ptx: str) -> Iterator[Access]:
    """The accesses of a kernel's code, each once, in its order."""
    known: dict[str, _Values] = {"%tid.x": list(_LANES)}
    place, pointers = "", dict[str, int]()
    for found in _LINE.finditer(ptx):
        place = found["place"] or place
        if found["pointer"]:
            pointers[found["pointer"]] = len(pointers) + 1 << 44
        if not found["op"]:
            continue
        active = known.get(found["guard"], [1] * 32) if found["guard"] else [1] * 32
        active = active and [int(bool(one) != bool(found["not"])) for one in active]
        address = _ADDRESS.search(found["operands"])
        if address and ".global" in found["how"]:
            access = _of_warp(place, found["how"], _value(address["base"], known), address["offset"], active)
            yield from (access,) if access else ()
        target = found["operands"].partition(",")[0].strip()
        if address and ".param" in found["how"]:
            known[target] = [pointers.get(address["base"], _ARGUMENT)] * 32
        elif target.startswith("%"):
            known[target] = None if address else _result(found["op"], found["how"], found["operands"], known)
        elif target.startswith("{"):  # several at once, as of a vector
            known.update(dict.fromkeys(re.findall(r"%\w+", found["operands"].partition("}")[0])))


def _value(name: str, known: dict[str, _Values]) -> _Values:
    """The values of a register or of a number."""
    if re.fullmatch(r"-?(?:0x[\da-fA-F]+|\d+)", name):
        return [int(name, 0)] * 32
    return known.get(name, [0] * 32 if re.match(r"%(?:tid|ctaid)\.|\w", name) else None)


def _result(op: str, how: str, operands: str, known: dict[str, _Values]) -> _Values:
    """The values that an instruction of integers computes; None for others, and of what nobody knows."""
    inputs = [_value(name.strip(), known) for name in operands.split(",")[1:]]
    compute = _COMPARE.get(how.split(".")[1]) if op == "setp" else _COMPUTE.get(op)
    if compute is None or re.search(r"\.(?:hi\b|bf\d|f\d)", how) or not all(inputs):
        return None
    try:
        values = [int(compute(*each)) for each in zip(*(one for one in inputs if one), strict=True)]
    except (ArithmeticError, TypeError, ValueError):
        return None
    return values if -_LARGEST < min(values) <= max(values) < _LARGEST else None


def _of_warp(place: str, how: str, base: _Values, offset: str | None, active: _Values) -> Access | None:
    """What the active lanes access at once."""
    width = _WIDTH.search(how)
    if not (base and active and any(active) and width):
        return None
    each = int(width["bits"]) // 8 * int(width["many"] or 1) * (2 if width["two"] else 1)
    found: dict[int, int] = {}
    for start in {one + int(offset or 0) for one, on in zip(base, active, strict=True) if on}:
        sector, at = divmod(start, _SECTOR)
        bits = (1 << each) - 1 << at
        found[sector] = found.get(sector, 0) | bits & _FULL
        if bits > _FULL:
            found[sector + 1] = found.get(sector + 1, 0) | bits >> _SECTOR
    return Access(place, found)
