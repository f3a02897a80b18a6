"""Tables that readers provide: a common data model of nsys, ncu and torch.profiler.

Definitions: docs/definitions.md, sections 1 and 2. Missing is null; times are int64 nanoseconds in the trace's own
origin; a process is keyed by its id within the report.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import polars as pl

from kanalyze import counter_model, errors
from kanalyze.schema import Column, Table, columns
from kanalyze.tools import NAMES, recorders

#: All kinds of events, in the order of their event ids.
KINDS: Final = (
    "kernel",
    "graph",
    "memcpy",
    "memset",
    "api",
    "sync",
    "range",
    "op",
    "python",
    "overhead",
    "fault",
    "memory",
    "osrt",
    "library",
)

#: The number of a node of a CUDA graph is that of its graph times so many, and its own.
NODES_OF_A_GRAPH: Final = 1 << 32

#: Kinds of device work, which make a device busy.
DEVICE_KINDS: Final = ("kernel", "graph", "memcpy", "memset")

EVENTS = Table(
    "events",
    "One thing with a start and a duration, or an instant (duration 0).",
    (
        Column("event_id", pl.Int64, "Identity within the report; the side tables refer to it."),
        Column("kind", pl.Enum(KINDS), "What it is: " + ", ".join(KINDS) + "."),
        *columns("""
            name category?: The tool's own name for it; null where the tool's string table lacks it.
            start_ns int: Start, in the trace's own origin.
            dur_ns int?: Duration; null for a range that was never closed.
            process_id int?: Process; null where the tool does not say.
            thread_id int?: Host thread; null for work on a device.
            device int?: The GPU, as in `devices`; null for host events.
            context_id int?: CUDA context.
            stream int?: CUDA stream.
            correlation_id int?: Joins a call to the operations that it launched (1:N), within one process.
            parent_id int?: event_id of what it is part of, where the tool records it: the operator that made a call or
                launched a device operation, the Python function that called another.
        """),
    ),
    purpose="all that has a start and a duration",
    tools=NAMES,
)

LAUNCH_SHAPE: Final = (
    Column("grid_x", pl.Int32, "Blocks in x."),
    Column("grid_y", pl.Int32, "Blocks in y."),
    Column("grid_z", pl.Int32, "Blocks in z."),
    Column("block_x", pl.Int32, "Threads of a block in x."),
    Column("block_y", pl.Int32, "Threads of a block in y."),
    Column("block_z", pl.Int32, "Threads of a block in z."),
)

#: CUDA graph of a kernel, copy or memset.
_OF_GRAPH: Final = columns("""
    graph_exec_id int?: Executable CUDA graph that it was launched by.
    graph_node_id int?: Node of the CUDA graph that it was launched by.
    after_id int?: What it had to wait for in its graph (event_id), of several nodes the one that ended last; null where
        no dependencies are recorded.
    mark text?: What the program says of a node of a CUDA graph by torch.cuda's mark_kernels.
