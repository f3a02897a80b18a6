"""Samples of host threads by nsys: stacks on processors, Python stacks, stacks of calls, and the scheduler.

Facts about the tables: docs/formats.md. A stack has an id by which equal ones of one source are the same; stacks of
thousands of samples are then held once. Frames are read in two passes, so that no more than the distinct ones are in
memory at once.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.files.python_stacks import DOMAIN, DOMAINS, MARK, Frame, unpacked
from kanalyze.readers.nsys.events import RANGES, process_of, thread_of
from kanalyze.sample_model import CALL_STACKS, CPU_SAMPLES, PYTHON_SAMPLES, SCHEDULING, STACK_FRAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from kanalyze.readers.nsys.events import Labels
    from kanalyze.readers.storage import TableFile

_SAMPLES, _SCHEDULE = "COMPOSITE_EVENTS", "SCHED_EVENTS"

#: Tables of call chains and the source that each is, in the order of their stack ids.
_CHAINS: Final = ("SAMPLING_CALLCHAINS", "OSRT_CALLCHAINS", "CUDA_CALLCHAINS")

#: Stack ids of one source start at a multiple of this; Python's come last.
_SOURCE: Final = 1 << 40
_PYTHON: Final = len(_CHAINS)

#: Ids below it are kept in half of the memory.
_LARGE_IDS: Final = 1 << 32

#: Tables of calls that have a stack, and the table that it is in. Id 0 of OSRT_API means none, and is in no chain.
_CALLS: Final = {"OSRT_API": "OSRT_CALLCHAINS", "CUPTI_ACTIVITY_KIND_RUNTIME": "CUDA_CALLCHAINS"}

#: Class of the traced calls of OSRT_API; others are marks.
_TRACED: Final = 27

#: Modules of the entries that nsys puts where a stack breaks off.
_NO_MODULES: Final = ("[Broken backtraces]", "[Max depth]")

#: nsys' numbers for the state of a Python thread.
_STATES: Final = {1: "Running", 2: "Blocking Wait", 3: "Uninterruptible"}


class _Stacks(NamedTuple):
    """Distinct stacks of one table of call chains.

    Attributes:
        ids: The table's own ids of stacks, sorted.
        numbers: Which of the distinct stacks each of them is (UInt32).
        first: Stack id of the first.
        frames: :data:`kanalyze.sample_model.STACK_FRAMES`.
    """

    ids: pl.Series
    numbers: pl.Series
    first: int
    frames: pl.DataFrame

    def stack_ids(self, wanted: pl.Series) -> pl.Series:
        """The stack id (Int64) of each of the `wanted` ids (Int64); null for one without a stack."""
        if self.ids.is_empty() or wanted.is_empty():
            return pl.Series("stack_id", [None], dtype=pl.Int64).new_from_index(0, len(wanted))
        known = wanted.cast(self.ids.dtype, strict=False)
        at = self.ids.search_sorted(known.fill_null(self.ids[0]), side="left").clip(0, len(self.ids) - 1)
        numbers = self.numbers.gather(at).cast(pl.Int64) + self.first
        return numbers.set(~(self.ids.gather(at) == known).fill_null(value=False), None).alias("stack_id")


class _Numbered:
    """Numbers the distinct stacks of a table of call chains, whose rows come part by part.

    nsys writes the functions of a stack side by side, and stacks by id: so a part's last stack goes on in the next one.

    Attributes:
        known: hash, number and first id of each distinct stack.
        in_order: Whether ids never fell so far.
    """

    def __init__(self, id_type: type[pl.UInt32 | pl.Int64]) -> None:
        self._id_type = id_type
        self.known = pl.DataFrame(schema={"hash": pl.UInt64, "number": pl.UInt32, "id": pl.Int64})
        self.in_order = True
        self._open = pl.DataFrame(schema={"id": pl.Int64, "hash": pl.UInt64})

    def add(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Stacks that are complete, by id and number, of further rows (id, hash)."""
        if rows.is_empty() or not self.in_order:
            return self._told(self._open.clear())
        self.in_order = rows.get_column("id").is_sorted() and (
            self._open.is_empty() or self._open.item(0, "id") <= rows.item(0, "id")
        )
        sums = pl.concat([self._open, rows]).group_by("id", maintain_order=True).agg(pl.col("hash").sum())
        self._open = sums.tail(1)
        return self._told(sums.head(sums.height - 1))

    def rest(self) -> pl.DataFrame:
        """The last stack."""
        return self._told(self._open)

    def _told(self, stacks: pl.DataFrame) -> pl.DataFrame:
        new = stacks.join(self.known, on="hash", how="anti").unique("hash", keep="first", maintain_order=True)
        numbers = pl.int_range(self.known.height, self.known.height + new.height, dtype=pl.UInt32)
        self.known = pl.concat([self.known, new.select("hash", numbers.alias("number"), "id")])
        told = stacks.join(self.known.drop("id"), on="hash", maintain_order="left")
        return told.select(pl.col("id").cast(self._id_type, strict=False), "number").drop_nulls("id")


