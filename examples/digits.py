"""The files that the examples of the manual use: a small trained classifier of hand-written digits, and samples of its inputs.

    python -m examples.digits [FOLDER]

Writes `digits.onnx` (input `image` float32 [batch, 1, 8, 8], output `scores` float32 [batch, 10]), `digits.npz` (one image),
`samples.npz` (300 images that the training has not seen, and their `labels`) and `digits.py` (what `bricolage train` names).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import torch

from examples.demo_train import digits


def train_classifier(epochs: int = 8, batch_size: int = 64) -> torch.nn.Module:
    """A convolutional network trained by Adam; the seed is fixed."""
    torch.manual_seed(0)
    network = digits.cnn(width=32)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    (images, targets), _ = digits.data()
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(batch_size):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(images[rows]), targets[rows]).backward()
            optimiser.step()
    return network.eval()


def write_files(folder: Path) -> None:
    """Writes the files into a folder that exists."""
    network = train_classifier()
    _, (images, labels) = digits.data()
    torch.onnx.export(
        network,
        (images[:2],),
        folder / "digits.onnx",
        dynamo=True,
        opset_version=18,
        input_names=["image"],
        output_names=["scores"],
        dynamic_shapes=({0: "batch"},),
        external_data=False,
        verbose=False,
    )
    np.savez(folder / "digits.npz", allow_pickle=False, image=images[:1].numpy())
    np.savez(folder / "samples.npz", allow_pickle=False, image=images[:300].numpy(), labels=labels[:300].numpy())
    shutil.copy(digits.__file__, folder / "digits.py")


if __name__ == "__main__":
    write_files(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
