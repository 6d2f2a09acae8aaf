"""A training of a small torch network on scikit-learn's digits, by the contract of docs/manual/cluster-serve.md.

    python network_trainer.py NETWORK DIGITS SEED

NETWORK is one of `NETWORKS`, DIGITS a file of numpy with `images` (n, 8, 8) and `labels` (n). It runs as fast as its threads do,
one for each device of its gang. Each step draws its batch by its own number, so that a run that was interrupted ends like one that
was not. In the folder of its checkpoint it leaves what its steps took (`timing`) and its first and last loss (`losses`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

SAVED_EVERY_S = 2.0
_BATCH = 256


def perceptron() -> torch.nn.Module:
    """Three layers."""
    layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU()]
    return torch.nn.Sequential(torch.nn.Flatten(), *layers, torch.nn.Linear(512, 10))


def convolution() -> torch.nn.Module:
    """Two convolutions and a classifier."""
    layers = [
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
    ]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(32 * 64, 10))


class Attention(torch.nn.Module):
    """An encoder layer over the eight rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Linear(8, 64)
        self.encoder = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.classes = torch.nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, (n, 10), of images, (n, 1, 8, 8)."""
        logits: torch.Tensor = self.classes(self.encoder(self.rows(images[:, 0])).mean(dim=1))
        return logits


NETWORKS: Mapping[str, Callable[[], torch.nn.Module]] = {
    "perceptron": perceptron,
    "convolution": convolution,
    "attention": Attention,
}


class Training:
    """A network, its optimiser, and how many steps they have taken. The process trains on so many threads from now on."""

    def __init__(self, network: str, digits: Path, seed: int, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        self.seed, self.steps = seed, 0
        self.model = NETWORKS[network]()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        with np.load(digits) as content:
            self.images = torch.from_numpy(content["images"].astype(np.float32) / 16.0).unsqueeze(1)
            self.labels = torch.from_numpy(content["labels"].astype(np.int64))

    def step(self) -> float:
        """One step on its own batch. Returns the loss."""
        rows = np.random.default_rng((self.seed, self.steps)).integers(0, len(self.labels), _BATCH)
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(self.images[rows]), self.labels[rows])
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return float(loss.detach())

    def save(self, folder: Path) -> None:
        """The checkpoint, then what it holds."""
        partial = folder / f"{os.getpid()}.pt"
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "steps": self.steps}
        torch.save(state, partial)
        partial.replace(folder / "training.pt")
        put(folder / "steps", str(self.steps))

    def restore(self, folder: Path) -> None:
        """From the checkpoint, where there is one."""
        if (folder / "training.pt").exists():
            state = torch.load(folder / "training.pt", weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.steps = int(state["steps"])


def put(path: Path, text: str) -> None:
    """A small file, whole."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def train(network: str, digits: Path, seed: int) -> None:
    """As the environment says."""
    folder, progress = Path(os.environ["BRICOLAGE_CHECKPOINT"]), Path(os.environ["BRICOLAGE_PROGRESS"])
    wanted = int(os.environ["BRICOLAGE_STEPS"])
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    training = Training(network, digits, seed, int(os.environ["BRICOLAGE_GANG"]))
    training.restore(folder)
    put(progress, str(training.steps))
    begin, first, losses = time.monotonic(), training.steps, list[float]()
    reported = saved = begin
    while training.steps < wanted and not asked:
        losses.append(training.step())
        now = time.monotonic()
        if now > reported + 0.5:
            reported = now
            put(progress, str(training.steps))
        if now > saved + SAVED_EVERY_S:
            training.save(folder)
            saved = time.monotonic()
    seconds = time.monotonic() - begin
    training.save(folder)
    put(folder / "timing", json.dumps({"steps": training.steps - first, "seconds": seconds}))
    put(folder / "losses", json.dumps([losses[0], losses[-1]] if losses else []))


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