class Samples:
    """The sampled tables of one export; each is read once."""

    def __init__(self, database: TableFile, labels: Labels, undecoded: dict[str, int]) -> None:
        """Read from `database` lazily; payloads that cannot be decoded are counted in `undecoded`."""
        self._database, self._labels, self._undecoded = database, labels, undecoded
        self._chains: dict[str, _Stacks] = {}

    def cpu_samples(self) -> pl.DataFrame:
        """Samples of threads on processors, as :data:`kanalyze.sample_model.CPU_SAMPLES`."""
        if not self._database.last_row(_SAMPLES):
            return CPU_SAMPLES.empty()
        samples = self.mapped_cpu_samples(lambda part: part)
        if samples.get_column("time_ns").is_sorted():  # as nsys writes them; sorting would take as much memory again
            return samples
        return samples.sort("time_ns", maintain_order=True)

    def mapped_cpu_samples(self, transform: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
        """The samples part by part, in the order in which nsys wrote them, mapped by `transform`."""
        if not self._database.last_row(_SAMPLES):
            return transform(CPU_SAMPLES.empty())
        stacks = self._stacks(_CHAINS[0])

        def made(raw: pl.DataFrame) -> pl.DataFrame:
            known = raw.select(
                "cpu",
                stacks.stack_ids(raw.get_column("id")),
                time_ns="start",
                process_id=process_of("globalTid"),
                thread_id=thread_of("globalTid"),
            )
            return transform(CPU_SAMPLES.select(known))

        return self._database.integers(_SAMPLES, ("id", "start", "globalTid", "cpu"), made)

    def python_samples(self) -> pl.DataFrame:
        """Python stacks, as :data:`kanalyze.sample_model.PYTHON_SAMPLES`."""
        return self._python[0]

    def stack_frames(self) -> pl.DataFrame:
        """The functions of all stacks, as :data:`kanalyze.sample_model.STACK_FRAMES`."""
        present = [self._stacks(table).frames for table in _CHAINS if self._database.last_row(table)]
        return pl.concat([STACK_FRAMES.empty(), *present, self._python[1]])

    def call_stacks(self, first_ids: dict[str, int]) -> pl.DataFrame:
        """The stacks of calls, as :data:`kanalyze.sample_model.CALL_STACKS`; `first_ids` by nsys' table of calls."""
        found = [CALL_STACKS.empty()]
        for table, chains in _CALLS.items():
            if "callchainId" in self._database.columns(table) and self._database.last_row(chains):
                raw = self._database.integers(
                    table, ("callchainId", "eventClass"), _traced if "OSRT" in table else pl.DataFrame.clone
                )
                stacks = self._stacks(chains).stack_ids(raw.get_column("callchainId"))
                event_ids = pl.int_range(first_ids[table], first_ids[table] + raw.height).alias("event_id")
                found.append(CALL_STACKS.select(raw.select(event_ids, stacks).drop_nulls("stack_id")))
        return pl.concat(found).sort("event_id")

    def scheduling(self) -> pl.DataFrame:
        """When threads came onto processors and left them, as :data:`kanalyze.sample_model.SCHEDULING`."""
        if not self._database.last_row(_SCHEDULE):
            return SCHEDULING.empty()
        states, blocks = (
            self._words(table) for table in ("ENUM_SAMPLING_THREAD_STATE", "ENUM_SCHEDULING_THREAD_BLOCK")
        )

        def made(raw: pl.DataFrame) -> pl.DataFrame:
            return raw.select(
                pl.col("start").alias("time_ns"),
                process_of("globalTid").alias("process_id"),
                thread_of("globalTid").alias("thread_id"),
                pl.col("cpu").cast(pl.Int32),
                (pl.col("isSchedIn") != 0).alias("runs"),
                states(raw.get_column("threadState")).alias("state"),
                blocks(raw.get_column("threadBlock")).alias("blocked_by"),
            )

        wanted = ("start", "globalTid", "cpu", "isSchedIn", "threadState", "threadBlock")
        found = self._database.integers(_SCHEDULE, wanted, made)
        return SCHEDULING.select(found.sort("time_ns", maintain_order=True))

    def _words(self, table: str) -> Callable[[pl.Series], pl.Series]:
        """A function from numbers to nsys' words; null for Unknown."""
        known = {number: word for number, word in self._labels.of(table).items() if word != "Unknown"}
        return lambda numbers: numbers.replace_strict(known, default=None, return_dtype=pl.Categorical)

    def _stacks(self, table: str) -> _Stacks:
        """The distinct stacks of a table of call chains."""
        if table not in self._chains:
            self._chains[table] = self._distinct(table)
        return self._chains[table]

    def _distinct(self, table: str) -> _Stacks:
        wanted = ("id", "symbol", "module", "stackDepth", "specialEntry")
        texts = self._labels.of("StringIds")
        nameless = [number for number, text in texts.items() if text.startswith("0x")]
        none = [number for number, text in texts.items() if text in _NO_MODULES]

        def plain(raw: pl.DataFrame) -> pl.DataFrame:
            """Frames of functions; one without a symbol has a text of its address, which differs between runs."""
            special = (pl.col("specialEntry").fill_null(0) != 0) | pl.col("module").is_in(none).fill_null(value=False)
            own = raw.filter(~special & pl.col("id").is_not_null())
            return own.with_columns(pl.when(~pl.col("symbol").is_in(nameless)).then("symbol").alias("symbol"))

        def hashed(raw: pl.DataFrame) -> pl.DataFrame:
            frame = pl.struct("symbol", "module", "stackDepth").hash(seed=7).alias("hash")
            return plain(raw).select("id", frame)

        # of a hundred million samples 0.4 GB less; others than their ids belong to none
        small = table == _CHAINS[0] and self._database.last_row(_SAMPLES) < _LARGE_IDS
        id_type = pl.UInt32 if small else pl.Int64
        numbered = _Numbered(id_type)
        ids = self._database.integers(table, wanted, lambda raw: numbered.add(hashed(raw)))
        if not numbered.in_order:  # no version of nsys was seen to write them so
            numbered = _Numbered(id_type)
            ids = numbered.add(self._database.integers(table, wanted, hashed).sort("id"))
        ids = pl.concat([ids, numbered.rest()])
        first = _SOURCE * _CHAINS.index(table)
        one_each = numbered.known.select("id", stack_id=pl.col("number").cast(pl.Int64) + first)
        frames = self._database.integers(
            table, wanted, lambda raw: plain(raw).join(one_each, on="id").drop("id", "specialEntry")
        )
        made = frames.select(
            "stack_id",
            self._texts(frames, "symbol").alias("function"),
            self._texts(frames, "module").alias("module"),
            depth="stackDepth",
            line=pl.lit(None, dtype=pl.Int64),
        )
        frames = STACK_FRAMES.select(made).sort("stack_id", "depth")
        return _Stacks(ids.get_column("id"), ids.get_column("number"), first, frames)

    def _texts(self, frame: pl.DataFrame, column: str) -> pl.Series:
        """The texts of a column of StringIds."""
        texts = self._labels.of("StringIds")
        used = frame.get_column(column).unique().drop_nulls().to_list()
        known = {number: texts[number] for number in used if number in texts}
        return frame.get_column(column).replace_strict(known, default=None, return_dtype=pl.Categorical)

    @cached_property
    def _python(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Python samples, and the frames of their stacks."""
        domains = self._domains()
        if not domains:
            return PYTHON_SAMPLES.empty(), STACK_FRAMES.empty()
        raw = self._database.integers(RANGES, ("start", "eventType", "globalTid", "domainId"), lambda part: part)
        held = "binaryData" in self._database.columns(RANGES)
        blobs = self._database.frame(RANGES, {"binaryData": pl.Object}).get_column("binaryData") if held else None
        known = pl.DataFrame([*domains], schema=["process_id", "domainId"], orient="row")
        known = known.with_columns(
            pl.Series("periodic", [*domains.values()]), pl.col("process_id", "domainId").cast(pl.Int64)
        )
        marks = raw.with_row_index("row").filter(pl.col("eventType") == MARK)
        marks = marks.with_columns(process_id=process_of("globalTid")).join(
            known, on=["process_id", "domainId"], maintain_order="left"
        )
        held_by = [blobs[row] if blobs is not None else None for row in marks.get_column("row")]
        payloads = [_stack(blob) for blob in held_by]
        self._undecoded["stacks of Python that cannot be decoded"] = payloads.count(None) - held_by.count(None)
        numbers: dict[tuple[Frame, ...], int] = {}
        stacks = [
            numbers.setdefault(one[1], _SOURCE * _PYTHON + len(numbers)) if one and one[1] else None for one in payloads
        ]
        samples = marks.select(
            "process_id",
            "periodic",
            pl.Series("state", [_STATES.get(one[0]) if one else None for one in payloads], dtype=pl.Categorical),
            pl.Series("stack_id", stacks, dtype=pl.Int64),
            time_ns="start",
            thread_id=thread_of("globalTid"),
        )
        return PYTHON_SAMPLES.select(samples.sort("time_ns", maintain_order=True)), self._python_frames(numbers)

    def _domains(self) -> dict[tuple[int, int], bool]:
        """The domains of Python stacks, by process id and domain id: whether they are periodic."""
        if not self._database.last_row(RANGES):
            return {}
        columns = {"eventType": pl.Int64, "globalTid": pl.Int64, "domainId": pl.Int64, "text": pl.String}
        created = self._database.frame(RANGES, columns, only=("eventType", DOMAIN))
        named = created.filter(pl.col("text").is_in([*DOMAINS]))
        rows = named.select(process_of("globalTid").alias("process_id"), "domainId", "text")
        return {(process, domain): DOMAINS[text] for process, domain, text in rows.iter_rows()}

    def _python_frames(self, numbers: dict[tuple[Frame, ...], int]) -> pl.DataFrame:
        texts = self._labels.of("StringIds")
        rows = [
            (number, depth, _plain(texts.get(function)), _plain(texts.get(file)), line)
            for stack, number in numbers.items()
            for depth, (function, file, line) in enumerate(stack)
        ]
        names = ("stack_id", "depth", "function", "module", "line")
        types = (pl.Int64, pl.Int32, pl.Categorical, pl.Categorical, pl.Int64)
        return STACK_FRAMES.select(pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row"))


def _plain(text: str | None) -> str | None:
    """A text of a Python frame without nsys' escapes: ``&lt;module&gt;`` is ``<module>``."""
    from html import unescape  # noqa: PLC0415 - has a table of all entities, for Python's stacks only

    return None if text is None else unescape(text)


def _traced(raw: pl.DataFrame) -> pl.DataFrame:
    """The rows of OSRT_API that are calls, as events count them."""
    return raw.filter((pl.col("eventClass") == _TRACED).fill_null(value=True))


def _stack(blob: object) -> tuple[int, tuple[Frame, ...]] | None:
    """State of the thread, and its frames; None where there is no payload."""
    data = blob.encode() if isinstance(blob, str) else blob
    found = unpacked(data) if isinstance(data, bytes) else None
    return None if found is None else (found.state, found.frames)
