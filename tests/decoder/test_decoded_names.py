"""Names of kernels: decoded, and one kernel's names by different tools."""

import gzip
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from time import process_time

import pytest
from hypothesis import example, given, settings, strategies as st

from kanalyze.decoder.decode import HINTS, decode
from kanalyze.decoder.fields import KernelName, normalised, shortened
from support.kernel_names import FAMILIES
from support.strategies import slow_given

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

#: Kernels of programs, whose names do not say what they do.
PROGRAMS_OWN = {
    *("add", "add_kernel", "axpy", "busy", "clustered", "combine", "dependent", "fill", "gelu_kernel", "grid_barrier"),
    *("long_blocks", "many_registers", "much_shared", "naive_transpose", "one_warp_blocks", "only_a", "only_b"),
    *("scale", "shared_name", "shift", "small", "smem_transpose", "spin", "square_kernel", "square_loop_kernel"),
    *("square_matrix_kernel", "square_row_kernel", "stencil", "tiny", "touch", "work"),
    *("part_kernel", "join_kernel", "by_hand", "copy_long", "few_blocks", "spin_kernel", "at::cuda::spin_kernel"),
}


def table():
    """Pairs of a name and what it says, as texts."""
    lines = (HERE / "names.txt").read_text(encoding="utf-8").splitlines()
    blocks = "\n".join(line for line in lines if not line.startswith("#")).strip().split("\n\n")
    return [tuple(block.split("\n    ")) for block in blocks]


def text(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def said(name):
    """All that a name says but its function, as names.txt has it."""
    found = decode(name)
    told = {field: value for field, value in found._asdict().items() if field not in {"function", "family"}}
    rest = [f"{field}={text(value)}" for field, value in told.items() if value != getattr(KernelName(), field)]
    return "  ".join([f"family={found.family}", *rest])


def recorded():
    """The names of kernels in the repository's nsys reports and torch traces."""
    names = set()
    for path in [*(ROOT / "tests/reports").glob("*.sqlite"), *(ROOT / "sample_reports").glob("*/*.sqlite")]:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            try:
                rows = database.execute(
                    "SELECT DISTINCT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
                )
                names.update(value for (value,) in rows)
            except sqlite3.OperationalError:  # a report without kernels
                continue
    for path in (ROOT / "sample_reports").glob("*/torch.json.gz"):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        names.update(event["name"] for event in events if event.get("cat") == "kernel")
    return sorted(names)


def test_the_table_is_large_and_has_every_family():
    pairs = table()
    assert len({name for name, _ in pairs}) == len(pairs) > 240
    assert {told.split("  ")[0].removeprefix("family=") for _, told in pairs} == FAMILIES


@pytest.mark.parametrize(("name", "told"), table())
def test_all_that_a_name_says(name, told):
    assert said(name) == told


@pytest.mark.slow
def test_names_in_real_reports_are_other_only_where_a_program_named_them():
    names = recorded()
    assert len(names) > 190
    assert {decode(name).function for name in names if decode(name).family == "other"} <= PROGRAMS_OWN


def test_a_type_is_told_by_the_inputs_first():
    assert decode("nvjet_tss_128x256_64x4_2x1_v_badd_coopA_NTN").dtype == "bf16"
    assert decode("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>(int)").dtype == "i32"
    assert decode("triton_poi_fused_add_0").dtype is None
    assert KernelName(input_types=("bf16", "f32", "bf16")).dtype == "bf16,f32"


def test_rocms_suffix_is_no_part_of_a_name():
    assert decode("attn_fwd.kd") == decode("attn_fwd") == decode("attn_fwd [clone .kd]")


def test_every_name_of_communication_holds_a_hint():
    # analyses decode only names that hold one
    found = [name for name, told in table() if told.startswith("family=communication")]
    assert len(found) > 40
    assert [name for name in found if not any(hint in name.lower() for hint in HINTS)] == []


def test_each_table_is_read_and_there():
    """By a function, among the decoders, or by a line of another table."""
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "analyzer/decoder").glob("*.py"))
    text = (ROOT / "analyzer/decoder/tables.txt").read_text(encoding="utf-8")
    tables = re.findall(r"^\[([^\]:]+)(?:: (?:all|first) in (?:text|function|word|snake))?\]$", text, re.MULTILINE)
    following = {name.replace("_", " ") for name in re.findall(r"^[^#\n]* then=(\w+)", text, re.MULTILINE)}
    read = following | set(re.findall(r'(?:looked_up|by_name|exact|listed)\("([^"]+)"', code))
    assert read <= set(tables) <= following | set(re.findall(r'"([^"\n]+)"', code))
    assert len(set(tables)) == len(tables)


