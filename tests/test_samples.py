"""The sample reports: whole, small, about no machine and no user, and of the programs that they say."""

import gzip
import json
from dataclasses import asdict
from operator import attrgetter

import polars.selectors as cs
import pytest

import kanalyze
from kanalyze.reduction.baselines import TABLES, loaded
from support.command import SAMPLES, run
from support.real_reports import real_report

NAMES = (
    *("add", "add_parallel", "add_parallel_explicit", "cdist", "gelu", "launch_bound_graph", "launch_bound_plain"),
    *("mlp_train", "square", "streams"),
)
#: Baselines of `kanalyze compare`: the runs of a program, of the seeds' variants, and of both sides of changes.
BASELINES = sorted(str(path.relative_to(SAMPLES)) for path in SAMPLES.rglob("*.kz"))
EVERY_FOLDER = pytest.mark.parametrize("folder", [pytest.param(SAMPLES / name, id=name) for name in NAMES])

#: Folders of a machine: no path in a report that was redacted begins so.
PLACES = (b"/home/", b"/root/", b"/tmp/", b"/work/", b"/mnt/", b"/Users/")


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


def test_there_are_these_and_no_other_and_all_are_small():
    others = ["changes", "ddp_four", "ddp_late", "inside_graphs", "loop_base.kz", "loop_fuse.kz", "pipeline_four"]
    others += ["sampled", "seeds", "serving"]
    assert sorted(path.name for path in SAMPLES.iterdir()) == ["README.md", *sorted([*NAMES, *others])]
    assert len(BASELINES) == 2 + 14 + 12
    assert sum(path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file()) < 25_000_000


@EVERY_FOLDER
def test_a_manifest_lists_the_files_that_are_there_and_says_that_all_went_well(folder):
    there = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    del there["manifest.json"]
    manifest = manifest_of(folder)
    assert (manifest["files"], manifest["status"]) == (there, "complete")
    assert {"nsys.sqlite", "ncu.details.csv", "ncu.raw.csv", "logs/nsys.log"} <= set(there)
    python = manifest["workload"]["kind"] == "python"
    done = dict.fromkeys(("nsys", "torch", "ncu") if python else ("nsys", "ncu"), "done")
    assert {one["name"]: one["status"] for one in manifest["passes"]} == done
    assert {check["passed"] for check in manifest["checks"]} == {True}
    assert (folder / "torch.json.gz").exists() == python


@EVERY_FOLDER
def test_the_readme_has_the_command_that_made_it(folder):
    manifest = manifest_of(folder)
    options, workload = manifest["options"], manifest["workload"]
    command = ["kanalyze collect"]
    if options["recipe"] != "plain":
        command += ["--recipe", options["recipe"], *(f"--recipe-flag={flag}" for flag in options["recipe_flags"])]
    command += ["-o", folder.name, workload["name"], *(["--", *workload["args"]] if workload["args"] else [])]
    assert f"| `{folder.name}` | `{' '.join(command)}` |" in (SAMPLES / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder", [SAMPLES / name for name in ("add", "gelu", "launch_bound_graph")], ids=attrgetter("name")
)
def test_the_time_is_that_of_the_folder_and_of_its_report(folder):
    of_folder, of_report = (run("summarize", "--full", path) for path in (folder, folder / "nsys.sqlite"))
    assert (of_folder.status, of_folder.error, of_report.status, of_report.error) == (0, "", 0, "")
    assert of_folder.lines[0].startswith(f"{folder.name}   nsys 2025.3.2   NVIDIA H200, sm_90, 132 SMs")
    # the sections behind it take names of host time from the trace in the folder
    ledgers = [
        text[text.index("WHERE THE TIME WENT") :].partition("\n\n")[0] for text in (of_folder.text, of_report.text)
    ]
    assert ledgers[0] == ledgers[1]


@pytest.mark.one_in(16)
@EVERY_FOLDER
def test_nothing_is_left_to_redact(folder):
    ran = run("redact", folder, "--check")
    assert (ran.status, ran.lines[1]) == (0, "  nothing")
    held = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    held |= {path: gzip.decompress(data) for path, data in held.items() if path.suffix == ".gz"}
    assert not [(path.name, place) for path, data in held.items() for place in PLACES if place in data]


AUGMENTS, LOCKS = "main > augment_images(long)", "pthread_mutex_lock"
WRITES = "main > write_statistics(long) > work_for(long)"


@pytest.mark.parametrize(
    ("name", "keys", "share"),
    [
        ("functions", {"function": "augment_images(long)", "state": "running", "chain": AUGMENTS}, 0.6),
        ("functions", {"function": "work_for(long)", "state": "running", "chain": WRITES}, 0.4),
        ("lock", {"function": "update_table()", "waits_on": "lock", "state": "blocked", "call": LOCKS}, 0.985),
        ("python", {"function": "tokenize"}, 0.6),
        ("python", {"function": "build_prompt"}, 0.4),
        ("loader", {"waits_on": "DataLoader worker"}, 0.87),
        ("sleep", {"function": "wait_for_disk(double)", "waits_on": "sleep"}, 0.8),
        ("sleep", {"function": "augment_images(double)", "state": "running"}, 0.2),
        ("crowded", {"state": "runnable"}, 0.65),
        ("crowded", {"function": "augment_images(double)", "state": "running"}, 0.35),
    ],
)
def test_samples_tell_what_their_programs_do(name, keys, share):
    found = kanalyze.culprits(real_report(SAMPLES / "sampled" / f"{name}.sqlite"), by="function")
    assert found.filter(**keys).get_column("host_share").sum() == pytest.approx(share, abs=0.02)


