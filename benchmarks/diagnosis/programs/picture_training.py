"""Trains a classifier from a DataLoader that prepares its samples in the training process."""

import numpy as np
import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch.utils.data import DataLoader, Dataset

from _models import ResNet

CAUSE = "data-loading"
ALSO = ()
BATCH, PIXELS = size(32, 2), size(128, 32)


class Pictures(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.pictures = rng.integers(0, 255, (64, PIXELS + 16, PIXELS + 16, 3), dtype=np.uint8)

    def __len__(self):
        return BATCH * 2000

    def __getitem__(self, index):
        picture = self.pictures[index % 64]  # fault
        top, left = index % 16, index * 7 % 16
        picture = picture[top : top + PIXELS, left : left + PIXELS]  # fault
        if index % 2:
            picture = picture[:, ::-1]  # fault
        picture = (picture.astype(np.float32) / 255 - 0.45) / 0.225  # fault
        return torch.from_numpy(picture.transpose(2, 0, 1).copy()), index % 1000  # fault


def build(fixed):
    torch.manual_seed(0)
    if fixed:
        loader = DataLoader(Pictures(), BATCH, num_workers=size(12, 1), pin_memory=DEVICE == "cuda", prefetch_factor=4)
    else:
        loader = DataLoader(Pictures(), BATCH)  # fault
    batches = iter(loader)
    model = ResNet((1, 1, 1, 1), width=size(64, 8)).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def step(i):
        images, labels = next(batches)  # fault
        images = images.to(DEVICE, non_blocking=True).to(memory_format=torch.channels_last)
        labels = labels.to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(images)
        loss = F.cross_entropy(logits.float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