#: Pieces of real names, to get near to them, and what may stand between.
PIECES = st.sampled_from(
    re.findall(
        r"\S+",
        "void at::native:: vectorized_elementwise_kernel < > ( ) { } [ ] , 4 :: reduce_kernel ReduceOp<float cutlass:: "
        "device_kernel cutlass_80_tensorop_ s16816gemm _256x128_32x3 _tn sm80_xmma_gemm_ f32f32_ tilesize 99999999999 "
        "triton_poi_fused_ _to_copy add nvjet_ tst_ 1x2 ncclDevKernel_ AllReduce Flash_fwd_kernel_traits<64,  _Z 4 N I "
        "<unnamed>:: (anonymous namespace):: lambda(float) operator() cute::C<1> fmha_cutlassF_ sm80 cub:: Device "
        "multi_tensor_apply_kernel distribution_ normal_kernel ampere_ -> - _ 9 x ² ٣ \0 \n",
    )
)
NAMES = st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join), st.lists(PIECES, max_size=30).map(" ".join))

#: What, repeated, has made one of the patterns slow, or might.
REPEATED = (
    *("a<", "<", "(", "a, ", "a::", "1", "1x1x", "_", "-", "->", "aA", "x64_", "_add", "triton_poi_fused", "f32_"),
    *("<unnamed>::", "(unsigned ", "lambda(", "Flash_fwd_kernel_traits<64, 64, 64, 4, false, ", "MainloopSm9", "_Z1aI"),
    *("cute::tuple<cute::C<1>, cute::C<1>, cute::C<1>>, ", "ReduceOp<float<", "cudnn_generated_fort_native_sdpa_"),
)
AROUND = (
    *("%s", "void %s>(int)", "void cutlass::device_kernel<%s>", "void at::native::reduce_kernel<512, 1, %s", "_Z%s"),
    *("void at::native::vectorized_elementwise_kernel<4, %s", "triton_poi_fused_%s", "sm80_xmma_gemm_%s "),
    *("cutlass3x_sm90_tensorop_gemm_%s ", "nvjet_tst_%s", "void flash::x<%s", "void multi_tensor_apply_kernel<A, %s"),
)


@settings(max_examples=10 * settings.default.max_examples, deadline=None)
@slow_given(NAMES)
@example("nvjet_tst_" + "9" * 5000 + "x1_1x1")
@example("cutlass_80_simt_sgemm_" + "1" * 5000 + "x1")
@example("triton_poi_fused_add_" + "1" * 5000)
def test_no_name_raises(name):
    assert decode(name).family in FAMILIES


