"""`kanalyze whatif`: pages, JSON and mistakes."""

import json

import pytest

import kanalyze
from support.command import REPORTS, SAMPLES, run

STREAMS = SAMPLES / "streams" / "nsys.sqlite"


def test_the_json_has_the_names_that_programs_rely_on():
    ran = run("whatif", STREAMS, "--faster", "*=2", "--format", "json")
    found = json.loads(ran.text)
    assert ran.status == 0
    assert found["low_ns"] < found["then_ns"] < found["high_ns"]
    assert found["then_ns"] <= found["now_ns"]
    assert found["amdahl_ns"] < found["now_ns"]
    assert sum(one["then_ns"] for one in found["critical"]) == found["then_ns"]
    assert found["changes"] == ["--faster *=2"]


@pytest.mark.parametrize("given", [{"faster": {"*": 0}}, {"without": ["x"]}, {"copies": "fast"}, {"measured": "5"}])
def test_python_refuses_what_is_no_change(given):
    with kanalyze.read(STREAMS) as report, pytest.raises(ValueError, match=r"above 0|is of|such as"):
        kanalyze.whatif(report, **given)


def test_another_configuration_is_told_with_what_was_recorded():
    arguments = ("--batch", "4", "--length", "1024=2048", "--dtype", "fp16", "--gpu", "h200", "--format", "json")
    found = json.loads(run("whatif", REPORTS / "work" / "gpt.json.gz", "--window", "steady", *arguments).text)
    sizes = ["--batch 8=4", "--length 1024=2048"]
    assert found["changes"] == ["--gpu 'NVIDIA H200'", *sizes, "--dtype fp16"]
    assert found["low_ns"] < found["then_ns"] < found["high_ns"]


@pytest.mark.slow
def test_each_change_alone_by_gain():
    ran = run("whatif", SAMPLES / "mlp_train" / "torch.json.gz", "--each", "--top", "99")
    assert ran.status == 0
    assert "--faster host=2" in ran.text
    assert "--graph" in ran.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        *((["--faster", "gemm*"], "WHAT=FACTOR"), (["--faster", "gemm*=0"], "WHAT=FACTOR")),
        *((["--faster", "=2"], "WHAT=FACTOR"), (["--faster", "x=nan"], "WHAT=FACTOR")),
        *((["--copies", "50"], "bandwidth"), (["--copies", "0GB/s"], "bandwidth")),
        *((["--measured", "5"], "time with a unit"), (["--without", "everything"], "launch-gaps")),
        *((["--faster", "no_such_kernel=2"], "There are"), (["--faster", "host:no_such_range=2"], "no range")),
        *((["--batch", "two"], "is not a size, such as 2 or 8=2"), (["--length", "0"], "is not a size")),
        *((["--dtype", "int4"], "bf16"), (["--gpu", "H300"], "no GPU with known peaks 'H300'")),
        (["--window", "nothing"], "nothing"),
    ],
)
def test_mistakes(arguments, said):
    ran = run("whatif", STREAMS, *arguments)
    assert (ran.status, ran.text) == (2, "")
    assert said in ran.error


@pytest.mark.slow
def test_another_batch_of_an_engine_is_told_by_the_law_of_its_steps():
    path = SAMPLES / "serving" / "vllm.sqlite"
    ran = run("whatif", path, "--batch", "12", "--length", "300", "--measured", "1.2ms", "--format", "json")
    found = json.loads(ran.text)
    assert found["changes"] == ["--batch 12", "--length 300"]
    assert (found["each"], found["iterations"]) == ("decode step", 1)
    assert abs(found["now_ns"] - 1_200_000) < 5
    assert sum(one["then_ns"] for one in found["critical"]) == found["then_ns"]
    assert found["remark"].startswith("12 requests with 300 tokens in the cache of each, in a graph of 16: ")
    with kanalyze.read(path) as report:
        assert kanalyze.whatif(report, batch=12, length=300, measured="1.2ms").then_ns == found["then_ns"]
