"""`flops` and `bytes_moved` against what is counted: operator by operator as torch runs them, or by hand."""

from collections import Counter

import pytest

from support.kernel_files import NEEDS_TORCH, NEEDS_TRITON, load

torch = pytest.importorskip("torch", reason=NEEDS_TORCH)
pytest.importorskip("triton", reason=NEEDS_TRITON)

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402 - only where torch is
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

WORKLOADS = ("add_extension", "cdist", "gelu", "launch_bound", "matmul", "mlp_train", "square", "square_inline")
add_extension, cdist, gelu, launch_bound, matmul, mlp_train, square, square_inline = map(load, WORKLOADS)
square_triton, streams, remedies = load("square_triton"), load("streams"), load("remedies")


class Traffic(TorchDispatchMode):
    """Bytes of the tensors that each operator reads and writes; views move none."""

    VIEWS = ("expand", "view", "t", "transpose", "mT", "detach", "as_strided", "_unsafe_view", "empty", "empty_like")

    def __init__(self):
        super().__init__()
        self.bytes = Counter()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in self.VIEWS:
            reads = [] if name == "ones_like" else args
            flat = [part for value in (*reads, result) for part in (value if isinstance(value, list) else [value])]
            self.bytes[name] += sum(part.nbytes for part in flat if torch.is_tensor(part))
            self.calls[name] += 1
        return result


