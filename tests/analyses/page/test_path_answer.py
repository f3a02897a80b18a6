"""The page's sentence on the critical path."""

import polars as pl

from kanalyze.analyses.page.overview_page import path_answer


def _tables(path, ledger):
    rows = {"cause": [row[0] for row in path], "ns": [row[1] for row in path], "mostly": [row[2] for row in path]}
    frame = pl.DataFrame(rows).with_columns(share=pl.col("ns") / 100, mostly_ns="ns")
    return {"critical_path": frame, "ledger": pl.DataFrame(ledger, schema=["bucket", "ns"], orient="row")}


HOST = [("host", 60, "forward"), ("launch", 20, "cudaLaunchKernel"), ("launch latency", 15, "k"), ("kernel", 5, "k")]


def test_the_largest_causes_are_told_where_the_ledger_says_another_thing():
    said = path_answer("step", _tables(HOST, [("kernel", 50), ("host", 50)]))
    assert (
        said == "The end of a step waited for the program's own code (60.0 %, most in forward) and launches (35.0 %)."
    )


def test_nothing_is_told_where_the_ledger_says_it():
    assert path_answer("step", _tables(HOST, [("kernel", 10), ("host", 90)])) == ""
    assert path_answer("step", {}) == ""


def test_of_a_range():
    path = [("memcpy", 90, "copy"), ("host", 10, "between a and b")]
    said = path_answer("train", _tables(path, [("kernel", 10), ("host", 90)]))
    assert said == "The end of each 'train' waited for copies (90.0 %) and the program's own code (10.0 %)."
