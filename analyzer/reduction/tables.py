"""Reductions: what the analysis of a job needs of one report, as small tables; see docs/ranks.md.

Each is a folder of its own, Parquet files beside a manifest, which is written under another name and renamed when it is
complete, so that a reader sees all of it or nothing. Its name says which file it is of (by the file's path) and in
which state (by size, time of change, and both ends of the content): ``NAME-PATH-STATE.reduced``.
"""

import io
import json
import os
import re
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import polars as pl

from kanalyze.errors import BadReductionError, ReportNotFoundError, UnreadableReportError, writable
from kanalyze.files import digest, open_regular, readable
from kanalyze.machinery import remove_forgotten, unfinished
from kanalyze.reduction import MANIFEST, SUFFIX, declared, is_reduction

#: The layout of a reduction; one of another version is made anew.
VERSION: Final = 3

#: What the host is in while the loop that launches its work gets a batch.
IN_LOADER: Final = "DataLoader.__next__"

#: How the name of a folder begins that is being written.
_UNFINISHED: Final = "reducing"

#: So many bytes of both ends of a file tell it from another of its name, size and time.
_END_BYTES: Final = 1 << 16

#: Longest part of a file's name in a folder's name; no manifest is larger than this.
_LONGEST_NAME, _LARGEST_MANIFEST_BYTES = 80, 1 << 20

_ODD: Final = re.compile(r"[^A-Za-z0-9._-]+")

#: The tables of a reduction by name, in Unix time. A member is a rank, as its row in the ranks of the reduction,
#: `number` that of a collective among those of its rank, and `index` the row of a step among those of its rank.
TABLES: Final = declared("reduced", """
    ranks: One rank: a process on one GPU.
        rank int?: Its number in the job, where the report tells it.
        world_size int?: Ranks of the job, where the report tells it.
        host text?: The machine, where the report tells it.
        report text: The report.
        tool text: The tool that recorded it.
        process_id int?: The process.
        device int?: The GPU; null for a rank without one.
        gpu text?: Name of the GPU.
        origin_ns int: Unix time of the report's time 0; 0 where the report does not tell it.
        start_ns int: Start of the rank's window.
        end_ns int: End of the rank's window.
        communication_ns int: The bucket communication of the ledger of the window.
        on_cpu int: Collectives that gloo ran on the CPU, beside those of the GPU.
        recorded text: Kinds of events that were recorded which cost the host time.
        corrected bool: Whether times are those without the recorder.
    collectives: One collective of one rank.
        member int: The rank.
        number int: The collective.
        kind text: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, …
        group text?: The process group or communicator, as all its ranks call it.
        size int?: Ranks that take part.
        ranks text?: Ranks of the job that take part, a list, where it is known whole.
        own int?: The rank in the group.
        source int?: Who sends, or the root of a broadcast: a rank in the group.
        target int?: Who receives, or the root of a reduction: a rank in the group.
        sequence int?: Its number in the group, as recorded.
        id text?: What the tool calls it on all ranks.
        type text?: Element type.
        in_bytes int?: Bytes that the rank gives.
        out_bytes int?: Bytes that the rank gets.
        largest_bytes int?: Of uneven parts: bytes sent or received, without its own.
        device int?: The GPU.
        stream int?: The stream.
        start_ns int: Start.
        dur_ns int: Duration.
        exposed_ns int: Time in which the GPU ran nothing else; additive.
    pieces: One exposed piece of a collective, within one step or outside of steps.
        member int: The rank.
        number int: The collective.
        step int?: The step, as its row in the steps of the rank; null outside.
        start_ns int: Start.
        end_ns int: End.
    before: One bucket of the ledger from the end of the group's previous collective to the start of this one.
        member int: The rank.
        number int: The collective.
        bucket text: The bucket.
        detail text?: What of the bucket it is: that of DataLoader is told apart.
        ns int: Time.
    costs: By how much its recorder delayed a collective since the group's previous one, where that is estimated.
        member int: The rank.
        number int: The collective.
        delay_ns int: At most that much.
    steps: One step of one rank: the time in which its GPU did the work of that step.
        member int: The rank.
        index int: The step.
        step int: Its number: that of the profiler, else by order, from 1 on.
        numbered bool: Whether the number is the program's own.
        name text: What a step is called.
        kind text: steady, warm-up, odd or cut.
        start_ns int: Start.
        end_ns int: End.
    ledgers: One bucket of the ledger of a step.
        member int: The rank.
        index int: The step.
        bucket text: The bucket.
        ns int: Time.
    kernels: The kernels of one name in all steady steps of a rank.
        member int: The rank.
        name text?: Name; null for all that are not among the longest.
        count int: How often.
        per_step float?: How often in a step; null where no steps are known.
        ns int: Sum of their durations.
""")  # fmt: skip
RANKS, COLLECTIVES, PIECES, BEFORE, COSTS, STEPS, LEDGERS, KERNELS = TABLES.values()

