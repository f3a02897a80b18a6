"""A kernel's name taken apart, what a decoder tells of it, by the tables in tables.txt, and when two names are one."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

Fields = dict[str, Any]
Head = tuple[str | None, ...]
#: What tells the fields of a name: a function, or a table of patterns by its name.
Decoder = Callable[["Spelled"], Fields | None] | str

#: Names are truncated to this length, which no library's name reaches, to bound the time.
_LONGEST: Final = 1 << 14

# Patterns are compiled on first use, not on import; none of them backtracks.
_UNNAMED: Final = r"(\w)<unnamed>::|(?:<|\b)unnamed>::|\(anonymous namespace\)::|\{anonymous\}::|_GLOBAL__N__\w*::"
_CAST: Final = r"\((?:unsigned |signed |long |short )*[A-Za-z_][\w:]*\)(?=-?\d)"
_PIECE: Final = r"->|[<>()\[\]{},\s]|[^<>()\[\]{},\s-]+|-"
_CLOSERS: Final = (">", ")", "]", "}")

_MANGLED: Final = r"L[a-z]n?(\d{1,9})E|D[FB]\d{1,4}[_bx]|S\d*_|T\d*_|(\d{1,4})(?=[A-Za-z_])|I|Z|."


class Spelled(NamedTuple):
    """A parsed kernel name."""

    #: the whole name, normalised: without casts, anonymous namespaces and surrounding space. For a mangled name its
    #: words, separated by spaces
    text: str
    function: str  # the qualified name of the function, such as at::native::reduce_kernel
    word: str  # the last component of that
    args: tuple[str, ...]  # the template arguments, as text
    mangled: bool = False  # whether the name was mangled; then the arguments are only the words in it, in order

    @property
    def snake(self) -> str:
        """The word in snake case."""
        return snake(self.word)

    def arg(self, number: int) -> str:
        """Template argument by index, as text; empty if absent. Of a mangled name only the first one, if numeric."""
        if number >= len(self.args) or (self.mangled and (number or not self.args[0].isdecimal())):
            return ""
        return self.args[number]

    def number(self, at: int) -> int | None:
        """Template argument as an integer: 4, 4u, 4ul, -1."""
        match = re.fullmatch(r"(-?[0-9]{1,18})[uUlL]{0,3}", self.arg(at))
        return int(match[1]) if match else None

    def flag(self, at: int) -> bool | None:
        """Template argument as a boolean."""
        return {"true": True, "false": False, "1": True, "0": False}.get(self.arg(at))


def spelled(name: str) -> Spelled:
    """Parses a kernel name."""
    text = re.sub(r"(?: \[clone \.kd\]|\.kd)$", "", name[:_LONGEST].strip())  # what ROCm appends for a descriptor
    if text.startswith("_Z"):
        return _demangled(text)
    if "unnamed>" in text or "anonymous" in text or "_GLOBAL__N__" in text:
        text = re.sub(_UNNAMED, lambda match: f"{match[1]}<" if match[1] else "", text)
    return taken_apart(re.sub(_CAST, "", text.replace("(bool)1", "true").replace("(bool)0", "false")))


def taken_apart(text: str) -> Spelled:
    """Parses a name or template argument of normalised spelling."""
    function, args, start = "", tuple[str, ...](), True
    opener, depth, edges = "", 0, list[int]()
    for match in re.finditer(_PIECE, text):
        piece = match[0]
        if piece == "(" and function and not depth:
            break
        if piece in ("<", "(", "[", "{"):
            opener, edges = (opener, edges) if depth else (piece, [match.start()])
            depth += 1
        elif depth:
            if piece in _CLOSERS:
                depth -= 1
                if opener == "<" and not depth:
                    between = pairwise([*edges, match.start()])
                    args = tuple(part for left, right in between if (part := text[left + 1 : right].strip()))
            elif piece == "," and depth == 1:
                edges.append(match.start())
        elif piece.isspace() or piece in (",", "->", "-", *_CLOSERS):
            start = True
        else:
            if start and not (piece.startswith("::") and function):
                function, args = "", ()
            function, start = function + piece, False
    function = function.strip("*&:").removesuffix("::operator")
    return Spelled(text, function, function.rpartition("::")[2], args)


def snake(word: str) -> str:
    """CamelCase as snake_case: GeluBackward as gelu_backward."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower()


