"""The folder of a capture is read as its nsys report, with what was compiled beside it."""

import json
import re
import shutil
from pathlib import Path

import pytest

import kanalyze
from kanalyze.analyses.host._captures import capture_source
from kanalyze.analyses.replay import _unprofiled
from kanalyze.collectors.in_workload import notes
from kanalyze.errors import CannotTellError, KanalyzeError
from kanalyze.readers.capture import read_capture
from kanalyze.readers.capture.reports import counters_at, every_report, runs_of, sides_in
from kanalyze.tools import Turn, interleaved
from support.command import ADD, REPORTS, SAMPLES, TRACE, captured, refused, run
from support.exports import altered


@pytest.fixture
def capture(tmp_path):
    return captured(tmp_path / "run", nsys_sqlite=ADD)


def test_it_is_the_report_of_nsys_under_the_folder_s_name(capture):
    report = kanalyze.read(capture)
    assert (report.meta.path, report.meta.read_from) == (capture, capture / "nsys.sqlite")
    assert kanalyze.kernels(report).equals(kanalyze.kernels(kanalyze.read(ADD)))
    assert report.kinds == kanalyze.read(ADD).kinds


@pytest.mark.slow
def test_the_page_of_a_repeated_pass_is_of_its_first_run(capture):
    once = run("summarize", capture)
    for number in (2, 10):
        shutil.copyfile(ADD, capture / f"nsys-{number}.sqlite")
    (capture / "nsys-3.sqlite").write_text("garbage")
    ran = run("summarize", capture)
    assert (ran.status, ran.error) == (0, "")
    told = " ".join(ran.text.partition("WHERE")[0].split())
    assert told.endswith("This is the first of 4 runs; `kanalyze compare --noise` says how far they are apart.")
    assert ran.text.partition("WHERE")[2] == once.text.partition("WHERE")[2]
    assert json.loads(run("summarize", capture, "--format", "json").text)["answer"].endswith("apart.")


@pytest.mark.parametrize("told", [False, True])
def test_a_report_is_left_out_only_beside_another_and_where_somebody_is_told(capture, told):
    """The first one that cannot be read is an error in any case, the others are where nobody hears of it."""
    damaged = capture / "nsys-2.sqlite"
    damaged.write_text("garbage")
    heard = []
    left_out = heard.append if told else None
    if told:
        assert [one.meta.path for one in every_report(capture, runs=True, left_out=left_out)] == [capture]
        assert [str(error).partition(": ")[0] for error in heard] == [str(damaged)]
        heard.clear()
    else:
        with pytest.raises(KanalyzeError, match=r"nsys-2\.sqlite"):
            every_report(capture, runs=True)
    (capture / "nsys.sqlite").write_text("garbage")
    with pytest.raises(KanalyzeError):
        every_report(capture, left_out=left_out)
    assert heard == []


def test_a_capture_without_report_of_nsys_is_told(capture):
    (capture / "nsys.sqlite").unlink()
    message, remedy = refused(run("summarize", capture))
    assert message == f"{capture}: a capture without a report of nsys, not a report that kanalyze reads."
    assert "kanalyze doctor" in remedy


def test_of_ncu_alone_each_way_of_reading_tells_the_same(tmp_path):
    for name in ("manifest.json", "ncu.details.csv", "ncu.raw.csv"):
        shutil.copy(SAMPLES / "streams" / name, tmp_path)
    report, same = kanalyze.read(tmp_path), counters_at(tmp_path)
    assert report.meta == same.meta
    assert report.meta.selective
    numbers = report.table("launch_numbers")
    assert numbers.equals(same.table("launch_numbers"))
    assert numbers.height


ATOMIC = (
    "\t.loc\t1 {} 8                          // sums.py:{}:8 @[ other.py:3:4 ]\n"
    "\t@%p4 {}.global.gpu.acq_rel.add{} {{ %r31, %r32 }}, [ %rd8 + 0 ];\n"
)
LOADS = "\tld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];\n"
ADDED = ATOMIC.format(7, 7, "atom", ".v4.f32") + ATOMIC.format(9, 9, "red", ".f32")


SHARED = "\tld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5];\n" * 64


def multiplied(line, times):
    """So many multiply-adds in a line of a kernel."""
    return f"\t.loc\t1 {line} 8      // dots.py:{line}:8\n" + "\tfma.rn.f32 \t%r1, %r2, %r3, %r1;\n" * times


