"""Evaluates a finder of cracks in rails on ultrasonic traces: precision and recall at a hundred thresholds."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "repeated-work"
ALSO = ()
C = size(128, 8)
TRACES, LENGTH = size(128, 4), size(8192, 64)
BATCHES = 2
TYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


class CrackFinder(nn.Module):
    def __init__(self):
        super().__init__()
        layers, width = [], 2
        for dilation in (1, 2, 4, 8, 16):
            layers += [nn.Conv1d(width, C, 3, padding=dilation, dilation=dilation), nn.ReLU(inplace=True)]
            width = C
        self.body, self.head = nn.Sequential(*layers), nn.Conv1d(C, 1, 1)

    def forward(self, traces):
        return self.head(self.body(traces)).float().sigmoid().flatten()


class PrecisionRecall:
    def __init__(self, fixed):
        self.fixed = fixed
        self.thresholds = torch.linspace(0.01, 0.99, 100, device=DEVICE)
        self.hits = torch.zeros(100, dtype=torch.long, device=DEVICE)
        self.alarms = torch.zeros_like(self.hits)
        self.cracks = torch.zeros((), dtype=torch.long, device=DEVICE)

    def update(self, scores, labels):
        self.cracks += labels.sum()
        if self.fixed:
            ranked, order = scores.sort()
            below = torch.searchsorted(ranked, self.thresholds)
            found = torch.cat([below.new_zeros(1), labels[order].cumsum(0)])
            self.hits += found[-1] - found[below]
            self.alarms += len(scores) - below
            return
        for k, threshold in enumerate(self.thresholds):  # fault
            raised = scores >= threshold  # fault
            self.hits[k] += (raised & labels).sum()  # fault
            self.alarms[k] += raised.sum()  # fault

    def compute(self):
        precision, recall = self.hits / self.alarms.clamp(min=1), self.hits / self.cracks.clamp(min=1)
        return precision, recall, (2 * precision * recall / (precision + recall).clamp(min=1e-9)).max()


def build(fixed):
    torch.manual_seed(0)
    finder = CrackFinder().to(DEVICE, TYPE).eval()
    finder.head.weight.data.mul_(20)
    traces = torch.randn(BATCHES, TRACES, 2, LENGTH, device=DEVICE, dtype=TYPE)
    labels = torch.rand(BATCHES, TRACES * LENGTH, device=DEVICE) < 0.02

    @torch.inference_mode()
    def step(i):
        curve = PrecisionRecall(fixed)
        for batch, marks in zip(traces, labels, strict=True):
            curve.update(finder(batch), marks)
        return curve.compute()

    return step


if __name__ == "__main__":
    run(build)