@pytest.mark.parametrize("around", AROUND)
def test_a_long_name_takes_no_longer_than_its_length_asks(around):
    """Seconds for ten thousand characters, quadratic patterns took; this allows for a slow and busy machine."""
    for piece in REPEATED:
        name = around % (piece * (10_000 // len(piece)))
        start = process_time()
        decode.__wrapped__(name)
        assert process_time() - start < 0.3, (around, piece)


@pytest.mark.parametrize(
    "name", ["", " ", "kernel", "my_kernel", "foo(int)", "a::b<c>", "矩阵乘法", "[CUDA memset]", "_Z"]
)
def test_an_unknown_name_is_other(name):
    found = decode(name)
    assert (found.family, found.library, found.operation) == ("other", None, None)


SAME = [
    (
        "void at::vectorized_kernel<(int)4, at::FillFunctor<long>, std::array<char *, (unsigned long)1>>(int, T2, T3)",
        (
            "void at::vectorized_kernel<4, at::FillFunctor<long>, std::array<char*, 1ul> >"
            "(int, at::FillFunctor<long>, std::array<char*, 1ul>)"
        ),
    ),
    (
        "void at::<unnamed>::cdist<float, at::<unnamed>::dists<float>::two>(T1 *, const T1 *, T1, long)",
        (
            "void at::(anonymous namespace)::cdist<float, at::(anonymous namespace)::dists<float>::two>"
            "(float*, float const*, float, long)"
        ),
    ),
    (
        "void k<f(at::T &)::[lambda() (instance 3)]::operator ()() const::[lambda(a, b) (instance 6)]>(T1)",
        (
            "void k<f(at::T&)::{lambda()#3}::operator()() const::{lambda(a, b)#6}>"
            "(f(at::T&)::{lambda()#3}::operator()() const::{lambda(a, b)#6})"
        ),
    ),
    ("void cutlass::Kernel2<some_gemm>(T1::Params)", "void cutlass::Kernel2<some_gemm>(some_gemm::Params)"),
    ("void f<(bool)1, (int)-1, (bool)0>()", "void f<true, -1, false>(void)"),
    (
        "void m<L<(int)2>, F, std::plus<float>, float>(T1, T2, T3...)",
        "void m<L<2>, F, std::plus<float>, float>(L<2>, F, std::plus<float>, float)",
    ),
    ("add(const float *, const float *, float *, long long)", "add(float const*, float const*, float*, long long)"),
    ("f(const T1 &)", "f(T1 const&)"),
    ("void f<float *>(const T1 &)", "void f<float*>(float* const&)"),
    ("void f<int (*)(const int *)>(T1)", "void f<int (*)(int const*)>(int (*)(int const*))"),
    (r"triton\poi_fused", "triton/poi_fused"),
    ("sm80_xmma_gemm_f32", " sm80_xmma_gemm_f32 "),
]

DIFFERENT = [
    *("gelu_kernel", "gelu_kernel(float const*, float*)", "gelu_kernel(double const*, double*)"),
    *("a::gelu_kernel(float const*, float*)", "void (anonymous namespace)::gelu_kernel<float>(T1)"),
    *(
        f"void gelu_kernel<{of}>(T1)"
        for of in (
            *("float", "double", "float, 4", "float, 8", "float, -8", "float, true", "float *", "const float *"),
            *("float * const", "f()::{lambda(float)#1}", "f()::{lambda(float)#2}", "f()::{lambda(int)#2}"),
            *("f(int)::{lambda(int)#2}", "g()::{lambda(float)#1}", "unsigned int", "int", "int, unsigned"),
        )
    ),
    *("gelu_kernel<", "gelu_kernel>"),
]


@pytest.mark.parametrize(("nsys", "torch"), SAME)
def test_tools_names_of_one_kernel_are_equal(nsys, torch):
    assert normalised(nsys) == normalised(torch)


def test_names_of_different_kernels_are_different():
    assert len({normalised(name) for name in DIFFERENT}) == len(DIFFERENT)


def test_without_parameters_only_overloads_look_alike():
    loose = [normalised(name, parameters=False) for name in DIFFERENT[:4]]
    assert loose == ["gelu_kernel", "gelu_kernel()", "gelu_kernel()", "a::gelu_kernel()"]


def test_a_lambda_keeps_its_parameters():
    first, second = (f"void k<f()::{{lambda({kind})#1}}>(T1)" for kind in ("int", "float"))
    assert normalised(first, parameters=False) != normalised(second, parameters=False)


def test_words_may_be_left_out_but_not_added_or_moved():
    whole = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::AbsFunctor<float>>(int, T2)"
    assert shortened("void at::vectorized_elementwise_kernel<4, at::AbsFunctor<float>>(int, T2)", whole)
    assert not shortened("void at::vectorized_elementwise_kernel<2, at::AbsFunctor<float>>(int)", whole)
    assert not shortened("void at::AbsFunctor<float>::vectorized_elementwise_kernel", whole)


WORDS = st.sampled_from(["float", "int", "at::Half", "S", "n::F"])


@st.composite
def types(draw, depth=2):
    """A type or value in both spellings, and what it is."""
    kind = draw(st.integers(0, 5 if depth else 2))
    if kind == 0:
        word = draw(WORDS)
        return word, word, word
    if kind == 1:
        number = draw(st.integers(-3, 9))
        return f"(int){number}", f"{number}", number
    if kind == 2:
        yes = draw(st.booleans())
        return f"(bool){int(yes)}", str(yes).lower(), yes
    if kind == 3:
        inner = draw(st.lists(types(depth - 1), min_size=1, max_size=3))
        nsys, torch, said = zip(*inner, strict=True)
        end = " >" if torch[-1].endswith(">") else ">"
        return f"n::V<{', '.join(nsys)}>", f"n::V<{', '.join(torch)}{end}", ("V", said)
    word = draw(WORDS)
    if kind == 4:
        return f"const {word} *", f"{word} const*", ("pointer", word)
    number = draw(st.integers(1, 3))
    return (
        f"void <unnamed>::f<{word}>(const T1 &)::[lambda() (instance {number})]",
        f"(anonymous namespace)::f<{word}>({word} const&)::{{lambda()#{number}}}",
        ("lambda", word, number),
    )


@st.composite
def kernels(draw):
    name = draw(st.sampled_from(["k", "n::k", "k2"]))
    nsys, torch, said = zip(*draw(st.lists(types(), min_size=1, max_size=3)), strict=True)
    places = [at for at, one in enumerate(said) if isinstance(one, str | tuple)]
    taken = draw(st.lists(st.sampled_from(places), max_size=3)) if places else []
    end = " >" if torch[-1].endswith(">") else ">"
    own = f"void {name}<{', '.join(nsys)}>({', '.join(f'T{at + 1}' for at in taken)})"
    other = f"void {name}<{', '.join(torch)}{end}({', '.join(torch[at] for at in taken)})"
    return own, other, (name, tuple((type(one), one) for one in said), tuple(str(said[at]) for at in taken))


@given(st.lists(kernels(), min_size=1, max_size=8))
def test_generated_names_are_equal_where_the_kernels_are(made):
    for nsys, torch, what in made:
        for _, other, same in made:
            assert (normalised(nsys) == normalised(other)) == (what == same), (nsys, torch, other)


@given(st.text("f<>()[]{}:,*& 1T", max_size=30))
def test_any_text_has_a_spelling(text):
    assert normalised(text) == normalised(text.strip())


@pytest.mark.parametrize(
    "odd", ["f<[lambda() (instance)]>", "f<[lambda() (instance {1})]>", "f<[lambda() (instance <2>)]>"]
)
def test_a_lambda_of_no_number_stays_as_it_is(odd):
    assert normalised(odd) == odd.replace(" ", "")
