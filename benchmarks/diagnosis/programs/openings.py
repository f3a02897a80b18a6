"""Learns moves of chess from games with the GPT-2 of transformers, set up by the trainer's settings."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from transformers import GPT2Config, GPT2LMHeadModel

CAUSE = "recomputation"
ALSO = ()
GAMES, LENGTH, MOVES = size(96, 2), size(192, 12), size(2048, 64)
SETTINGS = {
    "n_embd": size(768, 32),
    "n_layer": size(8, 2),
    "n_head": size(12, 2),
    "vocab_size": MOVES,
    "n_positions": size(256, 16),
    "activation_function": "gelu_pytorch_tanh",
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "use_cache": False,
}


def prepared(save_memory):
    model = GPT2LMHeadModel(GPT2Config(**SETTINGS)).to(DEVICE, torch.bfloat16).train()
    if save_memory:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # fault
    return model


def build(fixed):
    torch.manual_seed(0)
    model = prepared(save_memory=not fixed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    games = torch.randint(MOVES, (GAMES, LENGTH + 1), device=DEVICE)

    def step(i):
        logits = model(input_ids=games[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), games[:, 1:].flatten())
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
