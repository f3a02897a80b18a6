"""Small programs that behave as nsys, ncu and nvidia-smi do, as far as a run of them matters to the collectors.

What they do otherwise is said by files in their folder: `<tool>.mode` has one of the words below, and whatever is
called is written to `called` as JSON, a list of arguments per line.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from kanalyze.collectors.options import BARE
from kanalyze.collectors.run import plan
from kanalyze.collectors.tools import found
from support.command import ADD

#: The passes that are made unless :func:`machine_in` leaves out the run without a profiler.
WANTED = found.wanted_passes

_HEAD = """#!{python} -IS
import json, os, pathlib, shutil, signal, subprocess, sys, time
here = pathlib.Path({folder!r})
name, words = {name!r}, sys.argv[1:]
if words == ["--version"]:
    print({version!r})
    sys.exit()
if words[0] == "profile" and len(words) == 2 and words[1].endswith("help"):
    told = here / (name + "." + words[-1].strip("-"))
    print(told.read_text() if told.exists() else "")
    sys.exit()
with (here / "called").open("a") as file:
    file.write(json.dumps([name, *words]) + "\\n")
mode = here / (name + ".mode")
mode = mode.read_text() if mode.exists() else ""
def value(flag):
    return next(word.partition("=")[2] for word in words if word.startswith(flag + "="))
def misbehave():
    if mode == "fails":
        print("something went wrong")
        sys.exit(1)
    if mode == "hangs":
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        time.sleep(1000)
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "no space":
        print("write: No space left on device")
        sys.exit(1)
"""

_NSYS = """
if words[0] == "profile":
    misbehave()
    if mode == "no metrics" and any("gpu-metrics" in word for word in words):
        print("Illegal --gpu-metrics-devices argument: cuda-visible.")
        sys.exit(1)
    if mode == "warns":
        print("WARNING: CPU IP/backtrace sampling not supported, disabling.")
    start = next(at for at, word in enumerate(words[1:], 1) if not word.startswith("-"))
    ended = subprocess.run(words[start:]).returncode
    output = pathlib.Path(value("--output"))
    report = output.with_name(output.name + ".nsys-rep")
    report.write_bytes(b"" if mode == "empty report" else b"NVIDIA report")
    print("Collecting data...\\nGenerating '/tmp/nsys-report-b956.qdstrm'")
    print("[1/1] [0%                ] " + report.name + "\\r[1/1] [============100%] " + report.name)
    print(f"Generated:\\n\\t{report}")
    sys.exit(ended)
