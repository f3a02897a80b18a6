"""Finds pictures that a library has already: a vision transformer embeds them, the host reads each batch's matches."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from transformers import ViTConfig, ViTModel

CAUSE = ""
ALSO = ()
PICTURES, LIBRARY, NEAREST, BATCHES = size(192, 2), size(65536, 32), 4, 2
SETTINGS = {
    "hidden_size": size(768, 32),
    "num_hidden_layers": size(12, 2),
    "num_attention_heads": size(12, 2),
    "intermediate_size": size(3072, 64),
    "image_size": size(224, 32),
    "patch_size": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


class Matches:
    """Which pictures to keep; needs the matches of a batch before the next is chosen."""

    def __init__(self):
        self.seen = {}

    def add(self, likeness, numbers):
        for picture, (values, candidates) in enumerate(zip(likeness, numbers, strict=True)):
            if values[0] > 0.95:
                self.seen[picture] = candidates[0]


def build(fixed):
    torch.manual_seed(0)
    model = ViTModel(ViTConfig(**SETTINGS), add_pooling_layer=False).to(DEVICE, torch.bfloat16).eval()
    side = SETTINGS["image_size"]
    pictures = torch.randn(BATCHES, PICTURES, 3, side, side, device=DEVICE, dtype=torch.bfloat16)
    library = torch.randn(LIBRARY, SETTINGS["hidden_size"], device=DEVICE, dtype=torch.bfloat16)
    library = F.normalize(library, dim=1)
    matches = Matches()

    @torch.inference_mode()
    def step(i):
        embedded = model(pixel_values=pictures[i % BATCHES]).last_hidden_state[:, 0]
        likeness, numbers = (F.normalize(embedded, dim=1) @ library.T).topk(NEAREST)
        matches.add(likeness.tolist(), numbers.tolist())

    return step


if __name__ == "__main__":
    run(build)
