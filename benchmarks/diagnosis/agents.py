"""The benchmark as tasks for a model: it is given what a tool says of a capture, and names cause, place and gain.

COMMAND is any program that reads a prompt from standard input and prints an answer with one JSON object in it. With
`--material mcp` the prompt has no figures: the words {mcp} of the command become the path of a JSON file that lists the
MCP server of kanalyze, as most clients take it, and {capture} becomes the path of the capture. `placebo` is the page of
another program of the benchmark: what is right there is not read but guessed.

Run: python benchmarks/diagnosis/agents.py CAPTURES --answers FOLDER [--command COMMAND] [--material page]…
Answers stay in FOLDER/MATERIAL/PROGRAM.txt; those that are there are scored, and not asked for again.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import score
from truth import BLIND, HERE, Program, causes, programs_in

import tools

#: Each kind of material with the tool whose text it is; the tools of kanalyze over MCP are none.
MATERIALS: Final = {"page": "text", "mcp": None, "placebo": "text", "nsys": "nsys"} | {
    name: name for name in ("hta", "tracelens", "nsys-ai")
}

#: The word for a program without a fault.
HEALTHY: Final = "none"

PROMPT: Final = """A program that runs on a GPU was recorded by a profiler. Its time may be lost to one cause, or the \
program is healthy.
One step of it takes {step_ms:.4g} ms without a profiler. Its source is {file}, which you cannot see.

Say what the cause is, where in the program it is, and how many ms a step would take less without it. Answer with one
JSON object and nothing else:

{{"cause": "NAME", "place": "{file}:LINE, or FUNCTION ({file}), or null if not known", "gain_ms": NUMBER}}

NAME is one of these:
{names}
- {healthy}: nothing that gains a fiftieth of a step

{material}
"""

_MCP: Final = """Use the tools of the MCP server `kanalyze` on the capture {capture}: `summarize` gives its page,
`show` a table, `explain` what a finding means."""


def material(kind: str, one: Program, programs: list[Program], captures: Path, texts: Path | None) -> str:
    """What a model is given of a program; of a placebo, the page of the next program with another cause."""
    tool = MATERIALS[kind]
    if tool is None:
        return _MCP
    if kind == "placebo":
        at = programs.index(one)
        one = next(other for other in programs[at + 1 :] + programs[:at] if other.cause != one.cause)
    return f"This is what the profile says:\n\n{tools.answer(tool, one, captures, texts)}"


def prompt(one: Program, step_ms: float, said: str) -> str:
    """The task."""
    names = "\n".join(f"- {name}: {sentence}" for name, (sentence, _) in causes().items())
    file = f"{BLIND}{one.path.suffix}"
    return PROMPT.format(step_ms=step_ms, file=file, names=names, healthy=HEALTHY, material=said)


def asked(command: str, one: Program, captures: Path, text: str) -> str:
    """Gives the prompt to the command, and its answer back."""
    with tempfile.TemporaryDirectory() as folder:
        capture, server = Path(folder) / BLIND, Path(folder) / "mcp.json"
        started = {"command": sys.executable, "args": ["-m", "kanalyze", "mcp", "--root", folder]}
        server.write_text(json.dumps({"mcpServers": {"kanalyze": started}}), encoding="utf-8")
        if "{capture}" in text:
            tools.blind_copy(captures, one, capture)
        words = [word.replace("{mcp}", str(server)).replace("{capture}", str(capture)) for word in shlex.split(command)]
        text = text.replace("{capture}", str(capture))
        ran = subprocess.run(words, input=text, check=False, capture_output=True, text=True, timeout=900)
    if ran.returncode:
        sys.exit(f"{command}: exit status {ran.returncode}\n{ran.stderr.strip()}")
    return ran.stdout


def claims(answer: str) -> list[score.Claim] | None:
    """The claim of an answer, none of a healthy program; None where the answer has no such JSON object."""
    decoder, at = json.JSONDecoder(), answer.find("{")
    while at >= 0:
        try:
            found = decoder.raw_decode(answer, at)[0]
        except ValueError:
            found = None
        if isinstance(found, dict) and isinstance(cause := found.get("cause"), str):
            ms: Any = found.get("gain_ms")
            gain = (float(ms),) * 3 if type(ms) in {int, float} and math.isfinite(ms) else None
            return [] if cause == HEALTHY else [score.Claim(cause, str(found.get("place") or ""), gain)]
        at = answer.find("{", at + 1)
    return None


def scored(one: Program, answer: str, times: dict[str, Any]) -> score.Score:
    """Holds an answer against what is true; `read` says whether it could be read. A healthy program is told as such."""
    told = claims(answer)
    found = score.scored(one, told or [], times)
    found.read = told is not None
    if not one.cause and told is None:
        found.named = ["unreadable"]
    return found


def main() -> None:
    """Asks for the answers that are not there, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captures", type=Path)
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--command")
    parser.add_argument("--material", action="append", choices=[*MATERIALS], help="page, nsys and placebo unless told")
    parser.add_argument("--programs", type=Path, default=HERE / "programs")
    parser.add_argument("--measured", type=Path, default=HERE / "measured.json")
    parser.add_argument("--texts", type=Path, help="answers of tools, as of score.py")
    parser.add_argument("--only", default="", help="programs whose names this regular expression matches")
    options = parser.parse_args()
    measured = json.loads(options.measured.read_text(encoding="utf-8"))
    programs = [one for one in programs_in(options.programs, options.captures) if one.name in measured]
    sums = {}
    for kind in options.material or ["page", "nsys", "placebo"]:
        scores = []
        for one in (one for one in programs if re.search(options.only, one.name)):
            kept = options.answers / kind / f"{one.name}.txt"
            if not kept.exists() and options.command:
                said = material(kind, one, programs, options.captures, options.texts)
                text = prompt(one, measured[one.name]["fault"][0], said)
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(asked(options.command, one, options.captures, text), encoding="utf-8")
            if kept.exists():
                scores.append(scored(one, kept.read_text(encoding="utf-8"), measured[one.name]))
        print(f"### {kind}\n\n{score.table(scores)}\n")
        sums[kind] = score.totals(scores)
    print(score.summary(sums))


if __name__ == "__main__":
    main()
