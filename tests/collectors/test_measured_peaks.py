"""Roofs that the doctor measures: rates beside the datasheet's, or why there are none."""

import pytest

from kanalyze.collectors.tools import found

H100 = '{"name": "NVIDIA H100 80GB HBM3", "rates": {"bf16": 788e12, "fp64": 6e13, "copy": 3.0e12}}'
OTHER = '{"name": "Some GPU", "rates": {"fp32": 1e13}}'


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (
            (0, f"a warning\n{H100}\n"),
            [
                ("bf16 roof", "788 TFLOP/s, 80% of 989.4 by the datasheet"),
                ("fp64 roof", "60 TFLOP/s, 90% of 66.9 by the datasheet"),
                ("copy roof", "3 TB/s, 90% of 3.35 by the datasheet"),
            ],
        ),
        ((0, OTHER), [("fp32 roof", "10 TFLOP/s")]),
        (
            (1, "Traceback\nModuleNotFoundError: No module named 'torch'\n"),
            [("roofs", "ModuleNotFoundError: No module named 'torch'")],
        ),
        ((None, ""), [("roofs", "no answer")]),
    ],
    ids=["known", "no datasheet", "no torch", "no python"],
)
def test_the_doctor_tells_measured_roofs(monkeypatch, answer, lines):
    monkeypatch.setattr(found, "answer", lambda *_, **__: answer)
    assert [(line.name, line.found) for line in found.measured()] == lines
    assert all(line.ok is (line.name != "roofs") and line.optional for line in found.measured())