def unmangled(name: str) -> str:
    """Demangles a name as far as supported: function and words of its arguments; other names stay."""
    parsed = _demangled(name[:_LONGEST]) if name.startswith("_Z") else None
    if parsed is None or not parsed.function:
        return name
    args = ", ".join(filter(None, parsed.args))
    return f"{parsed.function}<{args}>" if args else parsed.function


def _demangled(text: str) -> Spelled:
    """Parses a mangled name into the function's qualified name and the other names in it."""
    words: list[str] = []
    path, at, nested = 0, 2, text[2:3] == "N"
    pattern = re.compile(_MANGLED, re.ASCII | re.DOTALL)
    while match := pattern.match(text, at):
        at = match.end()
        if match[1]:
            words.append(match[1])
        elif match[2]:
            size = int(match[2])
            word, at = text[at : at + size], at + size
            if not word.startswith("_GLOBAL__N_"):
                words.append(word)
            if not nested:
                path = path or len(words)
        elif nested and words and match[0] in {"I", "E"}:
            path = path or len(words)
    path = path or len(words)
    function = "::".join(words[:path])
    word = words[path - 1] if path else ""
    return Spelled(" ".join([function, *words[path:]]), function, word, tuple(words[path:]), mangled=True)


# Element types, each of which has one short name.

#: Longest spelling of a type, in characters.
_LONGEST_TYPE: Final = 80
#: Input types of tensor cores, which have no instruction for plain f32.
TENSOR_TYPES: Final = ("f16", "bf16", "tf32", "e4m3", "e5m2", "e2m1", "i8", "u8")


def type_of(text: str) -> str | None:
    """The short name of a C++ or library type; None if it is not an element type."""
    lowered = text.lower()
    short = by_name("types").get(lowered)
    if short or not text or len(text) > _LONGEST_TYPE:
        return short
    bare = re.sub(r"\b(?:const|volatile)\b|[*&]|__restrict__|\w+::", "", lowered)
    return by_name("types").get("_".join(bare.split()).replace("_>", ">"))


