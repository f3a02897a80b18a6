"""The doctor on machines with and without each tool."""

import json
import sys
from pathlib import Path

import pytest

from kanalyze.collectors.base.errors import BadOptionError
from kanalyze.collectors.base.options import Options
from kanalyze.collectors.base.programs import find
from kanalyze.collectors.tools import machine, ncu
from kanalyze.collectors.tools.doctor import doctor
from kanalyze.collectors.tools.manifest import masked

PYTHON = Path(sys.executable)
NVCC = """#!/bin/sh
case $1 in
  --version) echo 'Cuda compilation tools, release 13.0, V13.0.88' ;;
  *) echo compute_90 ;;
esac
"""


def lines(**options):
    return {line.name: line for line in doctor(Options(python=PYTHON, **options))}


def missing(**options):
    return [line.name for line in lines(**options).values() if not line.ok]


@pytest.fixture
def whole(stand_ins, monkeypatch):
    """A machine that has everything."""
    stand_ins.write("nvcc", NVCC)
    python = stand_ins.write("python", f"#!{sys.executable}\nprint('kanalyze:' + {_FACTS!r})\n")
    monkeypatch.setattr(sys.modules[__name__], "PYTHON", python)
    return stand_ins


_FACTS = json.dumps({"version": "2.11.0", "cuda": "13.0", "gpu": True, "triton": "3.6", "python": "3.12"})


def test_on_a_whole_machine_everything_is_found(whole):
    found = lines()
    assert [line.name for line in found.values() if not line.ok] == []
    assert list(found) == ["GPU", "driver", "nvcc", "architecture", "nsys", "ncu", "counters", "torch", "disk"]
    assert found["GPU"].found == "NVIDIA H200 (compute capability 9.0)"
    assert found["nvcc"].found == f"13.0.88 ({whole.folder / 'nvcc'})"
    assert found["nsys"].found == f"2025.3.2.474 ({whole.folder / 'nsys'})"
    assert found["architecture"].found == "sm_90"
    assert found["torch"].found.startswith("2.11.0 of ")


@pytest.mark.parametrize("tool", ["nsys", "ncu"])
def test_a_tool_that_is_not_there_is_told_with_how_to_get_it(whole, tool):
    (whole.folder / tool).unlink()
    line = lines()[tool]
    assert missing() == [tool]
    assert line.found == "not found on PATH or where its installers put it"
    assert line.remedy.startswith("install Nsight")


def test_without_nvidia_smi_there_is_no_gpu(whole):
    (whole.folder / "nvidia-smi").unlink()
    assert missing() == ["GPU"]
    assert lines()["GPU"].found == "none (nvidia-smi: not found on PATH)"


