"""The functions of the workloads against their references, on shapes and values that no workload runs with."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from support.kernel_files import NEEDS_TORCH, NEEDS_TRITON, load

torch = pytest.importorskip("torch", reason=NEEDS_TORCH)
pytest.importorskip("triton", reason=NEEDS_TRITON)

pytestmark = pytest.mark.timeout(300)  # on a busy machine what is compiled takes minutes

common, cdist, gelu, launch_bound, matmul, mlp_train, square, square_triton, streams = map(
    load, ("_common", "cdist", "gelu", "launch_bound", "matmul", "mlp_train", "square", "square_triton", "streams")
)
remedies, gpt, triton_attention = load("remedies"), load("_gpt"), load("_attention")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FEW = settings(max_examples=15)
SEEDS = st.integers(0, 2**31)


def randn(*shape, seed=0, scale=1.0):
    torch.manual_seed(seed)
    return (torch.randn(*shape) * scale).to(DEVICE)


@FEW
@given(st.integers(1, 40), st.integers(1, 40), SEEDS, st.sampled_from([1e-30, 1e-3, 1.0, 1e18, 1e30]))
@pytest.mark.parametrize("name", square.VARIANTS)
def test_square(name, rows, columns, seed, scale):
    a = randn(rows, columns, seed=seed, scale=scale)
    assert torch.equal(square.VARIANTS[name](a), square.reference(a))


@FEW
@given(st.integers(1, 5), st.integers(1, 1500), st.integers(0, 70), SEEDS)
@pytest.mark.parametrize("function", [square_triton.square_row, square_triton.square_loop])
def test_the_triton_kernels_touch_nothing_beyond_their_rows(function, rows, width, gap, seed):
    """Rows that lie apart in memory, among numbers that no kernel may read or change."""
    wide = randn(rows, width + gap, seed=seed)
    before = wide.clone()
    got, _ = function(wide[:, :width])
    assert torch.equal(got, square_triton.reference(wide[:, :width]))
    assert torch.equal(wide, before)


@FEW
@given(st.integers(1, 60), st.integers(1, 60), SEEDS, st.sampled_from([0.01, 1.0, 5.0]))
@pytest.mark.parametrize("variant", ["manual", "torch", "triton"])
def test_gelu(variant, rows, columns, seed, scale):
    x = randn(rows, columns, seed=seed, scale=scale)
    assert common.max_error(gelu.function_of(variant, DEVICE)(x), gelu.reference(x)) <= gelu.budget(x)


def test_the_reference_of_gelu_is_torch_s():
    x = randn(1000, scale=3)
    want = torch.nn.functional.gelu(x.double(), approximate="tanh")
    assert common.max_error(gelu.reference(x), want) < 1e-14


@FEW
@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 40), SEEDS)
@pytest.mark.parametrize("name", cdist.VARIANTS)
def test_cdist(name, n, m, d, seed):
    x, y = randn(n, d, seed=seed), randn(m, d, seed=seed + 1)
    got = cdist.VARIANTS[name](x, y).double().square()
    assert common.max_error(got, cdist.reference(x, y)) <= cdist.budget(x, y)


@FEW
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 200), SEEDS)
@pytest.mark.parametrize("variant", matmul.VARIANTS)
def test_matmul(variant, m, n, k, seed):
    a, b = randn(m, k, seed=seed), randn(k, n, seed=seed + 1)
    if variant == "bf16":
        a, b = a.bfloat16(), b.bfloat16()
    with matmul.precision(variant):
        got = a @ b
    assert common.max_error(got, matmul.reference(a, b)) <= matmul.budget(a, b, variant)


def test_what_is_less_precise_is_not_within_the_budget_of_float32():
    a, b = randn(64, 512, seed=1), randn(512, 64, seed=2)
    want = matmul.reference(a, b)
    rounded = a.bfloat16().float() @ b.bfloat16().float()
    assert common.max_error(rounded, want) > 5 * matmul.budget(a, b, "float32")
    assert common.max_error((a @ b).bfloat16(), want) > 5 * matmul.budget(a, b, "float32")


@FEW
@given(st.integers(1, 30), st.integers(1, 20), st.integers(0, 3), SEEDS)
def test_the_formulas_of_mlp_train_are_what_autograd_computes(batch, width, layers, seed):
    """In float64, where nothing is left to rounding: three steps of losses."""
    torch.manual_seed(seed)
    model = mlp_train.make_model(width, layers).double()
    batches = [(x.double(), labels) for x, labels in mlp_train.make_batches(batch, width, 3)]
    with torch.no_grad():
        want = mlp_train.reference(model, batches, torch.float64)
    got = torch.tensor([0.0] * 3, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=mlp_train.LEARNING_RATE)
    for step, data in enumerate(batches):
        got[step] = mlp_train.train_step(model, optimizer, data, wait_for_copy=True)
    assert common.max_error(got, want) < 1e-12


@FEW
@given(st.integers(1, 50), st.integers(1, 6))
def test_launch_bound_counts(kernels, steps):
    x = torch.zeros(launch_bound.ELEMENTS)
    step = launch_bound.plain(x, kernels)
    for _ in range(steps):
        step()
    assert torch.equal(x, launch_bound.reference(kernels, steps))


@FEW
@given(st.integers(1, 9), st.integers(1, 24), st.integers(1, 4), SEEDS)
def test_streams_bring_every_chunk_back(chunks, size, lanes, seed):
    inputs, factor = randn(chunks, size, size, seed=seed), randn(size, size, seed=seed + 1)
    outputs = torch.full_like(inputs, torch.nan)
    streams.one_step(streams.make_lanes(lanes, size, DEVICE), inputs, factor, outputs)
    common.wait(DEVICE)
    assert common.max_error(outputs, streams.reference(inputs, factor)) <= 4 * streams.budget(
        inputs.reshape(-1, size), factor
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
@pytest.mark.parametrize("name", remedies.PAIRS)
def test_a_remedy_gives_what_its_fault_gives(name):
    check = common.Check()
    remedies.check_pair(check, name, remedies.VARIANTS, DEVICE)
    assert check.finish() == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
@pytest.mark.parametrize("name", remedies.PAIRS)
def test_a_pair_tells_other_numbers_from_its_own(name, monkeypatch):
    """What is twice as large is off by more than the budget."""
    check, made = common.Check(), remedies.reference(name)
    monkeypatch.setattr(remedies, "reference", lambda _: [2 * each for each in made])
    remedies.check_pair(check, name, ("remedy",), DEVICE)
    assert check.finish() == 1


def test_turns_alternate_and_are_as_many_for_each_variant(monkeypatch):
    seen = []
    monkeypatch.setattr(remedies, "make", lambda _, variant, *__, **___: lambda: seen.append(variant))
    times = remedies.measure("mask", remedies.VARIANTS, DEVICE, steps=1, turns=3)
    assert {variant: len(each) for variant, each in times.items()} == {"fault": 3, "remedy": 3}
    calls = remedies.WARM_UPS + 1
    assert seen[::calls] == ["fault", "remedy", "remedy", "fault", "fault", "remedy"]


@pytest.mark.parametrize("length", [1, 3, 7, 16])
def test_a_cache_that_grows_and_a_whole_one_with_a_mask_give_the_same(length):
    torch.manual_seed(0)
    models = load("_models")
    model = models.GPT(models.Shape(50, 2, 32, 2, 16)).requires_grad_(requires_grad=False)
    tokens = torch.randint(50, (1, length))
    for grows in (True, False):
        caches = model.caches(grows=grows)
        for at in range(length):
            last = model(tokens[:, at : at + 1], caches, torch.tensor([at]), at + 1)[:, -1]
        assert torch.allclose(last, model(tokens)[:, -1], atol=1e-5)


@FEW
@given(st.lists(st.integers(1, 128), min_size=1, max_size=3), st.sampled_from([(1, 16), (2, 64)]), SEEDS)
def test_attention_in_parts_is_attention_over_the_whole_with_a_mask(lengths, heads, seed):
    keys, values = randn(2, 4, 128, *heads, seed=seed)
    query, slots = randn(len(lengths), *heads, seed=seed + 1), torch.randperm(4)[: len(lengths)].to(DEVICE)
    args = (query, keys, values, slots, torch.tensor(lengths, device=DEVICE))
    inside = torch.arange(128, device=DEVICE) < args[-1][:, None, None, None]
    both = (each[slots].transpose(1, 2) for each in (keys, values))
    want = torch.nn.functional.scaled_dot_product_attention(query[:, :, None], *both, inside)[:, :, 0]
    for attend in (gpt.attend, triton_attention.attend):
        assert torch.allclose(attend(*args), want, atol=1e-5)


@pytest.mark.parametrize("arguments", [(), ("--separate", "--waves", "1,5,3"), ("--captures", "2", "--chunk", "7")])
def test_a_serving_engine_s_log_accounts_for_every_token(arguments, tmp_path):
    """The tokens that steps read are those of the prompts, and of the answers but for the last of each."""
    serving = load("serving")
    file = tmp_path / "log.jsonl"
    assert serving.main(["--requests", "9", "--rate", "2000", *arguments, "--log", str(file)]) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    steps, requests = [one for one in lines if "step" in one], [one for one in lines if "step" not in one]
    assert len(requests) == 9
    assert sum(one["tokens"] for one in steps) == sum(one["prompt"] + one["wanted"] - 1 for one in requests)
    assert all(one["arrival"] <= one["first"] <= one["end"] for one in requests)
    assert all(one["padded"] >= one["decodes"] and one["start"] < one["end"] for one in steps)
    for one in requests:
        inside = [step for step in steps if one["request"] in step["requests"]]
        assert inside[-1]["end"] == one["end"]
        assert inside[0]["start"] >= one["arrival"]
    if "--separate" in arguments:
        assert {one["kind"] for one in steps} == {"prefill", "decode"}
