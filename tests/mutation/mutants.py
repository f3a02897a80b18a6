"""The small changes that can be made to a module: each is one that a test should fail on.

Operators, comparisons, constants, what rows or values are put together by, how tables are joined, the order of
arguments, conditions, statements left out.
Docstrings, types, messages of errors and what only a type checker reads stay as they are.
"""

import ast
import re
from typing import NamedTuple

_OPERATORS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"), ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "+"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip

#: Keywords of polars whose value decides what comes out, and another value of each.
_PAIRS = (("left", "inner"), ("semi", "anti"), ("backward", "forward"))
_WORDS = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}

#: Functions and methods that make one value of several, and another of each.
_AGGREGATES = {
    "sum": "max", "mean": "max", "median": "max", "max": "min", "min": "max", "any": "all", "all": "any",
    "max_horizontal": "min_horizontal", "min_horizontal": "max_horizontal", "first": "last", "last": "first",
}  # fmt: skip

#: Functions that take their arguments in any order. So do most methods of frames, of which none is looked at.
_ANY_ORDER = {"max", "min", "isinstance", "zip"}

_NEGATION = re.compile(rb"~|not\s+")

#: What is not looked at: types, and what an error says.
_CALLS_OF_ERRORS = re.compile(r"Error$")


class Mutant(NamedTuple):
    """One change: bytes `start` to `end` of the file become `text`; the lines are `new`, not `old`."""

    path: str
    line: int
    start: int
    end: int
    text: str
    old: str
    new: str
    kind: str

    @property
    def name(self):
        """What tells it from others, whatever stands above it in the file."""
        return f"{self.path}: {self.old} → {self.new}"


def mutants(path, text):
    """Every mutant of the module at `path`, in the order of its text."""
    made = _Maker(path, text)
    made.visit(ast.parse(text))
    return sorted(set(made.found), key=lambda one: (one.start, one.end, one.new))


class _Maker(ast.NodeVisitor):
    def __init__(self, path, text):
        self.path, self.text, self.found = path, text, []
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def _at(self, line, column):
        return self._lines[line - 1] + column

    def _span(self, node):
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _add(self, span, new, kind):
        """A mutant, called by the lines that it is on."""
        start, end = span
        low = self.text.rfind(b"\n", 0, start) + 1
        high = self.text.find(b"\n", end) % (len(self.text) + 1)
        parts = self.text[low:high], self.text[low:start] + new.encode() + self.text[end:high]
        old, changed = (" ".join(part.decode().split()) for part in parts)
        line = self.text.count(b"\n", 0, start) + 1
        self.found.append(Mutant(self.path, line, start, end, new, old, changed, kind))

    def _between(self, left, right, operator):
        old, new = _OPERATORS[type(operator)]
        begin, end = self._span(left)[1], self._span(right)[0]
        place = self.text[begin:end].find(old.encode())
        if place >= 0:
            kind = "comparison" if isinstance(operator, ast.cmpop) else "operator"
            self._add((begin + place, begin + place + len(old)), new, kind)

    def visit_Compare(self, node):
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self._between(left, right, operator)
        self.generic_visit(node)

    def visit_BinOp(self, node):
        text = isinstance(node.left, ast.Constant | ast.JoinedStr) and not isinstance(
            getattr(node.left, "value", ""), int | float
        )
        if type(node.op) in _OPERATORS and not text:
            self._between(node.left, node.right, node.op)
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, node.op)
        self.generic_visit(node)

    def visit_Constant(self, node):
        if isinstance(node.value, bool):
            self._add(self._span(node), str(not node.value), "constant")
        elif isinstance(node.value, int | float):
            more = node.value + 1 if isinstance(node.value, int) else node.value * 2 or 1.0
            self._add(self._span(node), str(more), "constant")

    def visit_UnaryOp(self, node):
        if isinstance(node.op, ast.Not | ast.Invert):
            start = self._span(node)[0]
            self._add((start, _NEGATION.match(self.text, start).end()), "", "condition")
        self.generic_visit(node)

    def visit_keyword(self, node):
        value = node.value
        if isinstance(value, ast.Constant) and value.value in _WORDS:
            self._add(self._span(value), f'"{_WORDS[value.value]}"', "constant")
        self.visit(value)

    def visit_Call(self, node):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if _CALLS_OF_ERRORS.search(name) or _CALLS_OF_ERRORS.search(
            getattr(getattr(node.func, "value", None), "id", "")
        ):
            return
        if name in _AGGREGATES:
            end = self._span(node.func)[1]
            self._add((end - len(name), end), _AGGREGATES[name], "aggregate")
        swapped = isinstance(node.func, ast.Name) and name not in _ANY_ORDER
        if swapped and len(node.args) > 1 and not any(isinstance(one, ast.Starred) for one in node.args[:2]):
            first, second = (self._span(one) for one in node.args[:2])
            texts = [self.text[slice(*span)].decode() for span in (first, second)]
            between = self.text[first[1] : second[0]].decode()
            if texts[0] != texts[1]:
                self._add((first[0], second[1]), texts[1] + between + texts[0], "arguments")
        self.generic_visit(node)

    def visit_If(self, node):
        if getattr(node.test, "id", "") == "TYPE_CHECKING":
            return
        self.generic_visit(node)

    def visit_Expr(self, node):
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call):
            self._add(self._span(node), "pass", "statement")
        self.generic_visit(node)

    def visit_AugAssign(self, node):
        self._add(self._span(node), "pass", "statement")
        self.generic_visit(node)

    def visit_AnnAssign(self, node):
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node):
        for default in [*node.args.defaults, *(one for one in node.args.kw_defaults if one)]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_Raise(self, node):
        """What an error says is for people."""

    def visit_Assert(self, node):
        """It only tells a type checker, or a reader."""
