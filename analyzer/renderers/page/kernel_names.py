"""Shortens CUDA kernel names by meaning: never truncated blindly, never two alike.

A demangled name is parsed into a tree: what tells of the kernel's qualified name, its template arguments, and theirs.
Every word of the tree is weighed by what it tells (the ranks below). A name that is too long loses its return type,
parameters and casts, and the namespaces in its arguments; then what tells least, word by word, until it fits. Of names
that come out alike each keeps the most telling word in which it differs.

Nsight's spelling is read (``<unnamed>``, ``(int)4``, ``[lambda(float) (instance 1)]``), and torch.profiler's
(``(anonymous namespace)``, ``4``, ``{lambda(float)#1}``); what is no C++ name is taken as a row of words.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count

from kanalyze.decoder.fields import unmangled

NARROWEST = 12  # minimum width, in characters

# Ranks of words, in the order in which they are dropped.
(
    _SCOPE,  # the namespaces of the kernel
    _BOILERPLATE,  # std::array<char*, 3>, TensorListMetadata<2>, a policy of cub
    _LAMBDA,  # index of a lambda within the informative function: ::λ2::λ1(float)
    _SHELL,  # a wrapper of the informative part: ReduceOp<…>, Kernel2<…>
    _NESTED,  # types and numbers beside the informative part: BinaryFunctor<float, MulFunctor<…>>
    _MARK,  # the … in place of dropped arguments
    _FLAG,  # true and false among the kernel's own arguments
    _INNER,  # types and numbers of the innermost template: MulFunctor<float>
    _NOISE,  # Functor, _kernel_cuda, Impl in arguments
    _CLASS,  # arguments that are some class: SoftMaxForwardEpilogue
    _OWN_NOISE,  # _kernel in the kernel's own name
    _TYPE,  # types among the kernel's own arguments
    _NUMBER,  # numbers among the kernel's own arguments
    _OUTER,  # how a functor is applied: BinaryFunctor<MulFunctor>
    _FILLER,  # stage3, warpsize2x2x1, execute: how a library names its builds
    _WORD,  # the other words of the kernel's own name
    _LAYOUT,  # tn, NNT, a second tile
    _KEY,  # gemm, 128x64: what distinguishes a library's kernels
    _HEAD,  # the first word of the kernel's own name
    _TELLING_WORD,  # other words of the informative part
    _TELLING,  # the first word of the functor, or of the lambda's enclosing function
    _DIFFERENCE,  # a word that distinguishes two kernels
) = (rank << 32 for rank in range(22))
_MOST = 1 << 12  # upper bound of an order within a rank, and of an order within that
_DEEPEST = 40  # arguments nested deeper are one word
_LONGEST = 1 << 14  # names are truncated here
_GAP, _DIGITS = "…", "0123456789"

# Patterns; compiled on first use, not on import.
_PIECE = (
    r"\s*(?:const(?=::))?((?:\w++::|\(anonymous namespace\)::|<unnamed>::)*+)"
    r"(operator ?(?:\(\)|[^\w\s(]+)|[\w$~.]++|::|->|<<(?!unnamed>)|\S|$)"
)
_WORDS = (
    r"(::|_+|\s+|)(tilesize|[nt]{1,2}_[nt](?=_)|[A-Z]{0,2}[a-z]{4,16}(?:[A-Z](?![A-Za-z]))?\d*(?:x\d+)*"
    r"|[A-Z]+(?![a-z])\d*|[A-Z]?[a-z0-9]{1,16}|[^\W_]{1,16}|[^\w\s]{1,16})"
)
_BUILTIN = (
    r"true|false|nullptr|(?:__)?(?:nv_)?(?:void|bool|char|u?int|b?float|half|double|complex|size|t|(?:un)?signed"
    r"|long|short)\d*(?:_[te]\w*)?(?: .*)?"
)
#: A kernel name within a phrase: "after gemm on stream 7".
_PHRASE = r"(after )?(.*?)( on (?:the same |another )?(?:stream|GPU|process).*)?"
_CLOSERS = {"(": ")", "<": ">", "[": "]", "{": "}"}
_QUALIFIERS = {"const", "volatile", "struct", "class", "enum", "typename", "noexcept"}
_INTEGERS = {"unsigned", "signed", "long", "short", "int", "char"}
_GENERIC = {"kernel", "functor", "op", "Op", "run", "type", "Type", "value", "Params"}
_SHELLS = {
    *("Kernel", "Kernel2", "device_kernel", "_kernel_agent", "func_wrapper_t", "ReduceOp", "enable_sm90_or_later"),
    *("gpu_kernel_impl", "gpu_kernel_impl_nocast", "gpu_index_kernel", "kentry"),
}
_BOILERPLATE_NAMES = {"array", "Array", "tuple", "C", "Sm", "OpaqueType", "NullType", "device_ptr"}
_BOILERPLATE_ENDS = ("Metadata", "Calculator", "WithCast", "WithoutCast", "State", "Policy", "Params", "Ex")
_LAUNCHERS = ("elementwise", "reduce_kernel", "multi_tensor", "ParallelFor", "for_each")
_OPERATIONS = {"plus", "minus", "multiplies", "divides", "maximum", "minimum", "less", "greater", "Sum", "Max"}
_NOISE_WORDS = {"kernel", "functor", "cuda", "impl", "launch"}
_FILLERS = {
    *("tilesize", "stage", "stages", "warpsize", "warpgroupsize", "align", "aligna", "alignb", "alignc", "aligned"),
    *("execute", "segment", "sliced", "ldg", "off", "fused", "generated", "fort", "native", "knob", "5x", "cga"),
    *("cublas", "f2f", "rf", "Dev"),
}


@dataclass(eq=False)
class _Word:
    """A part of a name that is shown or dropped as a whole, lightest first."""

    text: str
    weight: int  # rank plus order within the rank
    lead: str = ""  # separator to the previous word: underscores, `::`, or none
    silent: bool = False  # dropped without a …


class _Node:
    """A kernel or template argument: the informative part of its qualified name, and its own template arguments."""

    def __init__(self) -> None:
        self.words: list[_Word] = []
        self.cast = ""
        self.plain = False  # a number, built-in type, or not a qualified name
        self.tells = False  # describes what the kernel does
        self.acts = False  # a functor, or the enclosing function of the lambda
        self.returns = False  # follows a return type
        self.begin()

    def begin(self) -> None:
        """Start a qualified name."""
        self.scope = self.name = self.suffix = ""
        self.args: list[_Node] = []
        self.lambdas: list[_Word] = []
        self.joined = True  # the next word belongs to it

    def read(self, piece: str, scope: str) -> None:
        """Consume a word, with the namespaces before it, or an operator sign."""
        if piece == "::":
            self.joined = True
        elif piece in "*&":
            self.acts |= self.joined  # address-of a function
            self.suffix += "" if self.joined else piece
        elif piece == "-" and self.joined:
            self.cast += piece
        elif not (piece[0].isalnum() or piece[0] in "_$~."):
            self.plain = True
        elif piece in {"operator()", "operator ()"} and self.name:
            self.joined = False
        elif not self.joined and piece in _INTEGERS and self.name.split()[0] in _INTEGERS:
            self.name += f" {piece}"
        elif piece not in _QUALIFIERS:
            if not self.joined:
                self.begin()
                self.returns = True
            self.scope += f"{self.name}::{scope}" if self.name else scope
            self.args = self.args if piece in _GENERIC else []  # they belong to the enclosing class
            self.name, self.lambdas, self.joined = piece, [], False

    def read_bracket(self, opener: str, inside: str) -> None:
        """Consume parameters, a cast, or a lambda."""
        if opener == "(" and self.joined:
            self.cast = inside
        elif self.joined and (opener == "<" or not self.name):
            self.plain = True
        elif self.joined:
            takes, number = re.findall(r"\((.*?)\)\D*(\d*)", f"{inside}()")[0]
            takes = re.sub(r"\w+::", "", takes)
            self.lambdas.append(_Word(f"λ{number}({takes})" if takes else f"λ{number}", _LAMBDA + bool(takes)))
            self.joined = False

    def finish(self, written: str) -> "_Node":
        """Finish the node, `written` being its source text."""
        if self.plain or not self.name:
            self.begin()
            self.name, self.plain = " ".join(written.split()), True
            return self
        self.scope = self.scope.replace("<unnamed>::", "").replace("(anonymous namespace)::", "")
        if self.name in _GENERIC and self.scope:
            outer = self.scope[:-2].rpartition("::")[2]
            self.scope = self.scope[: -len(outer) - 2]
            self.name = f"{outer}::{self.name}"
        number = self.name[0] in _DIGITS
        self.plain = bool(self.cast) or number or bool(re.fullmatch(_BUILTIN, self.name.lower()))
        if self.cast == "bool":
            self.name = "false" if self.name == "0" else "true"
        elif number:
            self.name = ("-" if self.cast.endswith("-") else "") + self.name.rstrip("uUlL")
        stem = self.name.rstrip(_DIGITS)
        self.tells = not (self.plain or self.suffix or stem in _BOILERPLATE_NAMES or stem.endswith(_BOILERPLATE_ENDS))
        self.acts |= bool(self.lambdas) or "unctor" in stem or stem in _OPERATIONS
        return self

    def all_words(self) -> Iterator[_Word]:
        """All words of the tree, in source order."""
        yield from self.words
        for arg in self.args:
            yield from arg.all_words()
        yield from self.lambdas


class _Parser:
    """A cursor over a name; every step advances it, so that parsing is linear."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.match = re.compile(_PIECE).match

    def skip(self, opener: str) -> str:
        """Skip to the bracket that closes `opener`; returns the text between."""
        start, depth = self.at, 1
        while depth and (end := self.text.find(_CLOSERS[opener], self.at) + 1):
            depth += self.text.count(opener, self.at, end) - 1
            self.at = end
        self.at = len(self.text) if depth else self.at
        return self.text[start : self.at - (not depth)]

    def arguments(self, depth: int) -> list[_Node]:
        """Parses template arguments up to the closing bracket."""
        args = [self.node(depth)]
        while self.text.startswith(",", self.at):
            self.at += 1
            args.append(self.node(depth))
        self.at += 1
        return [arg for arg in args if arg.name]

    def node(self, depth: int = 0) -> _Node:
        """Parses one template argument, or at depth 0 the whole name."""
        node, start = _Node(), self.at
        while match := self.match(self.text, self.at):
            scope, piece = match.groups()
            if piece in ",>" and (depth or not piece):
                self.at = match.start(2)
                break
            self.at = match.end()
            if piece in ",>":
                node.begin()
            elif piece == "<" and not node.joined and depth < _DEEPEST:
                node.args = self.arguments(depth + 1)
            elif piece in _CLOSERS:
                node.plain |= not depth and self.text[self.at - 2 : self.at - 1].isspace()
                node.read_bracket(piece, self.skip(piece))
            else:
                node.read(piece, scope)
        node.plain |= node.returns and not (depth or "(" in self.text or self.text.startswith("void "))
        return node.finish(self.text[start : self.at])