def summed(times, *, loaded=1, differences=0, of="standard.py"):
    """So many multiply-adds in a sum that line 27 calls, after loads of 16 bytes each."""
    call = f"\t.loc\t2 263 15        // {of}:263:15 @[ {of}:293:36 @[ bells.py:27:100 ] ]\n"
    loads = "\tld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];\n" * loaded
    return loads + "\tsub.f32 \t%r1, %r2, %r3;\n" * differences + call + "\tfma.rn.f32 \t%r1, %r2, %r3, %r1;\n" * times


def placed(bits, *lines):
    """An addition of so many bits in each of these lines."""
    return "".join(f"\t.loc\t1 {line} 8      // sums.py:{line}:8\n\tadd.f{bits} \t%r1, %r2, %r3;\n" for line in lines)


def converted(of="bf16", count=16):
    return "".join(f"\tcvt.f32.{of} \t%r{number}, %rs{number};\n" for number in range(count))


def in_type(name, product="wgmma.mma_async.sync.aligned.m64n128k8"):
    return f"\t.loc\t1 9 24                          // dots.py:9:24\n\t{product}.f32.{name}.{name}.f32 {{%r99}}, 1;\n"


ATOMICS, PRODUCTS, DOUBLES = ("atomics", "atomic_bytes"), ("float32_products",), ("float64_share",)


@pytest.mark.parametrize(
    ("columns", "ptx", "told"),
    [
        (ATOMICS, LOADS * 2 + ADDED, ("other.py:3", 20)),  # the line of the kernel, not of what it calls
        (ATOMICS, LOADS * 2 + ADDED.replace(" @[ other.py:3:4 ]", ""), ("sums.py:7, sums.py:9", 20)),
        (ATOMICS, LOADS * 9 + ADDED, (None, None)),  # less than a fifth of 164 bytes
        (ATOMICS, LOADS + ADDED.replace(".add", ".max"), (None, None)),
        (ATOMICS, f"$L__BB0_1:\n{ADDED}\tbra.uni \t$L__BB0_1;\n", (None, None)),  # a loop
        (ATOMICS, f"\tbra.uni \t$L__BB0_1;\n{ADDED}$L__BB0_1:\n", ("other.py:3", 20)),
        (ATOMICS, f"\twgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16\n{ADDED}", (None, None)),
        # the first thread of a program adds for all of them
        (ATOMICS, f"\tsetp.eq.b32 \t%p4, %r2, 0;\n{ADDED}", (None, None)),
        (ATOMICS, f"\tsetp.lt.u32 \t%p2, %r2, 4;\n\tand.pred \t%p4, %p1, %p2;\n{ADDED}", (None, None)),
        (ATOMICS, f"\tsetp.lt.s32 \t%p4, %r2, %r3;\n{ADDED}", ("other.py:3", 20)),  # a mask
        (ATOMICS, ADDED[ADDED.index("@%p4") : ADDED.index(".loc\t1 9")], (None, None)),  # of no line
        (ATOMICS, "", (None, None)),
        # blocks of 16 bits that are converted, multiplied in TF32
        *(
            (("widened_products",), ptx, (line,))
            for ptx, line in (
                (converted() + in_type("tf32"), "dots.py:9"),
                (converted("f16") + in_type("tf32", "mma.sync.aligned.m16n8k8.row.col"), "dots.py:9"),
                (converted() + in_type("tf32").replace("%r99", ", ".join(f"%r{at}" for at in range(9))), None),  # sums
                (converted() + in_type("tf32") + "\tadd.f32 \t%r98, %r97, %r1;\n", None),  # of the result
                (converted(count=8) + in_type("tf32"), None),
                (converted() + in_type("bf16"), None),
                (converted() + in_type("tf32") + in_type("bf16"), None),
            )
        ),
        # products of blocks in float32
        (PRODUCTS, ".entry gemma_mlp\n" + SHARED + multiplied(40, 512) + multiplied(45, 50), ("dots.py:40",)),
        (PRODUCTS, SHARED + multiplied(40, 512) + multiplied(45, 2048), ("dots.py:45",)),  # two, as of attention
        (PRODUCTS, SHARED + multiplied(40, 512) + multiplied(45, 64), (None,)),  # a formula, in several lines
        (PRODUCTS, SHARED + multiplied(40, 255), (None,)),
        (PRODUCTS, SHARED[:400] + multiplied(40, 512), (None,)),  # from registers alone, as polynomials
        (PRODUCTS, SHARED + multiplied(40, 512) + "\twgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32\n", (None,)),
        (PRODUCTS, SHARED + multiplied(40, 512).partition("\n")[2], (None,)),  # of no line
        (PRODUCTS, SHARED + multiplied(40, 512).replace("f32 \t", "f64 \t"), (None,)),
        # by sums, each value with several others
        *(
            (("summed_products",), ptx, (line,))
            for ptx, line in (
                (summed(64), "bells.py:27"),
                (summed(63), None),
                (summed(127, loaded=2), None),  # with few, as of eight rows
                (summed(128, loaded=2), "bells.py:27"),
                (summed(64, differences=33), None),  # distances
                (summed(64, of="bells.py"), None),  # a formula
                (
                    summed(64, loaded=0) + "\tcp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;\n",
                    "bells.py:27",
                ),
                (summed(64) + "\tcp.async.bulk.tensor.2d.shared::cluster.global [%r1];\n", None),
                (summed(64) + in_type("tf32"), None),
            )
        ),
        # lines with float64
        (DOUBLES, placed(64, 1, 2, 3, 4) + placed(32, 5), (0.8,)),
        (DOUBLES, placed(64, 1, 2, 3, 4) + placed(32, 1, 2), (1.0,)),
        (DOUBLES, placed(64, 1, 2, 3) * 9, (None,)),  # as of a step's powers
        (DOUBLES, placed(32, 1, 2, 3, 4), (None,)),
        (DOUBLES, placed(64, 1, 2, 3, 4) + placed(16, 5, 6).replace("f16", "bf16x2"), (4 / 6,)),
    ],
)
def test_what_is_read_from_the_code_of_a_kernel(capture, columns, ptx, told):
    (capture / "triton").mkdir()
    (capture / "triton" / "sums-1.ptx").write_text(ptx)
    row = {"name": "sums", "source": "triton", "hash": "1", "ptx": "../triton/sums-1.ptx"}
    (capture / "compiled.json").write_text(json.dumps({"schema": 1, "kernels": [row]}))
    with kanalyze.read(capture) as report:
        assert report.table("compiled_kernels").select(columns).row(0) == told


