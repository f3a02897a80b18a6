"""cuDNN kernels other than GEMMs: convolutions, batch norms, layout transforms, recurrent cells."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kanalyze.decoder.elements import type_of

if TYPE_CHECKING:
    from kanalyze.decoder.spelling import Spelled

    Fields = dict[str, Any]

#: By substring of the function name, first match wins: family, operation, direction.
_PARTS: Final = (
    (r"^nchwToNhwc|^nhwcToNchw|^nchwToFold|^tensorTransform|^convertTensor", "copy", "layout", None),
    (r"^bn_fw|^batchnorm_fw", "normalization", "batch_norm", "forward"),
    (r"^bn_bw|^batchnorm_bw", "normalization", "batch_norm", "backward"),
    (r"^softmax_fw", "softmax", "softmax", "forward"),
    (r"^softmax_bw", "softmax", "softmax", "backward"),
    (r"^pooling_fw", "pooling", "pooling", "forward"),
    (r"^pooling_bw", "pooling", "pooling", "backward"),
    (r"^(?:op_tensor|add_tensor|scalePackedTensor|activation_fw)", "elementwise", None, None),
    (r"^activation_bw", "elementwise", None, "backward"),
    (r"^fft2d_|^compute_gemm_pointers$|^flip_filter|^im2col", "conv", "conv", None),
    (r"^winogradForward", "conv", "fprop", "forward"),
    (r"^winogradWgrad", "conv", "wgrad", "backward"),
    (r"^winograd|^generateWinogradTiles|^init_device_workspace", "conv", "conv", None),
    (r"^compute_dot_do_o|^convert_dq_to", "attention", "attention", "backward"),
    (r"^implicit_convolve|^precomputed_convolve|^convolve_|^conv2d_grouped_direct", "conv", "fprop", "forward"),
    (r"^dgrad|^conv2d_grouped_direct_dgrad", "conv", "dgrad", "backward"),
    (r"^wgrad|^reduce_wgrad", "conv", "wgrad", "backward"),
    (r"^compute(?:Wgrad)?(?:B)?Offsets|^kern_precompute_indices|^explicit_convolve", "conv", "conv", None),
    (r"^elemWiseRNNcell|^LSTM_|^GRU_|^RNN_|^GENERIC_elementWise_|^persistRNN_", "rnn", "rnn", None),
)
#: Functions of cuDNN in any namespace.
_OWN: Final = (
    r"implicit_convolve_[sdh]gemm$|wgrad_alg\d|dgrad\d?d?_alg\d|bn_(?:fw|bw)_\w*1C11|fft2d_[rc]2[rc]_"
    r"|elemWiseRNNcell$|RNN_blockPersist|persistRNN_|conv2d_grouped_direct|(?:LSTM|GRU|GENERIC)_elementWise_"
    r"|scalePackedTensor_kernel|flip_filter$|im2col4d_kernel$"
    r"|[dw]grad_engine$|nchwToNhwcKernel$|nhwcToNchwKernel$|dgrad2d|wgrad2d|[dw]grad_alg0_engine$"
)


def cudnn(name: Spelled) -> Fields | None:
    """Decodes cuDNN kernels that are C++ templates or generated."""
    if name.text.startswith("cudnn_generated_"):
        return _generated(name.text)
    if name.function.startswith("cutlass"):  # cuDNN's copy of CUTLASS is named like CUTLASS
        return None
    scoped = "cudnn" in name.function and re.search(r"(?:^|_)cudnn(?:_\w+)?::", name.function)
    if not scoped and (name.function.startswith("at::") or not re.match(_OWN, name.word)):
        return None
    fields: Fields = {"library": "cudnn"}
    for part, family, operation, direction in _PARTS:
        if re.search(part, name.word):
            fields |= {"family": family, "operation": operation, "direction": direction}
            break
    if "inograd" in name.word:
        fields["algorithm"] = "winograd"
    elif name.word.startswith("fft2d"):
        fields["algorithm"] = "fft"
    if fields.get("family") in {"conv", "normalization", "softmax", "pooling", "copy"} and (a := type_of(name.arg(0))):
        fields["input_types"] = (a,)
    if fields.get("operation") == "layout" and (layout := re.match(r"(nchw|nhwc)To(Nchw|Nhwc)", name.word)):
        fields |= {"layout": layout[1], "output_layout": layout[2].lower()}
    return fields


def _generated(text: str) -> Fields:
    """Decodes generated cuDNN kernels: ``cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_…``.

    The f16 in such names stands for bf16, too, so that the type is unknown.
    """
    fields: Fields = {"library": "cudnn"}
    if arch := re.search(r"_(sm\d{1,6}[a-z]?)_", text):
        fields["arch"] = arch[1]
    if "_sdpa_" in text:
        fields |= {"family": "attention", "operation": "attention"}
    if way := re.search(r"_([fb])prop_", text):
        fields["direction"] = "forward" if way[1] == "f" else "backward"
    if re.search(r"_w?g?mma_|_umma_|_wmma_", text):
        fields["tensor_core"] = True
    if tile := re.search(r"_(\d{1,6})x(\d{1,6})x(\d{1,6})_", text):
        fields["tile"] = tuple(map(int, tile.groups()))
    if warps := re.search(r"_(\d{1,6})x(\d{1,6})x(\d{1,6})_kernel", text):
        fields["warps"] = tuple(map(int, warps.groups()))
    return fields


DECODERS: Final = (cudnn,)
