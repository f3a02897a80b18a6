"""One step of a pass: what is said of a step that was stopped, and of one that printed very much."""

import pytest

from kanalyze.collectors.base import process
from kanalyze.collectors.base.step import Step
from kanalyze.collectors.run.runner import Runner, StepFailedError
from kanalyze.collectors.tools.manifest import PassRecord

KEPT = "logs/nsys.log keeps the first and the last 1 MiB of what was printed, and leaves out the rest"


def step(tmp_path, code="true"):
    (tmp_path / "logs").mkdir()
    return Step("nsys", ("sh", "-c", code), tmp_path / "logs" / "nsys.log")


@pytest.mark.parametrize(
    ("spent_s", "limit_s", "said"),
    [
        (0.0, None, "took longer than 4 s, and was stopped"),
        (2.5, None, "took longer than 1.5 s that were left of 4 s, and was stopped"),
        (2.5, 1.0, "took longer than 1 s, and was stopped"),
        (0.0, 9.0, "took longer than 4 s, and was stopped"),
    ],
)
def test_the_limit_is_said_and_not_how_long_stopping_took(tmp_path, monkeypatch, spent_s, limit_s, said):
    monkeypatch.setattr(process, "run", lambda *_, **__: process.Ended(None, 9.0))
    runner = Runner(PassRecord("nsys", "done"), lambda _: None, 4.0, spent_s=spent_s)
    with pytest.raises(StepFailedError) as caught:
        runner.run(step(tmp_path), limit_s)
    assert caught.value.why == said


@pytest.mark.parametrize(("printed", "notes"), [(100, []), (3 << 20, [KEPT])])
def test_output_that_is_left_out_is_said(tmp_path, monkeypatch, printed, notes):
    monkeypatch.setattr(process, "KEPT_BYTES", 1 << 20)
    record = PassRecord("nsys", "done")
    Runner(record, lambda _: None, 60.0).run(step(tmp_path, f"head -c {printed} /dev/zero | tr '\\0' x"))
    assert record.notes == notes
