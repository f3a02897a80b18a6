"""Learns to play an arcade game by deep Q-learning with a second network for the targets."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "loop-indexing"
ALSO = ()
MOVES, BUTTONS, BATCHES = size(256, 4), 18, 4
DISCOUNT = 0.99


def network():
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, 1024),
        nn.ReLU(),
        nn.Linear(1024, BUTTONS),
    ).to(DEVICE, memory_format=torch.channels_last)


class Replay:
    """Moves that were played; screens stay on the GPU, buttons are also kept as the emulator took them."""

    def __init__(self):
        shape = (BATCHES, 2, MOVES, 4, 84, 84)
        self.screens = torch.randint(256, shape, dtype=torch.uint8, device=DEVICE)
        self.pressed = torch.randint(BUTTONS, (BATCHES, MOVES))
        self.on_device = self.pressed.to(DEVICE)
        self.buttons = self.pressed.tolist()
        self.rewards = torch.randn(BATCHES, MOVES, device=DEVICE)

    def screen(self, number, which):
        screens = self.screens[number % BATCHES, which].to(memory_format=torch.channels_last)
        return screens.float() / 255


def build(fixed):
    torch.manual_seed(0)
    online, target = network(), network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-4, fused=True)
    replay = Replay()

    def value_of_pressed(q, number):
        if fixed:
            return q.gather(1, replay.on_device[number, :, None])[:, 0]
        return torch.stack([q[row, button] for row, button in enumerate(replay.buttons[number])])  # fault

    def step(i):
        number = i % BATCHES
        with torch.no_grad():
            following = target(replay.screen(number, 1)).amax(1)
            wanted = replay.rewards[number] + DISCOUNT * following
        value = value_of_pressed(online(replay.screen(number, 0)), number)
        loss = F.smooth_l1_loss(value, wanted)
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
