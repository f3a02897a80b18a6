"""The families of kernels, and names of kernels of PyTorch and cuBLAS that several tests make programs of."""

FAMILIES = {
    *("gemm", "conv", "attention", "elementwise", "reduce", "scan", "sort", "softmax", "normalization", "copy"),
    *("index", "embedding", "random", "optimizer", "loss", "pooling", "resample", "fft", "linalg", "rnn"),
    *("communication", "fill", "other"),
}

ONE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 2ul> >(int)"
ADD, MUL, POW = (ONE.format(f"{name}<float>") for name in ("CUDAFunctor_add", "MulFunctor", "PowFunctor"))
FILL = ONE.format("FillFunctor<float>")
CAT = "void at::native::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4, 64, 64>(X)"

#: Casts to a shorter type, to float32 from one that the name does not tell, and a copy into another order.
DOWN = ONE.format("bfloat16_copy_kernel_cuda(X&)::{lambda(float)#1}")
UP = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(X&)::{lambda(float)#1}, "
    "std::array<char*, 2ul>, 4, at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(int)"
)
STRIDED = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
    "(X&)::{lambda(float)#1}>(X)::{lambda(int)#1}>(int)"
)

#: A product in bfloat16, and softmaxes of attention.
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
SOFTMAX, BACKWARD, LOG_SOFTMAX = (
    f"void (anonymous namespace)::softmax_warp_{way}<float, float, float, 10, {log}, false>(float*)"
    for way, log in (("forward", "false"), ("backward", "false"), ("forward", "true"))
)
