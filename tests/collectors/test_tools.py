"""The doctor on machines with and without each tool, and which launches ncu profiles."""

import errno
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.collectors.options import BadOptionError, Options
from kanalyze.collectors.process import find
from kanalyze.collectors.run.passes import masked
from kanalyze.collectors.tools import found as found_tools
from kanalyze.collectors.tools import machine
from kanalyze.collectors.tools.choose import main
from kanalyze.collectors.tools.found import complete, doctor, extras
from kanalyze.collectors.tools.machine import Permission, counters, cpu_samples, kernel_names
from kanalyze.collectors.tools.ncu import Launch, parse, select
from support.stand_ins import LAUNCHES

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


def test_every_extra_is_looked_for(monkeypatch):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    every = {*project["optional-dependencies"]} - {"all", "test", "dev"}
    assert {line.name for line in extras()} == {f"extra {name}" for name in every}
    assert project["optional-dependencies"]["all"] == [
        f"kanalyze[{','.join(name for name in project['optional-dependencies'] if name in every)}]"
    ]
    monkeypatch.setattr(found_tools, "_EXTRAS", {"plot": ("no-such-package", "draws")})
    (missing,) = extras()
    assert (missing.ok, missing.optional) == (False, True)
    assert "pip install 'kanalyze[plot]'" in missing.remedy


OLD_NSYS = {
    "nsys.help": "\t--gpu-metrics-device=\n\t--python-sampling-frequency=\n",
    "nsys.gpu-metrics-device=help": "\t0: Ampere GA100 | NVIDIA A100 PCI[0000:00:06.0]\n",
}
REFUSED = "Illegal --gpu-metrics-devices argument: help.\nNone of the installed GPUs are supported:\n"


