"""The part of a report that the user asked for: how it is said, and what is then looked at."""

import pytest

from kanalyze.errors import BadWindowError, UnknownNameError
from kanalyze.model import KINDS
from kanalyze.window import Scope, Window, parsed, plain
from support.build import kernel, nvtx, report, timeline


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        *(("120ms..250ms", 120_000_000, 250_000_000), ("..1.5s", None, 1_500_000_000), ("300us..", 300_000, None)),
        *(("..", None, None), (" 1 ms .. 2 ms ", 1_000_000, 2_000_000), ("-5ns..5ns", -5, 5)),
        ("999999999ns..1s", 999_999_999, 1_000_000_000),
    ],
)
def test_a_window_is_two_times_with_units(text, start, end):
    assert Window.parse(text) == Window(start, end)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there is no '..' between start and end"),
        ("120ms", "there is no '..' between start and end"),
        ("120ms-250ms", "there is no '..' between start and end"),
        ("120..250ms", "'120' is not a time with a unit (ns, us, ms or s)"),
        ("120ms..250", "'250' is not a time with a unit (ns, us, ms or s)"),
        ("1ms..2ms..3ms", "'2ms..3ms' is not a time with a unit (ns, us, ms or s)"),
        ("1ms...2ms", "'.2ms' is not a time with a unit (ns, us, ms or s)"),
        ("1h..2h", "'1h' is not a time with a unit (ns, us, ms or s)"),
        ("2ms..1ms", "the end is not after the start"),
        ("1ms..1ms", "the end is not after the start"),
        ("1ms..1000us", "the end is not after the start"),
    ],
)
def test_what_is_no_window_says_why(text, reason):
    with pytest.raises(BadWindowError) as caught:
        Window.parse(text)
    assert str(caught.value) == f"--window {text!r}: {reason}."
    assert "120ms..250ms" in caught.value.remedy


def test_a_source_is_asked_for_the_kinds_that_it_recorded_alone():
    """One that gives its kernels whatever it is asked for, as a reader of kernels alone may, gives kernels alone."""
    made = report([kernel(0, 10), kernel(10, 20)], kinds=("kernel",))
    kernels = made.source.events("kernel")
    made.source.events = lambda _: kernels
    assert made.events.height == made.of_kinds(KINDS, "kind").height == 2
    assert made.kind("api").is_empty()


EVENTS = timeline("0-10 cudaLaunchKernel #1; 5-20 kernel #1; 20-30 kernel d1 p2; 30-30 memcpy; 40-50 graph p2")


def ids(part, kind):
    return part.seen(kind).get_column("event_id").to_list()


def test_narrowing_adds_to_what_was_asked_for_before():
    part = report(EVENTS).narrow(window="0ns..25ns").narrow(device=1).narrow(process=2)
    assert part.scope == Scope(Window(0, 25), device=1, process=2)
    assert part.narrow(window="..30ns").scope == Scope(Window(None, 30), device=1, process=2)


@pytest.mark.parametrize(
    ("window", "kernels", "copies"),
    [
        *(("..", [1, 2], [3]), ("19ns..20ns", [1], []), ("20ns..21ns", [2], []), ("0ns..5ns", [], [])),
        *(("..6ns", [1], []), ("10ns..12ns", [1], [])),
        # an instant is seen where it is
        *(("29ns..", [2], [3]), ("30ns..", [], [3]), ("30ns..31ns", [], [3]), ("29ns..30ns", [2], [])),
        ("29ns..31ns", [2], [3]),
    ],
)
def test_an_event_is_seen_if_it_overlaps_the_window(window, kernels, copies):
    part = report(EVENTS).narrow(window=window)
    assert (ids(part, "kernel"), ids(part, "memcpy")) == (kernels, copies)
    assert part.seen("kernel").get_column("dur_ns").to_list() == [15 if number == 1 else 10 for number in kernels]


@pytest.mark.parametrize(("where", "seen"), [({"device": 1}, [[0], [2], [], []]), ({"process": 2}, [[], [2], [], [4]])])
def test_a_device_narrows_what_runs_on_devices_and_a_process_everything(where, seen):
    part = report(EVENTS).narrow(**where)
    assert [ids(part, kind) for kind in ("api", "kernel", "memcpy", "graph")] == seen


def test_all_processes_are_one_report_for_parts_of_it():
    of = report([kernel(0, 5, process=1), kernel(5, 9, process=2)])
    parts = [of.narrow(process=process, window="1ns..8ns") for process in (1, 2)]
    assert of.everywhere is of
    assert all(one.everywhere is of for one in (*parts, parts[0].whole))
    del of
    assert parts[0].everywhere.scope == Scope()


