"""What findings share: words, names, places in programs, and operators of the report or of the trace beside it."""

import re
import shutil
import sqlite3
from dataclasses import replace

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.findings.findings import findings, in_words, ranked
from kanalyze.analyses.findings.on_gpu import launch_less, launching_operators
from kanalyze.analyses.findings.on_host import operators, outermost, own_within, within
from kanalyze.analyses.findings.rules import ACTION_LONGEST, HEADLINE_LONGEST, Finding, literal
from kanalyze.analyses.findings.say import LOADS_NEXT, per_iteration, phase, with_lines
from kanalyze.window import PerIteration, Window
from support.build import call, graph, host, in_line, kernel, launched, nvtx, report, timeline
from support.command import REPORTS
from support.launches import launches
from support.real_reports import real_report
from support.steps import in_steps

STEPS = PerIteration(60, "step")
OWN = PerIteration(60, "train_step")
NONE = PerIteration(None, "")


@pytest.mark.parametrize(
    ("told", "time", "number", "text", "runs"),
    [
        (STEPS, "10.93 ms a step", 71_040, "1,184 copies a step", "1,184 copies a step run"),
        (STEPS, "10.93 ms a step", 150, "2.5 copies a step", "2.5 copies a step run"),
        (STEPS, "10.93 ms a step", 120, "2 copies a step", "2 copies a step run"),
        (STEPS, "10.93 ms a step", 60, "1 copy a step", "1 copy a step runs"),
        (STEPS, "10.93 ms a step", 62, "1 copy a step", "1 copy a step runs"),
        (STEPS, "10.93 ms a step", 3, "3 copies in 60 steps", "3 copies in 60 steps run"),
        (STEPS, "10.93 ms a step", 1, "1 copy in 60 steps", "1 copy in 60 steps runs"),
        (PerIteration(60, "iteration"), "10.93 ms an iteration", 60, "1 copy an iteration", "1 copy an iteration runs"),
        (PerIteration(60, "decode"), "10.93 ms a decode", 60, "1 copy a decode", "1 copy a decode runs"),
        (PerIteration(1, "step"), "655.8 ms a step", 3, "3 copies a step", "3 copies a step run"),
        (OWN, "10.93 ms per train_step", 120, "2 copies per train_step", "2 copies per train_step run"),
        (OWN, "10.93 ms per train_step", 60, "1 copy per train_step", "1 copy per train_step runs"),
        (OWN, "10.93 ms per train_step", 3, "3 copies in 60 × train_step", "3 copies in 60 × train_step run"),
        (NONE, "655.8 ms", 71_040, "71,040 copies", "71,040 copies run"),
        (NONE, "655.8 ms", 1, "1 copy", "1 copy runs"),
    ],
)
def test_times_counts_and_verbs_agree(told, time, number, text, runs):
    shown = (told.time(655_800_000), told.plural(number, "copy"), told.clause(number, "copy", "run"))
    assert shown == (time, text, runs)
    noun = next(word for word in ("copies", "copy") if word in text)
    assert told.plural(number, "copy", "of {0}") == text.replace(noun, f"{noun} of {{0}}")


@pytest.mark.parametrize(
    ("window", "told"),
    [
        (None, NONE),
        (Window(0, 10), NONE),
        (Window(0, 10, count=0, each="step"), NONE),
        (Window(0, 10, count=4, each="step"), PerIteration(4, "step")),
        (Window(0, 10, count=4), PerIteration(4, "iteration")),
        (Window(0, 10, count=4, each="{0}"), PerIteration(4, "{{0}}")),
        (Window(0, 10, count=4, each="x" * 41), PerIteration(4, "x" * 20 + "…" + "x" * 19)),
    ],
)
def test_the_window_says_whether_figures_are_per_iteration(window, told):
    assert per_iteration(report([kernel(0, 10)]).narrow(window=window)) == told


