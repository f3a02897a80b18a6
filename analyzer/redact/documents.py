"""Redacts JSON that kanalyze's collectors write: the manifest, compiled kernels, what the torch pass says and timed."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from kanalyze.errors import UnknownFormatError
from kanalyze.redact.rules.assigned import is_secret
from kanalyze.redact.rules.words import words

if TYPE_CHECKING:
    from pathlib import Path

    from kanalyze.redact.rules.names import Names
    from kanalyze.redact.rules.texts import Texts

#: Keys whose value goes, and what it is counted as.
_GONE: Final = {
    "host": "host names",
    "hostname": "host names",
    "user": "user names",
    "uuid": "ids and addresses of GPUs",
    "serial": "ids and addresses of GPUs",
    "pci": "ids and addresses of GPUs",
    "cwd": "paths",
    "root": "paths",
    "branch": "names of branches",
    "remote": "URLs",
}

#: Keys of a manifest and of compiled.json whose text may stay once it is redacted. All of a key of _OWN may.
_KEYS: Final = words(
    """
    schema kind kanalyze status began ended duration_ns workload name path sha256 args command machine system cpu cpus
    gpus index driver_version compute_capability memory_total_mib clock_sm_max_mhz clock_memory_max_mhz ecc mig
    persistence clock_sm_mhz clock_memory_mhz temperature_celsius power_watts performance_state utilisation_percent
    memory_used_mib throttle_reasons tools nvcc nsys ncu python torch version git commit changed passes why remedy steps
    before after notes chosen exit_status timed_out log build binary key cached step line passed source hash backend
    arch num_warps num_stages registers spills shared_memory_bytes compile_ns compile_measured_by cache_hit ptx recipe
    stepping by seen left_out cycles activities cuda triton traces failures ended exception argv caches executable rank
    kernels_compiled complete switches cycle clock warmup_ns times_ns whole_ns
    """
)
_OWN: Final = frozenset(("options", "files", "checks", "torch", "kernels", "redacted"))

#: The key of a build: so much of a digest.
_BUILD: Final = re.compile(r"[0-9a-f]{24}")

#: Variables that change how a program runs and whose values are switches, numbers, versions and lists of them; four
#: numbers with dots may be an address.
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
#: A switch, a number, or a list of them. Any other word may be a name, or a secret.
_VALUE: Final = re.compile(rf"(?:(?:{_SWITCH})(?:[,:;=]|$)){{0,64}}")


def learn(path: Path, names: Names) -> None:
    """Add to `names` what the document at `path` calls its machine and user."""
    document = _read(path)
    if not isinstance(document, dict):
        return
    machine, workload, git = (_part(document, key) for key in ("machine", "workload", "git"))
    names.host(machine.get("host"))
    names.folder(workload.get("cwd"))
    names.folder(git.get("root"))
    for name, value in _part(document, "environment").items():
        names.variable(str(name), str(value))
    names.text(json.dumps(_without_builds(document)))


def _without_builds(value: object) -> object:
    """The same without the keys of builds in kanalyze's cache, which are digests of what was built."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key != "key" or not _BUILD.fullmatch(str(item))}
        return {key: _without_builds(item) for key, item in kept.items()}
    return [_without_builds(item) for item in value] if isinstance(value, list) else value


def redacted(path: Path, texts: Texts) -> bytes:
    """The document at `path` without what identifies.

    Raises:
        UnknownFormatError: It is no JSON.
    """
    return encoded(document(_read(path), texts))


def encoded(value: object) -> bytes:
    """A document as kanalyze writes it."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def document(value: object, texts: Texts) -> object:
    """A value of JSON without what identifies."""
    return _Walk(texts).value(value, known=True)


class _Walk:
    """Goes through a document, key by key."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts

    def value(self, value: object, *, known: bool, all_below: bool = False) -> object:
        """`value`, of a key that is known or not; with `all_below` every key in it is."""
        if isinstance(value, dict):
            return {
                self._texts.free(str(key)): self._item(str(key), item, known, all_below) for key, item in value.items()
            }
        if isinstance(value, list):
            return self._list(value, known=known, all_below=all_below)
        if isinstance(value, str):
            return self._texts.free(value) if known else self._texts.blank("values of unknown keys", value)
        return value

    def _item(self, key: str, value: object, known: bool, all_below: bool) -> object:  # noqa: FBT001 - two facts of a place
        if key in _GONE and not isinstance(value, dict | list):
            self._texts.removed.add(_GONE[key], bool(value))
            return None
        if key == "environment" and isinstance(value, dict):
            return self._environment(value)
        own = all_below or key in _OWN
        return self.value(value, known=own or (known and key in _KEYS), all_below=own)

    def _list(self, values: list[object], *, known: bool, all_below: bool) -> list[object]:
        """A list; in a command, what follows the option of a secret is one."""
        made: list[object] = []
        for before, value in zip(["", *values], values, strict=False):
            option = isinstance(before, str) and before.startswith("-") and "=" not in before
            if option and isinstance(value, str) and not value.startswith("-") and is_secret(str(before)):
                self._texts.removed.add("secrets")
                made.append("[secret]")
            else:
                made.append(self.value(value, known=known, all_below=all_below))
        return made

    def _environment(self, variables: dict[str, object]) -> dict[str, object]:
        kept: dict[str, object] = {}
        for name, value in variables.items():
            harmless = _VARIABLE.fullmatch(name) and not is_secret(name) and _VALUE.fullmatch(str(value))
            if harmless:
                kept[name] = self._texts.free(str(value))
            else:
                self._texts.removed.add("variables of the environment")
        return kept


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnknownFormatError.of(path, "JSON that cannot be read", "Copy the file again.") from error


def _part(document: dict[str, object], key: str) -> dict[str, object]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}