def _parse(name: str) -> _Node:
    """Parses a kernel name into a weighted tree; unprintable characters become question marks."""
    text = "".join(sign if sign.isprintable() else "?" for sign in unmangled(name)[:_LONGEST])
    kernel = _Parser(text).node()
    _weigh_kernel(kernel)
    if scope := [_Word(part, _SCOPE, "::", silent=True) for part in kernel.scope.split("::")[:-1]]:
        kernel.words[0].lead = "::"
        kernel.words[:0] = scope
    return kernel


def _weigh_kernel(kernel: _Node) -> None:
    """Assign weights to the words of a kernel's name."""
    if kernel.name in _SHELLS and (informative := [arg for arg in kernel.args if arg.tells]):
        _weigh_alike(kernel, _SHELL)
        _weigh_kernel(informative[0])
        return
    kernel.words = _weigh_words(kernel.name, _HEAD, 0, noisy=not kernel.plain)
    telling, launches = _TELLING, any(name in kernel.name for name in _LAUNCHERS)
    for place, arg in enumerate(kernel.args):
        arg.acts |= launches
        kind = _FLAG if arg.name in {"true", "false"} else _NUMBER if arg.name[0] in f"-{_DIGITS}" else _TYPE
        order = max(_MOST - 1 - place, 0)
        if _weigh_argument(arg, order, telling, kind + order) == _TELLING:
            telling = _OUTER