@pytest.mark.parametrize(
    ("look", "error", "remedy"),
    [
        (lambda: report(EVENTS).narrow(device=7), "no device '7'", "There are: 0, 1."),
        (lambda: report([]).narrow(device=0), "no device '0'", "There are: none."),
        (lambda: report(EVENTS).narrow(process=7), "no process '7'", "There are: 1, 2."),
        (lambda: report([]).table("device"), "no table 'device'", "Did you mean devices? Nearest: "),
    ],
)
def test_what_is_not_there_names_what_is(look, error, remedy):
    with pytest.raises(UnknownNameError, match=error) as caught:
        look()
    assert caught.value.remedy.startswith(remedy)


def test_events_are_all_kinds_in_scope_in_the_order_of_the_model():
    part = report(EVENTS).narrow(window="0ns..25ns")
    assert part.events.get_column("kind").to_list() == ["kernel", "kernel", "api"]
    assert report(EVENTS, kinds=("api", "range", "kernel")).kinds == ("kernel", "graph", "memcpy", "api", "range")
    assert report(EVENTS, kinds=()).kind("fault").is_empty()


# Windows by name: a range, one of its instances, a domain's; what is told where the name fits none, or several


RANGES = [
    *timeline("0-1000 kernel; 0-100 [warmup]; 300-400 [step]; 100-200 [step]; 200-300 [step] t2"),
    nvtx("all reduce", 110, 120, domain="NCCL"),
    nvtx("all reduce", 500, 520, domain="mine"),
    nvtx("step", 600, 610, domain="mine"),
    nvtx("open", 700, None, open_until_ns=900),
    nvtx("rank#1", 20, 30),
    nvtx("a..b", 40, 50),
    nvtx("pair", 800, 850, style="StartEnd", end_thread_id=7),
    nvtx(None, 860, 870),
]


def window(text, **scope):
    return report(RANGES).narrow(**scope).window(text)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        *(("warmup", 0, 100), (":warmup", 0, 100), ("warmup#1", 0, 100), ("step#1", 100, 200)),
        *(("step#2", 200, 300), ("step#3", 300, 400), ("NCCL:all reduce", 110, 120), ("mine:all reduce", 500, 520)),
        *(("mine:step", 600, 610), ("all reduce#2", 500, 520), ("open", 700, 900), ("rank#1", 20, 30)),
        *(("a..b", 40, 50), ("pair", 800, 850), ("..500ns", None, 500), ("1us..", 1000, None)),
    ],
)
def test_a_name_is_a_window(text, start, end):
    found = window(text)
    assert (found.start_ns, found.end_ns) == (start, end)
    assert found.name == (None if ".." in text and text != "a..b" else text)


@pytest.mark.parametrize("text", ["step", "step#*", "all reduce"])
def test_one_window_is_wanted_where_a_name_means_several(text):
    name, count = parsed(text)[0], 3 if "step" in text else 2
    with pytest.raises(BadWindowError, match=f"{count} ranges have that name") as caught:
        window(text)
    assert f"{name}#1 to {name}#{count}" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        *(("stp", "step"), ("NCCL:al reduce", "NCCL:all reduce"), ("warmup#2", "1")),
        *(("step#4", "There are: 1 to 3."), ("step#0", "There are: 1 to 3.")),
    ],
)
def test_a_name_that_does_not_exist(text, hint):
    with pytest.raises(UnknownNameError) as caught:
        window(text)
    assert hint in caught.value.remedy


def test_ranges_of_the_process_in_scope_and_of_a_domain_before_the_same_text_in_another():
    events = [kernel(0, 1), kernel(0, 1, process=2), nvtx("step", 5, 6), nvtx("step", 7, 9, process=2)]
    assert report(events).narrow(process=2).window("step") == Window(7, 9, "step")
    events = [kernel(0, 1), nvtx("a:b", 1, 2), nvtx("b", 3, 4, domain="a")]
    assert report(events).window("a:b") == Window(3, 4, "a:b")
    assert report(events).window(":a:b") == Window(1, 2, ":a:b")


@pytest.mark.parametrize(
    ("text", "name", "which"),
    [
        *(("step#3", "step", "3"), ("step#*", "step", "*"), ("step", "step", ""), ("#3", "#3", "")),
        *(("a#b#2", "a#b", "2"), ("a#b", "a#b", ""), ("a#", "a#", ""), ("a#²", "a#²", "")),
    ],
)
def test_what_follows_the_last_number_sign(text, name, which):
    assert parsed(text) == (name, which)


