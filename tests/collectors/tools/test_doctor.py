"""The doctor on machines with and without each tool."""

import errno
import json
import sys
from functools import partial
from pathlib import Path

import pytest

from kanalyze.collectors.base.errors import BadOptionError
from kanalyze.collectors.base.options import Options
from kanalyze.collectors.base.programs import find
from kanalyze.collectors.run.passes import masked
from kanalyze.collectors.tools import machine
from kanalyze.collectors.tools.doctor import complete, doctor
from kanalyze.collectors.tools.machine import Permission, counters, cpu_samples, kernel_names

PYTHON = Path(sys.executable)
NVCC = """#!/bin/sh
case $1 in
  --version) echo 'Cuda compilation tools, release 13.0, V13.0.88' ;;
  *) echo compute_90 ;;
esac
"""


def lines(**options):
    return {line.name: line for line in doctor(Options(python=PYTHON, **options))}


def missing():
    return [line.name for line in lines().values() if not line.ok]


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
    assert list(found) == [
        *("GPU", "driver", "nvcc", "architecture", "nsys", "ncu", "counters"),
        *("CPU samples", "OS symbols", "Python samples", "GPU metrics", "torch", "disk"),
    ]
    assert found["GPU metrics"].found == "Hopper GH100 | NVIDIA H200"
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


