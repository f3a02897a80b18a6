"""The JSON Schema of `kanalyze summarize --format json`: made of docs/summary-json.md and the tables' declarations.

``python tests/support/examples.py`` writes it beside the renderer; a test holds the file against this.
"""

import json
import re
from functools import cache
from pathlib import Path

import polars as pl
from jsonschema import Draft202012Validator

from kanalyze import catalog
from kanalyze.analyses.page.time_page import TABLES
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.renderers.formats.json import SCHEMA_VERSION

ROOT = Path(__file__).parents[2]
FILE = ROOT / "analyzer" / "renderers" / "formats" / "page.schema.json"
_ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| (.+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_ITEMS = {"list of objects": {"type": "object"}, "list of strings": {"type": "string"}}

#: Tables of the first page; the row of `spread` there has no device.
_ENGINE = ("engine_steps", "engine_gaps", "engine_graphs")
_FIRST = ("ledger", "code", "hot_kernels", "ops", "captured", "phases", "culprits", "critical_path")

_SAYS_NOTHING = (
    "An empty list: looked for, and there is nothing. Where it cannot be told, `cannot_tell` has the reason."
)


def schema():
    parts = re.split(r"^## (.*)$", (ROOT / "docs" / "summary-json.md").read_text(), flags=re.MULTILINE)
    page = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kanalyze summarize --format json",
        "description": "Of one report its first page, with --full all of it; of several reports an object with each. "
        "Times are nanoseconds, sizes bytes, shares 0 to 1. Keys that are not here may come; ignore them.",
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in ("first_page", "full", "instances", "counters", "several")],
        "$defs": {
            "report": _told(page["report"]),
            "scope": _told(page["scope"]),
            "first_page": _first_page(page),
            "full": _full(page),
            "instances": _of_instances(page),
            "counters": _object(
                _head(page) | {name: _rows() for name in ("devices", "kernels", "groups", "stalls", "advice", "health")}
            ),
            "several": _object(
                {
                    "schema_version": {"const": SCHEMA_VERSION},
                    "reports": {"type": "array", "items": {"$ref": "#"}, "description": "The object of each report."},
                }
            ),
        },
    }


def strict(part):
    """A part of the schema with no keys but those that it names."""
    if isinstance(part, list):
        return [*map(strict, part)]
    if not isinstance(part, dict):
        return part
    kept = {key: strict(value) for key, value in part.items()}
    return {"additionalProperties": False} | kept if "properties" in kept else kept


@cache
def _validator(kind):
    return Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": strict(schema()["$defs"])})


def mistakes(page, kind):
    """What of a page the strict schema of its kind refuses."""
    if "reports" in page:
        return [mistake for one in page["reports"] for mistake in mistakes(one, kind)]
    kind = "counters" if page["report"]["tool"] == "ncu" else kind
    return [f"{error.json_path}: {error.message[:200]}" for error in _validator(kind).iter_errors(page)]


def text():
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _object(properties, optional=()):
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "properties": properties}


def _rows(row=None, description=""):
    told = {"description": description} if description else {}
    return {"type": "array", "items": row or {"type": "object"}} | told


def _properties(section):
    """The keys that a section of the page documents, with types and meanings."""
    found = {}
    for name, kind, meaning in _ROW.findall(section):
        told = _type(kind.strip()) | {"description": _LINK.sub(r"\1", meaning)}
        names = [f"{bucket}_ns" for bucket in BUCKETS] if name == "BUCKET_ns" else [name]
        found |= dict.fromkeys(names, told)
    return found


def _type(kind):
    base = kind.removesuffix(" or null")
    name = {"list of objects": "array", "list of strings": "array"}.get(base, base)
    items = {"items": _ITEMS[base]} if base in _ITEMS else {}
    return {"type": [name, "null"] if base != kind else name} | items


def _told(section):
    return _object(_properties(section))


def _head(page):
    """What begins the object of every report."""
    return {
        "schema_version": {"const": SCHEMA_VERSION, "description": "Grows with every change that can break a program."},
        "report": {"$ref": "#/$defs/report"},
        "scope": {"$ref": "#/$defs/scope"},
        "answer": _properties(page["The object"])["answer"],
    }


def _first_page(page):
    keys = _properties(page["The first page"])
    rows = {name: _rows(_row(name, given=False), _told_of(keys[name])) for name in _FIRST}
    rows |= {name: _rows(_row("engine_steps", given=False), keys[name]["description"]) for name in _ENGINE}
    rows["windows"] = _rows(_told(page["windows"]), keys["windows"]["description"])
    finding = _properties(page["findings"])
    replayed = ("replayed_ns", "replayed_low_ns", "replayed_high_ns")
    short = ("rule", "device", "at_stake_ns", "at_most", *replayed, "headline", "action", "where", "table")
    rows["findings"] = _rows(_object({name: finding[name] for name in short}), _told_of(keys["findings"]))
    bounds = _object({"bucket": {"type": "string"}, "min_ns": {"type": "integer"}, "max_ns": {"type": "integer"}})
    rows["spread"] = _rows(bounds, keys["spread"]["description"])
    whole = {"type": "integer"}
    times = dict.fromkeys(("count", "ns", "busy_ns", *(f"{bucket}_ns" for bucket in BUCKETS)), whole)
    rows["parts"] = _rows(_object({"range": {"type": "string"}} | times), keys["parts"]["description"])
    rows["health"] = _rows(_object({"check": {"type": "string"}, "count": whole}, ("count",)), _told_of(keys["health"]))
    joined = {"joined_with": {"type": "array", "items": {"type": "string"}, "description": "Reports of other tools."}}
    steady = {"iterations": keys["iterations"] | _iterations(), "without_profiler": keys["without_profiler"] | _bare()}
    given = ("windows", "findings", "health", "cannot_tell")
    every = _head(page) | keys | rows | steady | joined | {"cannot_tell": _reasons(keys["cannot_tell"])}
    return _object(every, tuple(name for name in (*keys, "joined_with") if name not in (*given, "iterations")))


