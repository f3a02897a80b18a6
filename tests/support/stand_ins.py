"""Small programs that behave as nsys, ncu and nvidia-smi do, as far as a run of them matters to the collectors.

What they do otherwise is said by files in their folder: `<tool>.mode` has one of the words below, and whatever is
called is written to `called`, a list of arguments per line.
"""

import ast
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from kanalyze.collectors.options import BARE
from kanalyze.collectors.tools import found
from support.command import ADD

#: The passes that are made unless :func:`machine_in` leaves out the run without a profiler.
WANTED = found.wanted_passes

# what a call needs alone is imported, which is two thirds of its time
_HEAD = """#!{python} -IS
import os, sys
here, name, words = {folder!r} + "/", {name!r}, sys.argv[1:]
def text_of(file, otherwise=""):
    return open(here + file).read() if os.path.exists(here + file) else otherwise
def written(path, content):
    with open(path, "wb") as file:
        file.write(content)
def run(command):
    ended = os.spawnvp(os.P_WAIT, command[0], command)
    if ended == -15:  # all of a step are terminated, of which this may hear later than what it has run
        sys.exit(143)
    return ended
if words == ["--version"]:
    print({version!r})
    sys.exit()
if words[0] == "profile" and len(words) == 2 and words[1].endswith("help"):
    print(text_of(name + "." + words[-1].strip("-")))
    sys.exit()
with open(here + "called", "a") as file:
    print(ascii([name, *words]), file=file)
mode = text_of(name + ".mode")
def value(flag):
    return next(word.partition("=")[2] for word in words if word.startswith(flag + "="))
def misbehave():
    if mode == "fails":
        print("something went wrong")
        sys.exit(1)
    if mode == "hangs":
        os.posix_spawnp("sleep", ["sleep", "1000"], os.environ, setsid=True)
        os.execvp("sleep", ["sleep", "1000"])
    if mode == "killed":
        os.kill(os.getpid(), 9)
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
    ended = run(words[start:])
    report = value("--output") + ".nsys-rep"
    written(report, b"" if mode == "empty report" else b"NVIDIA report")
    print("Collecting data...\\nGenerating '/tmp/nsys-report-b956.qdstrm'")
    last = os.path.basename(report)
    print("[1/1] [0%                ] " + last + "\\r[1/1] [============100%] " + last)
    print(f"Generated:\\n\\t{report}")
    sys.exit(ended)
if words[0] == "export":
    whole = open(here + "export.sqlite", "rb").read()
    written(value("--output"), whole[: len(whole) // 2] if mode == "half export" else whole)
if words[0] == "stats":
    print("Processing [" + words[-1] + "] with [cuda_gpu_trace.py]...\\n")
    print(text_of("launches.csv"))
"""

_NCU = """
if "--import" in words:
    print(text_of(words[words.index("--page") + 1] + ".csv", '"ID","Process ID"\\n"0","1"'))
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
ended = run(words[start:])
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
written(words[at] + ".ncu-rep", b"report")
sys.exit(ended)
"""

_NVCC = """
if "--list-gpu-arch" in words:
    print("compute_90")
    sys.exit()
misbehave()
binary = words[words.index("-o") + 1]
written(binary, open(here + "program", "rb").read())
os.chmod(binary, 0o755)
"""

_SMI = """
known = dict(line.split("=") for line in text_of("gpu").splitlines())
fields = value("--query-gpu").split(",")
wrong = [field for field in fields if field not in known]
if wrong:
    print(f'Field "{wrong[0]}" is not a valid field to query.')
    sys.exit(2)
print(", ".join(known[field] for field in fields))
"""

GPU = {
    "index": "0", "name": "NVIDIA H200", "uuid": "GPU-1", "driver_version": "580.82.07", "compute_cap": "9.0",
    "memory.total": "143771", "memory.used": "4", "clocks.max.sm": "1980", "clocks.max.memory": "3201",
    "clocks.sm": "345", "clocks.mem": "3201", "temperature.gpu": "31", "power.draw": "76.43", "pstate": "P0",
    "ecc.mode.current": "Enabled", "mig.mode.current": "Disabled", "persistence_mode": "Enabled",
    "utilization.gpu": "0", "clocks_throttle_reasons.active": "0x0000000000000001",
}  # fmt: skip

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
import json
if words[0] == "-c":
    facts = {"version": "2.11.0", "cuda": "13.0", "gpu": True, "triton": "3.6", "python": "3.12"}
    print("kanalyze:" + json.dumps(facts))
    sys.exit()
def script(arguments):  # scripts are written for the shell, but for the reference workloads
    if mode == "any script":
        print("check: ok")
        return 0
    return run(["/bin/sh", *arguments])
if words[1:2] == ["--lines"]:  # the runner notes lines alone
    sys.exit(script(words[words.index("--") + 1 :]))
if "--out" not in words:  # without the runner
    sys.exit(script(words))
folder = words[words.index("--out") + 1]
os.makedirs(folder, exist_ok=True)
def told(ended, notes=()):
    notes = {"workload": {"ended": ended}, "notes": list(notes), "failures": []}
    written(folder + "/torch-run.json", json.dumps(notes).encode())
told("unknown")
misbehave()
if mode == "runner fails":
    print("kanalyze: the workload cannot be profiled: ImportError: no torch")
    sys.exit(120)
written(folder + "/torch.json.gz", b"trace")
os.makedirs(folder + "/.caches/inductor")  # as inductor leaves it
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
        self.has_gpu(GPU)
        (self.folder / "launches.csv").write_text(LAUNCHES)
        (self.folder / "nsys.help").write_text(_OPTIONS)
        (self.folder / "nsys.gpu-metrics-devices=help").write_text(_SAMPLED)
        (self.folder / "export.sqlite").write_bytes(ADD.read_bytes())
        return self

    def has_gpu(self, fields):
        (self.folder / "gpu").write_text("\n".join(f"{name}={value}" for name, value in fields.items()))

    def mode(self, name, mode):
        (self.folder / f"{name}.mode").write_text(mode)

    def called(self, name):
        path = self.folder / "called"
        lines = [ast.literal_eval(line) for line in path.read_text().splitlines()] if path.exists() else []
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
    monkeypatch.setattr(found, "wanted_passes", wanted)
    return StandIns(programs)