def types_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The short names of several types; empty if any is unknown."""
    types = [type_of(text) for text in texts]
    return tuple(short for short in types if short) if all(types) else ()


# The fields of a decoded name, and the tables.

_FILE: Final = Path(__file__).with_name("tables.txt")
#: Bytes of an element, by its type in a kernel's name.
ELEMENT_BYTES: Final = {
    **dict.fromkeys(("f64", "i64"), 8),
    **dict.fromkeys(("f32", "tf32", "i32"), 4),
    **dict.fromkeys(("bf16", "f16", "i16"), 2),
    **dict.fromkeys(("e4m3", "e5m2", "i8", "u8", "bool"), 1),
}

#: Family of a kernel whose name does not reveal what it does.
OTHER: Final = "other"


class KernelName(NamedTuple):
    """A decoded kernel name; fields that the name does not reveal are None or empty."""

    function: str = ""  # the function's qualified name, without parameters and template arguments
    #: what it does, such as gemm, of those in docs/subjects.md; ``other`` if the name does not reveal it
    family: str = OTHER
    library: str | None = None  # the library, such as cublas, cutlass, cudnn, nccl, aten, inductor
    operation: str | None = None  # what it computes, such as pow, sum, allreduce, fprop
    #: Inductor's kind of kernel: pointwise, reduction, persistent_reduction, template, foreach, split_scan
    kind: str | None = None
    direction: str | None = None  # ``forward`` or ``backward``
    fused: tuple[str, ...] = ()  # the fused operators, in the order of the name
    ordinal: int | None = None  # Inductor's kernel number
    functor: str | None = None  # the class or function applied to each element
    arch: str | None = None  # the target architecture, such as sm80, or ampere if the name has only that
    #: types of the inputs in order, such as f32, tf32, bf16, e4m3; of a GEMM the types of A and B
    input_types: tuple[str, ...] = ()
    output_type: str | None = None  # type of the output
    accumulator_type: str | None = None  # type in which it computes
    scale_type: str | None = None  # type of the scale factors alpha and beta
    layout: str | None = None  # layout of the inputs, such as tn (A transposed, B not, as in BLAS) or nhwc
    output_layout: str | None = None  # layout of the output
    tile: tuple[int, ...] = ()  # output elements per block, m and n, then k if in the name
    stages: int | None = None  # pipeline stages of the main loop
    warps: tuple[int, ...] = ()  # layout or number of the warps of a block
    warpgroups: tuple[int, ...] = ()  # layout or number of its warpgroups (four warps each)
    cluster: tuple[int, ...] = ()  # blocks per cluster
    instruction: tuple[int, ...] = ()  # shape m, n, k of the tensor-core instruction
    alignment: int | None = None  # alignment of the operands, in elements
    vector: int | None = None  # elements loaded at once per thread
    split_k: bool | None = None  # true if the sum over k is split across blocks
    tensor_core: bool | None = None  # whether it uses tensor cores
    algorithm: str | None = None  # algorithm of a collective, such as ring or tree; of a convolution, such as winograd
    protocol: str | None = None  # protocol of a collective, such as ll, ll128, simple
    head_dim: int | None = None  # head dimension, of attention
    causal: bool | None = None  # whether attention is causal

    @property
    def dtype(self) -> str | None:
        """The distinct input types; the output or accumulator type if the inputs are unknown."""
        return ",".join(dict.fromkeys(self.input_types)) or self.output_type or self.accumulator_type


#: What products compute besides, as their names have it.
_EPILOGUES: Final = (
    *("relu", "gelu", "bias", "drelu", "dgelu", "bgrad", "bgrada", "bgradb", "silu", "add", "badd", "swiglu"),
)
_JOINED: Final = {"gelubias": ("gelu", "bias"), "relubias": ("relu", "bias")}


def fused(text: str) -> tuple[str, ...]:
    """What the words of a text say that a product computes besides."""
    parts = (part for word in text.lower().split("_") for part in _JOINED.get(word, (word,)))
    return tuple(dict.fromkeys(part for part in parts if part in _EPILOGUES))


#: The values of fields that are no texts, by the text of a group.
_VALUES: Final[dict[str, Callable[[str], Any]]] = {
    **dict.fromkeys(
        ("tile", "cluster", "instruction", "warps", "warpgroups"),
        lambda text: tuple(map(int, re.findall(r"\d+", text))),
    ),
    **dict.fromkeys(("stages", "alignment", "vector", "ordinal", "head_dim"), int),
    **dict.fromkeys(("output_type", "accumulator_type", "scale_type"), type_of),
    **dict.fromkeys(("split_k", "tensor_core"), lambda text: text != "false"),
    "causal": {"true": True, "false": False, "1": True, "0": False}.get,
    **dict.fromkeys(("algorithm", "layout", "output_layout"), str.lower),
    "direction": lambda text: "backward" if text[0] in "bB" else "forward",
    "input_types": lambda text: types_of([text]),
    "fused": fused,
    "arch": lambda text: f"sm{text}" if text.isdecimal() else text,
}
#: Groups that hold the type of so many inputs.
_OPERANDS: Final = {"a": 1, "b": 1, "ab": 2, "qkv": 3}


def in_groups(match: re.Match[str] | None) -> Fields:
    """The fields that the named groups of a match hold, by the names of the groups; none of groups without text."""
    return _valued(match.groupdict()) if match else {}


def _valued(every_text: dict[str, str | None]) -> Fields:
    """Fields by name with their values, from texts."""
    texts = {name: text for name, text in every_text.items() if text}
    fields = {name: _VALUES.get(name, str)(text) for name, text in texts.items() if name not in _OPERANDS}
    operands = [text for name, text in texts.items() for _ in range(_OPERANDS.get(name, 0))]
    return {**fields, "input_types": types_of(operands)} if operands else fields


#: A word in snake case that is a direction.
WAY: Final = r"(?:^|_)(?P<direction>forward|backward)(?=_|$)"


def direction(text: str) -> str | None:
    """``backward`` or ``forward`` where one of the words of a name says so, in snake or camel case."""
    words = {*re.split(r"[^a-z0-9]+", snake(text))}
    if words & {"bwd", "backward"}:
        return "backward"
    return "forward" if words & {"fwd", "forward"} else None


@cache
def _patterns(table: str) -> tuple[tuple[tuple[str, ...], str, Head], ...]:
    """The rows of a table of patterns: plain parts, pattern, head; lines of one head are one, but for named groups."""
    together: list[tuple[Head, list[str]]] = []
    for head, words in _lines(table):
        if together and together[-1][0] == head and "(?P<" not in words[0]:
            together[-1][1].extend(words)
        else:
            together.append((head, words))
    return tuple(
        (tuple(filter(str.isidentifier, words)), "|".join(word for word in words if not word.isidentifier()), head)
        for head, words in together
    )


@cache
def by_name(table: str) -> dict[str, str]:
    """The one word before the colon by name, of a table of names."""
    return {name: key for (key,), names in _lines(table) for name in names if key}


@cache
def exact(table: str) -> dict[str, Head]:
    """The words before the colon by name, of a table of names."""
    return {name: head for head, names in _lines(table) for name in names}


def _rows(table: str, name: Spelled, text: str) -> Iterator[Fields]:
    """What each row of a table of patterns says of which one is in `text`."""
    for parts, pattern, head in _patterns(table):
        if parts and any(part in text for part in parts):
            yield headed(head, name, text)
        elif pattern and (match := re.search(pattern, text)):
            yield headed(head, name, text) | in_groups(match)


def looked_up(table: str, name: Spelled, text: str | None = None) -> Fields:
    """What a table of patterns says of a name, or of `text` in it; empty if it says nothing."""
    rows, part = _tables()[table][0]
    each = _rows(table, name, getattr(name, part) if text is None else text)
    return next(each, {}) if rows == "first" else {field: value for fields in each for field, value in fields.items()}


def first(decoders: Iterable[Decoder], name: Spelled) -> Fields:
    """What the first decoder says that says anything; those that are texts are names of tables."""
    for decoder in decoders:
        if fields := looked_up(decoder, name) if isinstance(decoder, str) else decoder(name):
            return fields
    return {}


def headed(head: Head, name: Spelled, text: str) -> Fields:
    """The fields in the head of a line: four by their places, and others as NAME=VALUE."""
    names = ("family", "operation", "library", "direction")
    fields: Fields = {field: word for field, word in zip(names, head, strict=False) if word}
    if fields.get("direction") == "?":
        fields["direction"] = direction(text)
    for word in filter(None, head[len(names) :]):
        field, _, value = word.partition("=")
        if field == "then":
            fields |= looked_up(value.replace("_", " "), name)
        else:
            fields |= _valued({field: name.arg(int(value[1:-1])) if value.startswith("<") else value})
    return fields


def _lines(table: str) -> Iterator[tuple[Head, list[str]]]:
    for line in _tables()[table][1]:
        head, _, words = line.partition(": ")
        yield tuple(None if word == "-" else word for word in head.split()), words.split()


@cache
def _tables() -> dict[str, tuple[list[str], list[str]]]:
    """Of each table in tables.txt, beside this module: how it is looked up, and its lines without comments."""
    _, *parts = re.split(r"^\[([^\]:]+)(?:: (.+))?\]\n", _FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = ([line for line in part.splitlines() if line and not line.startswith("#")] for part in parts[2::3])
    ways = ((way or "").split(" in ") for way in parts[1::3])
    return dict(zip(parts[::3], zip(ways, lines, strict=True), strict=True))


# Names that are the same in the spellings of nsys, torch and ncu.
#
# What differs between the tools is how a compiler's name was read back: ``(int)4`` or ``4``, ``<unnamed>`` or
# ``(anonymous namespace)``, ``const float *`` or ``float const*``, ``[lambda(float) (instance 1)]`` or
# ``{lambda(float)#1}``, a return type or none, and ``T2`` or the type that it stands for. What tells kernels apart
# stays: namespaces, template arguments, parameters.

#: Limit on nesting; a name beyond it, or beyond that on length, equals only itself.
_DEEPEST: Final = 60

_NO_NAME: Final = "@anonymous"
_ANONYMOUS: Final = r"(?<!\w)<unnamed>::|\(anonymous namespace\)::|\{anonymous\}::|\b_GLOBAL__N__\w*::"
_OF_ITS_FILE: Final = r"\b_INTERNAL_[0-9a-f]+_\d+_\w+?_cu_[0-9a-f]+(?:_\d+)?::"  # what torch prints of a lambda in one
_OPERATOR: Final = r"operator *(?:\( *\)|\[ *\]|<=>|->\*?|(?:<<|>>|[-+*/%^&|=!<>])=?|&&|\|\||\+\+|--|[~,])"
_TOKEN: Final = rf"{_OPERATOR}(?=\s*[(<])|[\w$@.#:]*[\w$@#]|::|->|\.\.\.|-\d[\w.]*|\S"

_CLOSER_OF: Final = {"<": ">", "(": ")", "[": "]", "{": "}"}
_BUILTIN: Final = frozenset(
    ("void", "bool", "char", "short", "int", "long", "float", "double", "signed", "unsigned", "auto", "__int128")
)
_QUALIFIERS: Final = ("const", "volatile")
_POINTERS: Final = ("*", "&", "&&")
_BEHIND_TYPE: Final = (*_POINTERS, "...", "(")
_PARAMETER: Final = r"T(\d{1,4})((?:::.*)?)"


class _Group(NamedTuple):
    """A bracketed group: its items, each a sequence of words and groups."""

    opener: str
    items: "list[list[str | _Group]]"

    @property
    def first(self) -> "str | _Group | None":
        return self.items[0][0] if self.items[0] else None


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
    text = re.sub(_OF_ITS_FILE, "", re.sub(r"(\w)<unnamed>::", rf"\1<{_NO_NAME}::", text))
    text = re.sub(_ANONYMOUS, f"{_NO_NAME}::", text)
    items = _read(text)
    return text if items is None else ",".join(_item(item, (), parameters=parameters) for item in items)


def shortened(short: str, whole: str) -> bool:
    """Whether `short` is `whole` with words left out, in order, as on ncu's pages."""
    words = iter(re.findall(r"\w+", normalised(whole)))
    return all(word in words for word in re.findall(r"\w+", normalised(short)))