def _weigh_argument(node: _Node, order: int, telling: int, plain: int) -> int:
    """Assign weights to an argument's words (`plain` if uninformative); returns the rank of the heaviest."""
    if not node.tells:
        _weigh_alike(node, plain if node.plain and not node.suffix else _BOILERPLATE)
        return _BOILERPLATE
    shell = node.name in _SHELLS
    args_tell = (shell or (node.acts and not node.lambdas)) and any(arg.tells for arg in node.args)
    if shell or not node.acts:
        rank = _SHELL if shell or node.name.endswith("raits") else _CLASS
        node.words = [_Word(node.name, rank + order)]
    else:
        rank = _OUTER if args_tell or ("Op" in node.name and node.name.endswith("Functor")) else telling
        node.words = _weigh_words(node.name, rank, order)
    for place, arg in enumerate(node.args):
        if args_tell or not arg.tells:
            arg.acts |= node.acts
            inner = _BOILERPLATE if shell else _NESTED if args_tell else _INNER + (not node.acts) * (_MOST - place)
            rank = max(rank, _weigh_argument(arg, order, telling, inner))
        else:
            _weigh_alike(arg, _BOILERPLATE)
    return rank


def _weigh_alike(node: _Node, weight: int) -> None:
    node.words = [_Word(node.name, weight)]
    for arg in node.args:
        _weigh_alike(arg, weight)


