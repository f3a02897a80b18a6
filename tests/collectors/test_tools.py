"""The doctor on machines with and without each tool, and which launches ncu profiles."""

import errno
import json
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from kanalyze.collectors.options import BadOptionError, Options
from kanalyze.collectors.process import find
from kanalyze.collectors.run.passes import masked
from kanalyze.collectors.tools import found as found_tools, machine
from kanalyze.collectors.tools.found import complete, doctor, extras
from kanalyze.collectors.tools.machine import Permission, counters, cpu_samples, kernel_names
from kanalyze.collectors.tools.ncu import Launch, first_filter, parse, select
from support.stand_ins import GPU, LAUNCHES

PYTHON = Path(sys.executable)
NVCC = """#!/bin/sh
case $1 in
  --version) echo 'Cuda compilation tools, release 13.0, V13.0.88' ;;
  *) echo compute_90 ;;
esac
"""

_FACTS = json.dumps({"version": "2.11.0", "cuda": "13.0", "gpu": True, "triton": "3.6", "python": "3.12"})


@pytest.fixture
def whole(stand_ins, monkeypatch):
    stand_ins.write("nvcc", NVCC)
    python = stand_ins.write("python", f"#!{sys.executable}\nprint('kanalyze:' + {_FACTS!r})\n")
    monkeypatch.setattr(sys.modules[__name__], "PYTHON", python)
    return stand_ins


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

#: Machines on which not all is there: programs, None for those that are missing, and what is denied.
MACHINES = {
    "all of it": {},
    "no tools": dict.fromkeys(("nsys", "ncu", "nvcc")),
    "no GPU that is shown": {"nvidia-smi": "#!/bin/sh\necho no\nexit 18\n"},
    "an older nvcc": {"nvcc": NVCC.replace("compute_90", "compute_80")},
    "an older nsys": OLD_NSYS,
    "an nsys that refuses": {"nsys.gpu-metrics-devices=help": REFUSED},
    "no counters": {"denied": "counters"},
    "no samples of the CPU": {"denied": "cpu_samples"},
    "no names of the kernel": {"denied": "kernel_names"},
    "a full disk": {"denied": "disk"},
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", MACHINES)
def test_what_the_doctor_says(whole, monkeypatch, gold, name):
    monkeypatch.setattr(machine, "has_device_files", lambda: True)
    monkeypatch.setattr(
        found_tools.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**10 * (name != "a full disk"))
    )
    for program, text in MACHINES[name].items():
        if program == "denied":
            monkeypatch.setattr(
                machine, text, lambda: Permission(ok=False, found="denied", remedy="ask"), raising=False
            )
        else:
            (whole.folder / program).unlink() if text is None else whole.write(program, text)
    examined = doctor(Options(python=PYTHON))
    said = [
        f"{'found' if one.ok else 'MISSING'} {'optional ' * one.optional}{one.name}: {one.found}" for one in examined
    ]
    said += [f"to get {one.name}: {one.remedy}" for one in examined if one.remedy]
    text = "\n".join([*said, "complete" if complete(examined) else "not complete", ""])
    gold(text.replace(str(whole.folder), "BIN"), f"doctor/{name.replace(' ', '_')}.txt")


# Roofs that the doctor measures: rates beside the datasheet's, or why there are none

H100 = '{"name": "NVIDIA H100 80GB HBM3", "rates": {"bf16": 788e12, "fp64": 6e13, "copy": 3.0e12}}'
NO_TORCH = [("roofs", "ModuleNotFoundError: No module named 'torch'")]


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
        ((0, '{"name": "Some GPU", "rates": {"fp32": 1e13}}'), [("fp32 roof", "10 TFLOP/s")]),
        ((1, "Traceback\nModuleNotFoundError: No module named 'torch'\n"), NO_TORCH),
        ((None, ""), [("roofs", "no answer")]),
    ],
    ids=["known", "no datasheet", "no torch", "no python"],
)
def test_the_doctor_tells_measured_roofs(monkeypatch, answer, lines):
    monkeypatch.setattr(found_tools, "answer", lambda *_, **__: answer)
    assert [(line.name, line.found) for line in found_tools.measured()] == lines
    assert all(line.ok is (line.name != "roofs") and line.optional for line in found_tools.measured())


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


def test_what_settings_and_capabilities_permit(tmp_path, gold):
    """Counters by the driver's settings; samples of the CPU and names of the kernel by the level of perf events."""
    said = []
    for capabilities, who in {USER: "user", ROOT: "root", PERFMON: "CAP_PERFMON", ADMIN: "CAP_SYS_ADMIN"}.items():
        said += [
            f"counters, {who}, {params}: {counters(root(tmp_path, capabilities, params=params))}"
            for params in ("RmProfilingAdminOnly: 1", "RmProfilingAdminOnly: 0", "Other: 1", "")
        ]
        for level in ("-1", "0", "1", "2", "4", ""):
            for failed in (0, errno.EACCES, errno.EPERM, errno.ENOSYS, errno.EMFILE):
                told = cpu_samples(root(tmp_path, capabilities, level=level), lambda failed=failed: failed)
                said.append(
                    f"samples, {who}, level {level or 'unknown'}, {errno.errorcode.get(failed, 'opened')}: {told}"
                )
            for symbols in (HIDDEN, SHOWN):
                told = kernel_names(root(tmp_path, capabilities, level=level, symbols=symbols, pointers="1\n"))
                said.append(f"names, {who}, level {level or 'unknown'}, {symbols.split()[-4]}: {told}")
    gold("\n".join([*said, ""]), "permissions.txt")


def test_this_machine_answers_the_call_itself():
    assert cpu_samples().found


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


def test_a_field_that_nvidia_smi_does_not_know_is_left_out(stand_ins):
    stand_ins.has_gpu({name: GPU[name] for name in GPU if name not in ("mig.mode.current", "compute_cap")})
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
    rows = parse("Processing [a.sqlite] with [x.py]...\n\n" + LAUNCHES)
    assert rows == [Launch("_Z3addiPfS_", shape, owner, 200, 5000), Launch("_Z3addiPfS_", shape, owner, 6000, 100)]


@pytest.mark.parametrize(
    ("runs", "options", "told"),
    [
        ([("light", [1, 1]), ("heavy", [900, 100, 100]), ("middle", [50, 50])], {"kernels": 2}, ["heavy|middle:2"]),
        ([("once", [10]), ("twice", [3, 3])], {}, ["once:1", "twice:2"]),
        # a second launch that is not typical gives way to one that is
        ([("k", [500, 400, 100, 101, 99])], {}, ["k:3"]),
        ([("k", [500, 100, 100, 100])], {"launches": 2}, ["k:2|3"]),
        # of long and short launches in turns those with more of the time
        ([("k", [10, *[5, 5, 20] * 4])], {}, ["k:4"]),
        ([("k", [10, *[5, 5, 8, 5, 5] * 4])], {}, ["k:2"]),
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


def test_the_dry_run_s_helper_gives_the_filter(tmp_path):
    listing = tmp_path / "launches.csv"
    listing.write_text(LAUNCHES)
    assert first_filter(str(listing), 1, 1, part=False) == "::regex:^(_Z3addiPfS_)$:2"
    assert first_filter(str(listing), 5, 1, part=True) == "regex:^(_Z3addiPfS_)$"
    listing.write_text("")
    assert first_filter(str(listing), 5, 1, part=False) == ""