@pytest.mark.parametrize(
    ("culprit", "words"),
    [
        ("between cudaLaunchKernel and cudaLaunchKernelExC_v11060", "between launches"),
        ("between cudaLaunchKernel and cuKernelGetName", "between launches"),
        ("wait for decode in process 2", "while it waits for decode in process 2"),
        ("between cudaLaunchKernel and cudaEventRecord", "after launches"),
        ("between cudaStreamIsCapturing_v10000 and cudaMemsetAsync", "between launches"),
        ("between cudaEventRecord and cudaMemsetAsync", "before launches"),
        ("between cuLibraryLoadData and cuGetErrorString", "after loading of modules"),
        ("between cudaGetDeviceProperties_v12000 and cuLibraryLoadData", LOADS_NEXT),
        ("between cudaStreamSynchronize and cudaMemcpyAsync", "after waits for the GPU"),
        ("between cudaLaunchKernel and cudaStreamSynchronize", "before waits for the GPU"),
        ("between cudaMemcpy and cudaLaunchKernel", "after copies"),
        ("between hipLaunchKernel and hipMalloc", "before allocations"),
        ("between cudaStreamSynchronize and cuLibraryUnload", "at the end, before CUDA is taken down"),
        ("between cudaEventRecord and cudaEventQuery", "between cudaEventRecord and cudaEventQuery"),
        ("before cudaLaunchKernel", "before launches"),
        ("after cudaDeviceSynchronize", "after waits for the GPU"),
        ("before cuInit", "before cuInit"),
        ("between aten::add and aten::mul", "between aten::add and aten::mul"),
        ("between us and cudaLaunchKernel", "between us and cudaLaunchKernel"),
        ("forward", "forward"),
    ],
)
def test_host_time_between_calls_is_told_in_words(culprit, words):
    assert phase(culprit) == words


EVENTS = timeline("0-100 cudaLaunchKernel #1; 200-600 kernel #1; 700-800 cudaLaunchKernel #2; 1000-1600 kernel #2")
LINES = [(0, 300, "a.py", 1), (300, 5_000, "b.py", 2)]


def of_lines(lines=LINES, events=EVENTS):
    rows = [in_line(start, end, number, "{x}", file=file) for start, end, file, number in lines]
    return report(events, source_lines=rows)


def finding(*claims, where=""):
    spans = pl.DataFrame(claims, schema=["start", "end"], orient="row") if claims else None
    return Finding("rule", 0, 100, "Text.", "Remedy.", "code", where=where, claims=spans)


def of_functions(*calls):
    """Functions (name, start, end) that call each other, of a program whose device idles between two launches."""
    events = "0-100 cudaLaunchKernel #1; 100-150 kernel #1; 4900-5000 cudaLaunchKernel #2; 5000-5100 kernel #2"
    return report([*timeline(events), *(host("python", *one) for one in calls)])


LOOP = [("a.py(9): <module>", 0, 5_000), ("a.py(3): loop", 150, 2_200)]
HELPERS = [("b.py(1): iou", 200, 1_000), ("c.py(1): keep", 1_000, 1_700), ("d.py(1): sort", 1_800, 2_200)]
FOUR = [(0, 50, "a.py", 1), (50, 650, "b.py", 2), (650, 750, "c.py", 3), (750, 5_000, "d.py", 4)]
SHARES = [(200, 350), (600, 650), (1_000, 1_120)]


def lines_together(last):
    return of_lines([(0, 50, "a.py", 42), (50, 650, "a.py", 43), (650, 750, "a.py", last), (750, 5_000, "b.py", 9)])


def of_other_thread(own_ns):
    """Work of a thread without lines, as autograd's, whose time goes to the line that the main thread is in."""
    events = [
        *launched(0, 100, kernel(200, 200 + own_ns, correlation=1)),
        *launched(1_000, 1_100, kernel(1_200, 2_000, correlation=2), thread=2),
    ]
    return of_lines([(0, 1_000, "a.py", 1), (1_000, 2_000, "b.py", 2)], events)