def test_without_a_torch_pass_nobody_knows_what_was_compiled(capture):
    for path in (capture, ADD):
        with pytest.raises(CannotTellError, match="cannot tell compiled"):
            kanalyze.compiled(kanalyze.read(path))
    (capture / "torch-run.json").write_text("{}")  # one that saw nothing
    assert kanalyze.compiled(kanalyze.read(capture)).is_empty()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", *(f'{{"kernels": {text}}}' for text in ("1", "[1]", '[{"name": null}]', '[{"name": "a"}]'))),
        '{"kernels": [{"name": "a", "source": "b", "hash": "c", "registers": "many"}]}',
    ],
)
def test_a_damaged_list_of_compiled_kernels_is_told(capture, text):
    (capture / "compiled.json").write_text(text)
    message, remedy = refused(run("show", "compiled", capture))
    assert message.startswith(f"{capture / 'compiled.json'}: damaged at the rows of kernels")
    assert remedy.endswith("[report-damaged]")


def test_a_capture_of_torch_alone_is_read_as_its_trace(tmp_path):
    folder = captured(tmp_path / "run", torch_json_gz=TRACE)
    report = kanalyze.read(folder)
    assert (report.meta.path, report.meta.capture, report.meta.read_from) == (folder, folder, folder / "torch.json.gz")
    assert kanalyze.ops(report).equals(kanalyze.ops(kanalyze.read(TRACE)))


@pytest.fixture
def sampled(capture):
    """A capture of a program whose plain run and sampled run are the same recording."""
    shutil.copyfile(REPORTS / "sampled_host.sqlite", capture / "samples.sqlite")
    chains = (f"{name}_CALLCHAINS" for name in ("SAMPLING", "OSRT", "CUDA"))
    sampling = ("COMPOSITE_EVENTS", "SCHED_EVENTS", "OSRT_API", *chains)
    plain = altered(capture, REPORTS / "sampled_host.sqlite", *(f"DROP TABLE IF EXISTS {name}" for name in sampling))
    plain.replace(capture / "nsys.sqlite")
    return capture