def _weigh_words(name: str, head: int, order: int, *, noisy: bool = True) -> list[_Word]:
    """Splits an identifier into weighted words: within a rank the first weighs most, except for the very last word."""
    words = [_Word(text, 0, lead) for lead, text in re.findall(_WORDS, name)] or [_Word(name, 0)]
    words[0].text, words[0].lead = words[0].lead + words[0].text, ""
    words[-1].text += name[len(name.rstrip("_")) :]
    quiet = {word for word in words if noisy and word.text.strip("_" + _DIGITS).lower() in _NOISE_WORDS}
    loud = [word for word in words if word not in quiet and not word.text.isdigit()] or words
    tiled = False
    for left, word in zip(range(len(words) - 1, -1, -1), words, strict=True):
        rank = _LAYOUT if re.search(r"\dx\d|^[nNtT_]{2,}$", word.text) else _WORD
        if word in quiet and loud is not words:
            word.weight, word.silent = _OWN_NOISE if head == _HEAD else _NOISE, True
            continue
        if word is loud[0] or head == _OUTER:
            rank = head
        elif head == _TELLING:
            rank = _TELLING_WORD
        elif (word.text.strip("x" + _DIGITS) or word.text) in _FILLERS:
            rank = _FILLER
        elif re.search("gemm|conv|[fb]prop|[dw]grad|attn|flash", word.text):
            rank = _KEY
        elif rank == _LAYOUT and "x" in word.text and not tiled:
            rank, tiled = _KEY, True
        word.weight = rank + order * _MOST + min(left or _MOST, _MOST - 1)
    return words


def _render(node: _Node, cut: int) -> list[str]:
    """Renders words of weight `cut` or more; if the name itself is dropped, the texts of its arguments."""
    name = _render_words(node.words, cut)
    args: list[str] = []
    for arg in node.args:
        for text in _render(arg, cut) or ([_GAP] if cut <= _MARK else []):
            if text != _GAP or args[-1:] != [_GAP]:
                args.append(text)
    args = [] if args == [_GAP] else args
    inner = [word.text for word in node.lambdas if word.weight >= cut]
    if not name:
        return args + inner
    return ["::".join([f"{name}<{', '.join(args)}>" if args else name, *inner]) + node.suffix]


def _render_words(words: Iterable[_Word], cut: int) -> str:
    text, gap = "", False
    for word in words:
        if word.weight >= cut:
            text += f"{_GAP if gap else word.lead if text else ''}{word.text}"
            gap = False
        else:
            gap |= not word.silent
    return text + _GAP if gap and text else text


def _fit(kernel: _Node, width: int) -> str:
    """Renders the longest form that fits `width`."""

    def text(cut: int) -> str:
        return ", ".join(text for text in _render(kernel, cut) if text != _GAP)

    cuts = sorted({_MARK, *(word.weight for word in kernel.all_words())})
    least = text(cuts[min(bisect_left(cuts, -width, key=lambda cut: -len(text(cut))), len(cuts) - 1)]) or _GAP
    return least if len(least) <= width else least[: width - 1].rstrip(_GAP) + _GAP