def _typed(text):
    """The properties of an object, all of them required, from a text: names, a colon and their type; and so on."""
    kinds = {"text": "string", "whole?": ["integer", "null"], "whole": "integer", "number": "number"}
    parts = [part.split(": ") for part in text.split("; ")]
    properties = {name: {"type": kinds[kind]} for names, kind in parts for name in names.split()}
    return {"properties": properties, "required": [*properties]}


def _iterations():
    """What repeats: the object behind `iterations`."""
    found = _typed(
        "name first last: text; process_id device: whole?; min_ns max_ns steady_count steady_ns: whole; "
        "found_by: text; mean_ns median_ns: number"
    )
    kinds = {"kinds": {"type": "object", "additionalProperties": {"type": "integer"}}}
    return {"properties": found["properties"] | kinds, "required": [*found["required"], "kinds"]}


def _bare():
    """Runs without a profiler: the object behind `without_profiler`."""
    iteration = {name: {"type": "number"} for name in ("ns", "recorded_ns", "low_ns", "high_ns")}
    iteration |= {"runs_ns": {"type": "array", "items": {"type": "number"}}}
    iteration |= {"mark": {"type": "string"}, "by_device": {"type": "boolean"}}
    programs = {"type": "array", "items": {"type": "integer"}}
    told = {"type": ["object", "null"], "properties": iteration, "required": [*iteration]}
    return {"properties": {"programs_ns": programs, "iteration": told}, "required": ["programs_ns", "iteration"]}


def _full(page):
    keys = _properties(page["The object"])
    rows = {table.name: _rows(_row(table.name, given=True), _told_of(keys[table.name])) for table in TABLES}
    rows |= {name: _rows(_row("engine_steps", given=True), keys[name]["description"]) for name in _ENGINE}
    rows["processes"] = _rows(_row("processes", given=True), keys["processes"]["description"])
    rows["windows"] = _rows(_told(page["windows"]), keys["windows"]["description"])
    rows["findings"] = _rows(_told(page["findings"]), _told_of(keys["findings"]))
    reasons = {name: _reasons(keys[name]) for name in ("cannot_tell", "not_recorded")}
    joined = {
        "joined_with": {"type": "array", "items": {"type": "string"}},
        "joined_reports": {"type": "array", "items": {"$ref": "#/$defs/report"}},
        "joined": _rows(_row("joined", given=True)),
        "gains": _rows(_row("gains", given=True)),
    }
    every = _head(page) | keys | rows | reasons | joined
    every["schema_version"] = _head(page)["schema_version"]
    every |= {"report": {"$ref": "#/$defs/report"}, "scope": {"$ref": "#/$defs/scope"}}
    return _object(every, (*(table.name for table in TABLES), *_ENGINE, *joined))


def _of_instances(page):
    rows = {"instances": _rows(_told(page["instances"])), "spread": _rows(_told(page["spread"]))}
    return _object(_head(page) | _properties(page["All instances of a range"]) | _head(page) | rows)


def _told_of(key):
    return f"{key['description']}. {_SAYS_NOTHING}"


def _reasons(key):
    return {"type": "object", "additionalProperties": {"type": "string"}, "description": key["description"]}


def _row(name, *, given):
    """A row of a table in all its forms; with what is missing `given` as null, or left out."""
    forms = [catalog.table(name), *catalog.forms(name)]
    found = {}
    for form in forms:
        for column in form.columns:
            told = {"description": f"{column.doc} [{column.unit}]" if column.unit else column.doc}
            kind = _json_type(column.dtype)
            nullable = given and any(one.nullable for each in forms for one in each.columns if one.name == column.name)
            found.setdefault(column.name, (kind | {"type": [kind["type"], "null"]} if nullable else kind) | told)
    shared = set.intersection(*({column.name for column in form.columns if not column.nullable} for form in forms))
    return _object(found, tuple(name for name in found if name not in shared))


def _json_type(dtype):
    base = dtype if isinstance(dtype, type) else type(dtype)
    if base is pl.List:
        return {"type": "array", "items": _json_type(dtype.inner)}
    if base is pl.Boolean:
        return {"type": "boolean"}
    if base.is_integer():
        return {"type": "integer"}
    return {"type": "number"} if base.is_float() else {"type": "string"}
