"""One kernel's names by different tools come out equal, those of different kernels never do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.decoder.fields import normalised, shortened

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
