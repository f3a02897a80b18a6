"""What the PTX of a compiled kernel tells of its arithmetic and its accesses, with the lines of the program."""

import re
from collections import Counter
from typing import Final

#: Of PTX: a place in the program; of what a function was called for that of the call.
_LOC: Final = r"^\s*\.loc\b.*?//.*?(?P<place>[\w.-]+\.py:\d+)(?=:\d+[ \]]*$)"

#: Of PTX: places in the program, accesses of global memory with their width, labels and branches, tensor cores; and
#: predicates that few threads have, by their number.
_PTX: Final = re.compile(
    _LOC + r"|\bsetp\.(?:eq\.\w+|lt\.u32)\s+(?P<one>%p\d+)"
    r"|\band\.pred\s+(?P<both>%p\d+),\s*(?P<left>%p\d+),\s*(?P<right>%p\d+)"
    r"|(?:@(?P<guard>%p\d+)\s+)?\b(?P<access>ld|st|atom|red)\.global(?P<how>[\w.:]*?)(?:\.v(?P<many>\d))?\.(?:bf|[bfsu])(?P<bits>\d+)(?P<two>x2)?\s"
    r"|^(?P<label>\$\w+):|\bbra\S*\s+(?P<to>\$\w+)|\bw?g?mma(?P<tensor>\.|_)",
    re.MULTILINE,
)
_MUCH: Final = 0.2  # atomics are so much of the bytes that a thread accesses at least

#: A place in the program, a multiply-add, a load from shared memory, and tensor cores. So many multiply-adds and loads
#: a thread has that multiplies blocks, and hardly others.
_MULTIPLIES: Final = re.compile(
    _LOC + r"|\b(?:(?P<adds>fma\.rn\.f32)\b|(?P<load>ld\.shared)\b|(?P<tensor>w?g?mma[._]))",
    re.MULTILINE,
)
_OF_BLOCKS, _LOADS, _HARDLY_OTHERS = 256, 64, 0.9


def told_by(ptx: str) -> dict[str, str | int | float]:
    """The columns of a kernel that its PTX tells; empty where it tells none."""
    return {**_atomics(ptx), **_products(ptx), **_summed(ptx), **_widened(ptx), **_doubles(ptx)}


def _products(ptx: str) -> dict[str, str | int]:
    """The column on products of a kernel whose multiply-adds are nearly all of such lines, without tensor cores."""
    counts, place, loads = Counter[str](), "", 0
    for match in _MULTIPLIES.finditer(ptx):
        if match["tensor"]:
            return {}
        place, loads = match["place"] or place, loads + bool(match["load"])
        counts[place] += bool(match["adds"])
    lines = [(line, count) for line, count in counts.most_common() if line and count >= _OF_BLOCKS]
    enough = loads >= _LOADS and sum(count for _, count in lines) >= _HARDLY_OTHERS * counts.total()
    return {"float32_products": lines[0][0]} if lines and enough else {}


#: A place in the program, arithmetic of float32 by its kind, the bytes of loads from global memory, and what no such
#: kernel has. A product of blocks of 16 × 16 or more multiplies each value that a thread loads with eight others.
_SUMS: Final = re.compile(
    _LOC + r"|\b(?P<kind>fma|sub)(?:\.\w+)*?\.f32\b"
    r"|\bld\.global[\w.:]*?(?:\.v(?P<many>\d))?\.(?:bf|[bfsu])(?P<bits>\d+)\b"
    r"|\bcp\.async\.c[ag]\.[^,;]*,[^,;]*,\s*(?P<bytes>\w+)|(?P<other>\bw?g?mma[._]|\bcp\.async\.bulk)",
    re.MULTILINE,
)
_OF_SUMS, _WITH_EACH = 64, 8


