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
    compile_ns              what compiling took, by Triton's own clock, else from the first to the last file of the
                            entry (of a worker of inductor, which leaves Triton's front end out); null of a hit
    cache_hit               whether it came from the cache
    ptx                     the file in the capture; null where Triton kept none
    operators, lines        what inductor made it of, by its own comments: operators, and lines of the program; null of
                            any other kernel, and where its code came from a cache

Compilations are heard of in the workload's process: Triton is met when the program imports it, inductor by its logger.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .hooks import when_imported  # relative: the runner loads these files without their package
from .torch_script import whole, write_bytes, write_json

#: Schema version of the rows.
SCHEMA = 1

FILE = "compiled.json"

TRITON_CACHE, INDUCTOR_CACHE = "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"

#: Prefix of the folders in a capture in which compilers work.
OWN_CACHES = ".caches"

#: Logger behind TORCH_LOGS=output_code.
_OUTPUT_CODE, _CODE_BEGINS = "torch._inductor.codecache.__output_code", "Output code: \n"
#: Logger behind TORCH_LOGS=post_grad_graphs, on if any of inductor's is at its level: the graph that code is made of.
_GRAPHS, _GRAPHS_ON = "torch._inductor.compile_fx.__post_grad_graphs", "post_grad_graphs"

#: In a graph the line that the next nodes are of, or none, and nodes; in code the file of a kernel and the comments on
#: it, its operators and its nodes.
_LINE = re.compile(r"\s*# (?:File: (.+?):(\d+) in |No stacktrace)")
_NODE = re.compile(r'\s*(\w+)(?:: "[^"]*")? = ')
_KERNEL = re.compile(r"^# kernel path: (\S+)\n((?:#.*\n)+)(?:(\w+) = )?", re.MULTILINE)
_OPERATORS = re.compile(r"Original ATen: \[(.*?)\]")
_OF_KERNEL = re.compile(r"^#   %(\w+) :.*= call_function", re.MULTILINE)

#: File names of inductor's generated code: c and the hash of the content.
_INDUCTOR_FILE = re.compile(r"c[a-z2-7]{51}\.py")
_PLACE = re.compile(r'loc\("([^"]+\.py)":\d')

#: Of a cubin: its first bytes (64 bits, little-endian), structures, the kind of a section, and attributes.
_ELF = b"\x7fELF\x02\x01"
_SECTION, _SYMBOL, _SYMBOLS = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"), 2
_FRAME_SIZE, _REGISTER_COUNT = b"\x11", b"\x2f"
#: The records of a function: 8 bytes, its symbol's index and a value.
_RECORD = rb"\x04([\x11\x2f])\x08\x00%b(.{4})"


class Entry(NamedTuple):
    """A kernel in a Triton cache: its metadata file and content."""

    path: Path
    metadata: Mapping[str, Any]

    def beside(self, ending: str) -> Path:
        """The file of another compilation stage of the same kernel."""
        return self.path.with_suffix(ending)


def node_lines(graph: str, root: str) -> dict[str, str]:
    """The line of the program that each node of a graph is of, as torch prints it; files from the folder `root` on."""
    lines, line = dict[str, str](), ""
    for text in re.sub(r"\x1b\[[\d;]*m", "", graph).splitlines():
        if match := _LINE.match(text):
            inside = (match[1] or "").startswith(root + os.sep)
            line = f"{match[1][len(root) + 1 :] if inside else match[1]}:{match[2]}" if match[1] else ""
        elif (node := _NODE.match(text)) and line:
            lines[node[1]] = line
    return lines


def origins(code: str, lines: Mapping[str, str]) -> dict[str, dict[str, str | None]]:
    """Columns that say what each kernel in inductor's code is of, by the name of its file, given each node's line.

    Code has such comments once for a kernel, whose other calls may be of other lines: then it has none.
    """
    columns = {}
    for path, comments, name in _KERNEL.findall(code):
        match = _OPERATORS.search(comments)
        operators = [] if match is None else [name.replace(".", "::", 1) for name in match[1].split(", ") if name]
        places = (lines[node] for node in _OF_KERNEL.findall(comments) if node in lines)
        once = not name or len(re.findall(rf"\b{name}\.run\(", code)) <= 1
        of = {"operators": operators, "lines": dict.fromkeys(places if once else ())}
        columns[Path(path).name] = {column: ", ".join(parts) or None for column, parts in of.items()}
    return columns


def caches(environ: Mapping[str, str]) -> list[Path]:
    """Triton's cache folders in a process with this environment, including inductor's."""
    if TRITON_CACHE in environ:
        return [Path(environ[TRITON_CACHE])]
    home = Path(environ.get("TRITON_HOME") or environ.get("HOME") or Path.home())
    user = environ.get("USER") or environ.get("LOGNAME") or ""
    usual = Path(environ.get("TMPDIR", "/tmp"), f"torchinductor_{user}")  # noqa: S108
    below = Path(environ.get(INDUCTOR_CACHE) or usual)
    return [home / ".triton" / "cache", *sorted((below / "triton").glob("*"))]


def entries(folders: Iterable[Path]) -> list[Entry]:
    """All kernels in these caches; invalid and incomplete entries are skipped."""
    files = (path for folder in folders for path in sorted(folder.glob("*/*.json")))
    kernels = (Entry(path, _read(path)) for path in files if not path.name.startswith("__grp__"))
    return [entry for entry in kernels if isinstance(entry.metadata.get("hash"), str) and "target" in entry.metadata]


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        document = json.loads(path.read_text(encoding="utf-8"))
        return document if isinstance(document, dict) else {}
    return {}


def rows(
    cached: Iterable[Entry],
    *,
    before: frozenset[str] = frozenset(),
    heard: Mapping[str, int | None] | None = None,
    made_of: Mapping[str, Mapping[str, str | None]] | None = None,
) -> list[dict[str, Any]]:
    """One row per kernel that the run compiled or loaded from the cache, without its PTX, from the entries after it.

    Given are the hashes that were there before, the times of compilations that Triton reports by hash (None of a hit),
    and what :func:`origins` tells.
    """
    by_hash, times = {}, heard or {}
    for entry in cached:
        key = entry.metadata["hash"]
        if key in times or key not in before:
            file = _file(entry)
            by_hash[key] = _row(entry, file, times.get(key), new=key not in before)
            by_hash[key].update((made_of or {}).get(file) or {"operators": None, "lines": None})
    return _ordered(by_hash)


def _ordered(by_hash: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(by_hash.values(), key=lambda row: (row["name"], row["num_warps"] or 0, row["hash"]))


def _row(entry: Entry, file: str, compile_ns: int | None, *, new: bool) -> dict[str, Any]:
    metadata = entry.metadata
    name = str(metadata.get("name") or entry.path.stem)
    of_inductor = _INDUCTOR_FILE.fullmatch(file) if file else name.startswith("triton_")
    target = metadata["target"] if isinstance(metadata["target"], dict) else {}
    binary = entry.beside(".cubin")
    registers, local_bytes = (resources(binary.read_bytes(), name) if binary.is_file() else None) or (None, None)
    if compile_ns is None and new:  # from the first stage's file to the metadata, which Triton writes last
        first = next((path for path in map(entry.beside, (".source", ".ttir")) if path.is_file()), entry.path)
        spent_ns = entry.path.stat().st_mtime_ns - first.stat().st_mtime_ns
        compile_ns = spent_ns if spent_ns > 0 else None
    return {
        "name": name,
        "source": "inductor" if of_inductor else "triton",
        "hash": metadata["hash"],
        "backend": target.get("backend"),
        "arch": target.get("arch"),
        "num_warps": metadata.get("num_warps"),
        "num_stages": metadata.get("num_stages"),
        "registers": registers,
        "spills": local_bytes // 4 if local_bytes is not None else None,
        "shared_memory_bytes": metadata.get("shared"),
        "compile_ns": compile_ns,
        "cache_hit": compile_ns is None and not new,
        "ptx": None,
    }


def _file(entry: Entry) -> str:
    """The name of the kernel's source file, as its first stage says it; empty where none does."""
    for path in map(entry.beside, (".ttir", ".source", ".ttgir")):
        if path.is_file():
            with path.open(encoding="utf-8", errors="replace") as stage:
                place = _PLACE.search(stage.read(1 << 16))
            if place:
                return Path(place[1]).name
    return ""


def keep(folder: Path, cached: Iterable[Entry], kernels: list[dict[str, Any]], *, suffix: str = "") -> list[Path]:
    """Write ``compiled.json`` and each kernel's PTX into `folder`; nothing if there are no rows."""
    by_hash = {entry.metadata["hash"]: entry for entry in cached}
    written = []
    for row in kernels:
        source = by_hash[row["hash"]].beside(".ptx")
        if source.is_file():
            # A name may have the maximum length of a file name: shortened, so that the hash fits.
            target = folder / "triton" / f"{row['name'][:200]}-{row['hash'][:8]}.ptx"
            target.parent.mkdir(exist_ok=True)
            with whole(target) as part:
                shutil.copyfile(source, part)
            row["ptx"] = str(target.relative_to(folder))
            written.append(target)
    return [_write(folder / f"compiled{suffix}.json", kernels), *written] if kernels else []


def merge_ranks(folder: Path) -> Path | None:
    """Merge the per-rank files into ``compiled.json``, deduplicated by kernel; None if there are none.

    A kernel that several ranks compiled keeps the longest time.
    """
    ranks = sorted(folder.glob("compiled-rank*.json"))
    merged: dict[str, dict[str, Any]] = {}
    for path in [folder / FILE, *ranks] if ranks else []:
        for row in _read(path).get("kernels", []):
            kept = merged.setdefault(row["hash"], row)
            if (row["compile_ns"] or 0) > (kept["compile_ns"] or 0):
                merged[row["hash"]] = row
    return _write(folder / FILE, _ordered(merged)) if merged else None


def _write(path: Path, kernels: list[dict[str, Any]]) -> Path:
    return write_json(path, {"schema": SCHEMA, "kernels": kernels})


def resources(binary: bytes, function: str) -> tuple[int | None, int | None] | None:
    """Registers of a thread of `function` and bytes of its local memory (spilled registers, arrays), by its cubin.

    None if this is none or lacks the function. A cubin is an ELF file. Its section ``.nv.info`` is a list of records: a
    format byte, an attribute byte, a 16-bit size, and for format 4 that many bytes. The attributes read here are those
    that ``cuobjdump -elf`` calls EIATTR_REGCOUNT and EIATTR_FRAME_SIZE; each holds the index of the function's symbol
    and a value, 32 bits each. PTX has no such thing: its registers are virtual.
    """
    if not binary.startswith(_ELF):
        return None
    try:
        (start,) = struct.unpack_from("<Q", binary, 40)
        size, count, names_at = struct.unpack_from("<HHH", binary, 58)
        headers = [_SECTION.unpack_from(binary, start + number * size) for number in range(count)]
        table = next(header for header in headers if header[1] == _SYMBOLS)
        symbols = range(table[4], table[4] + table[5], _SYMBOL.size)
        names = [_text(binary, headers[table[6]][4] + _SYMBOL.unpack_from(binary, at)[0]) for at in symbols]
        record = _RECORD % re.escape(struct.pack("<I", names.index(function)))
        info = (header for header in headers if _text(binary, headers[names_at][4] + header[0]) == ".nv.info")
        rows = [row for part in info for row in re.findall(record, binary[part[4] : part[4] + part[5]], re.DOTALL)]
    except (struct.error, IndexError, OverflowError, ValueError, StopIteration):
        return None
    values = {attribute: int.from_bytes(value, "little") for attribute, value in rows}
    return (values.get(_REGISTER_COUNT), values.get(_FRAME_SIZE)) if values else None


def _text(binary: bytes, at: int) -> str:
    return binary[at : binary.index(b"\0", at)].decode()


class OutputCode(logging.Handler):
    """Log handler that saves what TORCH_LOGS=output_code prints: inductor's generated code of each graph."""

    def __init__(self, path: Path) -> None:
        """Write to `path`; the program's own output is unchanged."""
        super().__init__(logging.DEBUG)
        self._path = path
        self._code: list[str] = []
        self._logger, self._graph_logger = logging.getLogger(_OUTPUT_CODE), logging.getLogger(_GRAPHS)
        self._lines: dict[str, str] = {}
        self.origins: dict[str, dict[str, str | None]] = {}  # what its kernels are of, by the names of their files

    def listen(self) -> None:
        """Enable the loggers for this handler only."""
        self._logger.setLevel(logging.DEBUG)
        self._logger.addHandler(self)
        self._graph_logger.setLevel(logging.DEBUG)
        self._graph_logger.addFilter(self._hear_graph)

    def _hear_graph(self, record: logging.LogRecord) -> bool:
        """Takes the lines of the graph that is compiled next; whether the program has it printed."""
        try:
            self._lines = node_lines(record.getMessage(), str(Path.cwd()))
        except Exception:  # noqa: BLE001 - whatever torch's printing does, the workload goes on
            self._lines = {}
        inherited = logging.getLogger("torch._inductor").getEffectiveLevel() <= logging.DEBUG
        return inherited or _GRAPHS_ON in os.environ.get("TORCH_LOGS", "")

    def emit(self, record: logging.LogRecord) -> None:
        """Take a graph's generated code."""
        text = record.getMessage()
        if text.startswith(_CODE_BEGINS):
            self._code.append(f"# graph {len(self._code) + 1}\n{text[len(_CODE_BEGINS) :].rstrip()}\n\n\n")
            for file, columns in origins(text, self._lines).items():
                # the same code in graphs of other lines is in one file
                others = self.origins.get(file, columns)
                self.origins[file] = {name: of if of == others[name] else None for name, of in columns.items()}
            self._lines = {}  # code that comes from a cache has no graph before it

    def finish(self) -> list[Path]:
        """Write the file, if there is any code; returns the files written."""
        self._logger.removeHandler(self)
        self._graph_logger.removeFilter(self._hear_graph)
        if not self._code:
            return []
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return [write_bytes(self._path, "".join(self._code).encode(errors="replace"))]


class Caches:
    """Caches of Triton and inductor during the run, what is saved from them, and compilations that Triton reports."""

    def __init__(self, folder: Path, suffix: str, *, fresh: bool) -> None:
        """Save into the capture `folder`; with `fresh`, use caches of its own."""
        self.folder, self.suffix, self.fresh = folder, suffix, fresh
        self.own = folder / f"{OWN_CACHES}{suffix}"
        self.before: frozenset[str] = frozenset()
        self.heard: dict[str, int | None] = {}  # what Triton says that compiling took (ns) by hash; None of a hit
        self.output_code = OutputCode(folder / "inductor" / f"output_code{suffix}.py")

    def begin(self) -> None:
        """Set the environment and listeners; must be called before Triton or torch is imported."""
        if self.fresh:
            os.environ[TRITON_CACHE] = str(self.own / "triton")
            os.environ[INDUCTOR_CACHE] = str(self.own / "inductor")
        self.before = frozenset(entry.metadata["hash"] for entry in entries(caches(os.environ)))
        when_imported("triton.knobs", self.listen)
        self.output_code.listen()

    def listen(self, knobs: Any) -> None:  # noqa: ANN401 - a module
        """Register with Triton's module `knobs`, of 3.4 or newer, chaining to a previously set listener."""
        if not hasattr(knobs, "compilation"):
            return
        others: Callable[..., None] | None = getattr(knobs.compilation, "listener", None)

        def listener(**event: Any) -> None:  # noqa: ANN401 - the keywords differ between versions
            metadata = event.get("metadata")
            key = metadata.get("hash") if isinstance(metadata, dict) else None
            spent_us, hit = getattr(event.get("times"), "total", None), event.get("cache_hit")
            if isinstance(key, str) and isinstance(spent_us, int) and isinstance(hit, bool):
                self.heard.setdefault(key, None if hit else spent_us * 1000)
            if others is not None:
                others(**event)

        knobs.compilation.listener = listener

    def finish(self) -> tuple[list[Path], list[dict[str, Any]]]:
        """Save results and remove our own caches; returns the files and the rows of ``compiled.json``."""
        cached = entries(caches(os.environ))
        kernels = rows(cached, before=self.before, heard=self.heard, made_of=self.output_code.origins)
        files = [*keep(self.folder, cached, kernels, suffix=self.suffix), *self.output_code.finish()]
        if self.fresh:
            shutil.rmtree(self.own, ignore_errors=True)
        return files, kernels
