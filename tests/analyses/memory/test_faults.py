"""Page faults: the CPU's equal nsys' own CSV, the GPU's are told by the kernel that ran."""

import pytest

from kanalyze.analyses.memory.faults import faults
from kanalyze.errors import CannotTellError
from kanalyze.window import Window
from support.build import call, graph, host, kernel, memcpy, report
from support.nsys_csv import report_of, reports_with, rows_of

COLUMNS = ("side", "faults", "function", "device", "access", "groups", "pages", "total_ns", "moved_bytes")


def rows(of, *columns):
    return faults(of).select(columns or COLUMNS).rows()


def cpu(at, address=4096, *, process=1, **side):
    return host("fault", "CPU page fault", at, at, process=process, side={"address": address, "faults": 1, **side})


def gpu(start, end, address=4096, *, device=0, **told):
    side = {"side": "GPU", "address": address, "faults": 1, "access": "Read", **told}
    return host("fault", "GPU page faults", start, end, thread=None, device=device, side=side)


def migration(start, end, size, *, cause="Page fault", device=0):
    side = {"migration_cause": cause, "address": 4096}
    return memcpy(start, end, direction="Unified Host-to-Device", size_bytes=size, device=device, side=side)


@pytest.mark.parametrize("name", reports_with("um_cpu_page_faults_sum"))
def test_the_faults_of_the_cpu_equal_those_of_nsys(name):
    theirs, of = rows_of(name, "um_cpu_page_faults_sum"), report_of(name)
    if "fault" not in of.kinds:
        assert theirs == []
        return
    ours = faults(of)
    ours = ours.filter(ours["side"] == "CPU").rows(named=True)
    keys = ("CPU Page Faults", "CPU Instruction Address", "Source File", "Source Line")
    found = [
        (str(row["faults"]), row["function"], row["source_file"] or "", str(row["source_line"] or 0)) for row in ours
    ]
    assert found == [tuple(row[key] for key in keys) for row in theirs]


def test_the_faults_of_the_gpu_are_those_that_nsys_totals():
    for name in ("thrash", "prefetch", "add_um"):
        ours = faults(report_of(name))
        (theirs,) = rows_of(name, "um_total_sum")
        assert ours.filter(ours["side"] == "GPU")["faults"].sum() == int(theirs["Total GPU PageFaults"])


def test_cpu_faults_are_counted_by_function_and_line():
    told = {"function": "main", "source_file": "a.c", "source_line": 7, "module": "app"}
    other = {"function": "main", "source_file": "a.c", "source_line": 9, "module": "app"}
    of = report([cpu(1, **told), cpu(2, 8192, **told), cpu(3, **told), cpu(4, **other)])
    keys = (
        "faults",
        "function",
        "source_file",
        "source_line",
        "module",
        "groups",
        "pages",
        "min_address",
        "max_address",
    )
    assert rows(of, *keys) == [
        (3, "main", "a.c", 7, "app", 3, 2, 4096, 8192),
        (1, "main", "a.c", 9, "app", 1, 1, 4096, 4096),
    ]
    assert rows(of, "side", "total_ns", "moved_bytes") == [("CPU", None, None)] * 2


def test_one_function_of_two_modules_has_no_module():
    of = report([cpu(1, function="f", module="a"), cpu(2, function="f", module="b")])
    assert rows(of, "faults", "function", "module") == [(2, "f", None)]


def test_gpu_faults_belong_to_the_kernel_that_ran_when_their_handling_began():
    events = [
        *(kernel(0, 20, name="first"), kernel(5, 30, name="second"), graph(40, 50)),
        *(gpu(10, 35, faults=3), gpu(20, 22, 8192), gpu(30, 32), gpu(45, 60, access="Write")),
    ]
    assert rows(report(events)) == [
        ("GPU", 3, "first", 0, "Read", 1, 1, 25, 0),
        ("GPU", 1, None, 0, "Read", 1, 1, 2, 0),
        ("GPU", 1, "[CUDA graph 1]", 0, "Write", 1, 1, 15, 0),
        ("GPU", 1, "second", 0, "Read", 1, 1, 2, 0),
    ]


def test_kernels_of_other_devices_and_processes_do_not_fault():
    events = [kernel(0, 20, device=1, name="a"), kernel(0, 20, process=2, name="b"), gpu(10, 12)]
    assert rows(report(events), "side", "function") == [("GPU", None)]


def test_what_faults_moved_counts_for_the_last_group_that_began_before():
    events = [
        kernel(0, 100, name="k"),
        *(gpu(10, 30, access="Read"), gpu(20, 40, access="Write")),
        *(migration(9, 10, 1), migration(15, 16, 2), migration(20, 21, 4), migration(39, 50, 8), migration(40, 41, 16)),
        *(migration(25, 26, 32, cause="User prefetch"), migration(25, 26, 64, device=1)),
    ]
    assert rows(report(events), "access", "moved_bytes") == [("Read", 2), ("Write", 12)]


def test_the_part_that_is_looked_at():
    events = [kernel(0, 50), kernel(0, 50, device=1), kernel(0, 50, process=2, device=1)]
    events += [cpu(5, function="f"), cpu(6, function="g", process=2), gpu(10, 20), gpu(10, 20, device=1, faults=2)]
    of = report(events)
    assert rows(of.narrow(device=0), "side", "faults", "function") == [("CPU", 1, "f"), ("GPU", 1, "k")]
    assert rows(of.narrow(process=2), "side", "faults", "function") == [("CPU", 1, "g")]
    assert rows(of.narrow(window=Window(6, 10)), "side", "function") == [("CPU", "g")]
    assert rows(of.narrow(window=Window(19, 25)), "side", "device") == [("GPU", 1), ("GPU", 0)]


def test_no_faults_is_an_empty_table_and_no_record_of_them_is_an_error():
    assert faults(report([kernel(0, 1)], kinds=("kernel", "fault"))).is_empty()
    with pytest.raises(CannotTellError):
        faults(report([kernel(0, 1), call("cudaFree", 0, 1)]))