def test_instances_without_duration_are_left_out():
    of = report([kernel(0, 10), nvtx("step", 1, 2), nvtx("step", 3, 3), nvtx("step", 4, 6)])
    assert of.windows("step#*") == [Window(1, 2, "step#1"), Window(4, 6, "step#3")]
    assert of.windows("step") == of.windows("step#*")
    assert len(of.instances("step")) == 3
    with pytest.raises(BadWindowError, match="this range has no duration"):
        of.window("step#2")
    with pytest.raises(BadWindowError, match="3 ranges have that name"):
        of.window("step")
    none = report([kernel(0, 10), nvtx("now", 3, 3), nvtx("now", 4, 4), nvtx("once", 5, 5)])
    for text, said in (("now#*", "none of these 2 ranges has a duration"), ("once", "this range has no duration")):
        with pytest.raises(BadWindowError, match=said):
            none.windows(text)


STEPS = [
    *timeline("0-1000 kernel; 5-40 [forward]; 100-200 [ProfilerStep#9]; 0-100 [ProfilerStep#8]"),
    *timeline("200-300 [ProfilerStep#10]; 300-400 [ProfilerStep#x]"),
]

AGAIN = [*STEPS, nvtx("ProfilerStep#9", 500, 600, process=2)]
NAMED_SO = [*STEPS, nvtx("step:9", 7, 8), nvtx("steps", 8, 9), nvtx("10", 1, 2, domain="step")]


@pytest.mark.parametrize(
    ("events", "where", "text", "expected"),
    [
        *((STEPS, {}, text, [(100, 200, text)]) for text in ("step:9", "ProfilerStep#9")),
        *(
            (STEPS, {}, text, [(0, 100, "step:8"), (100, 200, "step:9"), (200, 300, "step:10")])
            for text in ("steps", "steps#*")
        ),
        (STEPS, {}, "steps#2", [(100, 200, "step:9")]),
        # steps of one number
        (AGAIN, {}, "step:9", [(100, 200, "step:9#1"), (500, 600, "step:9#2")]),
        (AGAIN, {}, "step:9#2", [(500, 600, "step:9#2")]),
        (AGAIN, {"process": 2}, "step:9", [(500, 600, "step:9")]),
        # a range of that name comes first
        (NAMED_SO, {}, "step:9", [(7, 8, "step:9")]),
        (NAMED_SO, {}, "steps", [(8, 9, "steps")]),
        (NAMED_SO, {}, "step:10", [(1, 2, "step:10")]),
    ],
)
def test_steps(events, where, text, expected):
    found = report(events).narrow(**where).windows(text)
    assert found == [Window(*one) for one in expected]
    assert {window.group for window in found} == ({"steps"} if len(found) == 3 or text == "steps#2" else {None})


@pytest.mark.parametrize(
    ("events", "text", "said"),
    [
        (AGAIN, "step:9#3", "no step '3'"),
        ([kernel(0, 1), nvtx("forward", 5, 40)], "step:9", "no range 'step:9'"),  # without steps they are ranges
    ],
)
def test_steps_that_do_not_exist(events, text, said):
    with pytest.raises(UnknownNameError, match=said):
        report(events).window(text)


def test_a_plus_sign_counts_from_the_first_event_of_the_report():
    of = report([nvtx("first", 1000, 1100, process=2), kernel(1500, 3000)])
    assert of.window("+100ns..+1us") == Window(1100, 2000)
    assert of.window(" +100ns .. ") == Window(1100, None)
    assert of.window("1.2us..+1us") == Window(1200, 2000)
    assert of.narrow(process=1).window("+100ns..+1us") == Window(1100, 2000)
    assert of.window("100ns..1us") == Window(100, 1000)
    assert (of.first_ns, of.zero_ns) == (1000, 0)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (":step", "step"),
        ("TSL:XlaModule:#prefix=args[0],hlo_module=jit_step,program_id=0#", "XlaModule jit_step"),
        ("TSL:XlaCompileGpuAsm:#module=jit_step#", "XlaCompileGpuAsm jit_step"),
        ("TSL:GpuMetrics", "TSL:GpuMetrics"),
        ("a:module=b#", "a:module=b#"),
        # as engines call layers
        (":{'Module': 'model.layers.3.mlp', 'TrainableParams': {}, 'Inputs': [[4, 64]]}", "model.layers.3.mlp"),
        (":{'Module': 3}", "{'Module': 3}"),
    ],
)
def test_ranges_of_xla_and_of_engines_are_called_by_what_they_do_and_the_module(name, told):
    assert plain(name) == told


@pytest.mark.parametrize(
    ("sides", "text"),
    [
        ((10**9, 3 * 10**10), "1s..30s"),
        ((1_500_000_000, None), "1500ms.."),
        ((None, 2_000), "..2us"),
        ((0, 1_001), "0s..1001ns"),
    ],
)
def test_sides_of_a_window_are_in_the_largest_unit_without_decimals(sides, text):
    assert str(Window(*sides)) == text
    assert Window.parse(text) == Window(*sides)