@pytest.mark.parametrize(
    ("claims", "of", "where", "place"),
    [
        ([(200, 600)], of_lines(), "", "a.py:1"),  # its work was launched there
        ([(1_000, 1_600)], of_lines(), "", "b.py:2"),
        ([(200, 600), (1_100, 1_300)], of_lines(), "", "a.py:1"),  # most of it
        ([(200, 600), (200, 600), (1_000, 1_600)], of_lines(), "", "b.py:2"),  # claimed twice counts once
        ([(600, 700)], of_lines(), "", "b.py:2"),  # idle time
        ([], of_lines(), "", ""),
        # where no line has half of it none is told, but a few lines of one function together
        ([(200, 400), (600, 650), (1_000, 1_150)], of_lines(FOUR), "", "a.py:1"),
        ([(200, 350), (600, 650), (1_000, 1_150)], of_lines(FOUR), "", ""),
        (SHARES, lines_together(44), "", "a.py:42-44"),
        (SHARES, lines_together(70), "", ""),
        # threads without lines count where others have few
        ([(200, 600), (1_200, 2_000)], of_other_thread(400), "", "a.py:1"),
        ([(200, 240), (1_200, 2_000)], of_other_thread(40), "", "b.py:2"),
        # with what a rule tells, unless that is a line
        ([(200, 600)], of_lines(), "aten::item", "aten::item in a.py:1"),
        ([(200, 600)], of_lines(), "train.py:31", "train.py:31"),
        ([(200, 600)], of_lines(), "train.py:31-33", "train.py:31-33"),
        ([(200, 600)], of_lines(), "aten::item in train.py(31): step", "aten::item in train.py(31): step"),
        ([(200, 600)], report(EVENTS), "", ""),
        ([(200, 600)], of_lines([(0, 5_000, "{0}.py", 1)]), "", "{0}.py:1"),
        # the innermost function around the others that the host runs
        ([(200, 2_200)], of_functions(*LOOP, *HELPERS), "", "a.py:3"),
        ([(200, 3_000)], of_functions(*LOOP, *HELPERS), "", ""),
        ([(200, 1_000)], of_functions(*LOOP, *HELPERS), "", "b.py:1"),
    ],
)
def test_a_finding_lies_in_the_line_with_most_of_its_time(claims, of, where, place):
    (one,) = with_lines(of, [finding(*claims, where=where)])
    assert one.place.format() == place


#: What is put behind every name of a call, range, domain (but NCCL's), overhead and kernel.
BRACES = "{0} {x} {"
MANY = "1,184 copies of pinned memory"


@pytest.fixture(params=["findings", "memory", "thrash", "two_gpus", "nccl"])
def reports(request, tmp_path):
    """A report, and a copy of it in which all names have braces."""
    original = REPORTS / f"{request.param}.sqlite"
    copy = tmp_path / original.name
    shutil.copyfile(original, copy)
    connection = sqlite3.connect(copy)
    with connection:
        connection.execute("UPDATE StringIds SET value = value || ?", (BRACES,))
        others = "text IS NOT NULL AND text != 'NCCL'"  # by this domain the ranges of NCCL are known
        connection.execute(f"UPDATE NVTX_EVENTS SET text = text || ? WHERE {others}", (BRACES,))
    connection.close()
    return real_report(original), kanalyze.read(copy)


@pytest.mark.parametrize(("name", "said"), [(BRACES, BRACES), ("{" * 400, "{" * 400), ("{" * 401, "{" * 399 + "…")])
def test_a_literal_is_what_a_format_gives_back_up_to_a_length(name, said):
    assert literal(name).format("kernel") == said


@pytest.mark.parametrize(
    ("headline", "told"),
    [
        ("12 waits per step", "12 waits per step"),
        (f"{MANY} per train_step_of_the_large_model_on_rank_0", f"{MANY} per train_step_of…el_on_rank_0"),
        ("12 waits per " + "{{" * 60, "12 waits per " + "{{" * 23 + "…" + "{{" * 23),
        ("The GPU waits for the program in 42.0 short stretches a repetition",) * 2,  # plain words may be a bit longer
        ("many short words " * 5, "many short words many short words many short words many…"),
    ],
)
def test_a_headline_fits_its_line_by_the_middle_of_a_name(headline, told):
    found = Finding("rule", 0, 1, "text", "remedy", "ledger", headline=headline).brief
    assert found.headline == told
    assert len(found.headline.format()) <= max(HEADLINE_LONGEST, len(told) * (told == headline))


@pytest.mark.slow
def test_names_with_braces_are_said_as_they_are(reports):
    usual, braces = (findings(report).select("rule", "device", "at_stake_ns", "sentence") for report in reports)
    assert braces.drop("sentence").rows() == usual.drop("sentence").rows()
    told = usual.get_column("rule") != "host-computes"  # which tells calls by their kinds, as far as it knows them
    sentences = dict(zip(usual.filter(told)["sentence"], braces.filter(told)["sentence"], strict=True))
    assert any(BRACES in changed for changed in sentences.values())
    for plain, changed in sentences.items():
        # the version of a call is only left out at the end of its name
        assert re.sub(f"(?:_v.{{4}})?{re.escape(BRACES)}", "", changed) == plain