def counted_flops(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize("size", [1, 7, 64])
def test_square(size):
    a = torch.ones(size, size)
    for name in ("square", "pow"):
        with Traffic() as traffic:
            square.VARIANTS[name](a)
        assert traffic.bytes.total() == square.bytes_moved(size)
    assert square.flops(size) == a.numel()


def test_the_same_matrix_has_the_same_square_everywhere():
    for rows, width in ((1, 1), (5, 7), (4096, 16_384)):
        assert square_inline.flops(rows, width) == square_triton.flops(rows, width) == rows * width
        assert square_inline.bytes_moved(rows, width) == square_triton.bytes_moved(rows, width) == 8 * rows * width
    assert square_inline.bytes_moved(9, 9) == square.bytes_moved(9)


def test_add_extension():
    x = torch.ones(1000)
    with Traffic() as traffic:
        x + x.clone()
    assert traffic.bytes["add"] == add_extension.bytes_moved(1000)
    assert add_extension.flops(1000) == 1000


@pytest.mark.parametrize("n", [1, 1000])
def test_gelu_by_hand_moves_what_its_operators_read_and_write(n):
    x = torch.ones(n)
    with Traffic() as traffic:
        gelu.manual(x)
    assert traffic.bytes.total() == gelu.bytes_moved(n, "manual")
    assert traffic.calls.total() == gelu.launches("manual")
    power, others = traffic.calls["pow"], traffic.calls.total() - traffic.calls["pow"]
    assert (2 * power + others) * n == gelu.flops(n)


def test_gelu_in_one_kernel_reads_and_writes_once():
    x = torch.ones(1000)
    with Traffic() as traffic:
        torch.nn.functional.gelu(x, approximate="tanh")
    for variant in ("torch", "cuda", "triton", "compile"):
        assert gelu.bytes_moved(1000, variant) == traffic.bytes.total()
        assert gelu.launches(variant) == traffic.calls.total()


@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (5, 3, 7), (64, 40, 16)])
def test_cdist_moves_what_its_operators_read_and_write(n, m, d):
    x, y = torch.ones(n, d), torch.ones(m, d)
    with Traffic() as traffic:
        cdist.parts(x, y)
    of = traffic.bytes
    assert cdist.bytes_moved(n, m, d) == {
        "norms": of["pow"] + of["sum"],
        "operands": of["mul"] + of["ones_like"] + of["cat"],
        "product": of["mm"],
        "roots": of["clamp_min_"] + of["sqrt_"],
    }
    work = cdist.flops(n, m, d)
    assert work["product"] == counted_flops(lambda: cdist.parts(x, y))
    found = {part: count for part, count in work.items() if part != "product"}
    assert found == {"norms": 2 * (x.numel() + y.numel()), "operands": x.numel(), "roots": 2 * n * m}


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 4, 5), (64, 32, 128)])
def test_matmul(m, n, k):
    a, b = torch.ones(m, k), torch.ones(k, n)
    assert matmul.flops(m, n, k) == counted_flops(lambda: a @ b)
    for variant, dtype in (("float32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16)):
        with Traffic() as traffic:
            torch.mm(a.to(dtype), b.to(dtype))
        assert matmul.bytes_moved(m, n, k, variant) == traffic.bytes["mm"]


@pytest.mark.parametrize(("batch", "width", "layers"), [(1, 12, 0), (8, 12, 1), (16, 32, 3)])
def test_mlp_train(batch, width, layers):
    model = mlp_train.make_model(width, layers)
    ((x, labels),) = mlp_train.make_batches(batch, width, 1)
    loss = torch.nn.functional.cross_entropy(model(x), labels)
    counted = counted_flops(lambda: torch.nn.functional.cross_entropy(model(x), labels).backward())
    assert mlp_train.flops(batch, width, layers) == counted
    assert mlp_train.parameters(width, layers) == sum(parameter.numel() for parameter in model.parameters())
    assert mlp_train.bytes_moved(batch, width) == x.nbytes + labels.nbytes + loss.nbytes


def test_launch_bound():
    x = torch.zeros(launch_bound.ELEMENTS)
    with Traffic() as traffic:
        launch_bound.one_step(x, 7)
    assert traffic.calls == {"add_": 7}
    assert traffic.bytes.total() == launch_bound.bytes_moved(7)
    assert launch_bound.flops(7) == 7 * x.numel()


def test_streams():
    inputs, factor = torch.ones(3, 8, 8), torch.ones(8, 8)
    outputs = torch.empty_like(inputs)
    step = lambda: streams.one_step(streams.make_lanes(2, 8, torch.device("cpu")), inputs, factor, outputs)  # noqa: E731
    assert streams.flops(3, 8) == counted_flops(step)
    assert streams.bytes_moved(3, 8) == inputs.nbytes + outputs.nbytes


@pytest.mark.parametrize(("rows", "inner", "outer"), [(1, 1, 1), (7, 12, 50), (16, 32, 127)])
def test_remedies_counts_the_products_of_vocabulary(rows, inner, outer):
    x, weight = (torch.randn(n, inner, requires_grad=True) for n in (rows, outer))
    with FlopCounterMode(display=False) as counter:
        (x @ weight.T).sum().backward()
    assert counter.get_total_flops() == remedies.flops(rows, inner, outer)


def test_remedies_counts_the_bytes_of_chain():
    step = remedies.make("chain", "fault", torch.device("cpu"), big=False)
    with Traffic() as traffic:
        step()
    traffic.bytes.pop("slice", None)
    assert traffic.bytes.total() == remedies.bytes_moved(16, 2048, fused=False)
    assert remedies.bytes_moved(16, 2048, fused=True) == 4 * 2048 * (16 + 16 + 1)


@pytest.mark.parametrize("begin", [0, 5])
def test_serving(begin, monkeypatch):
    """A chunk of a prompt, by attention as two products: all of its tokens look at it and at what was before."""
    serving, gpt = load("serving"), load("_gpt")
    monkeypatch.setattr(gpt, "causal_lower_right", lambda *_: None)
    two_products = lambda query, key, value, *_, **__: (query @ key.mT).softmax(-1) @ value  # noqa: E731
    monkeypatch.setattr(gpt.functional, "scaled_dot_product_attention", two_products)
    model = gpt.Model(serving.SMALL, torch.device("cpu"))
    given = torch.stack([torch.zeros(8), torch.arange(8) + begin, torch.zeros(8)]).long()
    counted = counted_flops(lambda: model.picked(given, [(0, begin, begin + 8)], slice(-1, None)))
    assert counted == serving.flops(serving.SMALL, 8, 8 * (8 + begin), 1)
    weights = sum(each.numel() for layer in model.layers for each in layer) + model.words.numel()
    assert weights == serving.parameters(serving.SMALL)
    of_a_token = model.caches[:, :, 0, 0].numel()
    assert serving.bytes_moved(serving.SMALL, 3) == 2 * (weights + 3 * of_a_token)
