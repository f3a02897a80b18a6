"""Normalises kernel names, so that the spellings of nsys, torch and ncu compare equal.

What differs between the tools is how a compiler's name was read back: ``(int)4`` or ``4``, ``<unnamed>`` or
``(anonymous namespace)``, ``const float *`` or ``float const*``, ``[lambda(float) (instance 1)]`` or
``{lambda(float)#1}``, a return type or none, and ``T2`` or the type that it stands for. What tells kernels apart stays:
namespaces, template arguments, parameters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

#: Limits on length and nesting; a name beyond them equals only itself.
_LONGEST: Final = 1 << 14
_DEEPEST: Final = 60

_UNNAMED: Final = "@anonymous"
_ANONYMOUS: Final = r"(?<!\w)<unnamed>::|\(anonymous namespace\)::|\{anonymous\}::|\b_GLOBAL__N__\w*::"
_EATEN: Final = r"(\w)<unnamed>::"
_OPERATOR: Final = r"operator *(?:\( *\)|\[ *\]|<=>|->\*?|(?:<<|>>|[-+*/%^&|=!<>])=?|&&|\|\||\+\+|--|[~,])"
_TOKEN: Final = rf"{_OPERATOR}(?=\s*[(<])|[\w$@.#:]*[\w$@#]|::|->|\.\.\.|-\d[\w.]*|\S"

_CLOSERS: Final = {"<": ">", "(": ")", "[": "]", "{": "}"}
_BUILTIN: Final = frozenset(
    ("void", "bool", "char", "short", "int", "long", "float", "double", "signed", "unsigned", "auto", "__int128")
)
_QUALIFIERS: Final = ("const", "volatile")
_NUMBER: Final = r"(-?\d+)[uUlL]{1,3}"
_PARAMETER: Final = r"T(\d{1,4})((?:::.*)?)"


@dataclass(eq=False, repr=False)
class _Group:
    """A bracketed group: its items, each a sequence of words and groups."""

    opener: str
    items: list[list[str | _Group]] = field(default_factory=list)

    @property
    def first(self) -> str | _Group | None:
        return self.items[0][0] if self.items and self.items[0] else None


_Node = str | _Group


@lru_cache(maxsize=1 << 14)
def normalised(name: str, *, parameters: bool = True) -> str:
    """Normalises a kernel name.

    Args:
        name: The name as printed by a tool.
        parameters: Whether parameter types are included. Without them overloads compare equal; with them, a name with
            parameters in an unknown spelling matches nothing.

    Returns:
        A text for comparison, not for display; for a name that cannot be parsed the stripped name itself.
    """
    text = name.strip().replace("\\", "/")
    if len(text) > _LONGEST:
        return text
    text = re.sub(_ANONYMOUS, f"{_UNNAMED}::", re.sub(_EATEN, rf"\1<{_UNNAMED}::", text))
    items = _read(text)
    if items is None:
        return text
    return ",".join(_item(item, (), parameters=parameters) for item in items)


def shortened(short: str, whole: str) -> bool:
    """Whether `short` is `whole` with words left out, in order, as on ncu's pages."""
    words = iter(re.findall(r"\w+", normalised(whole)))
    return all(word in words for word in re.findall(r"\w+", normalised(short)))


def _read(text: str) -> list[list[_Node]] | None:
    """Parses the text into nested groups; None if brackets do not match."""
    outer = _Group("", [[]])
    stack = [outer]
    for found in re.finditer(_TOKEN, text):
        piece = found[0]
        if piece.startswith("operator") and piece != "operator" and not piece[8:9].isalnum() and piece[8:9] != "_":
            stack[-1].items[-1].append(piece.replace(" ", ""))
        elif piece in _CLOSERS:
            inner = _Group(piece, [[]])
            stack[-1].items[-1].append(inner)
            stack.append(inner)
            if len(stack) > _DEEPEST:
                return None
        elif piece in _CLOSERS.values():
            if len(stack) == 1 or _CLOSERS[stack[-1].opener] != piece:
                return None
            stack.pop()
        elif piece == ",":
            stack[-1].items.append([])
        else:
            stack[-1].items[-1].append(piece)
    return outer.items if len(stack) == 1 else None


