"""FBGEMM kernels for recommenders: embedding tables, and permutations of their sparse indices."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kanalyze.decoder.spelling import Spelled

    Fields = dict[str, Any]

#: By function name: family, operation. Source: the names of FBGEMM's kernels and of its code generator.
_FUNCTIONS: Final = (
    (r"^(?:split|dense|ssd|batch_index_select|gen)_embedding\w*(?:_codegen_\w+)", "embedding", "embedding_bag"),
    (r"^(?:bounds_check_indices|linearize_(?:cache_)?index|linearize_cache_indices)", "index", "indices"),
    (r"^lxu_cache_|^lru_cache_|^lfu_cache_|^direct_mapped_", "embedding", "cache"),
    (r"^permute_(?:pooled_embs|multi_embs)", "copy", "permute"),
    (
        r"^(?:permute_\w+|_?block_bucketize_\w+|_?expand_into_jagged_\w+|invert_permute|segment_sum_csr)",
        "index",
        "sparse",
    ),
    (r"^recat_copy_async", "copy", "copy"),
    (r"^_?(?:compute_|get_)?(?:FP8|fp8)\w*(?:quantize|qparam|rowwise)\w*", "copy", "quantize"),
    (r"^_?\w*(?:quantized|fused\w*bit\w*rowwise)_?\w*cuda_kernel", "copy", "quantize"),
    (r"^jagged_\w+|^dense_to_jagged|^_?jagged_dense_\w+", "index", "jagged"),
)
#: FBGEMM's in any namespace; others only in its own.
_OWN: Final = (
    r"^(?:split|dense|ssd)_embedding\w*_codegen_|^bounds_check_indices|^linearize_(?:cache_)?ind|^lxu_cache_"
    r"|^permute_pooled_embs|^recat_copy_async"
)


def fbgemm(name: Spelled) -> Fields | None:
    """Decodes FBGEMM kernels: ``split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1``."""
    if not name.function.startswith("fbgemm_gpu::") and not re.match(_OWN, name.word):
        return None
    fields: Fields = {"library": "fbgemm"}
    for pattern, family, operation in _FUNCTIONS:
        if re.match(pattern, name.word):
            fields |= {"family": family, "operation": operation}
            break
    if way := re.search(r"(?:^|_)(forward|backward)(?=_|$)", name.word):
        fields["direction"] = way[1]
    return fields


DECODERS: Final = (fbgemm,)