""")

KERNEL_CONFIG = Table(
    "kernel_config",
    "How one kernel was launched; keyed by the kernel's event_id.",
    (
        Column("event_id", pl.Int64, "The kernel in `events`."),
        *LAUNCH_SHAPE,
        *columns("""
            registers_per_thread int32?: Registers that a thread uses.
            static_shared_bytes int?: Static shared memory of a block.
            dynamic_shared_bytes int?: Dynamic shared memory of a block; the sum of both, and the static part 0, where
                the tool tells only that.
            shared_config_bytes int?: Shared memory that the SM was set up with for this launch; the rest of that memory
                is L1 cache.
            local_per_thread_bytes int?: Local memory (spills, arrays) of a thread.
        """),
        *_OF_GRAPH,
    ),
    purpose="grid, block, registers, memory of each launch",
    telling=("event_id", "grid_x", "block_x", "registers_per_thread", "dynamic_shared_bytes"),
    tools=NAMES,
)

COPY_DETAIL = Table(
    "copy_detail",
    "What one copy or memset moved; keyed by its event_id.",
    (
        *columns("""
            event_id int: The copy or memset in `events`.
            direction category?: Direction as nsys labels it, such as Host-to-Device; null for a memset.
            size_bytes int?: Bytes copied or set.
            source_memory category?: Pageable, Pinned, Device, Managed…
            target_memory category?: Pageable, Pinned, Device, Managed…
            source_device int?: CUDA ordinal of the source of a peer copy.
            target_device int?: CUDA ordinal of the target of a peer copy.
            migration_cause category?: Why unified memory moved.
            address int?: Virtual address of the first page that unified memory moved.
        """),
        *_OF_GRAPH,
    ),
    purpose="bytes and kinds of memory of each copy",
)

#: Style of a range: push/pop on one thread, or start/end across threads.
RANGE_STYLES: Final = ("PushPop", "StartEnd")

RANGE_DETAIL = Table(
    "range_detail",
    "How one NVTX range was made; keyed by its event_id.",
    (
        Column("event_id", pl.Int64, "The range in `events`; its duration is null if it was never closed."),
        Column("style", pl.Enum(RANGE_STYLES), "PushPop (nests on its thread) or StartEnd (may end on another)."),
        *columns("""
            domain category?: NVTX domain; null for the default one.
            end_thread_id int?: The thread that ended it, where that is another one.
            category int?: NVTX category; null where none was given.
            open_until_ns int?: For a range that was never closed: the latest time of any NVTX event, where nsys lets it
                end.
        """),
    ),
    purpose="domain, style and end of each NVTX range",
)

SYNC_DETAIL = Table(
    "sync_detail",
    "Which CUDA event one synchronisation waited for; keyed by its event_id.",
    columns("""
        event_id int: The synchronisation in `events`.
        cuda_event_id int?: The CUDA event; null where it waited for a stream or context.
        record_id int?: The recording of that event in `event_records`.
    """),
    purpose="the CUDA event that a synchronisation awaited",
)

FAULT_DETAIL = Table(
    "fault_detail",
    "Where one page fault, or a group of them, happened in unified memory; keyed by its event_id.",
    (
        Column("event_id", pl.Int64, "The fault in `events`."),
        Column("side", pl.Enum(("CPU", "GPU")), "Who faulted."),
        Column("address", pl.Int64, "Virtual address of the page."),
        Column("faults", pl.Int64, "Page faults in the group; 1 for a CPU fault."),
        Column("access", pl.Categorical, "Read, Write, Atomic, Prefetch; null for a CPU fault.", nullable=True),
        Column("function", pl.Categorical, "Function of the CPU instruction.", nullable=True),
        Column("module", pl.Categorical, "Program or library of the CPU instruction.", nullable=True),
        Column("source_file", pl.Categorical, "Source file of the CPU instruction.", nullable=True),
        Column("source_line", pl.Int64, "Its line there.", nullable=True),
    ),
    purpose="where each page fault happened",
    tools=recorders("fault"),
)

MEMORY_DETAIL = Table(
    "memory_detail",
    "What one allocation or deallocation took or gave back; keyed by its event_id.",
    (
        Column("event_id", pl.Int64, "The event of kind memory, whose name is Allocation or Deallocation."),
        Column("memory", pl.Categorical, "Device, Pinned, Managed…", nullable=True),
        Column("address", pl.Int64, "Virtual address."),
        Column("size_bytes", pl.Int64, "Bytes."),
        Column("pool", pl.Int64, "Address of the memory pool that it came from; null for none.", nullable=True),
        Column("pool_size_bytes", pl.Int64, "What the pool holds of the device.", nullable=True),
        Column("pool_used_bytes", pl.Int64, "What of that is in use.", nullable=True),
    ),
    purpose="bytes and address of each allocation",
)

OP_DETAIL = Table(
    "op_detail",
    "What a framework recorded of one operator or annotation; keyed by its event_id.",
    columns("""
        event_id int: The op or range in `events`.
        external_id int?: Joins it to the calls and device operations made in it.
        sequence_number int?: Autograd's number, which a forward operator shares with the backward operators that it
            causes.
        forward_thread_id int?: For a backward operator: the framework's number of the thread that ran the forward one;
            else 0.
        forward_id int?: For a backward operator: event_id of the forward one, where the tool links them itself.
        input_shapes category?: Dimensions of its inputs, a JSON list as recorded.
        input_types category?: Types of its inputs, a JSON list as recorded.
        input_strides category?: Strides of its inputs, a JSON list as recorded.
        input_values category?: Values of its inputs that are no tensors, such as a stride of a convolution, a JSON list
            as recorded.
    """),
    purpose="ids, shapes and types of each operator call",
    tools=recorders("op"),
)

COLLECTIVE_DETAIL = Table(
    "collective_detail",
    "What one collective moved between ranks; keyed by the event_id of its operator or kernel.",
    (
        Column("event_id", pl.Int64, "The op or kernel in `events`."),
        Column("collective", pl.Categorical, "Such as allreduce, _allgather_base, send."),
        Column("type", pl.Categorical, "The framework's name of the element type, such as Float.", nullable=True),
        Column("in_elements", pl.Int64, "Elements that this rank gives.", nullable=True),
        Column("out_elements", pl.Int64, "Elements that this rank gets.", nullable=True),
        Column("group_size", pl.Int64, "Ranks that take part.", nullable=True),
        Column("group", pl.Categorical, "Name of the process group.", nullable=True),
        Column("group_description", pl.Categorical, "What the process group is for.", nullable=True),
        Column("ranks", pl.String, "The ranks that take part, as recorded (long lists are cut there).", nullable=True),
        Column("first_rank", pl.Int64, "The first of the ranks that take part, in the whole job.", nullable=True),
        Column("rank_stride", pl.Int64, "Distance from each of these ranks to the next.", nullable=True),
        Column("rank", pl.Int64, "The rank that took part here, in the process group.", nullable=True),
        Column("source_rank", pl.Int64, "Who sends, or the root of a broadcast, in the group.", nullable=True),
        Column("target_rank", pl.Int64, "Who receives, or the root of a reduction, in the group.", nullable=True),
        Column("in_split", pl.String, "Elements that go to each rank, a list as recorded.", nullable=True),
        Column("out_split", pl.String, "Elements that come from each rank, a list as recorded.", nullable=True),
        Column("sequence_number", pl.Int64, "Its number in the process group.", nullable=True),
        Column("comms_id", pl.String, "What the tool calls it on all ranks.", nullable=True),
    ),
    purpose="bytes and ranks of each collective",
    tools=recorders("collective_detail"),
)

COMMUNICATOR_CALLS = Table(
    "communicator_calls",
    "What one call of NCCL says of itself; keyed by the event_id of its NVTX range.",
    columns("""
        event_id int: The range in `events`, named for the call.
        communicator text: The communicator: the same number on all its ranks.
        message_bytes int?: Bytes given (ncclReduceScatter: got; ncclAlltoAll: given to each).
        peer_rank int?: Who is sent to, or received from: a rank of the communicator.
        root_rank int?: Root of a broadcast or reduction: a rank of the communicator.
        size int?: Ranks of the communicator, where it is made or destroyed.
        rank int?: The rank in the communicator, where it is made or destroyed.
    """),
    purpose="communicators and sizes of calls of NCCL",
    tools=recorders("communicator_calls"),
)

GRAPH_DETAIL = Table(
    "graph_detail",
    "Which CUDA graph one whole-graph row is; keyed by its event_id.",
    (
        Column("event_id", pl.Int64, "The graph in `events`."),
        Column("graph_id", pl.Int64, "The graph that was instantiated.", nullable=True),
        Column("graph_exec_id", pl.Int64, "The executable graph.", nullable=True),
    ),
    purpose="the graph of each launch that was traced whole",
    tools=recorders("graphs"),
)

GRAPH_NODES = Table(
    "graph_nodes",
    "One node of a CUDA graph, each time that it was made, where graphs were traced node by node.",
    columns("""
        process_id int?: Process; null where the tool does not say.
        graph_exec_id int: The graph, by the number that executable ones have in `kernel_config`.
        graph_node_id int: The node, as in `kernel_config`: the graph's number × 2³² and its own.
        graph_id int?: The graph that it was made from; null for a captured one.
        original_node_id int?: The node of that graph.
        made_ns int?: When it was made, in the trace's own origin: of several rows of one node the last one before a
            launch counts.
        thread_id int?: The thread that made it.
        captured_ns int?: When the node that it goes back to was captured, or added by a call; null where the recording
            began later.
        captured_thread_id int?: The thread that did so.
    """),
    purpose="nodes of CUDA graphs, and what made them",
    tools=recorders("graphs"),
)

EVENT_RECORDS = Table(
    "event_records",
    "One recording of a CUDA event into a stream; its time is that of the call with its correlation id.",
    (
        Column("process_id", pl.Int64, "Process; null where the tool does not say.", nullable=True),
        Column("device", pl.Int64, "The GPU, as in `devices`.", nullable=True),
        Column("context_id", pl.Int64, "CUDA context.", nullable=True),
        Column("stream", pl.Int64, "CUDA stream that it was recorded into.", nullable=True),
        Column("correlation_id", pl.Int64, "Joins it to the call.", nullable=True),
        Column("cuda_event_id", pl.Int64, "The CUDA event.", nullable=True),
        Column("record_id", pl.Int64, "This recording, as in `sync_detail`.", nullable=True),
    ),
    purpose="CUDA events recorded into streams",
    tools=recorders("event_records"),
)

#: Stream types by implicit synchronisation: null and blocking streams of a context wait for each other.
STREAM_TYPES: Final = ("null", "blocking", "non-blocking")

STREAMS = Table(
    "streams",
    "One CUDA stream that the report knows.",
    (
        Column("process_id", pl.Int64, "Process."),
        Column("context_id", pl.Int64, "CUDA context."),
        Column("stream", pl.Int64, "CUDA stream, as in `events`."),
        Column(
            "type",
            pl.Enum(STREAM_TYPES),
            "null (the legacy default stream), blocking (it and the null stream wait for each other), or non-blocking.",
            nullable=True,
        ),
        Column("priority", pl.Int64, "Priority; lower numbers go first.", nullable=True),
        Column("name", pl.String, "The name that the program gave it through NVTX.", nullable=True),
    ),
    purpose="streams, and whether they wait for the default",
    tools=recorders("streams"),
)

DEVICES = Table(
    "devices",
    "One GPU that the report knows, with the limits that occupancy and bandwidth are judged by.",
    columns("""
        device int: The GPU's number on the machine.
        name text?: Marketing name.
        compute_capability text?: Major and minor, such as 9.0; of AMD's GPUs gfx942 or the like.
        sm_count int?: Streaming multiprocessors.
        memory_bytes int?: Device memory.
        memory_bandwidth_bytes_per_s int?: Peak bandwidth of the device memory.
        l2_bytes int?: L2 cache.
        clock_hz int?: Highest SM clock.
        max_warps_per_sm int?: Resident warps that an SM can hold.
        max_blocks_per_sm int?: Resident blocks that an SM can hold.
        max_threads_per_block int?: Threads that a block can have.
        registers_per_sm int?: 32-bit registers of an SM.
        shared_per_sm_bytes int?: Shared memory of an SM.
        shared_per_block_bytes int?: Shared memory that a block can opt in to.
        threads_per_warp int?: Threads of a warp.
    """),
    purpose="GPUs and their limits",
    tools=NAMES,
)

PROCESSES = Table(
    "processes",
    "One process on one GPU that it can see; a process that sees none has one row.",
    (
        Column("process_id", pl.Int64, "Process."),
        Column("name", pl.String, "Name of the executable.", nullable=True),
        Column("cuda_ordinal", pl.Int64, "What the process calls the GPU (CUDA_VISIBLE_DEVICES).", nullable=True),
        Column("device", pl.Int64, "The GPU, as in `devices`.", nullable=True),
    ),
    purpose="processes and the GPUs that they see",
    tools=NAMES,
)

COMPILED_KERNELS = Table(
    "compiled_kernels",
    "One kernel that Triton or inductor compiled; only captures of `kanalyze collect` have them.",
    (
        Column("name", pl.String, "Its name, as profilers show it."),
        Column("source", pl.String, "Who wrote it: `triton` (the program's own), or `inductor` (torch.compile)."),
        Column("hash", pl.String, "Triton's own name for it: of source, options and versions."),
        Column("arch", pl.String, "What it was compiled for, such as cuda:90.", nullable=True),
        Column("num_warps", pl.Int64, "Warps of a block.", nullable=True),
        Column("num_stages", pl.Int64, "Stages that its loops are pipelined in.", nullable=True),
        Column("registers", pl.Int64, "Registers of a thread.", nullable=True),
        Column("spills", pl.Int64, "32-bit words that a thread keeps in local memory.", nullable=True),
        Column("shared_memory_bytes", pl.Int64, "Shared memory of a block.", nullable=True),
        Column("compile_ns", pl.Int64, "What compiling took; null where it came from the cache.", nullable=True),
        Column("cache_hit", pl.Boolean, "Whether it came from the cache; null where nobody saw.", nullable=True),
        Column("ptx", pl.String, "Its PTX, a file in the capture.", nullable=True),
        Column("atomics", pl.String, "The lines that add much by atomics to global memory, file:line.", nullable=True),
        Column("atomic_bytes", pl.Int64, "Bytes that a thread adds so.", nullable=True),
        Column("float32_products", pl.String, "The line that multiplies blocks in full float32.", nullable=True),
        Column("summed_products", pl.String, "The line that multiplies blocks by sums.", nullable=True),
        Column("widened_products", pl.String, "The line that multiplies blocks of 16 bits in TF32.", nullable=True),
        Column("float64_share", pl.Float64, "Lines with arithmetic in float64, of those with any.", nullable=True),
        Column("operators", pl.String, "What inductor made it of, as its code says.", nullable=True),
        Column("lines", pl.String, "The lines of the program that these are in, file:line.", nullable=True),
    ),
)

SOURCE_LINES = Table(
    "source_lines",
    "One stretch of time that a thread was in one line of the program's own code; only captures have them.",
    (
        Column("process_id", pl.Int64, "Process."),
        Column("thread_id", pl.Int64, "Host thread."),
        Column("start_ns", pl.Int64, "Start, in the trace's own origin."),
        Column("dur_ns", pl.Int64, "Duration."),
        Column("file", pl.Categorical, "The file, from the folder of the script on where it lies in that."),
        Column("line", pl.Int64, "The line, from 1."),
        Column("function", pl.Categorical, "The function that it lies in."),
        Column("text", pl.Categorical, "What stands there."),
    ),
    purpose="the program's line that each thread was in",
    tools=("capture",),
)

LOOP_PASSES = Table(
    "loop_passes",
    "One next pass of a loop of the program's own code; only captures have them.",
    (
        Column("process_id", pl.Int64, "Process."),
        Column("thread_id", pl.Int64, "Host thread."),
        Column("time_ns", pl.Int64, "When it began, in the trace's own origin; the first pass of a loop is none."),
        Column("file", pl.Categorical, "The file, as in `source_lines`."),
        Column("line", pl.Int64, "The line in which the loop begins."),
    ),
    purpose="when loops of the program began a pass",
    tools=("capture",),
)

#: A row of :data:`NOTES`: check, count, time in ns, effect.
Note: TypeAlias = tuple[str, int | None, int | None, str]

NOTES = Table(
    "notes",
    "One thing that the reader could not tell, or had to repair.",
    (
        Column("check", pl.String, "What was looked at."),
        Column("count", pl.Int64, "How many rows, tables or columns it concerns.", nullable=True),
        Column("ns", pl.Int64, "How much time it concerns; null where that is not known.", nullable=True),
        Column("effect", pl.String, "What cannot be trusted or told because of it."),
    ),
)

#: Readers' tables by name, in the order of the list of tables; `events` is read kind by kind.
READER_TABLES: Final = {
    one.name: one for one in (*globals().values(), *vars(counter_model).values()) if isinstance(one, Table)
}


def reader_table(name: str, tables: Mapping[str, Callable[[], pl.DataFrame]], path: Path) -> pl.DataFrame:
    """A table of the report at `path` by its name, of those that its reader makes; empty for any other.

    Raises CannotTellError if only a capture has it.
    """
    if name == COMPILED_KERNELS.name and name not in tables:
        raise errors.CannotTellError.without_capture("compiled", path)
    declared = READER_TABLES[name]
    return declared.select(declared.completed(tables[name]())) if name in tables else declared.empty()