@pytest.mark.slow
def test_tables_of_samples_are_of_that_pass_and_say_what_it_cost(sampled):
    ran = run("show", "culprits", "--by", "function", "--top", "1", sampled)
    alone = run("show", "culprits", "--by", "function", "--top", "1", REPORTS / "sampled_host.sqlite")
    assert (ran.status, ran.text) == (0, alone.text)
    assert ran.error.startswith(
        f"kanalyze: culprits is from {sampled / 'samples.sqlite'}; nsys.sqlite does not record it. With samples a step "
        "took 1.00 × as long ("
    )
    assert "samples" not in run("show", "kernels", sampled).error

    for table in ("cpu_samples", "scheduling"):
        ran = run("show", table, sampled)
        assert ran.text == run("show", table, REPORTS / "sampled_host.sqlite").text
        assert f"{table} is from {sampled / 'samples.sqlite'}" in ran.error
    (sampled / "samples.sqlite").unlink()
    assert "(no rows)" in run("show", "scheduling", sampled).text


@pytest.mark.slow
def test_the_page_is_of_the_plain_run_and_says_what_the_samples_say_and_cost(sampled):
    told = " ".join(run("summarize", sampled).text.partition("WHERE")[0].split())
    assert "In a run with samples, augment_images(long) is 59" in told
    assert "With samples a step took 1.00 × as long" in told
    full = " ".join(run("summarize", "--full", sampled).text.partition("WHERE")[0].split())
    assert "With samples a step took 1.00 × as long" in full
    part = run("summarize", "--window", "step#2", sampled)
    assert (part.status, "With samples" in part.text) == (0, False)


@pytest.mark.slow
def test_samples_of_a_program_that_did_other_work_have_no_price(sampled):
    shutil.copyfile(ADD, sampled / "nsys.sqlite")
    assert "What sampling cost cannot be told" in " ".join(run("summarize", sampled).text.split())


@pytest.mark.slow
def test_the_samples_are_no_second_run_of_the_program(sampled):
    assert [report.meta.path for report in every_report(sampled, runs=True)] == [sampled]
    assert [one.tool for one in runs_of(sampled)] == ["nsys"]
    assert "1.00" not in run("compare", sampled, sampled).error


def test_samples_alone_are_read_as_the_report_of_nsys(sampled):
    (sampled / "nsys.sqlite").unlink()
    report = kanalyze.read(sampled)
    assert report.meta.read_from == sampled / "samples.sqlite"
    assert report.sampled() is None
    assert [one.tool for one in runs_of(sampled)] == ["nsys"]


def test_samples_of_a_capture_are_read_in_parts(sampled):
    report = kanalyze.read(sampled).sampled()
    heights = []
    report.mapped("cpu_samples", lambda part: heights.append(part.height) or part)
    assert sum(heights) > 0
    assert not report._kept.has("cpu_samples")  # noqa: SLF001 - which the whole table would be


@pytest.mark.slow
def test_damaged_samples_are_left_alone_until_they_are_asked_for(sampled):
    (sampled / "samples.sqlite").write_text("garbage")
    page = run("summarize", sampled)
    assert (page.status, "With samples" in page.text) == (0, False)
    assert run("show", "cpu_samples", sampled).status == 2


def without_metrics(folder, name):
    """A capture whose run with samples has a report's metrics of the GPU, and whose plain run is the same without."""
    shutil.copyfile(REPORTS / f"{name}.sqlite", folder / "samples.sqlite")
    altered(folder, REPORTS / f"{name}.sqlite", "DROP TABLE GPU_METRICS").replace(folder / "nsys.sqlite")


@pytest.mark.slow
def test_findings_on_the_gpus_units_are_of_the_run_with_samples(sampled):
    without_metrics(sampled, "gpu_metrics")
    found = {row["rule"]: row for row in kanalyze.findings(kanalyze.read(sampled)).iter_rows(named=True)}
    alone = {row["rule"]: row for row in kanalyze.findings(kanalyze.read(REPORTS / "gpu_metrics.sqlite")).to_dicts()}
    row, own = found["dram-bound"], alone["dram-bound"]
    assert row["sentence"] == f"In the run with samples: {own['sentence']}"
    assert {**row, "sentence": ""} == {**own, "sentence": ""}
    assert "Kernels at DRAM's limit are 100.0 % of kernel time" in run("summarize", sampled).text
    ran = run("show", "gpu_units", sampled)
    assert (ran.status, f"gpu_units is from {sampled / 'samples.sqlite'}" in ran.error) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "window", "small", "left_out"),
    [
        ("metrics_phases", None, 1, "few-sms"),  # one that the plain run finds too small is not told again
        ("gpu_metrics", "+0ms..+900ms", 0, "dram-bound"),  # metrics of another run are no findings of a part
    ],
)
def test_what_metrics_of_the_run_with_samples_do_not_tell(sampled, name, window, small, left_out):
    without_metrics(sampled, name)
    rules = kanalyze.findings(kanalyze.read(sampled), window=window).get_column("rule").to_list()
    assert (rules.count("small-grid"), left_out in rules) == (small, False)


