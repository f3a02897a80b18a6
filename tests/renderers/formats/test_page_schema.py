"""The JSON Schema of the page: what is shipped is what is documented, and what the program prints fits it exactly.

Of every first page tests/cli/test_overview.py holds that it fits.
"""

import copy
import json

import pytest
from jsonschema import Draft202012Validator

from kanalyze.renderers.formats import terminal
from kanalyze.renderers.formats.json import SCHEMA, render
from support import page_schema
from support.command import REPORTS, SAMPLES, run
from support.page_schema import mistakes
from support.real_reports import EXPORTS, TRACES, real_summary

pytestmark = pytest.mark.slow

SCHEMA_NOW = page_schema.schema()
CAPTURES = [SAMPLES / name for name in ("add", "add_parallel", "launch_bound_graph", "mlp_train", "streams")]
EVERY = [*CAPTURES, *EXPORTS, *TRACES, REPORTS / "ncu" / "add.details.csv"]


def page(path, *options):
    return json.loads(run("summarize", path, "--format", "json", *options).text)


def test_what_is_shipped_is_made_of_the_page_and_the_tables():
    assert SCHEMA.read_text() == page_schema.text(), "run `python tests/support/examples.py`"
    Draft202012Validator.check_schema(SCHEMA_NOW)
    assert json.loads(run("summarize", "--schema").text) == SCHEMA_NOW


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_every_full_page_fits_the_schema_and_the_terminal(path):
    """No line is wider than the terminal but commands, which are to be pasted."""
    full = page(path, "--full") if path.is_dir() else json.loads(render([real_summary(path)]))
    assert mistakes(full, "full") == []
    Draft202012Validator(SCHEMA_NOW).validate(full)
    for columns in () if path.is_dir() else (60, 80, 130) if path.suffix == ".sqlite" else (80, 130):
        lines = terminal.render([real_summary(path)], terminal.Look(columns), 8).splitlines()
        wide = [line for line in lines if len(line) > columns and " " in line.strip()]
        assert [line for line in wide if ": kanalyze show " not in line] == []
        assert [line for line in lines if line != line.rstrip()] == []


def test_pages_of_counters_of_instances_and_of_several_reports_fit():
    assert mistakes(page(EVERY[-1]), "first_page") == []
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