def _read(text: str) -> list[list[_Node]] | None:
    """Parses the text into nested groups; None if brackets do not match."""
    outer = _Group("", [[]])
    stack = [outer]
    for match in re.finditer(_TOKEN, text):
        piece = match[0]
        if piece in _CLOSER_OF:
            inner = _Group(piece, [[]])
            stack[-1].items[-1].append(inner)
            stack.append(inner)
            if len(stack) > _DEEPEST:
                return None
        elif piece in _CLOSER_OF.values():
            if _CLOSER_OF.get(stack[-1].opener) != piece:
                return None
            stack.pop()
        elif piece == ",":
            stack[-1].items.append([])
        else:
            stack[-1].items[-1].append(piece.replace(" ", ""))  # as in operator ()
    return outer.items if len(stack) == 1 else None


def _item(nodes: list[_Node], types: tuple[str, ...], *, parameters: bool) -> str:
    """Normalises one type, value or function; `types` resolves T1, T2…."""
    nodes = _without_cast(_const_last(_without_result(nodes)))
    text, word, arguments = "", False, tuple[str, ...]()
    for number, node in enumerate(nodes):
        if isinstance(node, _Group):
            word = False
            if node.opener == "<":
                arguments = tuple(_item(item, types, parameters=parameters) for item in node.items if item)
                text += f"<{','.join(arguments)}>"
            elif _names_function(nodes, number):
                text += f"({_listed(node, arguments or types) if parameters else ''})"
            else:
                text += _bracket(node, types)
            continue
        piece = _piece(node, types)
        if not piece.startswith("::") and arguments and not text.endswith("::"):
            arguments = ()
        starts = bool(re.match(r"[\w@$]", piece))
        text += (" " if starts and (word or text.endswith((">", ")", "}", "*", "&"))) else "") + piece
        word = bool(re.search(r"[\w@$>]$", piece))
    return text


