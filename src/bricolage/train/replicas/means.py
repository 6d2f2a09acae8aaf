"""Whether the mean of workers' gradients is the gradient of their batches together.

It is where a loss is a mean over samples. A loss that divides by something else that it counts (words that are no padding, the sum
of weights of classes) has another divisor on each worker, and the mean of such means is not the mean over all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bricolage.train.replicas.replica_spec import Replicas
from bricolage.train.replicas.replica_worker import Share
from bricolage.train.step.data import Samples, read_data
from bricolage.train.step.evaluate import loss_value
from bricolage.train.step.step import build, find_loss, users_code

if TYPE_CHECKING:
    import torch

_STEPS = 3
"""Of which the batches are looked at: by chance two of them count the same."""
ROUNDING = 1e-3
"""Below it, the difference is one of sums in another order."""


def mean_of_means_error(replicas: Replicas, seed: int) -> float:
    """How far the mean of the workers' gradients is from the gradient of their batches together, relative in norm, at the weights
    that training begins with and the most over the first steps. The module is in evaluation mode: what random numbers and
    statistics of batches make different is not counted.

    Raises:
        MissingLibrary, BadTrainingCode: as `train_replicas` does.
    """
    import torch

    step = build(replace(replicas.step, seed=seed))
    module, loss = step.module.eval(), find_loss(replicas.step.loss, replicas.step.folder)
    data = read_data(replicas.step, replicas.data).train
    assert data is not None
    shares = [Share(data, rank, replicas.workers, seed) for rank in range(replicas.workers)]
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def gradient(batch: Samples) -> torch.Tensor:
        with users_code(replicas.step.module):
            value = loss_value(loss(module(*batch.inputs), *batch.targets), replicas.step.loss)
            gradients = torch.autograd.grad(value, trained, allow_unused=True)
        parts = [
            torch.zeros_like(weight) if grad is None else grad for weight, grad in zip(trained, gradients, strict=True)
        ]
        return torch.cat([part.reshape(-1) for part in parts])

    most = 0.0
    for _ in range(_STEPS):
        batches = [share.next(replicas.step.batch_size) for share in shares]
        inputs, targets = (
            tuple(torch.cat(parts) for parts in zip(*batch_tensors, strict=True))
            for batch_tensors in ([samples.inputs for samples in batches], [samples.targets for samples in batches])
        )
        whole = gradient(Samples(inputs, targets))
        mean = torch.stack([gradient(samples) for samples in batches]).mean(0)
        norm = float(whole.norm())
        if norm:
            most = max(most, float((mean - whole).norm()) / norm)
    return most
