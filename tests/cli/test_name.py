"""`kanalyze name`: one name decoded, several, or those on standard input."""

import json

from support.command import run

GEMM = "cutlass_80_simt_sgemm_256x128_8x4_tn_align1"
POINTWISE = "triton_poi_fused_add_mul_tanh_0"


def test_the_fields_that_names_give_are_printed_below_them():
    ran = run("name", GEMM, POINTWISE, "my_kernel")
    assert (ran.status, ran.error) == (0, "")
    gemm, pointwise, own = ran.text.split("\n\n")
    lines = gemm.splitlines()
    assert (lines[0], lines[1], lines[-1]) == (GEMM, "  family            gemm", "  tensor core       no")
    assert "  tile              256 × 128 × 8" in lines
    assert pointwise.splitlines()[-2:] == ["  fused    add, mul, tanh", "  ordinal  0"]
    assert own == "my_kernel\n  family  other (the name does not say)\n"


def test_a_long_name_is_wrapped_and_its_function_told():
    name = "void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *, int, long, long, long)"
    assert run("name", name).lines == [
        "void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *, T2 *,",
        "int, long, long, long)",
        "  function   at::native::vectorized_gather_kernel",
        "  family     index",
        "  library    aten",
        "  operation  index_select",
    ]


def test_json_has_every_field_of_every_name():
    found = json.loads(run("name", POINTWISE, "my_kernel", "--format", "json").text)
    assert [one["name"] for one in found] == [POINTWISE, "my_kernel"]
    assert {field: value for field, value in found[0].items() if value not in (None, [])} == {
        "name": POINTWISE,
        "function": POINTWISE,
        "family": "elementwise",
        "library": "inductor",
        "kind": "pointwise",
        "fused": ["add", "mul", "tanh"],
        "ordinal": 0,
    }
    assert list(found[0]) == list(found[1])
    assert found[1]["library"] is None