def test_sampled_units_tell_what_ran_in_each_range():
    """Known of each of five steps: GiB read and written, 8 blocks on 132 SMs, 256 MiB to the other GPU of 450 GB/s."""
    found = kanalyze.gpu_units(real_report(SAMPLES / "sampled" / "units" / "samples.sqlite"), by="range")
    told = {row["range"]: row for row in found.iter_rows(named=True)}
    gib = 5 * (1 << 30)
    for name, read, written in (("add", 2, 2), ("sum", 2, None), ("peer", 0.25, None)):
        assert told[name]["dram_read_bytes"] == pytest.approx(read * gib, rel=0.1), name
        assert told[name]["dram_write_bytes"] == (written and pytest.approx(written * gib, rel=0.1)), name
    assert told["few"]["sms_active_share"] == pytest.approx(8 / 132, abs=0.005)
    assert told["product"]["tensor_active_share"] == pytest.approx(0.935, abs=0.02)  # by ncu
    assert told["load"]["pcie_read_share"] > 0.9
    rate = gib / 4 / told["peer"]["total_ns"]  # GB/s, which whole samples at its edges make less
    assert told["peer"]["nvlink_write_share"] == pytest.approx(rate / 450, abs=0.05)
    assert told["thin products"]["samples"] >= 20  # though each of the 100 is shorter than a sample


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_are_small_tell_no_place_and_are_named(name):
    held = (SAMPLES / name).read_bytes()
    assert len(held) < (50_000 if "optimizer" in name else 20_000)
    runs = loaded(held, SAMPLES / name)
    tables = [getattr(run, table).select(cs.string()) for run in runs for table in TABLES]
    texts = [text for table in tables for column in table for text in column.drop_nulls()]
    texts += [value for run in runs for value in asdict(run.about).values() if isinstance(value, str)]
    assert texts
    assert not [text for text in texts for place in PLACES if place.decode() in text]
    assert f"`{name}`" in (SAMPLES / "README.md").read_text()


#: What CUDA events said of two variants without a profiler; of matmulcu, the kernels under nsys: docs/comparing.md.
TRUTH = {
    ("square_square", "square_mul"): "same",
    ("square_square", "square_pow"): "same",
    ("square_mul", "square_pow"): "same",
    ("gelu_torch", "gelu_triton"): "same",
    ("gelu_torch", "gelu_compile"): "cannot tell",  # is the same, and launches more slowly under nsys
    ("gelu_manual", "gelu_torch"): "faster",
    ("gelu_triton", "gelu_cuda"): "slower",
    ("matmul_float32", "matmul_tf32"): "faster",
    ("matmul_float32", "matmul_bf16"): "faster",
    ("matmulcu_naive", "matmulcu_tiled"): "faster",
    ("matmulcu_tiled", "matmulcu_blocked"): "faster",
}
WORDS_BACK = {"faster": "slower", "slower": "faster"}


@pytest.mark.parametrize(("base", "new"), TRUTH, ids=str)
def test_the_seeds_comparisons_say_what_is_known_forth_and_back(base, new):
    paths = [SAMPLES / f"seeds/{name}.kz" for name in (base, new)]
    forth, back = kanalyze.compare(*paths), kanalyze.compare(*reversed(paths))
    word = TRUTH[base, new]
    assert (forth.verdict.word, back.verdict.word) == (word, WORDS_BACK.get(word, word))
    assert (len(forth.base.digests), len(forth.new.digests), forth.doubts) == (3, 3, [])


def test_the_kernels_of_the_seeds_are_what_they_are_known_to_be():
    found = kanalyze.compare(SAMPLES / "seeds/gelu_manual.kz", SAMPLES / "seeds/gelu_torch.kz").kernels
    assert found.select("change", "base_count", "new_count").rows() == [("fused", 8.0, 1.0)]
    found = kanalyze.compare(SAMPLES / "seeds/gelu_triton.kz", SAMPLES / "seeds/gelu_cuda.kz").kernels
    assert found.select("base_ns", "new_ns", "changed").rows() == [(127_309, 229_067, True)]
    tiled = SAMPLES / "seeds/matmulcu_tiled.kz"
    for other, ns in (("naive", 345_200), ("blocked", 82_300)):
        (row,) = kanalyze.compare(tiled, SAMPLES / f"seeds/matmulcu_{other}.kz").kernels.to_dicts()
        assert row["base_kernel"].startswith("matmul_tiled(")
        assert (row["base_ns"], row["new_ns"]) == (pytest.approx(234_000, rel=0.001), pytest.approx(ns, rel=0.001))


def test_add_moves_what_nvidia_s_course_says():
    """48 copies of 8.389 MB to the device, and 24 of 4.194 MB back."""
    copies = kanalyze.copies(real_report(SAMPLES / "add")).select("operation", "count", "total_bytes").rows()
    assert copies == [
        ("[CUDA memcpy Unified Host-to-Device]", 48, 8_388_608),
        ("[CUDA memcpy Unified Device-to-Host]", 24, 4_194_304),
    ]
    assert {check["line"] for check in manifest_of(SAMPLES / "add")["checks"]} == {"Max error: 0"}
    assert "Max error: 0\n" in (SAMPLES / "add/logs/nsys.log").read_text()