def _item(nodes: list[_Node], types: tuple[str, ...], *, parameters: bool) -> str:
    """Normalises one type, value or function; `types` resolves T1, T2…."""
    nodes = _without_cast(_const_last(_without_result(nodes)))
    text, word = "", False
    own: tuple[str, ...] = ()
    for number, node in enumerate(nodes):
        if isinstance(node, _Group):
            if node.opener == "<":
                own = tuple(_item(item, types, parameters=parameters) for item in node.items if item)
                text += f"<{','.join(own)}>"
            elif node.opener == "(" and _names_function(nodes, number):
                text += f"({_listed(node, own or types) if parameters else ''})"
            else:
                text += _bracket(node, types)
            word = False
            continue
        piece = _piece(node, types)
        if not piece.startswith("::") and own and not text.endswith("::"):
            own = ()
        starts = bool(re.match(r"[\w@$]", piece))
        text += (" " if starts and (word or text.endswith((">", ")", "}", "*", "&"))) else "") + piece
        word = bool(re.search(r"[\w@$>]$", piece))
    return text


def _listed(group: _Group, types: tuple[str, ...]) -> str:
    """Normalises a parameter list; ``T3...`` stands for all template arguments from the third on."""
    texts: list[str] = []
    for item in filter(None, group.items):
        pack = [int(found[1]) for node in item if isinstance(node, str) and (found := re.fullmatch(_PARAMETER, node))]
        if item[-1] == "..." and len(pack) == 1:
            each = ((*types[: pack[0] - 1], one) for one in types[pack[0] - 1 :])
            texts += [_item(item[:-1], own, parameters=True) for own in each]
        else:
            texts.append(_item(item, types, parameters=True))
    return "" if texts == ["void"] else ",".join(texts)


def _piece(word: str, types: tuple[str, ...]) -> str:
    if number := re.fullmatch(_NUMBER, word):
        return number[1]
    if found := re.fullmatch(_PARAMETER, word):
        place = int(found[1]) - 1
        if 0 <= place < len(types):
            return types[place] + found[2]
    return word


def _bracket(group: _Group, types: tuple[str, ...]) -> str:
    """Normalises a lambda or another unnamed entity to torch's spelling; other brackets stay."""
    nodes, last = group.items[0], group.items[-1]
    items, opener, closer = group.items if nodes else [], group.opener, _CLOSERS[group.opener]
    instance = last[-1] if last else None
    if opener == "[" and isinstance(instance, _Group) and instance.first == "instance":
        match instance.items[0]:
            case [_, str(number), *_]:
                items, opener, closer = [*group.items[:-1], last[:-1]], "{", f"#{number}}}"
    # parameters of a lambda always count, since its number alone is ambiguous
    return opener + ",".join(_item(item, types, parameters=True) for item in items) + closer


def _names_function(nodes: list[_Node], at: int) -> bool:
    """Whether the bracket at `at` is a function's parameter list."""
    group, before = nodes[at], nodes[at - 1] if at else None
    if not isinstance(group, _Group) or group.opener != "(" or before is None:
        return False
    if group.first in ("*", "&", "&&"):
        return False
    return (isinstance(before, str) and before not in ("*", "&", "&&")) or (
        isinstance(before, _Group) and before.opener in "<{["
    )


def _without_result(nodes: list[_Node]) -> list[_Node]:
    """Removes a function's return type, which only some tools print."""
    for at in range(1, len(nodes)):
        if not _names_function(nodes, at):
            continue
        start = at - 1
        if isinstance(nodes[start], _Group):
            start -= 1
        while start > 0 and _goes_on(nodes, start):
            start -= 1
        name = nodes[start] if start >= 0 else ""
        if isinstance(name, str) and name in (*_BUILTIN, *_QUALIFIERS):
            return nodes
        return nodes[max(start, 0) :]
    return nodes


def _goes_on(nodes: list[_Node], at: int) -> bool:
    """Whether the name component at `at` continues a qualified name."""
    here, before = nodes[at], nodes[at - 1]
    if isinstance(here, _Group):
        return True
    return here.startswith("::") or (isinstance(before, str) and before.endswith("::"))


def _const_last(nodes: list[_Node]) -> list[_Node]:
    """Moves const behind the type that it qualifies, as the other tools print it."""
    leading = 0
    while leading < len(nodes) and nodes[leading] in _QUALIFIERS:
        leading += 1
    if not leading:
        return nodes
    end = leading
    while end < len(nodes) and nodes[end] not in ("*", "&", "&&", "...") and not _paren(nodes[end]):
        end += 1
    return [*nodes[leading:end], *nodes[:leading], *nodes[end:]]


def _without_cast(nodes: list[_Node]) -> list[_Node]:
    """Removes the cast of a value; booleans become true and false."""
    match nodes:
        case [_Group(opener="(") as cast, str(value)] if re.fullmatch(r"-?\d\w*", value):
            if cast.items == [["bool"]]:
                return ["true" if value == "1" else "false"]
            return [value]
    return nodes


def _paren(node: _Node) -> bool:
    return isinstance(node, _Group) and node.opener == "("
