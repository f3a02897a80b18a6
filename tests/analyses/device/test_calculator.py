"""The occupancy calculation against NVIDIA's own, and against a GPU; tests/occupancy/README.md says what answered."""

import polars as pl
import pytest

from kanalyze.analyses.device.occupancy import occupancy, registers_for_one_more, shared_for_one_more, with_occupancy
from kanalyze.device_limits import capabilities
from kanalyze.readers import read
from support.build import kernel, report
from support.command import ROOT

#: Columns of ncu and of cuda_occupancy.h, with ours of the same meaning.
LIMITS = {
    "blocks_by_warps": "limit_warps", "blocks_by_registers": "limit_registers",
    "blocks_by_shared": "limit_shared_memory", "blocks_by_blocks": "limit_blocks",
}  # fmt: skip


def answers(name: str) -> pl.DataFrame:
    path = ROOT / "tests" / "occupancy" / name
    return pl.read_csv(path, comment_prefix="#", schema_overrides={"compute_capability": pl.String})


def calculated(launches: pl.DataFrame) -> pl.DataFrame:
    """What we say of launches of a capability, on an SM that gives blocks all its shared memory."""
    unset = pl.lit(None, dtype=pl.Int64).alias("shared_config_bytes")
    known = launches.join(capabilities(), on="compute_capability", how="left", maintain_order="left")
    return with_occupancy(known.with_columns(unset, pl.col("block_threads").alias("threads")))


def launched(rows: pl.DataFrame) -> pl.DataFrame:
    """The table of a report in which each row is a kernel of its own, in their order."""
    sides = ("registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes", "shared_config_bytes")
    events = [
        kernel(
            number,
            number + 1,
            name=f"{number:04}",
            grid=(row["grid"], 1, 1),
            block=(row["block_threads"], 1, 1),
            side={side: row[side] for side in sides},
        )
        for number, row in enumerate(rows.iter_rows(named=True))
    ]
    return occupancy(report(events, limits={"compute_capability": "9.0", "sm_count": 132})).sort("name")


def assert_as_in_ncu(ours: pl.DataFrame, ncus: pl.DataFrame) -> None:
    """The limits are the same, and occupancy and waves to the two digits that ncu prints."""
    for limit in LIMITS.values():
        assert ours.get_column(limit).to_list() == ncus.get_column(limit).to_list()
    shown = ours.select(pl.col("occupancy_share") * 100, "waves")
    assert shown.get_column("occupancy_share").to_list() == pytest.approx(ncus.get_column("occupancy_pct"), abs=0.0051)
    assert shown.get_column("waves").to_list() == pytest.approx(ncus.get_column("waves").to_list(), abs=0.0051)


def test_a_device_answers_the_same():
    asked = answers("sm90.csv").with_columns(compute_capability=pl.lit("9.0"))
    found = calculated(asked)
    assert asked.height == 7815
    assert found.get_column("blocks_per_sm").to_list() == asked.get_column("active_blocks_per_sm").to_list()


def test_the_toolkit_s_calculator_answers_the_same_for_every_capability():
    asked = answers("by_capability.csv")
    found = calculated(asked)
    assert {*asked.get_column("compute_capability"), "10.1"} == set(capabilities().get_column("compute_capability"))
    for theirs, ours in {"active_blocks_per_sm": "blocks_per_sm", **LIMITS}.items():
        wrong = found.filter(~pl.col(theirs).eq_missing(pl.col(ours)))
        assert wrong.is_empty(), wrong
    some = found.filter(pl.col("active_blocks_per_sm") > 0)
    limiters = some.get_column("limiter").str.replace("shared memory", "shared").str.split(", ").list.sort()
    assert limiters.to_list() == some.get_column("limited_by").str.split("+").list.sort().to_list()


def test_ncu_says_the_same_of_907_launches_with_many_settings_of_the_shared_memory():
    """And as many blocks ran at once as we say."""
    measured = answers("measured.csv")
    ours = launched(measured)
    assert_as_in_ncu(ours, measured)
    enough = measured.get_column("grid") == 40 * 132
    resident = measured.get_column("resident_blocks").filter(enough)
    assert ours.get_column("blocks_per_sm").filter(enough).to_list() == resident.to_list()
    assert enough.sum() == 872


def test_nsys_and_ncu_reports_of_a_program_agree():
    one = pl.col("block_x").cast(pl.Int64) * pl.col("block_y") * pl.col("block_z")
    all_of = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z")
    keys = ["registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes", "block_threads", "grid"]
    paths = [ROOT / "tests" / "reports" / name for name in ("torch.sqlite", "add.sqlite")]
    nsys = pl.concat([occupancy(read(path)) for path in paths]).with_columns(
        one.alias("block_threads"), all_of.alias("grid"), pl.col("registers_per_thread").cast(pl.Int64)
    )
    both = nsys.select(keys).unique().join(answers("ncu.csv").drop("kernel").unique(), on=keys)
    assert both.height == 8
    ours = both.select(keys).join(nsys.unique(keys), on=keys, maintain_order="left")
    assert ours.get_column("shared_config_bytes").to_list() == both.get_column("shared_config_bytes").to_list()
    assert_as_in_ncu(ours, both)


@pytest.mark.parametrize(
    ("limiter", "column", "fewer"),
    [
        ("registers", "registers_per_thread", registers_for_one_more()),
        ("shared memory", "dynamic_shared_bytes", shared_for_one_more() - pl.col("static_shared_bytes")),
    ],
)
def test_what_would_let_one_more_block_in(limiter, column, fewer):
    """So much lets one block more in, and the next unit above does not."""
    asked = calculated(answers("by_capability.csv")).filter(pl.col("limiter") == limiter).with_columns(fewer=fewer)
    asked = asked.filter(pl.col("fewer") > 0)
    assert asked.height > 500
    known = asked.select(*answers("by_capability.csv").columns, "fewer", before="blocks_per_sm")
    resource = "limit_registers" if limiter == "registers" else "limit_shared_memory"
    mended, still = (calculated(known.with_columns((pl.col("fewer") + more).alias(column))) for more in (0, 1))
    assert (mended.get_column(resource) > mended.get_column("before")).all()
    assert (still.get_column(resource) == still.get_column("before")).all()