#: Tables that are only needed once the collectives of all ranks are known.
LATER: Final = ("pieces", "before", "costs")

#: What the analysis of a job needs of one rank or more: of :data:`TABLES` those with rows, by name.
Reduction: TypeAlias = dict[str, pl.DataFrame]


def together(parts: Sequence[Reduction]) -> Reduction:
    """Several reductions as one: members are numbered through, and ranks have the place of theirs (reduction)."""
    begins = accumulate((part["ranks"].height for part in parts), initial=0)
    shifted: dict[str, list[pl.DataFrame]] = {}
    for at, (begin, part) in enumerate(zip(begins, parts, strict=False)):
        for name, table in part.items():
            columns = {"reduction": pl.lit(at)} if name == "ranks" else {"member": pl.col("member") + begin}
            shifted.setdefault(name, []).append(table.with_columns(**columns))
    return {name: pl.concat(tables) for name, tables in shifted.items()}


class Origin(NamedTuple):
    """The file that a reduction is of, in the state in which it was read."""

    path: str  # the file or folder, or its address on an object store
    host: str  # the machine that read it; empty for an address, which is the same everywhere
    size_bytes: int  # its size
    mtime_ns: int  # when it was changed last, in Unix time
    state: str  # hash of these and of both ends of its content

    @property
    def folder(self) -> str:
        """The name of the folder of its reduction."""
        name = _ODD.sub("_", re.split(r"[\\/]", self.path)[-1])[:_LONGEST_NAME].strip(".") or "report"
        return f"{name}-{digest(self.path.encode('utf-8', 'surrogateescape'))[:8]}-{self.state}{SUFFIX}"


class Packed(NamedTuple):
    """A reduction as the content of its files, by their names."""

    origin: Origin
    ranks: tuple[int | None, ...]
    files: dict[str, bytes]


