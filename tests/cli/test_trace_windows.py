"""Windows of a trace on the command line: steps of the profiler, and times since the first event."""

import json
from pathlib import Path

import pytest

from support.command import refused, run

TRACE = Path(__file__).parents[2] / "sample_reports" / "mlp_train" / "torch.json.gz"


def ran(*arguments):
    done = run(*arguments)
    assert (done.status, done.error) == (0, "")
    return done.text


def content(*arguments):
    return json.loads(ran(*arguments, "--format", "json"))


@pytest.fixture(scope="module")
def steps():
    return content("show", "steps", TRACE)


def test_times_since_the_first_event():
    first = min(row["start_ns"] for row in content("show", "events", TRACE))
    found = content("summarize", TRACE, "--window", "+1ms..+2ms")["scope"]
    assert (found["window_start_ns"] - first, found["window_end_ns"] - first) == (1_000_000, 2_000_000)


def test_what_torch_has_to_record_is_said():
    _, remedy = refused(run("show", "memory", TRACE))
    assert "profile_memory=True" in remedy
    assert "nsys" not in remedy