def test_a_gpu_that_nvidia_smi_does_not_show_is_told_apart_from_none(whole, monkeypatch):
    whole.write("nvidia-smi", "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    monkeypatch.setattr(machine, "has_device_files", lambda: True)
    assert lines()["GPU"].found == "there is one, but nvidia-smi does not tell which (it fails)"


def test_an_nvcc_that_does_not_know_the_gpu_is_told(whole):
    whole.write("nvcc", NVCC.replace("compute_90", "compute_80"))
    assert missing() == ["architecture"]
    assert lines()["architecture"].found == "nvcc 13.0.88 does not compile for 9.0"


def test_a_python_without_torch_is_told(whole):
    python = whole.write("python", "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n")
    assert missing() == ["torch"]
    why = f"{python} cannot import it (ModuleNotFoundError: No module named 'torch')"
    assert lines()["torch"].found == why


def test_counters_for_administrators_only_are_told_with_the_remedy(whole, monkeypatch):
    del whole
    monkeypatch.setattr(ncu, "restricted", lambda: True)
    line = lines()["counters"]
    assert missing() == ["counters"]
    assert "ERR_NVGPUCTRPERM" in line.found
    assert "NVreg_RestrictProfilingToAdminUsers=0" in line.remedy


@pytest.mark.parametrize(
    ("params", "capabilities", "restricted"),
    [
        ("RmProfilingAdminOnly: 1\n", "0000000000000000", True),
        ("RmProfilingAdminOnly: 1\n", "000001ffffffffff", False),
        ("RmProfilingAdminOnly: 1\n", "0000000000200000", False),
        ("RmProfilingAdminOnly: 0\n", "0000000000000000", False),
        ("Other: 1\n", "0000000000000000", False),
    ],
)
def test_the_driver_s_settings_and_our_capabilities_tell_who_may_count(tmp_path, params, capabilities, restricted):
    (tmp_path / "params").write_text(params)
    (tmp_path / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    assert ncu.restricted(tmp_path / "params", tmp_path / "status") is restricted


def test_where_nobody_tells_counters_are_not_restricted(tmp_path):
    assert not ncu.restricted(tmp_path / "no", tmp_path / "no")


def test_little_space_is_told(whole, monkeypatch):
    del whole
    monkeypatch.setattr("kanalyze.collectors.base.files.ENOUGH_BYTES", 10**18)
    assert missing() == ["disk"]


def test_nsys_of_nsight_compute_s_folder_is_told_when_it_cannot_write_reports(whole):
    folder = whole.folder / "nsight-compute" / "host" / "target-linux-x64"
    folder.mkdir(parents=True)
    (whole.folder / "nsys").rename(folder / "nsys")
    (whole.folder / "nsys").symlink_to(folder / "nsys")
    assert "lacks its importer" in lines(nsys=folder / "nsys")["nsys"].found
    importer = folder.parent / "host-linux-x64" / "QdstrmImporter"
    importer.parent.mkdir()
    importer.touch()
    assert lines(nsys=folder / "nsys")["nsys"].ok


# Finding programs


def test_a_tool_is_taken_from_where_the_user_says_and_from_nowhere_else(stand_ins):
    del stand_ins
    for asked in (Path("nowhere/nsys"), Path("nowhere")):
        with pytest.raises(BadOptionError, match="not a program that can be run"):
            find("nsys", "--nsys", asked, (), "")
    assert find("nsys", "--nsys", Path("ncu"), (), "").version == "2025.3.1.0"


def test_a_tool_that_does_not_run_is_told(bare):
    bare.write("nsys", "#!/bin/sh\necho 'libX.so: cannot open' >&2\nexit 127\n")
    found = find("nsys", "--nsys", None, (), "get it")
    assert (found.usable, found.remedy) == (False, "get it")
    assert found.problem == f"{bare.folder / 'nsys'} --version ended with status 127: libX.so: cannot open"


# The machine


def test_a_field_that_nvidia_smi_does_not_know_is_left_out(stand_ins):
    path = stand_ins.folder / "gpu.json"
    known = json.loads(path.read_text())
    del known["mig.mode.current"], known["compute_cap"]
    path.write_text(json.dumps(known))
    (row,) = machine.gpus().rows
    assert (row["name"], row["mig"], row["compute_capability"]) == ("NVIDIA H200", None, None)
    assert row["clock_sm_max_mhz"] == 1980


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("CUDA_VISIBLE_DEVICES", "0,1", "0,1"),
        ("OMP_NUM_THREADS", "4", "4"),
        ("TORCH_LOGS", "output_code", "output_code"),
        ("PYTORCH_CUDA_ALLOC_CONF", "x", "x"),
        ("NCCL_AUTH", "x", None),
        ("TORCH_HUB_TOKEN", "x", None),
        ("CUDA_PASSWORD", "x", None),
        ("NVIDIA_API_KEY", "x", None),
        ("AWS_SECRET_ACCESS_KEY", "x", None),
        ("HOME", "/home/me", None),
        ("TRITON_HOME", "https://me:pw@host/x", "https://host/x"),
    ],
)
def test_of_the_environment_only_what_matters_is_kept_and_no_secret(monkeypatch, name, value, kept):
    monkeypatch.setenv(name, value)
    assert machine.environment().get(name) == kept


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--token", "abc", "x"], ["--token", "(hidden)", "x"]),
        (["--hf-token=abc"], ["--hf-token=(hidden)"]),
        (["--api-key", "abc"], ["--api-key", "(hidden)"]),
        (["--max-tokens", "12"], ["--max-tokens", "12"]),
        (["--no-key-averages", "--", "train.py"], ["--no-key-averages", "--", "train.py"]),
        (["token", "abc"], ["token", "abc"]),
    ],
)
def test_what_may_be_a_secret_in_a_command_is_hidden(words, kept):
    assert masked(words) == kept


def test_git_says_what_was_run(tmp_path):
    assert machine.git(tmp_path) is None
