"""Damage to texts that stay what they are: JSON whose tree is another, and pages of CSV whose cells are."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

from fuzz.damage_bytes import json_value, scalar

if TYPE_CHECKING:
    from random import Random

    Node = dict[str, object] | list[object]


def change_value(rng: Random, tree: Node) -> None:
    """A value is another, of any type."""
    node, key = _place(rng, tree)
    node[key] = json_value(rng)


def lose_value(rng: Random, tree: Node) -> None:
    """A key or an item is gone."""
    node, key = _place(rng, tree)
    del node[key]


def repeat_value(rng: Random, tree: Node) -> None:
    """An item stands twice in its list, or a value under another key too."""
    node, key = _place(rng, tree)
    if isinstance(node, list):
        node.insert(rng.randrange(len(node) + 1), node[key])
    else:
        node[rng.choice([*node, "dur", "args", "stream"])] = node[key]


def swap_values(rng: Random, tree: Node) -> None:
    """Two values stand in each other's place."""
    (first, one), (second, other) = _place(rng, tree), _place(rng, tree)
    first[one], second[other] = second[other], first[one]


TREES = {of.__name__: of for of in (change_value, lose_value, repeat_value, swap_values)}


def damage_json(rng: Random, text: bytes, how: str) -> bytes:
    """The text of a JSON document whose tree is damaged in one place or a few."""
    tree = json.loads(text)
    for _ in range(rng.choice([1, 1, 1, 5])):
        TREES[how](rng, tree)
    try:
        return json.dumps(tree).encode()
    except (ValueError, RecursionError):  # a value became a part of itself
        return text


def repeat_key(rng: Random, text: bytes) -> bytes:
    """A key stands twice in its object."""
    places = [at for at in range(len(text)) if text.startswith(b'": ', at) or text.startswith(b'":', at)]
    at = rng.choice(places)
    start = text.rfind(b'"', 0, at)
    value = json.dumps(json_value(rng)).encode()
    return text[:start] + text[start : at + 1] + b":" + value + b"," + text[start:]


def _place(rng: Random, tree: Node) -> tuple[Node, object]:
    """A node that has children, and the key of one, any depth alike."""
    node, wanted = tree, rng.randrange(1, 6)
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:  # only the whole tree can be without any
            node.append(0) if isinstance(node, list) else node.update(x=0)
            continue
        key = rng.choice(keys)
        child, wanted = node[key], wanted - 1
        if wanted == 0 or not isinstance(child, dict | list) or not child:
            return node, key
        node = child


def change_cell(rng: Random, rows: list[list[str]]) -> None:
    """A cell holds something else."""
    row = rng.choice(rows)
    row[rng.randrange(len(row))] = str(scalar(rng))


def lose_cell(rng: Random, rows: list[list[str]]) -> None:
    """A row has a cell less."""
    row = rng.choice(rows)
    del row[rng.randrange(len(row))]


def lose_row(rng: Random, rows: list[list[str]]) -> None:
    """A row is gone."""
    del rows[rng.randrange(len(rows))]


def repeat_row(rng: Random, rows: list[list[str]]) -> None:
    """A row stands twice."""
    rows.insert(rng.randrange(len(rows) + 1), rng.choice(rows))


def lose_column(rng: Random, rows: list[list[str]]) -> None:
    """A column is gone."""
    at = rng.randrange(len(rows[0]))
    for row in rows:
        del row[at : at + 1]


def swap_columns(rng: Random, rows: list[list[str]]) -> None:
    """Two columns have each other's heading."""
    first, second = (rng.randrange(len(rows[0])) for _ in range(2))
    rows[0][first], rows[0][second] = rows[0][second], rows[0][first]


CELLS = {of.__name__: of for of in (change_cell, lose_cell, lose_row, repeat_row, lose_column, swap_columns)}


def damage_csv(rng: Random, text: bytes, how: str) -> bytes:
    """The text of a page of CSV that is damaged in one place or a few."""
    rows = [row for row in csv.reader(io.StringIO(text.decode())) if row]
    for _ in range(rng.choice([1, 1, 1, 5])):
        if rows:
            CELLS[how](rng, rows)
        rows = [row for row in rows if row]
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows(rows)
    return out.getvalue().encode("utf-8", "replace")
