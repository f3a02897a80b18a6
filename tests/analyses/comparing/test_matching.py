"""Operations of two sides matched in the order of launch, held against literal cases and what must always hold."""

import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze.analyses.comparing._comparison import compared
from kanalyze.analyses.comparing._pair import matches
from kanalyze.reduction.baselines import SLOTS, TABLES, About, Digest


def slots(names, ns=1000, iterations=10):
    rows = [
        ("kernel", "kernel", name, "1,1,1 × 32,1,1", inner, None, 0, float(place), iterations, ns * iterations, 0)
        for place, (name, inner) in enumerate(names)
    ]
    return pl.DataFrame(rows, schema=SLOTS.schema, orient="row")


def plain(text, inner=None):
    return [(name, inner) for name in text.split()]


def digest_of(about, **tables):
    of = {name: pl.DataFrame(rows, schema=TABLES[name].schema, orient="row") for name, rows in tables.items()}
    return Digest(about, **of)


def digest(rows, host_ns=500, iterations=10, name="a", **about):
    kernels = int(rows.get_column("exclusive_ns").sum())
    buckets = [("kernel", None, kernels), ("host", None, host_ns * iterations)]
    ns = kernels + host_ns * iterations
    said = About(name, "nsys", "steady", "step", "ranges", iterations, iterations, ns, **about)
    return digest_of(said, buckets=buckets, steps=[(ns // iterations,)] * iterations, slots=rows.rows())


def kernels(base, new):
    table = compared([digest(base)], [digest(new)], ("base", "new")).table("compare_kernels")
    return sorted(table.select("change", "base_kernel", "new_kernel", "base_count", "new_count", "delta_ns").rows())


GEMMS = "ampere_sgemm_128x64_nn", "sm90_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x16"
IN_RANGES = [*plain("a b", "forward"), *plain("p q r", "optimizer")]
BOTH_PARTS = [*plain("ab", "forward"), *plain("pqr", "optimizer")]
ONE_FUSED = [("fused", "z", "s", 2.0, 2.0, 0), ("other kernel", *GEMMS, 1.0, 1.0, 0)]


@pytest.mark.parametrize(
    ("base", "new", "others"),
    [
        (plain("a b c"), plain("a b c"), []),
        (plain("x a b c d"), plain("a b c d x"), []),  # what moved is the same
        # several in the place of one are fused
        (plain("a x y z b"), plain("a xyz b"), [("fused", "z", "xyz", 3.0, 1.0, -2000)]),
        (plain("a b"), plain("a x b"), [("new", None, "x", 0.0, 1.0, 1000)]),
        (plain("a x b"), plain("a b"), [("gone", "x", None, 1.0, 0.0, -1000)]),
        # kernels of one family and type are matched whatever their names
        (plain(f"a {GEMMS[0]} b"), plain(f"a {GEMMS[1]} b"), [("other kernel", *GEMMS, 1.0, 1.0, 0)]),
        # but alone within what was replaced it is a part of that, and at an end it is not
        (plain(f"a x y {GEMMS[0]} z b"), plain(f"a p q {GEMMS[1]} r b"), [("fused", "z", GEMMS[1], 4.0, 4.0, 0)]),
        (plain(f"{GEMMS[0]} z w"), plain(f"{GEMMS[1]} r s"), ONE_FUSED),
        # blocks keep to the ranges of both sides
        (IN_RANGES, BOTH_PARTS, [("fused", "b", "ab", 2.0, 1.0, -1000), ("fused", "r", "pqr", 3.0, 1.0, -2000)]),
    ],
)
def test_what_became_of_each_operation(base, new, others):
    assert [row for row in kernels(slots(base), slots(new)) if row[0] != "same"] == others


SEQUENCES = st.lists(st.sampled_from("abcdef"), max_size=30).map(lambda names: [(name, None) for name in names])


@given(SEQUENCES, SEQUENCES)
def test_each_operation_is_matched_once(base, new):
    rows = pl.concat(slots(names).with_columns(side=pl.lit(side)) for side, names in enumerate((base, new)))
    found = matches(rows)
    assert found.select(rows.columns).equals(rows)
    sides = found.filter(pl.col("change").is_null()).group_by("group").agg(pl.col("side").sort())
    assert all(both == [0, 1] for both in sides.get_column("side").to_list())


@given(SEQUENCES, SEQUENCES, st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 7))
def test_deltas_sum_to_the_nanosecond(base, new, base_ns, new_ns, iterations):
    one = digest(slots(base, base_ns, iterations), 333, iterations)
    found = compared([one], [digest(slots(new, new_ns, iterations), 777, iterations)], ("base", "new"))
    rows, verdict = found.table("compare"), found.verdict
    assert rows.get_column("delta_ns").sum() == verdict.new_ns - verdict.base_ns
    assert rows.get_column("new_ns").sum() == verdict.new_ns
    table = found.table("compare_kernels")
    busy = rows.filter(pl.col("bucket") == "kernel")
    for column in ("base_ns", "new_ns", "delta_ns"):
        assert table.get_column(column).sum() == busy.get_column(column).sum()
    assert (table.get_column("count_ns") + table.get_column("time_ns")).to_list() == table.get_column(
        "delta_ns"
    ).to_list()