if words[0] == "export":
    whole = (here / "export.sqlite").read_bytes()
    pathlib.Path(value("--output")).write_bytes(whole[: len(whole) // 2] if mode == "half export" else whole)
if words[0] == "stats":
    print("Processing [" + words[-1] + "] with [cuda_gpu_trace.py]...\\n")
    print((here / "launches.csv").read_text())
"""

_NCU = """
if "--import" in words:
    page = here / (words[words.index("--page") + 1] + ".csv")
    if page.exists():
        print(page.read_text())
        sys.exit()
    print('"ID","Process ID"\\n"0","1"')
    sys.exit()
misbehave()
if mode == "no permission":
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access the counters")
    sys.exit(1)
if mode == "no clocks" and "base" in words:
    print("==ERROR== Failed to lock clocks on device 0.")
    sys.exit(1)
at = words.index("--export") + 1
start = next(place for place in range(at + 1, len(words)) if not words[place].startswith("-"))
print("==PROF== Connected to process 1")
ended = subprocess.run(words[start:]).returncode
none = mode == "no kernels" or (mode == "one launch" and not words[words.index("--kernel-id") + 1].endswith(":1"))
if none:
    print("==WARNING== No kernels were profiled.")
    sys.exit(ended)
print("==WARNING== Unable to access the following 6 metrics: ctc__rx_bytes_data_user.sum, and so on.\\n\\n")
if mode == "warns":
    print("==WARNING== Launching the workload is taking more time than expected. If this continues to hang, and so on.")
    print("==WARNING== No source files were imported. Check that the target application was compiled with -lineinfo.")
    print("==WARNING== Something that nobody has heard of.")
print("==PROF== Disconnected from process 1\\n==PROF== Report: " + words[at] + ".ncu-rep")
pathlib.Path(words[at] + ".ncu-rep").write_bytes(b"report")
sys.exit(ended)
"""

_NVCC = """
if "--list-gpu-arch" in words:
    print("compute_90")
    sys.exit()
misbehave()
binary = pathlib.Path(words[words.index("-o") + 1])
binary.write_text((here / "program").read_text())
binary.chmod(0o755)
if "-MF" in words:
    pathlib.Path(words[words.index("-MF") + 1]).write_text(f"{binary} : {words[-1]}\\n")
"""

_SMI = """
known = json.loads((here / "gpu.json").read_text())
fields = value("--query-gpu").split(",")
wrong = [field for field in fields if field not in known]
if wrong:
    print(f'Field "{wrong[0]}" is not a valid field to query.')
    sys.exit(2)
print(", ".join(known[field] for field in fields))
"""

_GPU = {
    "index": "0",
    "name": "NVIDIA H200",
    "uuid": "GPU-1",
    "driver_version": "580.82.07",
    "compute_cap": "9.0",
    "memory.total": "143771",
    "memory.used": "4",
    "clocks.max.sm": "1980",
    "clocks.max.memory": "3201",
    "clocks.sm": "345",
    "clocks.mem": "3201",
    "temperature.gpu": "31",
    "power.draw": "76.43",
    "pstate": "P0",
    "ecc.mode.current": "Enabled",
    "mig.mode.current": "Disabled",
    "persistence_mode": "Enabled",
    "utilization.gpu": "0",
    "clocks_throttle_reasons.active": "0x0000000000000001",
}

LAUNCHES = """Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),\
Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name
100,50,1,,,,,,,,,,0.008,1.0,Pageable,Device,NVIDIA H200 (0),1,,7,[CUDA memcpy Host-to-Device]
200,5000,2,1,1,1,1,1,1,22,0.000,0.000,,,,,NVIDIA H200 (0),1,,7,_Z3addiPfS_
6000,100,3,1,1,1,1,1,1,22,0.000,0.000,,,,,NVIDIA H200 (0),1,,7,_Z3addiPfS_
"""

#: Of what ``nsys profile --help`` prints.
_OPTIONS = """
  --backtrace=
  --cuda-graph-trace=
  --cpuctxsw=
  --gpu-metrics-devices=
  or a comma separated list of GPU IDs reported by '--gpu-metrics-devices=help' switch.
  --python-backtrace=
  --python-sampling=
  --python-sampling-frequency=
  -s, --sample=
  -t, --trace=
"""

_SAMPLED = """Possible --gpu-metrics-devices values are:
  0: Hopper GH100 | NVIDIA H200 PCI[0000:00:06.0]
  all: Select all supported GPUs
"""

#: A program that prints its check line.
PROGRAM = """#!/bin/sh
printf '%s\\n' "$@" > "$(dirname "$0")/arguments"
echo 'Max error: 0'
"""


_PYTHON = """
if words[0] == "-c":
    facts = {"version": "2.11.0", "cuda": "13.0", "gpu": True, "triton": "3.6", "python": "3.12"}
    print("kanalyze:" + json.dumps(facts))
    sys.exit()
def script(arguments):  # scripts are written for the shell, but for the reference workloads
    if mode == "any script":
        print("check: ok")
        return 0
    return subprocess.run(["/bin/sh", *arguments]).returncode
if words[1:2] == ["--lines"]:  # the runner notes lines alone
    sys.exit(script(words[words.index("--") + 1 :]))
if "--out" not in words:  # without the runner
    sys.exit(script(words))
folder = pathlib.Path(words[words.index("--out") + 1])
folder.mkdir(exist_ok=True)
def told(ended, notes=()):
    run = {"workload": {"ended": ended}, "notes": list(notes), "failures": []}
    (folder / "torch-run.json").write_text(json.dumps(run))
told("unknown")
misbehave()
if mode == "runner fails":
    print("kanalyze: the workload cannot be profiled: ImportError: no torch")
    sys.exit(120)
(folder / "torch.json.gz").write_bytes(b"trace")
(folder / ".caches" / "inductor").mkdir(parents=True)  # as inductor leaves it
ended = script(words[words.index("--") + 1 :])
told("return", ["a remark"])
sys.exit(ended)
"""


def left(folder=Path()):
    return {entry.name for entry in folder.iterdir()}


def told(folder):
    """What the manifest of a capture says of its passes, and what is left in its folder."""
    manifest = json.loads((folder / "manifest.json").read_text())
    assert ".collecting" not in json.dumps(manifest)
    lines = [f"## {folder.name}, {manifest['status']}", f"arguments: {manifest['workload']['args']}"]
    for one in manifest["passes"]:
        lines += [f"{one['name']} {one['status']}: {one['why']}", *(f"    {note}" for note in one["notes"])]
        lines += [f"    chosen: {kernel}" for kernel in one["chosen"]]
        lines += [f"    {step['name']}: {[Path(word).name for word in step['command']]}" for step in one["steps"]]
    lines += [f"{check['step']} says: {check['line']}" for check in manifest["checks"]]
    return [*lines, *sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())]


@dataclass(frozen=True)
class StandIns:
    folder: Path

    def make(self, name):
        body, version = {
            "nsys": (_NSYS, "NVIDIA Nsight Systems version 2025.3.2.474-253236389321v0"),
            "ncu": (_NCU, "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880)"),
            "nvcc": (_NVCC, "Cuda compilation tools, release 13.0, V13.0.88"),
            "nvidia-smi": (_SMI, ""),
            "python3": (_PYTHON, "Python 3.12.3"),
        }[name]
        head = _HEAD.format(python=sys.executable, folder=str(self.folder), name=name, version=version)
        return self.write(name, head + body)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def all(self):
        """Every stand-in, with one GPU and a report of a program with one kernel."""
        for name in ("nsys", "ncu", "nvidia-smi"):
            self.make(name)
        (self.folder / "gpu.json").write_text(json.dumps(_GPU))
        (self.folder / "launches.csv").write_text(LAUNCHES)
        (self.folder / "nsys.help").write_text(_OPTIONS)
        (self.folder / "nsys.gpu-metrics-devices=help").write_text(_SAMPLED)
        (self.folder / "export.sqlite").write_bytes(ADD.read_bytes())
        return self

    def mode(self, name, mode):
        (self.folder / f"{name}.mode").write_text(mode)

    def called(self, name):
        path = self.folder / "called"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [words for tool, *words in lines if tool == name]


def machine_in(folder, monkeypatch):
    """A machine with a shell and nothing else, in whose home a test runs; without the run that has no profiler."""

    def wanted(workload, options):
        return tuple(name for name in WANTED(workload, options) if name != BARE)

    home, programs = folder / "home", folder / "bin"
    home.mkdir()
    programs.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), "/usr/bin", "/bin"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.chdir(home)
    for module in (found, plan):
        monkeypatch.setattr(module, "wanted_passes", wanted)
    return StandIns(programs)
