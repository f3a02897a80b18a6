"""The families of kernels."""

FAMILIES = frozenset(
    [
        "gemm",
        "conv",
        "attention",
        "elementwise",
        "reduce",
        "scan",
        "sort",
        "softmax",
        "normalization",
        "copy",
        "index",
        "embedding",
        "random",
        "optimizer",
        "loss",
        "pooling",
        "resample",
        "fft",
        "linalg",
        "rnn",
        "communication",
        "fill",
        "other",
    ]
)
