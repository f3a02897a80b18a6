"""Collects kernels compiled by Triton and inductor from Triton's cache: one row per kernel, and its PTX.

Triton keeps each kernel that it compiles in a folder of its cache, named by a hash of all that the result depends on:
``NAME.json`` (how it was compiled), ``NAME.ptx``, ``NAME.cubin`` and the stages before. A row of ``compiled.json``:

    name                    the kernel's name, as profilers show it
    source                  'inductor' where torch.compile wrote it, else 'triton'
    hash                    Triton's own, of source, options and versions
    backend, arch           such as 'cuda' and 90
    num_warps, num_stages   what it was compiled with
    registers               per thread, from the cubin
    spills                  32-bit words of local memory per thread, as Triton's n_spills, from the cubin
    shared_memory_bytes     per block, static and dynamic
    compile_ns              what compiling took; null where it came from the cache
    compile_measured_by     'triton' (its own clock), or 'files' (from the first to the last file of the entry, in a
                            worker of inductor, which leaves Triton's front end out); null where there is no time
    cache_hit               whether it came from the cache; null where nobody saw
    ptx                     the file in the capture; null where Triton kept none
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import cubin  # relative: the runner loads these files without their package
from .whole_files import whole, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Schema version of the rows.
SCHEMA = 1

FILE = "compiled.json"

TRITON_CACHE = "TRITON_CACHE_DIR"
INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"

_WORD_BYTES = 4
#: File names of inductor's generated code: c and the hash of the content.
_INDUCTOR_FILE = re.compile(r"c[a-z2-7]{51}\.py")
_PLACE = re.compile(r'loc\("([^"]+\.py)":\d')
#: Bytes of a stage's text in which its source location is searched.
_HEAD = 1 << 16


@dataclass(frozen=True)
class Compilation:
    """Triton's report of the first request for a kernel in a process."""

    cache_hit: bool
    compile_ns: int


@dataclass(frozen=True)
class Entry:
    """A kernel in a Triton cache: its metadata file and content."""

    path: Path
    metadata: Mapping[str, Any]

    def beside(self, ending: str) -> Path:
        """The file of another compilation stage of the same kernel."""
        return self.path.with_suffix(ending)


def caches(environ: Mapping[str, str]) -> list[Path]:
    """Triton's cache folders in a process with this environment, including inductor's."""
    if TRITON_CACHE in environ:
        return [Path(environ[TRITON_CACHE])]
    home = Path(environ.get("TRITON_HOME") or environ.get("HOME") or Path.home())
    inductor = environ.get(INDUCTOR_CACHE)
    user = environ.get("USER") or environ.get("LOGNAME") or ""
    below = Path(inductor) if inductor else Path(environ.get("TMPDIR", "/tmp"), f"torchinductor_{user}")  # noqa: S108
    return [home / ".triton" / "cache", *sorted((below / "triton").glob("*"))]


def entries(folders: Iterable[Path]) -> list[Entry]:
    """All kernels in these caches; invalid and incomplete entries are skipped."""
    found = []
    for folder in folders:
        for path in sorted(folder.glob("*/*.json")):
            metadata = {} if path.name.startswith("__grp__") else _read(path)
            if isinstance(metadata.get("hash"), str) and "target" in metadata:
                found.append(Entry(path, metadata))
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def rows(
    found: Iterable[Entry],
    *,
    before: frozenset[str] = frozenset(),
    said: Mapping[str, Compilation] | None = None,
    fresh: bool = True,
) -> list[dict[str, Any]]:
    """One row per kernel that the run compiled or loaded from the cache, without its PTX.

    Args:
        found: Cache entries after the run.
        before: Hashes in the caches before the run.
        said: Triton's reports by hash; None without a listener.
        fresh: Whether the run had its own caches, so that every entry is of this run.
    """
    made = {}
    for entry in found:
        key = entry.metadata["hash"]
        heard = (said or {}).get(key)
        if fresh or heard or key not in before:
            made[key] = _row(entry, heard, compiled_here=key not in before, fresh=fresh)
    return sorted(made.values(), key=lambda row: (row["name"], row["num_warps"] or 0, row["hash"]))