@pytest.mark.parametrize(
    ("programs", "name", "found", "remedy"),
    [
        ({"nsys": None}, "nsys", "not found on PATH or where its installers put it", "install Nsight Systems"),
        ({"ncu": None}, "ncu", "not found on PATH or where its installers put it", "install Nsight Compute"),
        ({"nvidia-smi": "#!/bin/sh\necho no\nexit 18\n"}, "GPU",
         "there is one, but nvidia-smi does not tell which (it fails)", "check the driver's installation"),
        ({"nvcc": NVCC.replace("compute_90", "compute_80")}, "architecture",
         "nvcc 13.0.88 does not compile for 9.0", "install a CUDA toolkit"),
        (OLD_NSYS, "Python samples", "nsys 2025.3.2.474 does not take them", "install a newer Nsight Systems"),
        ({"nsys.gpu-metrics-devices=help": REFUSED}, "GPU metrics",
         f"nsys: {' '.join(REFUSED.split())}", "it takes a GPU from Turing on"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_with_how_to_get_it(whole, monkeypatch, programs, name, found, remedy):  # noqa: PLR0913
    monkeypatch.setattr(machine, "has_device_files", lambda: True)
    for program, text in programs.items():
        (whole.folder / program).unlink() if text is None else whole.write(program, text)
    examined = lines()
    line = examined[name]
    assert [each for each in examined.values() if not each.ok and each.name != "driver"] == [line]
    assert (line.found, line.remedy[: len(remedy)]) == (found, remedy)
    assert line.optional == (name in ("Python samples", "GPU metrics"))
    assert examined.get("GPU metrics", line).found != "Ampere GA100" or programs is not OLD_NSYS


@pytest.mark.parametrize("name", ["counters", "cpu_samples", "kernel_names"])
def test_what_is_not_permitted_is_told_and_samples_may_be_missing(whole, monkeypatch, name):
    del whole
    monkeypatch.setattr(machine, name, lambda: Permission(ok=False, found="denied", remedy="ask"))
    examined = doctor(Options(python=PYTHON))
    assert [(line.found, line.remedy) for line in examined if not line.ok] == [("denied", "ask")]
    assert complete(examined) == (name != "counters")


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
    assert ("NVreg_RestrictProfilingToAdminUsers=0" in found.remedy) == bool(found.remedy) == (ok is False)
    assert ("ERR_NVGPUCTRPERM" in found.found) == (ok is False)


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


def test_little_space_is_told(whole, monkeypatch):
    del whole
    monkeypatch.setattr("kanalyze.collectors.process.ENOUGH_BYTES", 10**18)
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


# Launches for ncu: the heaviest kernels, warm, never communication


def launches(*runs):
    """Launches one after the other; each run is a kernel, its durations, and at will its shape."""
    found, at = [], 0
    for kernel, durations, *shape in runs:
        for dur in durations:
            found.append(Launch(kernel, tuple(map(str, shape)), ("GPU", "1"), at, dur))
            at += dur
    return found


#: Launches of one kernel in two shapes, which come in turns.
SHAPES = [("k", [5], 1), ("k", [5], 1), ("k", [100], 2), ("k", [5], 1), ("k", [90], 2), ("k", [100], 2)]


def test_a_listing_of_nsys_gives_kernels_in_order_and_no_copies():
    for text in ("", "SKIPPED: does not contain CUDA trace data.", LAUNCHES.partition("\n")[0]):
        assert parse(text) == []
    shape, owner = ("1", "1", "1", "1", "1", "1", "0.000", "0.000"), ("NVIDIA H200 (0)", "1")
    assert parse("Processing [a.sqlite] with [x.py]...\n\n" + LAUNCHES) == [
        Launch("_Z3addiPfS_", shape, owner, 200, 5000),
        Launch("_Z3addiPfS_", shape, owner, 6000, 100),
    ]


@pytest.mark.parametrize(
    ("runs", "options", "told"),
    [
        ([("light", [1, 1]), ("heavy", [900, 100, 100]), ("middle", [50, 50])], {"kernels": 2}, ["heavy|middle:2"]),
        ([("once", [10]), ("twice", [3, 3])], {}, ["once:1", "twice:2"]),
        # a second launch that is not typical gives way to one that is
        ([("k", [500, 400, 100, 101, 99])], {}, ["k:3"]),
        ([("k", [500, 100, 100, 100])], {"launches": 2}, ["k:2|3"]),
        # launches are counted by name whatever their shapes, and the heaviest shape decides
        (SHAPES, {}, ["k:3"]),
        (SHAPES, {"launches": 3}, ["k:3|5|6"]),
        # communication is never profiled, and names are taken literally
        ([("ncclDevKernel_AllReduce", [10**6] * 3), ("_Z7nvshmem_k", [10**6]), ("k", [1, 1])], {}, ["k:2"]),
        ([("_Z1a$x.y", [1, 1])], {}, [r"_Z1a\$x\.y:2"]),
    ],
)
def test_the_heaviest_kernels_share_a_run_at_a_warm_and_typical_launch(runs, options, told):
    found = [selection.expression for selection in select(launches(*runs), Options(**options))]
    assert found == [f"::regex:^({names})$:{numbers}" for names, numbers in (one.split(":") for one in told)]


def test_of_a_part_of_a_run_the_first_launches_are_taken():
    (found,) = select(launches(("a", [2, 2]), ("b", [1])), Options(cuda_profiler_api=True, launches=2))
    assert found.flags == ("--kernel-name-base", "mangled", "--kernel-name", "regex:^(a|b)$", "--launch-count", "4")


def test_long_names_are_given_to_ncu_in_parts():
    names = [letter * 3000 for letter in "abcd"]
    found = select(launches(*((name, [1, 1]) for name in names)), Options())
    assert [len(selection.kernels) for selection in found] == [2, 2]
    assert sorted(kernel for selection in found for kernel in selection.kernels) == names


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 1000), st.integers(0, 2)), max_size=60),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_every_filter_matches_what_it_says(rows, kernels, wanted):
    """As ncu counts: by name. Each chosen kernel is profiled, and as often as asked where it can be."""
    found = [Launch(name, (str(shape),), ("GPU", "1"), at, dur) for at, (name, dur, shape) in enumerate(rows)]
    chosen = select(found, Options(kernels=kernels, launches=wanted))
    totals = {name: sum(one.dur_ns for one in found if one.kernel == name) for name, _, _ in rows}
    names = [kernel for selection in chosen for kernel in selection.kernels]
    assert len(names) == len(set(names)) == min(kernels, len(totals))
    assert sorted(totals[name] for name in names) == sorted(totals.values())[-len(names) :] if names else not totals
    for selection in chosen:
        expression, numbers = re.fullmatch(r"::regex:(.*):([\d|]+)", selection.expression).groups()
        assert {name for name in totals if re.search(expression, name)} == set(selection.kernels)
        for name in selection.kernels:
            most = sum(one.kernel == name for one in found)
            assert 1 <= len(numbers.split("|")) <= wanted
            assert all(1 <= int(number) <= most for number in numbers.split("|"))


def test_the_dry_run_s_helper_prints_the_filter(tmp_path, capsys):
    listing = tmp_path / "launches.csv"
    listing.write_text(LAUNCHES)
    assert main([str(listing), "--kernels", "1"]) == 0
    assert main([str(listing), "--part"]) == 0
    assert capsys.readouterr().out == "::regex:^(_Z3addiPfS_)$:2\nregex:^(_Z3addiPfS_)$\n"
    listing.write_text("")
    assert main([str(listing)]) == 1
