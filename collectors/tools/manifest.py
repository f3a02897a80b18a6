"""The manifest of a capture: commands, tools, results; docs/collect.md describes every key."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.tools import machine
from kanalyze.errors import UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.collectors.base.options import Options
    from kanalyze.collectors.base.step import Step
    from kanalyze.collectors.base.workload import Workload
    from kanalyze.collectors.tools.found import Tools

#: Schema version of the manifest; docs/collect.md has its history.
SCHEMA: Final = 1

NAME: Final = "manifest.json"

#: Replacement for possible secrets.
_HIDDEN: Final = "(hidden)"

Value = object


@dataclass
class PassRecord:
    """Record of one pass.

    Attributes:
        name: The pass.
        status: ``done``, ``failed``, ``skipped`` or ``interrupted``.
        why: The reason, if not done.
        remedy: For a skipped pass: how to enable it.
        steps: Its commands and their results.
        before: GPU state at the start.
        after: GPU state at the end.
        duration_ns: Duration of the pass.
        notes: Notes on the pass.
        chosen: For ncu: mangled names of the selected kernels.
        torch: For torch: the runner's report by rank; docs/recipes.md describes it.
    """

    name: str
    status: str = "done"
    why: str = ""
    remedy: str = ""
    steps: list[dict[str, Value]] = field(default_factory=list)
    before: list[machine.Row] = field(default_factory=list)
    after: list[machine.Row] = field(default_factory=list)
    duration_ns: int = 0
    notes: list[str] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)
    torch: dict[str, Value] = field(default_factory=dict)


def step_record(step: Step, status: int | None, seconds: float, *, timed_out: bool) -> dict[str, Value]:
    """Record of a command and its result."""
    return {
        "name": step.name,
        "command": masked(step.argv),
        "environment": dict(step.env),
        "exit_status": status,
        "timed_out": timed_out,
        "duration_ns": int(seconds * 1e9),
        "log": f"{step.log.parent.name}/{step.log.name}",
    }


def beginning(workload: Workload, options: Options, tools: Tools, command: tuple[str, ...]) -> dict[str, Value]:
    """The part of the manifest that is known before the run."""
    place, own, digest = workload.path.parent if workload.path else Path.cwd(), None, None
    with suppress(PackageNotFoundError):
        own = version("kanalyze")
    if workload.path:
        with workload.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    chosen = {name: value for name, value in asdict(options).items() if value not in (None, ())}
    return {
        "schema": SCHEMA,
        "kind": "kanalyze capture",
        "kanalyze": own,
        "status": "complete",
        "began": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "duration_ns": 0,
        "workload": {
            "name": workload.name,
            "kind": workload.kind,
            "path": str(workload.path) if workload.path else None,
            "sha256": digest,
            "args": masked(workload.args),
            "command": masked(command),
            "cwd": str(Path.cwd()),
        },
        "options": {name: str(value) if isinstance(value, os.PathLike) else value for name, value in chosen.items()},
        "machine": machine.host(),
        "gpus": [dict(row) for row in tools.gpus.rows],
        "tools": {
            program.name: {"path": str(program.path) if program.path else None, "version": program.version}
            for program in (tools.nvcc, tools.nsys, tools.ncu)
        }
        | {"python": {"path": str(tools.python), "version": tools.python_version}, "torch": {**tools.torch_facts}},
        "git": machine.git(place),
        "environment": machine.environment(),
    }


def write(folder: Path, content: Mapping[str, Value], final: Path) -> None:
    """Write the manifest atomically into `folder`, with paths as they will be in `final`."""
    text = json.dumps(_moved(content, str(folder), str(final)), indent=1, ensure_ascii=False) + "\n"
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{NAME}.", delete=False) as file:
        temporary = Path(file.name)
        try:
            # undecodable bytes in paths or arguments can only be escaped in JSON
            file.write(text.encode(errors="backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(folder / NAME)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def read(folder: Path) -> dict[str, Value]:
    """The manifest of the capture in `folder`.

    Raises:
        UnknownFormatError: It has none, or one of a later layout.
    """
    path = folder / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnknownFormatError.of(folder, "a folder without a manifest that can be read") from error
    if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
        raise UnknownFormatError.of(path, "JSON that is no manifest")
    if content["schema"] > SCHEMA:
        raise UnknownFormatError.of(path, f"a manifest of layout {content['schema']}", "Update kanalyze.")
    return content


def _moved(value: Value, before: str, after: str) -> Value:
    """Replaces the temporary folder's name in `value` by the final one."""
    if isinstance(value, str):
        return value.replace(before, after)
    if isinstance(value, Mapping):
        return {key: _moved(item, before, after) for key, item in value.items()}
    return [_moved(item, before, after) for item in value] if isinstance(value, list | tuple) else value


def masked(words: Sequence[str]) -> list[str]:
    """The words of a command with the values of secret flags masked."""
    kept: list[str] = []
    for word in words:
        flag, equals, _ = word.partition("=")
        if equals and flag.startswith("-") and machine.secret(flag):
            kept.append(f"{flag}={_HIDDEN}")
        elif kept and kept[-1].startswith("-") and not word.startswith("-") and machine.secret(kept[-1]):
            kept.append(_HIDDEN)
        else:
            kept.append(word)
    return kept
