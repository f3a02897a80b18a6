"""Times the programs that are not PyTorch's, without a profiler: `python time_others.py FOLDER [NAME…]`, on a GPU.

FOLDER gets `others.json`, in the form of programs/_time.py, and what nvcc compiled. Programs start side by side, and
a lock lets one at a time run its timed steps. What varies by a tenth although is timed again, alone.
"""

from __future__ import annotations

import ast
import json
import os
import re
import site
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
KINDS = ("jax_*.py", "cupy_*.py", "triton_*.py", "cuda_*.cu")
SIDE_BY_SIDE = 6
LONGEST_S = 150
VARIES = 1.1


def faults(program: Path) -> tuple[str, tuple[str, ...]]:
    """The cause that the program states, empty where it is healthy, and the further ones."""
    text = program.read_text()
    if program.suffix == ".cu":
        cause, also = (re.findall(rf"^// {word}:(.*)$", text, re.MULTILINE)[0] for word in ("CAUSE", "ALSO"))
        return cause.strip(), tuple(also.split())
    stated = {
        target.id: ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in ("CAUSE", "ALSO")
    }
    return stated["CAUSE"], tuple(stated["ALSO"])


def command(program: Path, folder: Path) -> list[str]:
    """What starts the program, compiled first where it is C++."""
    if program.suffix == ".py":
        return [sys.executable, str(program)]
    binary = folder / program.stem
    subprocess.run(["nvcc", "-O3", "-lineinfo", "-arch=native", "-o", str(binary), str(program)], check=False)
    return [str(binary)]


def environment(folder: Path) -> dict[str, str]:
    """The lock, and where pip put cuBLAS."""
    places = [
        str(file.parent)
        for packages in site.getsitepackages()
        for file in Path(packages).glob("nvidia/*/lib/libcublas.*")
    ]
    known = os.environ.get("LD_LIBRARY_PATH")
    paths = [*([known] if known else []), *dict.fromkeys(places)]
    return os.environ | {"DIAGNOSIS_LOCK": str(folder / "lock"), "LD_LIBRARY_PATH": ":".join(paths)}


def timed(started: list[str], variant: str, folder: Path) -> dict[str, object]:
    """Times one variant in a process of its own."""
    try:
        ran = subprocess.run(
            [*started, variant, "--time"],
            env=environment(folder), capture_output=True, text=True, timeout=LONGEST_S, check=True,
        )  # fmt: skip
        line = json.loads(ran.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        return {"error": f"{error}\n{(getattr(error, 'stderr', None) or '')[-2000:]}"}
    return {"mean_ms": line["ms"], "spread_ms": [line["low"], line["high"]]}


def main(folder: Path, names: list[str]) -> None:
    """Times every variant of every program, or of those that are named, and writes the file anew after each."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = [file for kind in KINDS for file in sorted(PROGRAMS.glob(kind)) if not names or file.stem in names]
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    device = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    times: dict[str, dict[str, object]] = {}

    def keep(program: Path, variant: str, result: dict[str, object]) -> None:
        times[program.stem][variant] = result
        print(program.stem, variant, result.get("mean_ms", result.get("error")), flush=True)
        (folder / "others.json").write_text(json.dumps({"device": device, "programs": times}, indent=1))

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        commands = dict(zip(programs, pool.map(lambda program: command(program, folder), programs), strict=True))
        runs = {}
        for program in programs:
            cause, also = faults(program)
            times[program.stem] = {"cause": cause, "also": also}
            for variant in ("fault", "fixed", *(["main"] if also else [])):
                runs[program, variant] = pool.submit(timed, commands[program], variant, folder)
        for (program, variant), run in runs.items():
            keep(program, variant, run.result())
    for program, variant in runs:
        result = times[program.stem][variant]
        if "spread_ms" in result and result["spread_ms"][1] > VARIES * result["spread_ms"][0]:
            keep(program, variant, timed(commands[program], variant, folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