@pytest.mark.parametrize(
    ("name", "told", "share"),
    [
        ("sleep", r"In a run with samples, wait_for_disk\(double\) is (\S+) % of the time in which the GPU waits", 80),
        ("crowded", r"In a run with samples, augment_images\(double\) is (\S+) % of the time in which", 35),
        ("crowded", r" own code, and its thread is ready but on no processor for (\S+) % of it\. With samples", 65),
    ],
)
@pytest.mark.slow
def test_the_page_says_what_the_gpu_waits_for_in_the_run_with_samples(sampled, name, told, share):
    for run_of in ("nsys", "samples"):
        shutil.copyfile(SAMPLES / "sampled" / f"{name}.sqlite", sampled / f"{run_of}.sqlite")
    page = " ".join(run("summarize", sampled).text.partition("WHERE")[0].split())
    assert [float(found) for found in re.findall(told, page)] == [pytest.approx(share, abs=5)], page


@pytest.mark.slow
def test_of_the_run_for_names_only_names_count(tmp_path):
    decoder = SAMPLES / "inside_graphs" / "decoder.sqlite"
    folder = captured(tmp_path / "capture", nsys_sqlite=decoder, names_sqlite=decoder)
    of = kanalyze.read(folder)
    assert of.captured_in().meta.path.name == "names.sqlite"
    assert of.captured_in().captured_in() is None
    assert [one.meta.read_from.name for one in every_report(folder, runs=True)] == ["nsys.sqlite"]
    assert [run.file.name for run in runs_of(folder)] == ["nsys.sqlite"]
    own = kanalyze.read(decoder)
    assert capture_source(of) is of.captured_in()
    assert kanalyze.captured(of).equals(kanalyze.captured(own))
    assert kanalyze.range_gpu(of).equals(kanalyze.range_gpu(own))
    assert kanalyze.findings(of).equals(kanalyze.findings(own))


def test_a_run_for_names_of_another_program_is_left_out_and_told(tmp_path):
    decoder = SAMPLES / "inside_graphs" / "decoder.sqlite"
    ran = run("show", "captured", captured(tmp_path / "capture", nsys_sqlite=decoder, names_sqlite=ADD))
    assert ran.lines == run("show", "captured", decoder).lines
    assert "1 report names.sqlite not read" in ran.said


# What writes marks and what reads them agree: neither imports the other


def test_as_many_occurrences_are_kept_as_the_reader_thinks_and_what_is_no_range_has_one_name():
    library = Path(notes.__file__).with_name("nvtx_marks.c").read_text()
    assert read_capture.KEPT == notes.EACH
    assert re.findall(r"enum \{ NAMES = (\d+), EACH = (\d+)", library) == [(str(notes.NAMES), str(notes.EACH))]
    assert (_unprofiled.OWN, _unprofiled.OWN_END) == (notes.OWN, notes.OWN_END)
    assert notes.CALL in _unprofiled.OF_TORCH


# The runs at a path: of captures, folders of reports, single reports and sides of an interleaved collection


def repeated(folder, *names, against=None):
    """A capture with reports of these names."""
    captured(folder)
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ADD if name.endswith(".sqlite") else TRACE, folder / name)
    if against:
        (folder / "manifest.json").write_text(json.dumps({"schema": 1, "against": against}))
    return folder


def shown(path, runs):
    return [(run.tool, run.number, str(run.file.relative_to(path)), run.turn) for run in runs]


def test_a_report_is_one_run():
    tables, page = REPORTS / "nvtx.parquetdir", SAMPLES / "add" / "ncu.details.csv"
    for path, tool in ((ADD, "nsys"), (tables, "nsys"), (TRACE, "torch"), (page, "ncu")):
        (run,) = runs_of(path)
        assert (run.tool, run.number, run.file, run.turn) == (tool, 1, path, None)
        assert run.opened().meta.path == path