def _row(entry: Entry, heard: Compilation | None, *, compiled_here: bool, fresh: bool) -> dict[str, Any]:
    metadata = entry.metadata
    name = str(metadata.get("name") or entry.path.stem)
    target = metadata["target"] if isinstance(metadata["target"], dict) else {}
    binary = entry.beside(".cubin")
    needs = cubin.resources(binary.read_bytes(), name) if binary.is_file() else None
    local = needs.local_bytes if needs else None
    # In a fresh cache, what this process finds was compiled in this run, by a worker of inductor.
    by_worker = heard is None or (heard.cache_hit and fresh)
    hit = heard.cache_hit if heard and not (by_worker and compiled_here) else not compiled_here
    compile_ns, measured = None, None
    if heard and not heard.cache_hit:
        compile_ns, measured = heard.compile_ns, "triton"
    elif not hit:
        compile_ns = _files_ns(entry)
        measured = "files" if compile_ns is not None else None
    return {
        "name": name,
        "source": _source(entry, name),
        "hash": metadata["hash"],
        "backend": target.get("backend"),
        "arch": target.get("arch"),
        "num_warps": metadata.get("num_warps"),
        "num_stages": metadata.get("num_stages"),
        "registers": needs.registers if needs else None,
        "spills": local // _WORD_BYTES if local is not None else None,
        "shared_memory_bytes": metadata.get("shared"),
        "compile_ns": compile_ns,
        "compile_measured_by": measured,
        "cache_hit": hit,
        "ptx": None,
    }


def _files_ns(entry: Entry) -> int | None:
    """Time from the first stage's file to the metadata, which Triton writes last; in ns."""
    first = next((path for path in map(entry.beside, (".source", ".ttir")) if path.is_file()), None)
    if first is None:
        return None
    spent = entry.path.stat().st_mtime_ns - first.stat().st_mtime_ns
    return spent if spent > 0 else None


def _source(entry: Entry, name: str) -> str:
    """The generator of the kernel, by the source file named in its first stage."""
    for path in map(entry.beside, (".ttir", ".source", ".ttgir")):
        if path.is_file():
            with path.open(encoding="utf-8", errors="replace") as stage:
                place = _PLACE.search(stage.read(_HEAD))
            if place:
                return "inductor" if _INDUCTOR_FILE.fullmatch(Path(place[1]).name) else "triton"
    return "inductor" if name.startswith("triton_") else "triton"


def keep(
    folder: Path,
    found: Iterable[Entry],
    made: list[dict[str, Any]],
    *,
    suffix: str = "",
) -> list[Path]:
    """Write ``compiled.json`` and each kernel's PTX into `folder`; nothing if there are no rows."""
    if not made:
        return []
    by_hash = {entry.metadata["hash"]: entry for entry in found}
    written = []
    for row in made:
        source = by_hash[row["hash"]].beside(".ptx")
        if source.is_file():
            # A name may have the maximum length of a file name: shortened, so that the hash fits.
            target = folder / "triton" / f"{row['name'][:200]}-{row['hash'][:8]}.ptx"
            target.parent.mkdir(exist_ok=True)
            with whole(target) as part:
                shutil.copyfile(source, part)
            row["ptx"] = str(target.relative_to(folder))
            written.append(target)
    return [_write(folder / f"compiled{suffix}.json", made), *written]


def merge_ranks(folder: Path) -> Path | None:
    """Merge the per-rank files into ``compiled.json``, deduplicated by kernel; None if there are none.

    A kernel that several ranks compiled keeps the longest time.
    """
    ranks = sorted(folder.glob("compiled-rank*.json"))
    files = [folder / FILE, *ranks] if ranks else []
    merged: dict[str, dict[str, Any]] = {}
    for path in files:
        for row in _read(path).get("kernels", []):
            kept = merged.setdefault(row["hash"], row)
            if (row["compile_ns"] or 0) > (kept["compile_ns"] or 0):
                merged[row["hash"]] = row
    if not merged:
        return None
    ordered = sorted(merged.values(), key=lambda row: (row["name"], row["num_warps"] or 0, row["hash"]))
    return _write(folder / FILE, ordered)


def _write(path: Path, made: list[dict[str, Any]]) -> Path:
    return write_json(path, {"schema": SCHEMA, "kernels": made})