def _listed(group: _Group, types: tuple[str, ...]) -> str:
    """Normalises a parameter list; ``T3...`` stands for all template arguments from the third on."""
    texts: list[str] = []
    for item in filter(None, group.items):
        pack = [int(match[1]) for node in item if isinstance(node, str) and (match := re.fullmatch(_PARAMETER, node))]
        if item[-1] == "..." and len(pack) == 1:
            each = ((*types[: pack[0] - 1], last) for last in types[pack[0] - 1 :])
            texts += [_item(item[:-1], arguments, parameters=True) for arguments in each]
        else:
            texts.append(_item(item, types, parameters=True))
    return "" if texts == ["void"] else ",".join(texts)


def _piece(word: str, types: tuple[str, ...]) -> str:
    if number := re.fullmatch(r"(-?\d+)[uUlL]{1,3}", word):
        return number[1]
    match = re.fullmatch(_PARAMETER, word)
    return types[int(match[1]) - 1] + match[2] if match and 0 < int(match[1]) <= len(types) else word


def _bracket(group: _Group, types: tuple[str, ...]) -> str:
    """Normalises a lambda or another unnamed entity to torch's spelling; other brackets stay."""
    nodes, last = group.items[0], group.items[-1]
    items, opener, closer = group.items if nodes else [], group.opener, _CLOSER_OF[group.opener]
    instance = last[-1] if last else None
    if opener == "[" and isinstance(instance, _Group) and instance.first == "instance":
        match instance.items[0]:
            case [_, str(number), *_]:
                items, opener, closer = [*group.items[:-1], last[:-1]], "{", f"#{number}}}"
    # parameters of a lambda always count, since its number alone is ambiguous
    return opener + ",".join(_item(item, types, parameters=True) for item in items) + closer


