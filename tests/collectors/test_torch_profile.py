"""A region of one's own code, profiled in this process. CPU only is enough."""

import gzip
import json
import re

import pytest

from kanalyze.collectors.torch_profile import torch_profile
from kanalyze.errors import CollectError, OutputError, UnknownNameError

torch = pytest.importorskip("torch", reason="needs torch; CI has it in a step of its own")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def names(trace):
    with gzip.open(trace) as file:
        return [event["name"] for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_block_becomes_a_folder(tmp_path):
    with torch_profile(out=tmp_path / "capture", activities=["cpu"]) as capture:
        torch.ones(3)
        assert not (tmp_path / "capture").exists()
    assert files(tmp_path) == ["capture"]
    assert files(tmp_path / "capture") == ["torch-run.json", "torch.json.gz", "torch.key_averages.txt"]
    assert capture.folder == tmp_path / "capture"
    assert capture.trace == tmp_path / "capture" / "torch.json.gz"
    assert "aten::ones" in names(capture.trace)
    assert "aten::ones" in {event.key for event in capture.key_averages()}
    assert repr(capture) == f"<TorchCapture {tmp_path}/capture: 1 trace>"
    told = json.loads((capture.folder / "torch-run.json").read_text())
    assert (told["recipe"], told["activities"], told["complete"]) == ("plain", ["cpu"], True)


def test_steps_are_ones_own(tmp_path):
    with torch_profile("schedule", out=tmp_path / "c", active=2, repeat=2, with_stack=True) as capture:
        for _ in range(8):
            torch.ones(3)
            capture.step()
    assert [path.name for path in capture.traces] == ["torch-cycle1.json.gz", "torch-cycle2.json.gz"]
    steps = [name for name in names(capture.traces[1]) if name.startswith("ProfilerStep")]
    assert steps == ["ProfilerStep#6", "ProfilerStep#7"]


def test_without_steps_the_user_is_warned_and_asking_for_the_trace_says_why(tmp_path):
    profile = torch_profile("schedule", out=tmp_path / "c", activities=["cpu"])
    with (
        pytest.warns(UserWarning, match=r"no step was seen; call capture\.step\(\) at each step's end"),
        profile as capture,
    ):
        torch.ones(3)
    with pytest.raises(CollectError, match=r"no trace: no trace, because no step was seen\."):
        _ = capture.trace
    with pytest.raises(CollectError, match="nothing was recorded"):
        capture.key_averages()


def test_a_part_is_left_out(tmp_path):
    with torch_profile("toggle", out=tmp_path / "c", activities=["cpu"]) as capture:
        torch.ones(3)
        with capture.leave_out():
            torch.zeros(3)
        torch.eye(3)
    assert {"aten::ones", "aten::eye"} <= set(names(capture.trace))
    assert "aten::zeros" not in names(capture.trace)


def test_an_error_goes_on_and_what_was_recorded_is_partial(tmp_path):
    with pytest.raises(ZeroDivisionError), torch_profile(out=tmp_path / "c") as capture:
        _ = torch.ones(3).tolist()[0] / 0
    assert files(tmp_path) == ["c-partial"]
    assert "aten::ones" in names(capture.trace)
    assert json.loads((tmp_path / "c-partial" / "torch-run.json").read_text())["complete"] is False
    with pytest.raises(ZeroDivisionError), torch_profile(out=tmp_path / "c"):
        _ = 1 / 0
    assert files(tmp_path) == ["c-partial", "c-partial-2"]


def test_a_folder_that_exists_or_came_in_between_is_not_touched(tmp_path, monkeypatch):
    with pytest.raises(OutputError, match="exists already"), torch_profile(out=tmp_path / "c"):
        (tmp_path / "c").mkdir()
    with pytest.raises(OutputError, match="exists already"), torch_profile(out=tmp_path / "c"):
        pytest.fail("the region must not run")
    assert files(tmp_path / "c") == []
    monkeypatch.chdir(tmp_path / "c")
    with torch_profile():
        torch.ones(3)
    (name,) = files(tmp_path / "c")
    assert re.fullmatch(r"torch-plain-\d{8}-\d{6}", name)


def test_a_second_profiler_is_refused_and_the_first_goes_on(tmp_path):
    with torch_profile(out=tmp_path / "first") as capture:
        with pytest.raises(CollectError, match="another torch profiler is on") as refused:
            torch_profile(out=tmp_path / "second").__enter__()
        torch.ones(3)
    assert "--recipe own" in refused.value.remedy
    assert files(tmp_path) == ["first"]
    assert "aten::ones" in names(capture.trace)


def test_a_function_is_profiled_for_its_first_calls(tmp_path):
    @torch_profile(out=tmp_path / "c", calls=2)
    def double(x, *, by=2):
        """Doubles."""
        return x * by

    assert [double(n) for n in range(4)] == [0, 2, 4, 6]
    assert double.__doc__ == "Doubles."
    assert [capture.folder.name for capture in double.captures] == ["c", "c-2"]
    assert files(tmp_path) == ["c", "c-2"]


def test_what_is_wrong_is_said_before_anything_runs(tmp_path):
    with pytest.raises(UnknownNameError, match="no recipe 'scedule'") as wrong:
        torch_profile("scedule")
    assert wrong.value.remedy.startswith("Did you mean schedule?")
    with pytest.raises(UnknownNameError, match="no activity 'gpu'"):
        torch_profile(activities=["gpu"])
    with pytest.raises(ValueError, match="has no steps"):
        torch_profile("plain", active=3)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"), torch_profile(out=tmp_path / "file" / "c"):
        pytest.fail("the region must not run")