def _differences(kernels: Sequence[_Node], rivals: Sequence[_Node], width: int) -> list[_Word]:
    """The most informative word of each kernel that distinguishes it from the others, if there is one."""
    rows = [[word for word in node.all_words() if len(word.text) < width - 4] for node in (*kernels, *rivals)]
    if len({len(row) for row in rows}) == 1:
        columns = [words for words in zip(*rows, strict=True) if len({word.text for word in words}) > 1]
        heaviest = max(columns, key=lambda words: max(word.weight for word in words), default=())[: len(kernels)]
    else:
        shared = set[str].intersection(*({word.text for word in row} for row in rows))
        own = ([word for word in row if word.text not in shared] for row in rows[: len(kernels)])
        heaviest = tuple(max(words, key=lambda word: word.weight) for words in own if words)
    return [word for word in heaviest if word.weight < _DIFFERENCE]


def _settle(kernels: dict[str, _Node], width: int, owners: dict[str, str]) -> None:
    """Assign each kernel a unique text: where texts collide, distinguishing words are kept."""
    pending = [(list(kernels), len(kernels) + 1)]
    while pending:
        names, before = pending.pop()
        alike: dict[str, list[str]] = {}
        for name in names:
            alike.setdefault(_fit(kernels[name], width), []).append(name)
        for text, same in alike.items():
            rivals = [_parse(text)] if text in owners else []
            nodes = [kernels[name] for name in same] if len(same) < before else []
            different = _differences(nodes, rivals, width) if len(nodes) + len(rivals) > 1 else []
            for word in different:
                word.weight = _DIFFERENCE
            if different:
                pending.append((same, len(same)))
                continue
            shared = set[str].intersection(*(set(re.findall(r"\w+", name)) for name in same))
            for name in same:  # kernels that differ only in parameters show a word of them
                own = [word for word in re.findall(r"\w+", name) if word not in shared and len(word) < width // 2]
                marked = [f"{_fit(kernels[name], width - len(word) - 3)}({_GAP}{word})" for word in own[:1]]
                numbered = (f"{_fit(kernels[name], width - len(str(n)) - 2)} #{n}" for n in count(2))
                owners[next(text for text in chain(marked or [text], numbered) if text not in owners)] = name


def short_forms(names: Iterable[str], width: int) -> dict[str, str]:
    """The unique text of at most `width` characters (at least `NARROWEST`) of each of the names.

    A name that fits stays as it is.
    """
    every, width = dict.fromkeys(names), max(width, NARROWEST)
    owners = {name: name for name in every if len(name) <= width and name.isprintable()}
    _settle({name: _parse(name) for name in every if name not in owners}, width, owners)
    return {name: text for text, name in owners.items()}


def shorten(names: Sequence[str], width: int) -> list[str]:
    """The :func:`short_forms` of names, in order."""
    return [*map(short_forms(names, width).__getitem__, names)]


def on_phrases(texts: Sequence[str], width: int) -> list[str]:
    """Shortens kernel names to `width`, alone or within phrases."""
    parts = [match.groups(default="") for text in texts if (match := re.fullmatch(_PHRASE, text, re.DOTALL))]
    short = short_forms((name for _, name, _ in parts if not name.startswith("between ")), width)
    return [f"{before}{short.get(name, name)}{after}" for before, name, after in parts]


# Texts that are no kernel names, such as ranges and paths, shortened so that no two look alike.


def distinct(texts: Sequence[str], width: int) -> list[str]:
    """The texts in at most `width` characters each, different ones different; one that fits stays as it is.

    What is left out stands in the middle, or where that is what tells two of them apart at one of the ends.
    """
    owners = {text: text for text in texts if len(text) <= width}
    kept = width - 1
    front = (kept + 1) // 2
    for text in dict.fromkeys(texts):
        if len(text) > width:
            forms = (f"{text[:front]}…{text[len(text) - (kept - front) :]}", f"…{text[-kept:]}", f"{text[:kept]}…")
            numbered = (f"{text[: max(width - len(mark), 0)]}{mark}" for mark in map("…#{}".format, count(2)))
            owners[next(form for form in chain(forms, numbered) if form not in owners)] = text
    return [*map({text: form for form, text in owners.items()}.__getitem__, texts)]