def test_a_capture_has_the_repetitions_of_each_tool(tmp_path):
    names = [f"nsys{number}.sqlite" for number in ("", "-2", "-3", "-10")]
    folder = repeated(tmp_path / "run", *names, "torch.json.gz", "torch-2/torch.json.gz", "torch-11/torch.json.gz")
    shutil.copy(SAMPLES / "add" / "ncu.details.csv", folder)
    assert shown(folder, runs_of(folder)) == [
        *(("nsys", number, name, None) for number, name in enumerate(names, 1)),
        ("torch", 1, "torch.json.gz", None),
        ("torch", 2, "torch-2/torch.json.gz", None),
        ("torch", 3, "torch-11/torch.json.gz", None),
        ("ncu", 1, "ncu.details.csv", None),
    ]
    reports = [run.opened() for run in runs_of(folder)]
    assert [report.meta.path for report in reports[:2]] == [folder, folder / "nsys-2.sqlite"]
    assert {report.meta.capture for report in reports[1:]} == {folder}
    assert [report.meta.tool for report in reports] == [*["nsys"] * 4, *["torch.profiler"] * 3, "ncu"]


def test_traces_of_several_ranks_are_of_one_run(tmp_path):
    names = ["torch-rank0.json.gz", "torch-rank1.json.gz"]
    folder = repeated(tmp_path / "run", *names, *(f"torch-2/{name}" for name in names))
    assert [(run.number, run.file.name) for run in runs_of(folder)] == [
        (number, name) for number in (1, 2) for name in names
    ]


def test_of_a_folder_of_reports_each_is_a_run(tmp_path):
    for name in ("b.sqlite", "a.sqlite"):
        shutil.copyfile(ADD, tmp_path / name)
    repeated(tmp_path / "c", "nsys.sqlite", "nsys-2.sqlite")
    assert shown(tmp_path, runs_of(tmp_path)) == [
        ("nsys", 1, "a.sqlite", None),
        ("nsys", 2, "b.sqlite", None),
        ("nsys", 3, "c/nsys.sqlite", None),
        ("nsys", 4, "c/nsys-2.sqlite", None),
    ]


@pytest.fixture
def both(tmp_path):
    """The folder of an interleaved collection."""
    turns = {"base": (1, 4, 5, 8), "new": (2, 3, 6, 7)}
    names = ("nsys", "nsys-2", "torch", "torch-2")
    for side, numbers in turns.items():
        told = {"collection": "a", "side": side, "turns": dict(zip(names, numbers, strict=True))}
        files = ("nsys.sqlite", "nsys-2.sqlite", "torch.json.gz", "torch-2/torch.json.gz")
        repeated(tmp_path / side, *files, against=told)
    return tmp_path


def test_runs_that_were_interleaved_have_their_turns(both):
    base, new = map(runs_of, sides_in(both))
    assert [run.turn for run in base] == [Turn("a", "base", number) for number in (1, 4, 5, 8)]
    assert [run.opened().meta.turn for run in new] == [Turn("a", "new", number) for number in (2, 3, 6, 7)]
    assert interleaved([run.turn for run in base], [run.turn for run in new])
    assert not interleaved([run.turn for run in base], [run.turn for run in base])


def test_only_two_captures_are_two_sides(both):
    assert sides_in(both) == (both / "base", both / "new")
    assert [sides_in(path) for path in (both / "base", ADD, both / "nowhere")] == [None, None, None]
    (both / "new" / "manifest.json").unlink()
    assert sides_in(both) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", "{}", '{"against": 1}', '{"against": {}}'),
        *(
            f'{{"against": {{"collection": {collection}, "side": {side}, "turns": {turns}}}}}'
            for collection, side, turns in (
                *(('"a"', '"base"', "[1]"), ("1", '"base"', '{"nsys": 1}'), ('"a"', '["base"]', '{"nsys": 1}')),
                *(('"a"', '"other"', '{"nsys": 1}'), ('"a"', '"base"', '{"nsys": true}')),
            )
        ),
    ],
)
def test_what_no_collector_writes_is_no_turn(both, text):
    (both / "base" / "manifest.json").write_text(text)
    assert [run.turn for run in runs_of(both / "base")] == [None] * 4


def test_what_is_missing_is_told_when_it_is_opened(tmp_path):
    (tmp_path / "text").write_text("text")
    for path in (tmp_path / "nowhere", tmp_path / "text", repeated(tmp_path / "empty")):
        (run,) = runs_of(path)
        assert (run.tool, run.file) == ("", path)
        with pytest.raises(KanalyzeError, match=path.name):
            run.opened()
