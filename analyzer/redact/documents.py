"""Redacts what kanalyze writes: manifest, compiled kernels, results of the torch pass, lines of the program.

What stands in the lines is the program itself: it goes, unless the user lets it stay.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from pathlib import Path
from typing import Any, Final

from kanalyze.errors import DamagedReportError, UnknownFormatError
from kanalyze.redact.assigned import is_argument, is_secret
from kanalyze.redact.texts import ALLOWED, Names, Texts, words

#: Keys whose text stays, once redacted, and keys under which all keys do; keys whose value is removed, with its kind.
_KEYS: Final = words(ALLOWED["documents"]["keys"])
_OWN: Final = words(ALLOWED["documents"]["own"])
_GONE: Final = ALLOWED["documents"]["gone"]

#: The key of a build: a truncated digest.
_BUILD: Final = re.compile(r"[0-9a-f]{24}")

#: Environment variables that affect how a program runs, with values that are switches, numbers, versions or lists of
#: them: any other word may be a name or a secret, and a version of four numbers an IP address.
_VARIABLE: Final = re.compile(
    r"(?:CUDA|NCCL|TORCH|TRITON|PYTORCH|CUBLAS|CUDNN|NVIDIA|NVCC|OMP|MKL|OPENBLAS)_?\w*|\w*RANK|\w*WORLD_SIZE"
)
_SWITCH: Final = (
    r"[-+]?\d{1,19}(?:\.\d{1,9})?(?:[kKmMgG][bB]?)?|\d{1,4}(?:\.\d{1,4}){1,2}(?:-\d{1,3}|[af]|\+PTX)?|0x[0-9a-fA-F]{1,16}"
    rf"|(?i:{'|'.join(ALLOWED['documents']['environment']['switches'].split())})"
)
_VALUE: Final = re.compile(rf"(?:(?:{_SWITCH})(?:[,:;=]|$)){{0,64}}")

#: What is wrong with a file of lines that the collector did not write.
_WRONG: Final = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, EOFError, zlib.error)


def learn(path: Path, names: Names) -> None:
    """Collect identifying names from the document at `path` into `names`."""
    document = _read(path)
    if not isinstance(document, dict):
        return
    parts = {key: value for key, value in document.items() if isinstance(value, dict)}
    names.host(parts.get("machine", {}).get("host"))
    names.folder(parts.get("workload", {}).get("cwd"))
    names.folder(parts.get("git", {}).get("root"))
    for name, value in parts.get("environment", {}).items():
        names.variable(str(name), str(value))
    _learn(document, names)


def _learn(value: object, names: Names, key: str = "") -> None:
    """Collect names and secrets from all texts of a document, but for the keys of cached builds, which are digests."""
    if isinstance(value, dict):
        for name, item in value.items():
            names.text(str(name))
            _learn(item, names, str(name))
    elif isinstance(value, list):
        for before, item in zip(["", *value], value, strict=False):
            _learn(item, names, "secret" if is_argument(before, item) else "")
    elif isinstance(value, str) and not (key == "key" and _BUILD.fullmatch(value)):
        names.text(value)
        if is_secret(key):
            names.assigned(value)


def copy(path: Path, target: Path | None, texts: Texts) -> None:
    """Write the redacted copy of the document at `path` to `target`; without a target, only count the removals.

    Raises:
        UnknownFormatError: It is not JSON.
        OSError: The target cannot be written.
    """
    made = encoded(document(_read(path), texts))
    if target is not None:
        target.write_bytes(made)


def encoded(value: object) -> bytes:
    """Serialises a document as the collectors do."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def document(value: object, texts: Texts, *, known: bool = True, all_below: bool = False) -> object:
    """Redacts a JSON value, of a known key or not; with `all_below` all keys within it count as known."""
    if isinstance(value, dict):
        return {texts.free(str(key)): _item(str(key), item, texts, (known, all_below)) for key, item in value.items()}
    if isinstance(value, list):  # in a command line, the argument of an option for secrets is a secret
        return [
            _secret(texts) if is_argument(before, item) else document(item, texts, known=known, all_below=all_below)
            for before, item in zip(["", *value], value, strict=False)
        ]
    if isinstance(value, str):
        return texts.free(value) if known else texts.blank("values of unknown keys", value)
    return value


def _item(key: str, value: object, texts: Texts, place: tuple[bool, bool]) -> object:
    known, all_below = place
    if key in _GONE and not isinstance(value, dict | list):
        texts.removed.add(_GONE[key], bool(value))
        return None
    if key == "environment" and isinstance(value, dict):
        kept = {name: str(item) for name, item in value.items() if _is_harmless(name, str(item))}
        texts.removed.add("variables of the environment", len(value) - len(kept))
        return {name: texts.free(item) for name, item in kept.items()}
    if isinstance(value, str) and value and is_secret(key) and key not in _KEYS:
        return _secret(texts)
    own = all_below or key in _OWN
    return document(value, texts, known=own or (known and key in _KEYS), all_below=own)


def _secret(texts: Texts) -> str:
    texts.removed.add("secrets")
    return "[secret]"


def _is_harmless(name: str, value: str) -> bool:
    return bool(_VARIABLE.fullmatch(name) and not is_secret(name) and _VALUE.fullmatch(value))


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnknownFormatError.of(path, "JSON that cannot be read", "Copy the file again.") from error


def learn_lines(path: Path, names: Names) -> None:
    """Collect identifying names from the files and lines at `path` into `names`.

    Raises:
        DamagedReportError: It is not what the collector writes.
    """
    content = _lines(path)
    for text in (*content["files"], *(text for *_, text in content["places"])):
        names.text(text)


def copy_lines(path: Path, target: Path | None, texts: Texts) -> None:
    """Write the redacted copy of the lines at `path` to `target`; without a target, only count the removals.

    Raises:
        DamagedReportError: It is not what the collector writes.
        OSError: The target cannot be written.
    """
    content = _lines(path)
    content["files"] = [texts.path(file) for file in content["files"]]
    content["places"] = [
        (file, line, texts.name(function), texts.free(text) if texts.names.source else texts.blank("lines", text))
        for file, line, function, text in content["places"]
    ]
    if target is not None:
        target.write_bytes(gzip.compress(json.dumps(content).encode(), 6, mtime=0))


def _lines(path: Path) -> dict[str, Any]:
    """What the file is known to hold, and nothing else: numbers, names of files, and lines with their texts."""

    def numbers(part: dict[str, Any]) -> dict[str, list[int]]:
        return {name: [*map(int, part[name])] for name in ("times", "places")}

    try:
        packed = path.read_bytes()
        content = json.loads(gzip.decompress(packed) if packed.startswith(b"\x1f\x8b") else packed)
        return {
            "schema": int(content["schema"]),
            "process": int(content["process"]),
            "exact": bool(content["exact"]),
            "clocks": [(int(unix), int(own)) for unix, own in content["clocks"]],
            "files": [*map(str, content["files"])],
            "places": [(int(file), int(line), str(name), str(text)) for file, line, name, text in content["places"]],
            "threads": [
                {"id": int(one["id"]), "lines": numbers(one["lines"]), "loops": numbers(one["loops"])}
                for one in content["threads"]
            ],
        }
    except _WRONG as error:
        raise DamagedReportError.at(path, "the lines of the program", "not what the collector writes") from error
