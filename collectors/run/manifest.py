"""Manifest of a capture: the program, its machine and tools, the passes, and what they wrote."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from kanalyze.collectors.in_workload.torch_script import write_bytes
from kanalyze.collectors.run.passes import masked
from kanalyze.collectors.run.plan import Plan
from kanalyze.collectors.tools import machine

#: Schema version of the manifest; docs/collect.md has its history, and describes every key.
_SCHEMA: Final = 1


def beginning(plan: Plan) -> dict[str, object]:
    """What the manifest says before the first pass."""
    workload, tools = plan.workload, plan.tools
    our_version, digest, path = None, None, workload.path
    with suppress(PackageNotFoundError):
        our_version = version("kanalyze")
    if path:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    chosen = {name: value for name, value in asdict(plan.options).items() if value not in (None, ())}
    return {
        "schema": _SCHEMA,
        "kind": "kanalyze capture",
        "kanalyze": our_version,
        "status": "complete",
        "began": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "duration_ns": 0,
        "workload": {
            "name": workload.name,
            "kind": workload.kind,
            "path": str(path) if path else None,
            "sha256": digest,
            "args": masked(workload.args),
            "command": masked(plan.command),
            "cwd": str(Path.cwd()),
        },
        "options": {name: str(value) if isinstance(value, os.PathLike) else value for name, value in chosen.items()},
        "machine": machine.host(),
        "gpus": [dict(row) for row in tools.gpus.rows],
        "tools": {
            **{
                program.name: {"path": str(program.path) if program.path else None, "version": program.version}
                for program in (tools.nvcc, tools.nsys, tools.ncu)
            },
            "python": {"path": str(tools.python), "version": tools.python_version},
            "torch": {**tools.torch_facts},
        },
        "git": machine.git(path.parent if path else Path.cwd()),
        "environment": machine.environment(),
    }


def write_manifest(folder: Path, content: dict[str, object], final: Path) -> str:
    """Write the manifest atomically into `folder`, with paths as they will be in `final`; what was written."""
    before, after = (json.dumps(str(path), ensure_ascii=False)[1:-1] for path in (folder, final))
    text = json.dumps(content, indent=1, ensure_ascii=False).replace(before, after) + "\n"
    # undecodable bytes in paths or arguments can only be escaped in JSON
    write_bytes(folder / "manifest.json", data := text.encode(errors="backslashreplace"))
    return data.decode()
