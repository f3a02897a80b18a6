"""Redacts JSON written by kanalyze's collectors: manifest, compiled kernels, results of the torch pass."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from kanalyze.errors import UnknownFormatError
from kanalyze.redact.rules import ALLOWED, words
from kanalyze.redact.rules.assigned import is_argument, is_secret

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.redact.rules.names import Names
    from kanalyze.redact.rules.texts import Texts

#: Keys whose text stays, once redacted, and keys under which all keys do; keys whose value is removed, with its kind.
_KEYS: Final = words(ALLOWED["documents"]["keys"])
_OWN: Final = words(ALLOWED["documents"]["own"])
_GONE: Final = ALLOWED["documents"]["gone"]

#: The key of a build: a truncated digest.
_BUILD: Final = re.compile(r"[0-9a-f]{24}")

#: Environment variables that affect how a program runs, with values that are switches, numbers, versions or lists of
#: them; a version of four numbers may be an IP address.
_VARIABLE: Final = re.compile(
    r"(?:CUDA|NCCL|TORCH|TRITON|PYTORCH|CUBLAS|CUDNN|NVIDIA|NVCC|OMP|MKL|OPENBLAS)_?\w*|\w*RANK|\w*WORLD_SIZE"
)
_SWITCH: Final = (
    r"[-+]?\d{1,19}(?:\.\d{1,9})?(?:[kKmMgG][bB]?)?|\d{1,4}(?:\.\d{1,4}){1,2}(?:-\d{1,3}|[af]|\+PTX)?|0x[0-9a-fA-F]{1,16}|(?i:true|false|on|off|yes|no|none|auto|default|all"
    r"|lazy|eager|info|warn|warning|error|debug|trace|version|abort|init|coll|net|env|graph|tuning|ring|tree|nvls|simple"
    r"|ll|ll128|close|spread|cores|threads|sockets|static|dynamic|guided|passive|active|pci_bus_id|fastest_first"
    r"|compute|utility|graphics|video|display|high|highest|medium|native|cudaMallocAsync|sys|phb|pix|pxb|node|loc|nvl"
    r"|cuda|expandable_segments|max_split_size_mb|garbage_collection_threshold|roundup_power2_divisions|backend"
    r"|pinned_use_cuda_host_register|pinned_num_register_threads)"
)
#: A switch, a number, or a list of them; any other word may be a name or a secret.
_VALUE: Final = re.compile(rf"(?:(?:{_SWITCH})(?:[,:;=]|$)){{0,64}}")


def learn(path: Path, names: Names) -> None:
    """Collect identifying names from the document at `path` into `names`."""
    document = _read(path)
    if not isinstance(document, dict):
        return
    machine, workload, git = (_part(document, key) for key in ("machine", "workload", "git"))
    names.host(machine.get("host"))
    names.folder(workload.get("cwd"))
    names.folder(git.get("root"))
    for name, value in _part(document, "environment").items():
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


def document(value: object, texts: Texts) -> object:
    """Redacts a JSON value."""
    return _Walk(texts).value(value, known=True)


class _Walk(NamedTuple):
    """Recursive redaction of a document, key by key."""

    texts: Texts

    def value(self, value: object, *, known: bool, all_below: bool = False) -> object:
        """Redacts `value`, of a known key or not; with `all_below` all keys within it count as known."""
        if isinstance(value, dict):
            return {
                self.texts.free(str(key)): self._item(str(key), item, known, all_below) for key, item in value.items()
            }
        if isinstance(value, list):
            return self._list(value, known=known, all_below=all_below)
        if isinstance(value, str):
            return self.texts.free(value) if known else self.texts.blank("values of unknown keys", value)
        return value

    def _item(self, key: str, value: object, known: bool, all_below: bool) -> object:  # noqa: FBT001 - two facts of a place
        if key in _GONE and not isinstance(value, dict | list):
            self.texts.removed.add(_GONE[key], bool(value))
            return None
        if key == "environment" and isinstance(value, dict):
            return self._environment(value)
        if isinstance(value, str) and value and is_secret(key) and key not in _KEYS:
            self.texts.removed.add("secrets")
            return "[secret]"
        own = all_below or key in _OWN
        return self.value(value, known=own or (known and key in _KEYS), all_below=own)

    def _list(self, values: list[object], *, known: bool, all_below: bool) -> list[object]:
        """Redacts a list; in a command line, the argument of an option for secrets is a secret."""
        made: list[object] = []
        for before, value in zip(["", *values], values, strict=False):
            if is_argument(before, value):
                self.texts.removed.add("secrets")
                made.append("[secret]")
            else:
                made.append(self.value(value, known=known, all_below=all_below))
        return made

    def _environment(self, variables: dict[str, object]) -> dict[str, object]:
        kept: dict[str, object] = {}
        for name, value in variables.items():
            harmless = _VARIABLE.fullmatch(name) and not is_secret(name) and _VALUE.fullmatch(str(value))
            if harmless:
                kept[name] = self.texts.free(str(value))
            else:
                self.texts.removed.add("variables of the environment")
        return kept


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnknownFormatError.of(path, "JSON that cannot be read", "Copy the file again.") from error


def _part(document: dict[str, object], key: str) -> dict[str, object]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}