def _summed(ptx: str) -> dict[str, str]:
    """The column on sums (tl.sum) of products of a kernel without tensor cores; of differences they are distances."""
    counts, differences, place, bytes_loaded = Counter[str](), 0, "", 0
    for match in _SUMS.finditer(ptx):
        if match["other"]:
            return {}
        if match["place"]:  # of Triton's library, called from there, or of the program itself
            place = match["place"] if "standard.py" in match[0].removesuffix(match["place"]) else ""
        counts[place] += match["kind"] == "fma"
        differences += match["kind"] == "sub"
        bytes_loaded += int(match["bits"] or 0) // 8 * int(match["many"] or 1) + int(match["bytes"] or "0", 0)
    most = counts[place := max(filter(None, counts), key=lambda one: counts[one], default="")]
    # each value has two bytes at least
    are_products = most >= max(_OF_SUMS, _WITH_EACH * bytes_loaded // 2) and 2 * differences <= most
    return {"summed_products": place} if are_products and place and bytes_loaded else {}


#: A place in the program, values of 16 bits that become float32, the type of what tensor cores multiply with what they
#: add to, and what float32 arithmetic reads. So many a thread converts of a block that is multiplied as it was loaded.
_WIDENS: Final = re.compile(
    _LOC + r"|\bcvt\.f32\.b?f16\s+(?P<widened>%\w+)"
    r"|\bw?g?mma[._]\S+?\.f32\.(?P<type>\w+)\.\w+[^{;]*\{(?P<adds>[^}]*)\}"
    r"|\b(?:fma|add|sub|mul|div|rcp|sqrt|rsqrt|ex2|lg2|max|min|neg|abs|tanh|setp|selp)\b[.\w]*\.f32\b[^,;]*(?P<reads>[^;]*)",
    re.MULTILINE,
)
_OF_BLOCK: Final = 16


def _widened(ptx: str) -> dict[str, str]:
    """The column on products in TF32 of blocks of 16 bits, of a kernel that has no others on tensor cores."""
    types, place, line, widened, others = set[str](), "", "", set[str](), set[str]()
    for match in _WIDENS.finditer(ptx):
        place = match["place"] or place
        if match["widened"]:
            widened.add(match["widened"])
        others.update(re.findall(r"%\w+", match["adds"] or match["reads"] or ""))
        if match["type"]:
            types.add(match["type"])
            line = place
    return {"widened_products": line} if types == {"tf32"} and line and len(widened - others) >= _OF_BLOCK else {}


def _atomics(ptx: str) -> dict[str, str | int]:
    """The columns on atomics of a kernel that adds much by these, as its PTX tells.

    Empty where it does not tell: with loops, which repeat accesses, and of products on tensor cores. What only some
    threads of a program add, such as the first one, is left out.
    """
    place, labels, few, lines, bytes_of = "", set[str](), set[str](), dict[str, None](), {"add": 0, "others": 0}
    for match in _PTX.finditer(ptx):
        if match["tensor"] or match["to"] in labels:
            return {}
        place = match["place"] or place
        labels.add(match["label"] or "")
        if match["one"] or few.intersection(match.group("left", "right")):
            few.add(match["one"] or match["both"])
        adds = ".add" in (match["how"] or "")
        if match["access"] and not (adds and match["guard"] in few):
            width = int(match["bits"]) // 8 * int(match["many"] or 1) * (2 if match["two"] else 1)
            bytes_of["add" if adds else "others"] += width
            lines |= {place: None} if adds and place else {}
    much = lines and bytes_of["add"] >= _MUCH * sum(bytes_of.values())
    return {"atomics": ", ".join(lines), "atomic_bytes": bytes_of["add"]} if much else {}


#: A place in the program, and arithmetic in float64 or float32. In so many places a kernel that is meant to compute in
#: float64 does; the powers of a step that optimizers compute so stand in a few.
_ARITHMETIC: Final = re.compile(
    _LOC
    + r"|\b(?:fma|add|sub|mul|div|rcp|sqrt|ex2|lg2|max|min|neg|abs|tanh)(?:\.\w+)*?\.b?f(?P<bits>64|32|16)(?:x2)?\b",
    re.MULTILINE,
)
_PLACES: Final = 4


def _doubles(ptx: str) -> dict[str, float]:
    """The column on float64 of a kernel: the part of the lines with arithmetic in which some of it is."""
    place, lines = "", dict[str, set[str]]()
    for match in _ARITHMETIC.finditer(ptx):
        place = match["place"] or place
        if match["bits"]:
            lines.setdefault(place, set()).add(match["bits"])
    doubles = sum("64" in bits for bits in lines.values())
    return {"float64_share": doubles / len(lines)} if doubles >= _PLACES else {}