def test_a_gpu_that_nvidia_smi_does_not_show_is_told_apart_from_none(whole, monkeypatch):
    whole.write("nvidia-smi", "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    monkeypatch.setattr(machine, "has_device_files", lambda: True)
    assert lines()["GPU"].found == "there is one, but nvidia-smi does not tell which (it fails)"


@pytest.mark.slow
def test_an_nvcc_that_does_not_know_the_gpu_is_told(whole):
    whole.write("nvcc", NVCC.replace("compute_90", "compute_80"))
    assert missing() == ["architecture"]
    assert lines()["architecture"].found == "nvcc 13.0.88 does not compile for 9.0"


def test_counters_for_administrators_only_are_told_with_the_remedy(whole, monkeypatch, tmp_path):
    del whole
    monkeypatch.setattr(machine, "counters", partial(counters, root(tmp_path, params="RmProfilingAdminOnly: 1\n")))
    line = lines()["counters"]
    assert missing() == ["counters"]
    assert "ERR_NVGPUCTRPERM" in line.found
    assert "NVreg_RestrictProfilingToAdminUsers=0" in line.remedy


# What is permitted

USER, ROOT, PERFMON, ADMIN = "0000000000000000", "000001ffffffffff", "0000004000000000", "0000000000200000"
HIDDEN, SHOWN = "0000000000000000 T _stext\n" * 50, "0000000000000000 A first\nffffffff81000000 T _stext\n"


def root(folder, capabilities=USER, **told):
    """A folder with files of the kernel as made up."""
    places = {
        "params": "proc/driver/nvidia/params",
        "level": "proc/sys/kernel/perf_event_paranoid",
        "pointers": "proc/sys/kernel/kptr_restrict",
        "symbols": "proc/kallsyms",
    }
    files = {places[name]: text for name, text in told.items()}
    for name, text in {**files, "proc/self/status": f"Name:\tx\nCapEff:\t{capabilities}\n"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("params", "capabilities", "ok"),
    [
        ("RmProfilingAdminOnly: 1\n", USER, False),
        ("RmProfilingAdminOnly: 1\n", PERFMON, False),
        ("RmProfilingAdminOnly: 1\n", ROOT, True),
        ("RmProfilingAdminOnly: 1\n", ADMIN, True),
        ("RmProfilingAdminOnly: 0\n", USER, True),
        ("Other: 1\n", USER, None),
        ("", USER, None),
    ],
)
def test_the_driver_s_settings_and_our_capabilities_tell_who_may_count(tmp_path, params, capabilities, ok):
    found = counters(root(tmp_path, capabilities, params=params))
    assert found.ok is ok
    assert bool(found.remedy) == (ok is False)


@pytest.mark.parametrize(
    ("level", "capabilities", "failed", "ok", "found"),
    [
        ("2", USER, 0, True, "your own programs, but not the kernel below them (perf_event_paranoid is 2)"),
        ("1", USER, 0, True, "your own programs, and the kernel below them (perf_event_paranoid is 1)"),
        ("0", USER, 0, True, "every process and the kernel (perf_event_paranoid is 0)"),
        ("-1", USER, 0, True, "every process and the kernel (perf_event_paranoid is -1)"),
        ("4", PERFMON, 0, True, "every process and the kernel, as this process is privileged (perf_event_paranoid is 4)"),  # noqa: E501
        ("4", USER, errno.EACCES, False, "perf_event_paranoid is 4, which denies them to users"),
        ("2", ROOT, errno.EPERM, False, "perf_event_open is refused although perf_event_paranoid is 2, as by the filter of a container"),  # noqa: E501
        ("2", USER, errno.ENOSYS, False, "there is no perf_event_open here"),
        ("2", USER, errno.EMFILE, False, "perf_event_open fails (Too many open files); perf_event_paranoid is 2"),
        (None, USER, 0, False, "there is no perf_event_open here"),
    ],
)  # fmt: skip
def test_the_level_of_perf_events_says_what_samples_of_the_cpu_may_see(  # noqa: PLR0913 - a case has as many parts
    tmp_path, level, capabilities, failed, ok, found
):
    levels = {"level": f"{level}\n"} if level else {}
    told = cpu_samples(root(tmp_path, capabilities, **levels), lambda: failed)
    assert (told.ok, told.found) == (ok, found)
    assert bool(told.remedy) == ("--cap-add=PERFMON" in told.remedy) == (not ok)
    assert ("sysctl kernel.perf_event_paranoid=2" in told.remedy) == (level == "4" and not ok)


def test_this_machine_answers_the_call_itself():
    assert cpu_samples().found


@pytest.mark.parametrize(
    ("level", "capabilities", "symbols", "ok"),
    [
        ("2", USER, HIDDEN, None),
        ("1", USER, HIDDEN, False),
        ("1", USER, SHOWN, True),
        ("2", ROOT, SHOWN, True),
        ("2", PERFMON, HIDDEN, False),
    ],
)
def test_names_of_the_kernel_matter_where_samples_see_it(tmp_path, level, capabilities, symbols, ok):
    told = kernel_names(root(tmp_path, capabilities, level=f"{level}\n", symbols=symbols, pointers="1\n"))
    assert (told.ok if told else None) is ok
    assert told is None or told.found.endswith(" (kptr_restrict is 1)")


@pytest.mark.parametrize("name", ["cpu_samples", "kernel_names"])
def test_what_only_samples_need_may_be_missing(whole, monkeypatch, name):
    del whole
    monkeypatch.setattr(machine, name, lambda: Permission(ok=False, found="denied", remedy="ask"))
    examined = doctor(Options(python=PYTHON))
    assert [(line.found, line.remedy) for line in examined if not line.ok] == [("denied", "ask")]
    assert complete(examined)


def test_an_old_nsys_has_no_samples_of_python_and_another_name_of_metrics(whole):
    (whole.folder / "nsys.help").write_text("\t--gpu-metrics-device=\n\t--python-sampling-frequency=\n")
    (whole.folder / "nsys.gpu-metrics-device=help").write_text("\t0: Ampere GA100 | NVIDIA A100 PCI[0000:00:06.0]\n")
    found = lines()
    assert (found["Python samples"].ok, found["Python samples"].optional) == (False, True)
    assert found["GPU metrics"].found == "Ampere GA100 | NVIDIA A100"


def test_why_there_are_no_gpu_metrics_is_said_as_nsys_says_it(whole):
    said = "Illegal --gpu-metrics-devices argument: help.\nNone of the installed GPUs are supported:\n"
    (whole.folder / "nsys.gpu-metrics-devices=help").write_text(said)
    line = lines()["GPU metrics"]
    assert (line.ok, line.optional) == (False, True)
    assert line.found == f"nsys: {' '.join(said.split())}"


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


def test_of_the_environment_only_what_matters_is_kept_and_no_secret(monkeypatch):
    kept = {"CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "4", "TORCH_LOGS": "output_code", "LOCAL_RANK": "x"}
    left_out = ("NCCL_AUTH", "TORCH_HUB_TOKEN", "CUDA_PASSWORD", "NVIDIA_API_KEY", "AWS_SECRET_ACCESS_KEY", "HOME")
    for name, value in {**kept, **dict.fromkeys(left_out, "x"), "TRITON_HOME": "https://me:pw@host/x"}.items():
        monkeypatch.setenv(name, value)
    found = machine.environment()
    assert {name: found.get(name) for name in (*kept, *left_out)} == {**kept, **dict.fromkeys(left_out)}
    assert found["TRITON_HOME"] == "https://host/x"


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
