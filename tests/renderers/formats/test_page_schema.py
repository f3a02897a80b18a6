"""The JSON Schema of the page: what is shipped is what is documented, and what the program prints fits it exactly."""

import copy
import json

import pytest
from jsonschema import Draft202012Validator

from kanalyze.renderers.formats.json import SCHEMA
from support import page_schema
from support.command import REPORTS, SAMPLES, run

SCHEMA_NOW = page_schema.schema()

CAPTURES = sorted(path for path in SAMPLES.iterdir() if (path / "manifest.json").exists())
EVERY = [*CAPTURES, *sorted(REPORTS.glob("*.sqlite")), *sorted((REPORTS / "torch").glob("*.json.gz"))]
EVERY += [REPORTS / "ncu" / "add.details.csv"]
FEW = ("square", "add_um", "cpu_only", "add")


def strict(schema):
    """The schema with no keys but those that it names."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(part) for key, part in schema.items()}
    return {"additionalProperties": False} | found if "properties" in found else found


STRICT = strict(SCHEMA_NOW["$defs"])


def mistakes(page, kind):
    """What of a page the strict schema of its kind refuses."""
    if "reports" in page:
        return [told for one in page["reports"] for told in mistakes(one, kind)]
    kind = "counters" if page["report"]["tool"] == "ncu" else kind
    validator = Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": STRICT})
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(page)]


def page(path, *options):
    return json.loads(run("summarize", path, "--format", "json", *options).text)


def test_what_is_shipped_is_made_of_the_page_and_the_tables():
    assert SCHEMA.read_text() == page_schema.text(), "run `python tests/support/examples.py`"
    Draft202012Validator.check_schema(SCHEMA_NOW)
    assert json.loads(run("summarize", "--schema").text) == SCHEMA_NOW


@pytest.mark.parametrize(
    "path", [pytest.param(one, marks=[] if one.name.split(".")[0] in FEW else pytest.mark.slow) for one in EVERY],
    ids=lambda path: path.name,
)  # fmt: skip
def test_every_page_fits_the_schema(path):
    first = page(path)
    assert mistakes(first, "first_page") == []
    Draft202012Validator(SCHEMA_NOW).validate(first)


@pytest.mark.slow
@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_every_full_page_fits_the_schema(path):
    full = page(path, "--full")
    assert mistakes(full, "full") == []
    Draft202012Validator(SCHEMA_NOW).validate(full)


def test_pages_of_instances_and_of_several_reports_fit():
    instances = page(REPORTS / "nvtx.sqlite", "--window", "step#*")
    assert mistakes(instances, "instances") == []
    Draft202012Validator(SCHEMA_NOW).validate(instances)
    Draft202012Validator(SCHEMA_NOW).validate({"schema_version": 2, "reports": [instances, instances]})


def test_a_page_that_differs_does_not_fit():
    good = page(REPORTS / "add_um.sqlite")
    validator = Draft202012Validator(SCHEMA_NOW)
    assert validator.is_valid(good)
    for change in (
        lambda one: one.pop("answer"),
        lambda one: one["ledger"][0].update(ns="much"),
        lambda one: one["ledger"][0].pop("bucket"),
        lambda one: one["findings"][0].pop("rule"),
        lambda one: one.update(schema_version=3),
        lambda one: one["report"].update(rank="first"),
        lambda one: one.pop("cannot_tell"),
    ):
        other = copy.deepcopy(good)
        change(other)
        assert not validator.is_valid(other)
