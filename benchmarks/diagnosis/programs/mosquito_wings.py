"""Distils a large network that tells mosquitoes by pictures of their wings into a small one for a phone."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unneeded-gradients"
ALSO = ()

PICTURES, SIDE, SPECIES = size(64, 4), size(128, 16), size(80, 5)
TEACHER, STUDENT = size(128, 8), size(32, 4)
TEMPERATURE, SHARE = 4.0, 0.9


def block(inputs, outputs, stride):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


def make_network(width, depth):
    layers, inputs = [block(3, width, 2)], width
    for stage in range(3):
        outputs = width * 2**stage
        layers += [block(inputs, outputs, 2 if stage else 1)]
        layers += [block(outputs, outputs, 1) for _ in range(depth)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, SPECIES))


def distillation_loss(guess, taught, species):
    given, wanted = F.log_softmax(guess / TEMPERATURE, 1), F.log_softmax(taught / TEMPERATURE, 1)
    # the mean over pictures, of the sum over species
    soft = F.kl_div(given, wanted, log_target=True, reduction="batchmean")
    return SHARE * TEMPERATURE**2 * soft + (1 - SHARE) * F.cross_entropy(guess, species)


def build(fixed):
    torch.manual_seed(0)
    teacher = make_network(TEACHER, 4).to(DEVICE, memory_format=torch.channels_last).eval()
    student = make_network(STUDENT, 2).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    wings = torch.randn(3, PICTURES, 3, SIDE, SIDE, device=DEVICE)
    species = torch.randint(SPECIES, (3, PICTURES), device=DEVICE)

    def step(i):
        x = wings[i % 3].contiguous(memory_format=torch.channels_last)
        with torch.autocast(DEVICE, torch.bfloat16):
            with torch.no_grad() if fixed else nullcontext():
                taught = teacher(x)  # fault
            guess = student(x)
        loss = distillation_loss(guess.float(), taught.float(), species[i % 3])
        optimizer.zero_grad()
        loss.backward()  # fault
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