@pytest.fixture(scope="module", params=["findings", "memory", "thrash", "nccl", "torch", "add_um", "two_processes"])
def told(request):
    """The findings of a report as a whole, and as if it were four steps."""
    whole = real_report(REPORTS / f"{request.param}.sqlite")
    return ranked(whole), ranked(whole.narrow(window=Window(count=4, each="step")))


@pytest.mark.one_in(7)
def test_headlines_and_actions_fit_a_line(told):
    for finding in (finding for findings_of in told for finding in findings_of):
        headline = finding.headline.format(*("" for _ in finding.names))
        assert 0 < len(headline) <= HEADLINE_LONGEST, headline
        assert 0 < len(finding.action) <= ACTION_LONGEST, finding.action
        assert not headline.endswith((".", ":"))
        assert not finding.action.endswith(".")
        assert not headline.endswith("…"), finding.rule  # each rule has one of its own
        finding.where.format()


def test_what_is_found_in_steps_is_told_of_each(told):
    whole, steps = ({finding[:3]: finding.text for finding in found} for found in told)
    both = [key for key in whole if key in steps]
    assert both
    for key in both:
        says = any(word in steps[key] for word in (" a step", " in 4 steps"))
        assert says == (steps[key] != whole[key]), key


OF_TORCH = "void at::native::add(int)"
MORE = "more work in each CUDA graph; launch the next one before you wait"


def program(graph_ns, plain_ns, *, whole, name="add", device=0):
    """A launch of a graph, whose kernels are traced whole or one by one, and one of a kernel."""
    half = graph_ns // 2
    nodes = [(0, half), (half, graph_ns)]
    traced = [graph(0, graph_ns, correlation=1)] if whole else [kernel(*at, correlation=1) for at in nodes]
    return [
        call("cudaGraphLaunch", 0, 1, correlation=1),
        *traced,
        *launched(2, 3, kernel(graph_ns, graph_ns + plain_ns, correlation=2, name=name, device=device)),
    ]


def test_each_gpu_has_a_share_of_its_own_and_one_without_graphs_has_none():
    of = report(program(120, 100, whole=False, device=1))
    assert [launch_less(of, device).ahead_action for device in (0, 1)] == [MORE, ""]
    assert launch_less(report([kernel(0, 5)]), 0).action == "fuse them, or use cudaStreamBeginCapture"


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("graph_ns", "name", "action", "ahead"),
    [
        (4, "add", "fuse them, or use cudaStreamBeginCapture", ""),
        (6, "add", "capture what is in no CUDA graph yet", ""),
        (6, OF_TORCH, "torch.compile what is in no CUDA graph yet", ""),
        (4, OF_TORCH, 'torch.compile(…, mode="reduce-overhead")', ""),
        (120, OF_TORCH, "torch.compile what is in no CUDA graph yet", MORE),
    ],
)
def test_what_is_told_depends_on_the_share_of_graphs(graph_ns, name, action, ahead, whole):
    less = launch_less(report(program(graph_ns, 100, whole=whole, name=name)), 0)
    assert (less.action, less.ahead_action) == (action, ahead)


def captured(*events, names="abcdef", own=None):
    """A report of launches 200 µs apart, beside it a trace of them 100 µs apart on another thread, with `events`.

    The report may have launches of its `own`.
    """
    trace = report([*launches(names, apart=100_000, thread=7), *events], kinds=("op", "range"))
    return replace(report(launches(own or names, apart=200_000)), beside=lambda: trace)


def op(name, start, end):
    return host("op", name, start, end, thread=7)


def spans(found):
    return found.host.select("start", "end").rows()


@pytest.mark.parametrize(
    ("operator", "window", "places", "names"),
    [
        # the last half of the time between the second and the third launch, by its part
        (("aten::full", 155_000, 200_000), None, [(305_000, 400_000)], ""),
        # launches in it, with what is between them
        (("aten::lstm", 99_000, 315_000), None, [(197_888, 620_555)], "bcd"),
        # in a window what overlaps it
        (("aten::b", 420_000, 430_000), Window(700_000, 1_000_000), [(831_111, 852_222)], ""),
        (("aten::a", 20_000, 30_000), Window(700_000, 1_000_000), [], ""),
    ],
)
def test_an_operator_of_the_trace_is_placed_between_the_launches_of_both(operator, window, places, names):
    made = captured(op(*operator)).narrow(window=window)
    inside = within(made, operators(made))
    assert spans(inside) == places
    assert "".join(operations(made)["name"].gather(inside.mending.gone).cast(pl.String)) == names