def origin_of(path: Path) -> Origin:
    """The state of a report's file or folder.

    Raises ReportNotFoundError if there is none; UnreadableReportError if the system refuses it.
    """
    try:
        place = Path(os.path.realpath(path))
        files = sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else [place]
        entries = [(str(file.relative_to(place)), file.stat(), _ends(file)) for file in files]
    except FileNotFoundError:
        raise ReportNotFoundError.at(path) from None
    except OSError as error:
        raise UnreadableReportError.of(path, error) from None
    changed = max((stat.st_mtime_ns for _, stat, _ in entries), default=0)
    lines = [place.name, *(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0{ends}" for name, stat, ends in entries)]
    state = digest("\n".join([str(VERSION), *lines]).encode("utf-8", "surrogateescape"))
    return Origin(str(place), socket.gethostname(), sum(stat.st_size for _, stat, _ in entries), changed, state)


def origin_of_address(address: str, size_bytes: int, mtime_ns: int, tag: str) -> Origin:
    """The state of a file on an object store, with the store's own `tag` of its content, where it has one."""
    text = f"{VERSION}\n{address}\n{size_bytes}\n{mtime_ns}\n{tag}"
    return Origin(address, "", size_bytes, mtime_ns, digest(text.encode()))


def _ends(file: Path) -> str:
    with open_regular(file) as opened:
        first = opened.read(_END_BYTES)
        opened.seek(max(0, file.stat().st_size - _END_BYTES))
        return digest(first + opened.read(_END_BYTES))


def packed(reduction: Reduction, origin: Origin) -> Packed:
    """The files of a reduction; tables without rows have none."""
    files: dict[str, bytes] = {}
    tables: dict[str, dict[str, int | str]] = {}
    for name, table in reduction.items():
        if table.is_empty():
            continue
        table.write_parquet(buffer := io.BytesIO(), compression="zstd", statistics=False)
        files[f"{name}.parquet"] = content = buffer.getvalue()
        tables[name] = {"rows": table.height, "bytes": len(content), "checksum": digest(content)}
    ranks = tuple(reduction["ranks"].get_column("rank"))
    head = {"reduction": VERSION, "source": origin._asdict(), "ranks": ranks, "tables": tables}
    files[MANIFEST] = json.dumps(head, indent=1).encode()
    return Packed(origin, ranks, files)


def write(reduction: Packed, out: Path) -> Path:
    """Writes a reduction into a folder of its own in `out`, whole or not at all; removes what it supersedes.

    Raises OutputError if the system refuses it.
    """
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
        place = out / reduction.origin.folder
        with unfinished(out / _UNFINISHED, folder=True) as scratch:
            new = scratch / "new"
            new.mkdir()
            for name, content in reduction.files.items():
                (new / name).write_bytes(content)
            if os.path.lexists(place) and not is_whole(place):
                place.rename(scratch / "damaged")
            try:
                new.rename(place)
            except OSError:
                if not is_whole(place):  # a whole one stays, such as another process has written meanwhile
                    raise
        for old in _superseded(reduction, out):  # so that no reader sees half of it; another process may be quicker
            with unfinished(out / _UNFINISHED, folder=True) as gone, suppress(OSError):
                old.rename(gone / "old")
    return place


def _superseded(new: Packed, out: Path) -> Iterator[Path]:
    """The reductions of earlier states of the same file.

    Files of one path on several machines are several files, unless their ranks are the same.
    """
    place = new.origin.folder.removesuffix(SUFFIX).rpartition("-")[0].rpartition("-")[2]
    for folder in out.glob(f"*-{place}-*{SUFFIX}"):
        if folder.name == new.origin.folder:
            continue
        with suppress(BadReductionError, OSError, KeyError, TypeError):
            head = json.loads(_bytes(folder, MANIFEST, _LARGEST_MANIFEST_BYTES))
            same = new.ranks == tuple(head["ranks"]) and None not in new.ranks
            if head["source"]["path"] == new.origin.path and (same or head["source"]["host"] == new.origin.host):
                yield folder


def clear_forgotten(out: Path) -> None:
    """Removes what killed programs left unfinished a day ago or earlier."""
    remove_forgotten(out, f".{_UNFINISHED}")


def reductions_at(path: Path) -> list[Path]:
    """The folders of the reductions in the folder `path`, by name, or `path` itself; none of any other path.

    Raises UnreadableReportError if the system refuses it.
    """
    if is_reduction(path):
        return [path]
    if not os.path.isdir(path):  # noqa: PTH112 - never raises
        return []
    with readable(path):
        return sorted(folder for folder in path.iterdir() if not folder.name.startswith(".") and is_reduction(folder))


def is_whole(folder: Path) -> bool:
    """Whether a reduction is there, of our version, with every file as it was written."""
    with suppress(BadReductionError):
        checked(folder)
        return True
    return False


def checked(folder: Path) -> list[int | None]:
    """The numbers of the ranks of a reduction, every file of which is as it was written.

    Raises BadReductionError if one is not, or it is of another version.
    """
    ranks, tables = _manifest(folder)
    for name, entry in tables.items():
        _content(folder, name, entry)
    return ranks


def load(folders: Sequence[Path], names: Collection[str] = TABLES) -> Reduction:
    """The reductions in folders :func:`together`, the tables `names`: each of all at once, in half the time.

    Raises BadReductionError if something is wrong with one of them.
    """
    try:
        tables = [_manifest(folder)[1] for folder in folders]
        return {name: _of_all(folders, tables, name) for name in names if any(name in one for one in tables)}
    except BadReductionError:
        for folder in folders[: len(folders) if len(folders) > 1 else 0]:  # for the one that it is
            load([folder], names)
        raise


def _of_all(folders: Sequence[Path], tables: Sequence[dict[str, dict[str, Any]]], name: str) -> pl.DataFrame:
    """A table of all reductions in folders, by the entries of their manifests."""
    there = [at for at, entries in enumerate(tables) if name in entries]
    rows, begins = [tables[at][name]["rows"] for at in there], [0, *accumulate(one["ranks"]["rows"] for one in tables)]
    contents = [_content(folders[at], name, tables[at][name]) for at in there]
    try:
        frame = TABLES[name].check(pl.read_parquet(contents))
    except (pl.exceptions.PolarsError, OSError, ValueError, TypeError) as why:
        raise BadReductionError.damaged(folders[0], f"{name}.parquet: {str(why).partition(chr(10))[0]}") from None
    if frame.height != sum(rows):
        raise BadReductionError.damaged(folders[0], f"{name}.parquet has not as many rows as were written")
    ranks = pl.DataFrame(
        {"reduction": there, "first": [begins[at] for at in there], "next": [begins[at + 1] for at in there]},
        schema={"reduction": pl.Int32, "first": pl.Int64, "next": pl.Int64},
    )
    ranks = ranks[pl.Series([*accumulate(rows)]).search_sorted(pl.int_range(frame.height, eager=True), "right")]
    if name == "ranks":
        return frame.with_columns(ranks.get_column("reduction"))
    placed = frame.with_columns(pl.col("member") + ranks.get_column("first"), next=ranks.get_column("next"))
    if frame.filter(pl.col("member") < 0).height or placed.filter(pl.col("member") >= pl.col("next")).height:
        raise BadReductionError.damaged(folders[0], f"{name}.parquet has rows of no rank")
    return placed.drop("next")


def _manifest(folder: Path) -> tuple[list[int | None], dict[str, dict[str, Any]]]:
    """What the manifest tells: the numbers of ranks, and an entry for each table."""
    content = _bytes(folder, MANIFEST, _LARGEST_MANIFEST_BYTES)
    try:
        head = json.loads(content)
        version, ranks = head["reduction"], [*head.get("ranks", ())]
        tables = {name: one for name, one in head.get("tables", {}).items() if name not in ("findings", "health")}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadReductionError.damaged(folder, f"{MANIFEST} is not what was written") from None
    if version != VERSION:
        raise BadReductionError.version(folder, version, VERSION)
    whole = all(
        name in TABLES
        and isinstance(one, dict)
        and {"bytes", "checksum"} <= {*one}
        and type(one.get("rows")) is int
        and 0 <= one["rows"] <= 1 << 32
        for name, one in tables.items()
    )
    if not whole or "ranks" not in tables or not all(one is None or type(one) is int for one in ranks):
        raise BadReductionError.damaged(folder, f"{MANIFEST} is not what was written")
    return ranks, tables


def _content(folder: Path, name: str, entry: dict[str, Any]) -> bytes:
    """The file of a table, as its entry in the manifest tells."""
    content = _bytes(folder, f"{name}.parquet", entry["bytes"])
    if len(content) != entry["bytes"] or digest(content) != entry["checksum"]:
        raise BadReductionError.damaged(folder, f"{name}.parquet is not as it was written")
    return content


def _bytes(folder: Path, name: str, most: object) -> bytes:
    """The content of a file of a reduction; at most one byte more than `most`."""
    if type(most) is not int or most < 0:
        raise BadReductionError.damaged(folder, f"{MANIFEST} is not what was written")
    try:
        with open_regular(folder / name) as file:
            return file.read(most + 1)
    except FileNotFoundError:
        raise BadReductionError.damaged(folder, f"{name} is missing") from None
    except OSError as error:
        raise BadReductionError.damaged(folder, f"{name}: {error.strerror or error}") from None