def _names_function(nodes: list[_Node], at: int) -> bool:
    """Whether the bracket at `at` is a function's parameter list."""
    group, before = nodes[at], nodes[at - 1] if at else "*"
    if not isinstance(group, _Group) or group.opener != "(" or group.first in _POINTERS:
        return False
    return before not in _POINTERS if isinstance(before, str) else before.opener in "<{["


def _without_result(nodes: list[_Node]) -> list[_Node]:
    """Removes a function's return type, which only some tools print."""
    for at in range(1, len(nodes)):
        if not _names_function(nodes, at):
            continue
        start = at - 2 if isinstance(nodes[at - 1], _Group) else at - 1
        while start > 0 and _goes_on(nodes[start], nodes[start - 1]):
            start -= 1
        name = nodes[start] if start >= 0 else ""
        return nodes if isinstance(name, str) and name in (*_BUILTIN, *_QUALIFIERS) else nodes[max(start, 0) :]
    return nodes


def _goes_on(here: _Node, before: _Node) -> bool:
    """Whether a component continues a qualified name, behind the one `before` it."""
    return isinstance(here, _Group) or here.startswith("::") or (isinstance(before, str) and before.endswith("::"))


def _const_last(nodes: list[_Node]) -> list[_Node]:
    """Moves const behind the type that it qualifies, as the other tools print it."""
    qualifiers = [*takewhile(lambda node: node in _QUALIFIERS, nodes)]
    behind = nodes[len(qualifiers) :]
    ends = (at for at, node in enumerate(behind) if (node if isinstance(node, str) else node.opener) in _BEHIND_TYPE)
    end = next(ends, len(behind)) if qualifiers else 0
    return [*behind[:end], *qualifiers, *behind[end:]]


def _without_cast(nodes: list[_Node]) -> list[_Node]:
    """Removes the cast of a value; booleans become true and false."""
    match nodes:
        case [_Group(opener="(") as cast, str(value)] if re.fullmatch(r"-?\d\w*", value):
            return [{"1": "true"}.get(value, "false") if cast.items == [["bool"]] else value]
    return nodes