def test_launches_that_the_trace_lacks_are_in_what_those_before_and_after_are_in():
    made = captured(op("aten::lstm", 299_000, 415_000), names="abcdefghij", own="abcdxefghij")
    assert spans(within(made, operators(made))) == [(597_888, 1_020_555)]


@pytest.mark.parametrize("names", ["abcdef", "xyzxyz"])
def test_a_trace_of_another_program_tells_nothing(names):
    trace = report([*launches(names, apart=100_000), op("aten::a", 20_000, 30_000)], kinds=("op", "range"))
    made = replace(report(launches("ghijkl", apart=200_000)), beside=lambda: trace)
    assert operators(made).is_empty()
    assert spans(own_within(made, pl.DataFrame({"process_id": 1, "thread_id": 1, "start": 5, "end": 9}))) == [(5, 9)]


def test_outermost_operators_have_what_is_launched_in_them():
    made = captured(
        op("aten::lstm", 99_000, 215_000),
        op("aten::empty", 99_500, 99_600),
        nvtx("Optimizer.step#Adam.step", 300_000, 400_000, thread=7),
        op("aten::add_", 320_000, 330_000),
    )
    rows = outermost(made).select("name", "launches", "aside").rows()
    assert rows == [("aten::lstm", 2, False), ("aten::add_", 0, True)]


NODE = "autograd::engine::evaluate_function: MulBackward0"


def launches_of(count, *, operators=False, at=0):
    """Kernels launched one by one, in a layer's product, and in a node of autograd the last one."""
    events = []
    for number in range(count):
        start = at + 10 * number
        events.append(call("cudaLaunchKernel", start + 2, start + 3, correlation=number))
        events.append(kernel(start + 4, start + 8, name=f"kernel_{number % 4}", correlation=number))
        if operators:
            last = number % 4 == 3
            events += [host("op", NODE, start, start + 9)] if last else [host("op", "aten::linear", start, start + 9)]
            events.append(host("op", "aten::mul" if last else "aten::mm", start + 1, start + 4))
    return events


OF_FOUR = [("aten::mm", "aten::linear", None)] * 3 + [("aten::mul", "aten::mul", "MulBackward0")]
TRACE = report(launches_of(16, operators=True, at=1000))


@pytest.mark.parametrize(
    ("of", "operators"),
    [
        (report(launches_of(4, operators=True)), OF_FOUR),
        (replace(report(launches_of(16)), beside=lambda: TRACE), OF_FOUR * 4),
        (replace(report(launches_of(24)), beside=lambda: TRACE), OF_FOUR * 6),  # those of others alike
        (report(launches_of(2)), []),
    ],
)
def test_the_innermost_and_the_outermost_operator_and_autograds(of, operators):
    assert launching_operators(of).select("inner", "outer", "node").rows() == operators


@pytest.mark.parametrize(
    ("numbers", "others", "line"),
    [
        ((7, 7), 0, "a.py:12"),
        ((7, 8), 0, "a.py:20"),
        ((None, 7), 0, "a.py:20"),
        ((7, 7), 3, "a.py:12"),  # of others of the same name, in line 20, nothing is told
    ],
)
def test_kernels_of_backward_have_the_line_of_the_forward_operator(numbers, others, line):
    events, lines = [], []
    both = [("aten::index", 0, numbers[0]), (NODE, 100_000, numbers[1])]
    for other in range(others):
        both += [("aten::index", 181_000 + 2000 * other, 90 + other), (NODE, 300_000 + 9000 * other, 90 + other)]
    for at in range(0, 5_000_000, 1_000_000):
        lines += [in_line(at, at + 100_000, 12), in_line(at + 100_000, at + 200_000, 20)]
        for name, begin, number in both:
            known = {"sequence_number": number and number + at}
            events.append(host("op", name, at + begin, at + begin + (80_000 if begin <= 100_000 else 1500), side=known))
        events.append(host("op", "aten::_index_put_impl_", at + 101_000, at + 170_000))
        events += launched(at + 110_000, at + 120_000, kernel(at + 130_000, at + 200_000))
    of = in_steps(events, 5, source_lines=lines)
    claims = exclusive_operations(of).select("start", "end")
    (one,) = in_words(of, [Finding("scatter-atomics", 0, 1, "", "", "kernels", claims=claims)])
    assert one.line == line
