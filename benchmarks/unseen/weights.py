"""Random weights for networks of other people's making, so that nothing in them is constant, explodes or dies.

Libraries begin with zeros at the ends of branches, ones in normalisation and 1e-5 in scales of layers. Training changes these
values. Left as they are, whole branches add nothing to the answer, and a rewriter may remove them. Here they are drawn, each
convolution and linear layer is scaled until its output has unit root mean square (Mishkin & Matas, "All you need is a good
init", ICLR 2016), and batch normalisation gets the statistics of what it sees, as in `benchmarks.workloads.calibrate`, which
asks for marks in the network's own code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

_WEIGHTED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.Linear)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_LAYER_SCALE = 0.01
"""Constants up to this one are scales at the ends of branches."""
_LEAST_VARIANCE = 0.05
"""Of a channel, as a share of the mean over the channels: few places say little about a channel."""


def seeded(make: Callable[[], Any], batch: tuple[Tensor, ...], seed: int = 0) -> Any:
    """The network that `make` returns, with weights drawn from `seed` and fitted to `batch`, in eval mode, frozen.

    The caller's global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make().float().eval().requires_grad_(False)
        for module in list(model.modules()):
            _fold_weight_norm(module)
        for module in model.modules():
            _draw_constants(module)
        _fit(model, batch)
    return model


def _fold_weight_norm(module: Any) -> None:
    """Weights that are computed of others become weights, as they do before a network is shipped."""
    if parametrize.is_parametrized(module):
        for name in [name for name, _ in module.parametrizations.named_children()]:
            parametrize.remove_parametrizations(module, name)
            getattr(module, name).requires_grad_(False)


def _draw_constants(module: nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        first = parameter.flatten()[0].item()
        if not parameter.is_floating_point() or not bool((parameter == first).all()):
            continue
        if first == 0.0 and parameter.numel() == 1:
            nn.init.constant_(parameter, 0.3)  # the gain of a branch
        elif first == 0.0:
            nn.init.normal_(parameter, 0.0, 0.1)
        elif abs(first) <= _LAYER_SCALE:
            nn.init.uniform_(parameter, 0.1, 0.3)
        elif parameter.numel() > 1:
            parameter.mul_(torch.empty_like(parameter).uniform_(0.8, 1.2))
    if isinstance(module, _BATCH_NORMS) and module.affine:
        nn.init.uniform_(module.weight, 0.8, 1.2)
        nn.init.normal_(module.bias, 0.5, 0.1)  # most channels pass a ReLU, as in trained networks


def _fit(model: nn.Module, batch: tuple[Tensor, ...]) -> None:
    fitted = set[int]()  # a layer that is called several times has the weights of its first call

    def fit_weights(module: Any, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> Tensor:
        if id(module) not in fitted:
            fitted.add(id(module))
            size = output.square().mean().sqrt()
            if size > 0.0:
                module.weight.mul_(1.0 / size)
        adapted: Tensor = module.forward(*inputs, **named)
        return adapted

    handles = [
        module.register_forward_pre_hook(_fit_batch_norm)
        if isinstance(module, _BATCH_NORMS)
        else module.register_forward_hook(fit_weights, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, (*_WEIGHTED, *_BATCH_NORMS))
    ]
    try:
        with torch.no_grad():
            model(*batch)
    finally:
        for handle in handles:
            handle.remove()


def _fit_batch_norm(module: Any, inputs: tuple[Tensor, ...]) -> None:
    axes = [axis for axis in range(inputs[0].dim()) if axis != 1]
    variance, mean = torch.var_mean(inputs[0], axes, correction=0)
    module.running_mean.copy_(mean)
    module.running_var.copy_(torch.maximum(variance, _LEAST_VARIANCE * variance.mean()))
