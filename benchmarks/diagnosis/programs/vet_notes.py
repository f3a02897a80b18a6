"""Completes the notes of a veterinary practice with a language model that was adapted to the practice's own words."""

import torch
from _run import DEVICE, run, size
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

CAUSE = "unmerged-adapters"
ALSO = ()

NOTES, LENGTH, WORDS = size(8, 2), size(96, 8), size(8, 3)
ADAPTED = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
KIND = torch.bfloat16 if DEVICE == "cuda" else torch.float32


class Adapter(nn.Module):
    """A linear layer and what the practice's own notes changed of it, as a product of two thin matrices."""

    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(self.down.weight, std=base.in_features**-0.5)
        nn.init.normal_(self.up.weight, std=0.01)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.up(self.down(x)) * self.scale  # fault

    def merged(self):
        self.base.weight += self.scale * self.up.weight @ self.down.weight
        return self.base


def adapt(model, rank=16, alpha=32):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in ADAPTED:
                setattr(module, name, Adapter(child, rank, alpha))  # fault


@torch.no_grad()
def merge(model):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Adapter):
                setattr(module, name, child.merged())


@torch.inference_mode()
def completed(model, ids):
    """The words that follow each of the notes, the likeliest at each place."""
    out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
    words = [out.logits[:, -1].argmax(-1, keepdim=True)]
    while len(words) < WORDS:
        out = model(input_ids=words[-1], past_key_values=out.past_key_values, use_cache=True)
        words.append(out.logits[:, -1].argmax(-1, keepdim=True))
    return torch.cat(words, 1)


def build(fixed):
    torch.manual_seed(0)
    width = size(1024, 64)
    config = LlamaConfig(
        vocab_size=size(32_000, 200),
        hidden_size=width,
        intermediate_size=size(2816, 160),
        num_hidden_layers=size(10, 2),
        num_attention_heads=width // 64 if width > 64 else 4,
        max_position_embeddings=512,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config)
    adapt(model)
    model = model.to(DEVICE, KIND).eval()
    if fixed:
        merge(model)
    notes = torch.randint(0, config.vocab_size, (8, NOTES, LENGTH), device=DEVICE)

    def step(i):
        return completed(model, notes[i % 8]).cpu()

    return step


if __name__ == "__main__":
    run(build)
