"""What nsys sampled: stacks of host threads on processors, Python stacks, stacks of calls, the scheduler, and counters.

Facts about the tables: docs/formats.md. A stack has an id by which equal ones of one source are the same; stacks of
thousands of samples are then held once. Frames are read in two passes, so that no more than the distinct ones are in
memory at once.

A sample of a GPU's counter holds until the next sample of the same counter: on a known program the sample that begins
2 µs before a kernel has the kernel's values, and the one before it has none. Samples of equal value in a row become one
row here, batch by batch, so that tens of millions of them, most of them the same, take little memory.
"""

import json
from collections.abc import Callable
from functools import cached_property
from typing import Final

import polars as pl

from kanalyze import counter_model as model, files
from kanalyze.readers.nsys.tables import RANGES, Labels, Named, process_of, thread_of
from kanalyze.readers.storage.table_files import TableFile

_SAMPLES, _SCHEDULE = "COMPOSITE_EVENTS", "SCHED_EVENTS"
#: Tables of call chains and the source that each is, in the order of their stack ids.
_CHAINS: Final = ("SAMPLING_CALLCHAINS", "OSRT_CALLCHAINS", "CUDA_CALLCHAINS")
#: Stack ids of one source start at a multiple of this; Python's come last.
_SOURCE: Final = 1 << 40
_PYTHON: Final = len(_CHAINS)
#: Tables of calls that have a stack, and the table that it is in. Id 0 of OSRT_API means none, and is in no chain.
_CALLS: Final = {"OSRT_API": "OSRT_CALLCHAINS", "CUPTI_ACTIVITY_KIND_RUNTIME": "CUDA_CALLCHAINS"}
#: Class of the traced calls of OSRT_API; others are marks.
_TRACED: Final = 27
#: nsys' numbers for the state of a Python thread.
_STATES: Final = {1: "Running", 2: "Blocking Wait", 3: "Uninterruptible"}


