"""Recognizes adverts in recordings of radio stations: clips of all lengths go through a transformer."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "padding"
ALSO = ()
CLIPS, LONGEST, WIDTH = size(128, 4), size(1500, 24), size(384, 16)


def build(fixed):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 6 if WIDTH == 384 else 2, 4 * WIDTH, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(DEVICE).to(torch.bfloat16).eval()
    lengths = (LONGEST * torch.rand(CLIPS, generator=torch.Generator().manual_seed(1)) ** 3).long() + 8
    clips = [torch.randn(int(length), WIDTH, device=DEVICE).to(torch.bfloat16) for length in lengths]
    head = nn.Linear(WIDTH, 40).to(DEVICE).to(torch.bfloat16)
    order = lengths.argsort().tolist() if fixed else list(range(CLIPS))

    @torch.no_grad()
    def step(i):
        answers = []
        for at in range(0, CLIPS, 16):
            batch = [clips[k] for k in order[at : at + 16]]
            padded = nn.utils.rnn.pad_sequence(batch, batch_first=True)  # fault
            sizes = torch.tensor([len(clip) for clip in batch])
            mask = (torch.arange(padded.shape[1])[None] >= sizes[:, None]).to(DEVICE, non_blocking=True)
            answers.append(head(model(padded, src_key_padding_mask=mask).mean(1)).argmax(1))
        return torch.cat(answers).cpu()

    return step


if __name__ == "__main__":
    run(build)
