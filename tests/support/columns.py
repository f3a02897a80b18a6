"""The columns of a table in its function's docstring, for editors: what `help` tells of them has types and meanings.

``python tests/support/examples.py`` writes them.
"""

import ast
import inspect
from importlib import import_module
from pathlib import Path
from textwrap import fill

import kanalyze
from kanalyze import catalog
from kanalyze.analyses import homes
from kanalyze.schema import COLUMNS as HEADING

_WIDE = 120
_IN = " " * 4


def tables():
    """The functions that are tables, as their modules have them, by name."""
    found = homes()
    return {name: getattr(import_module(found[name]), name) for name in kanalyze.__all__ if name in found}


def listed(name):
    """What stands below the heading, in one line."""
    return ", ".join(column.name for column in catalog.table(name).columns) + "."


def documented(source, name):
    """A module's `source`, in which the docstring of the function `name` lists the columns of its table."""
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name)
    literal = next(functions).body[0]
    lines = source.splitlines(keepends=True)
    text = "".join(lines[literal.lineno - 1 : literal.end_lineno]).strip().strip('"').rstrip()
    told = text.partition(f"\n\n{_IN}{HEADING}\n")[0]
    columns = fill(listed(name), _WIDE, initial_indent=2 * _IN, subsequent_indent=2 * _IN, break_long_words=False)
    made = f'{_IN}"""{told}\n\n{_IN}{HEADING}\n{columns}\n{_IN}"""\n'
    return "".join([*lines[: literal.lineno - 1], made, *lines[literal.end_lineno :]])


def write():
    """Write the lists into the modules of a checkout that is installed in place."""
    for name, function in tables().items():
        path = Path(inspect.getsourcefile(inspect.getmodule(function)))
        path.write_text(documented(path.read_text(), name))