class Samples:
    """The sampled tables of one export; each is read once."""

    def __init__(self, database: TableFile, labels: Labels, undecoded: dict[str, int]) -> None:
        """Read from `database` lazily; payloads that cannot be decoded are counted in `undecoded`."""
        self._database, self._labels, self._undecoded = database, labels, undecoded
        self._chains: dict[str, tuple[pl.DataFrame, pl.DataFrame]] = {}

    def cpu_samples(self) -> pl.DataFrame:
        """Samples of threads on processors, as :data:`kanalyze.sample_model.CPU_SAMPLES`."""
        samples = self.mapped_cpu_samples(lambda part: part)
        if samples.get_column("time_ns").is_sorted():  # as nsys writes them; sorting would take as much memory again
            return samples
        return samples.sort("time_ns", maintain_order=True)

    def mapped_cpu_samples(self, transform: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
        """The samples part by part, in the order in which nsys wrote them, mapped by `transform`."""
        if not self._database.last_row(_SAMPLES):
            return transform(model.CPU_SAMPLES.empty())
        stacks, _ = self._stacks(_CHAINS[0])

        def made(raw: pl.DataFrame) -> pl.DataFrame:
            known = raw.join(stacks, on="id", how="left", maintain_order="left").select(
                *("cpu", "stack_id"),
                time_ns="start",
                process_id=process_of("globalTid"),
                thread_id=thread_of("globalTid"),
            )
            return transform(model.CPU_SAMPLES.select(known))

        return self._database.integers(_SAMPLES, ("id", "start", "globalTid", "cpu"), made)

    def stack_frames(self) -> pl.DataFrame:
        """The functions of all stacks, as :data:`kanalyze.sample_model.STACK_FRAMES`."""
        present = [self._stacks(table)[1] for table in _CHAINS if self._database.last_row(table)]
        return pl.concat([model.STACK_FRAMES.empty(), *present, self.python[1]])

    def call_stacks(self, first_ids: dict[str, int]) -> pl.DataFrame:
        """The stacks of calls, as :data:`kanalyze.counter_model.CALL_STACKS`; `first_ids` by nsys' table of calls."""
        stacks = [model.CALL_STACKS.empty()]
        for table, chains in _CALLS.items():
            if "callchainId" in self._database.columns(table) and self._database.last_row(chains):
                raw = self._database.integers(table, ("callchainId", "eventClass"), lambda part: part)
                if "OSRT" in table:  # the rows that are calls, as events count them
                    raw = raw.filter((pl.col("eventClass") == _TRACED).fill_null(value=True))
                calls = raw.select(event_id=pl.int_range(pl.len(), dtype=pl.Int64) + first_ids[table], id="callchainId")
                stacks.append(
                    model.CALL_STACKS.select(calls.join(self._stacks(chains)[0], on="id", maintain_order="left"))
                )
        return pl.concat(stacks).sort("event_id")

    def scheduling(self) -> pl.DataFrame:
        """When threads came onto processors and left them, as :data:`kanalyze.counter_model.SCHEDULING`."""
        if not self._database.last_row(_SCHEDULE):
            return model.SCHEDULING.empty()
        states, blocks = (
            {number: word for number, word in self._labels.of(table).items() if word != "Unknown"}
            for table in ("ENUM_SAMPLING_THREAD_STATE", "ENUM_SCHEDULING_THREAD_BLOCK")
        )
        columns = {
            "time_ns": pl.col("start"),
            "process_id": process_of("globalTid"),
            "thread_id": thread_of("globalTid"),
            "cpu": pl.col("cpu").cast(pl.Int32),
            "runs": pl.col("isSchedIn") != 0,
            "state": pl.col("threadState").replace_strict(states, default=None, return_dtype=pl.Categorical),
            "blocked_by": pl.col("threadBlock").replace_strict(blocks, default=None, return_dtype=pl.Categorical),
        }
        wanted = ("start", "globalTid", "cpu", "isSchedIn", "threadState", "threadBlock")
        switches = self._database.integers(_SCHEDULE, wanted, lambda raw: raw.select(**columns))
        return model.SCHEDULING.select(switches.sort("time_ns", maintain_order=True))

    def _stacks(self, table: str) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Stack id by the table's own id of a stack, and the functions of each distinct stack of call chains."""
        if table not in self._chains:
            self._chains[table] = self._distinct(table)
        return self._chains[table]

    def _distinct(self, table: str) -> tuple[pl.DataFrame, pl.DataFrame]:
        wanted = ("id", "symbol", "module", "stackDepth", "specialEntry")
        texts = self._labels.of("StringIds")
        nameless = [number for number, text in texts.items() if text.startswith("0x")]
        none = [number for number, text in texts.items() if text in ("[Broken backtraces]", "[Max depth]")]

        def plain(raw: pl.DataFrame) -> pl.DataFrame:
            """Frames of functions; one without a symbol has a text of its address, which differs between runs."""
            special = (pl.col("specialEntry").fill_null(0) != 0) | pl.col("module").is_in(none).fill_null(value=False)
            own = raw.filter(~special & pl.col("id").is_not_null())
            return own.with_columns(pl.when(~pl.col("symbol").is_in(nameless)).then("symbol").alias("symbol"))

        def summed(raw: pl.DataFrame) -> pl.DataFrame:
            frame = pl.struct("symbol", "module", "stackDepth").hash(seed=7)
            return plain(raw).group_by("id").agg(frame.sum().alias("hash"))

        # a stack may lie in two parts of the table
        stacks = self._database.integers(table, wanted, summed).group_by("id").agg(pl.col("hash").sum()).sort("id")
        first = _SOURCE * _CHAINS.index(table)
        one_each = stacks.unique("hash", keep="first", maintain_order=True)
        one_each = one_each.with_columns(stack_id=pl.int_range(first, first + pl.len(), dtype=pl.Int64))
        frames = self._database.integers(
            table, wanted, lambda raw: plain(raw).join(one_each.drop("hash"), on="id").drop("id", "specialEntry")
        )
        function, module = (self._labels.namer(Named(column))(frames) for column in ("symbol", "module"))
        made = frames.select(
            "stack_id",
            function.alias("function"),
            module.alias("module"),
            depth="stackDepth",
            line=pl.lit(None, dtype=pl.Int64),
        )
        ids = stacks.join(one_each.drop("id"), on="hash", maintain_order="left").select("id", "stack_id")
        return ids, model.STACK_FRAMES.select(made).sort("stack_id", "depth")

    @cached_property
    def python(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Python stacks, as :data:`kanalyze.counter_model.PYTHON_SAMPLES`, and their frames."""
        columns = {"eventType": pl.Int64, "globalTid": pl.Int64, "domainId": pl.Int64, "text": pl.String}
        created = self._database.frame(RANGES, columns, only=("eventType", files.DOMAIN))
        named = created.filter(pl.col("text").is_in([*files.DOMAINS]))
        domains = named.select(process_of("globalTid").alias("process_id"), "domainId", "text")
        if domains.is_empty():
            return model.PYTHON_SAMPLES.empty(), model.STACK_FRAMES.empty()
        raw = self._database.integers(RANGES, ("start", "eventType", "globalTid", "domainId"), lambda part: part)
        held = "binaryData" in self._database.columns(RANGES)
        blobs = self._database.frame(RANGES, {"binaryData": pl.Object}).get_column("binaryData") if held else None
        known = domains.unique(["process_id", "domainId"], keep="last", maintain_order=True).select(
            "process_id", "domainId", periodic=pl.col("text").replace_strict(files.DOMAINS, return_dtype=pl.Boolean)
        )
        marks = raw.with_row_index("row").filter(pl.col("eventType") == files.MARK)
        marks = marks.with_columns(process_id=process_of("globalTid")).join(
            known, on=["process_id", "domainId"], maintain_order="left"
        )
        held_by = [blobs[row] if blobs is not None else None for row in marks.get_column("row")]
        payloads = [files.PythonStack.of(blob) for blob in held_by]
        self._undecoded["stacks of Python that cannot be decoded"] = payloads.count(None) - held_by.count(None)
        numbers: dict[tuple[files.Frame, ...], int] = {}
        stacks = [
            numbers.setdefault(one.frames, _SOURCE * _PYTHON + len(numbers)) if one and one.frames else None
            for one in payloads
        ]
        samples = marks.select(
            "process_id",
            "periodic",
            pl.Series("state", [_STATES.get(one.state) if one else None for one in payloads], dtype=pl.Categorical),
            pl.Series("stack_id", stacks, dtype=pl.Int64),
            time_ns="start",
            thread_id=thread_of("globalTid"),
        )
        return model.PYTHON_SAMPLES.select(samples.sort("time_ns", maintain_order=True)), self._python_frames(numbers)

    def _python_frames(self, numbers: dict[tuple[files.Frame, ...], int]) -> pl.DataFrame:
        texts = self._labels.of("StringIds")
        rows = [
            (number, depth, _plain(texts.get(function)), _plain(texts.get(file)), line)
            for stack, number in numbers.items()
            for depth, (function, file, line) in enumerate(stack)
        ]
        schema = {name: model.STACK_FRAMES.schema[name] for name in ("stack_id", "depth", "function", "module", "line")}
        return model.STACK_FRAMES.select(pl.DataFrame(rows, schema=schema, orient="row"))


def _plain(text: str | None) -> str | None:
    """A text of a Python frame without nsys' escapes: ``&lt;module&gt;`` is ``<module>``."""
    from html import unescape  # noqa: PLC0415 - has a table of all entities, for Python's stacks only

    return None if text is None else unescape(text)


# Counters that nsys sampled of GPUs and of network adapters.

_TABLE, _NAMES, _GENERIC = "GPU_METRICS", "TARGET_INFO_GPU_METRICS", "GENERIC_EVENTS"
#: A metric's name and the unit in brackets behind it.
_NAME: Final = r"^(.*?)(?:\s*\[([^\[\]]*)\])?$"
#: nsys stores some averages in one byte with a sign, so that 128 warps read -128.
_BYTE: Final = 256
#: A sample counts for at most so many times the usual distance; what is longer is a hole in the recording.
_HOLE: Final = 2

_KEYS: Final = ("typeId", "metricId")


def gpu_metrics(database: TableFile, undecoded: dict[str, int]) -> pl.DataFrame:
    """The sampled counters of GPUs, as :data:`kanalyze.sample_model.GPU_METRICS`; counts events that are not JSON."""
    if database.last_row(_TABLE):
        runs = database.integers(_TABLE, ("timestamp", *_KEYS, "value"), _runs)
        columns = {**dict.fromkeys(_KEYS, pl.Int64), "metricName": pl.String}
        names = database.frame(_NAMES, columns).drop_nulls(_KEYS).unique(_KEYS, keep="first", maintain_order=True)
    elif database.last_row(_GENERIC) and "data" in database.columns(_GENERIC):
        runs, names = _of_generic_events(database, undecoded)
    else:
        return model.GPU_METRICS.empty()
    return _named(_lasting(runs), names)


def _runs(raw: pl.DataFrame) -> pl.DataFrame:
    """Samples of one batch, those of equal value in a row as one, with the times of its first and last."""
    known = raw.drop_nulls().sort(*_KEYS, "timestamp", maintain_order=True)
    same = (*_KEYS, "value")
    new = pl.any_horizontal((pl.col(name) != pl.col(name).shift(1)).fill_null(value=True) for name in same)
    step = pl.col("timestamp").diff()
    hole = (step > _HOLE * step.filter(step > 0).median()).fill_null(value=False)
    runs = known.with_columns(run=(new | hole).cum_sum()).group_by("run", maintain_order=True)
    return runs.agg(
        pl.col(*_KEYS, "value").first(),
        start_ns=pl.col("timestamp").first(),
        end_ns=pl.col("timestamp").last(),
        samples=pl.len().cast(pl.Int64),
    ).select(*_KEYS, "start_ns", "end_ns", "samples", "value")


def _lasting(runs: pl.DataFrame) -> pl.DataFrame:
    """Adds `dur_ns`: until the next sample, or the usual distance (a median) where that is late or missing."""
    ordered = runs.sort(*_KEYS, "start_ns", maintain_order=True)
    inside = (pl.col("end_ns") - pl.col("start_ns")) / (pl.col("samples") - 1)
    follows = pl.col("start_ns").shift(-1).over(_KEYS) - pl.col("end_ns")
    distance = pl.when(pl.col("samples") > 1).then(inside).otherwise(follows)
    usual = max(int(ordered.head(1 << 16).select(distance.filter(distance > 0).median()).item() or 0), 1)
    last = pl.when(follows.is_between(1, _HOLE * usual)).then(follows).otherwise(usual)
    return ordered.with_columns(dur_ns=pl.col("end_ns") - pl.col("start_ns") + last)


def _named(runs: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """Names of the counters instead of their ids; one without a name is left out."""
    metrics = names.select(
        *_KEYS,
        pl.col("metricName").str.extract(_NAME, 1).cast(pl.Categorical).alias("metric"),
        pl.col("metricName").str.extract(_NAME, 2).cast(pl.Categorical).alias("unit"),
    )
    value = pl.when((pl.col("value") < 0) & (pl.col("value") >= -_BYTE // 2)).then(pl.col("value") + _BYTE)
    made = runs.join(metrics, on=_KEYS, maintain_order="left").select(
        "metric",
        "unit",
        "start_ns",
        "dur_ns",
        "samples",
        device=pl.col("typeId") & 0xFF,
        value=value.otherwise("value").cast(pl.Float64),
    )
    return model.GPU_METRICS.select(made.filter(pl.col("value") >= 0))


def _of_generic_events(database: TableFile, undecoded: dict[str, int]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Runs and names of exports before 2023, which have one JSON text with all counters per sample."""
    columns = {"timestamp": pl.Int64, "typeId": pl.Int64, "data": pl.String}
    numbers: dict[str, int] = {}
    rows, lost = [], 0
    for time, kind, text in database.frame(_GENERIC, columns).drop_nulls().iter_rows():
        try:
            counters = json.loads(text)
        except ValueError:
            lost += 1
            continue
        for name, value in counters.items() if isinstance(counters, dict) else ():
            whole = isinstance(value, str) and value.removeprefix("-").isdecimal()  # texts of whole numbers are such
            if (whole or type(value) is int) and name.lower() not in ("timestamp", "rawtimestamp"):
                rows.append((time, kind, numbers.setdefault(name, len(numbers)), int(value)))
    undecoded["samples of counters that cannot be decoded"] = lost
    raw = pl.DataFrame(rows, schema=dict.fromkeys(("timestamp", *_KEYS, "value"), pl.Int64), orient="row")
    named = pl.DataFrame([*numbers.items()], schema={"metricName": pl.String, "metricId": pl.Int64}, orient="row")
    return _runs(raw), raw.select(_KEYS).unique().join(named, on="metricId")


def network_metrics(database: TableFile) -> pl.DataFrame:
    """The sampled counters of network devices, as :data:`kanalyze.sample_model.NETWORK_METRICS`."""
    keys = ("metricsListId", "metricsIdx")
    named = {**dict.fromkeys(keys, pl.Int64), "name": pl.String, "unit": pl.String}
    names = database.frame("TARGET_INFO_NETWORK_METRICS", named).drop_nulls(keys)
    names = names.unique(keys, keep="first", maintain_order=True)
    adapters = database.frame("TARGET_INFO_NIC_INFO", {"nicId": pl.Int64, "name": pl.String}).drop_nulls()
    ids = database.frame("NIC_ID_MAP", {"nicId": pl.Int64, "globalId": pl.Int64}).drop_nulls()
    adapters = ids.join(adapters.unique("nicId", keep="first", maintain_order=True), on="nicId").select(
        "globalId", adapter="name"
    )
    adapters = adapters.unique("globalId", keep="first", maintain_order=True)
    columns = {**dict.fromkeys(("start", "end", "globalId", "portId", *keys), pl.Int64), "value": pl.Float64}
    tables = {"nic": "NET_NIC_METRIC", "switch": "NET_IB_SWITCH_METRIC"}
    sampled = (database.frame(table, columns).with_columns(source=pl.lit(source)) for source, table in tables.items())
    samples = pl.concat(sampled).drop_nulls(["start", "value"]).join(names, on=keys, how="left", maintain_order="left")
    made = samples.join(adapters, on="globalId", how="left", maintain_order="left").select(
        *("value", "unit", "source"),
        adapter=pl.coalesce("adapter", pl.col("globalId").cast(pl.String)).fill_null(""),
        port="portId",
        metric="name",
        start_ns="start",
        dur_ns=pl.col("end") - pl.col("start"),
    )
    return model.NETWORK_METRICS.select(made)
