"""Random weights under which a network behaves like a trained one: nothing explodes or dies, outputs vary with inputs.

Plain random weights make a deep network useless for checking numerics: activations explode or vanish, or all inputs
lead to the same output. Here one forward pass over a batch of data sets each layer right before the next one sees it:

* layer-sequential unit variance (Mishkin & Matas, "All you need is a good init", ICLR 2016): the weights of each
  convolution and linear layer are scaled until its output has unit root mean square;
* each output channel gets a chosen mean, through the bias where there is one, else through the weights' component
  along the mean input, so that ReLU blocks no channel for good;
* batch normalisation gets the mean and variance of its actual input, and a random affine part.

The means matter for numerics. With mean 0 before every ReLU, each layer enlarges the relative distance of two nearby
activations by about 1.2 (P(z > 0) / Var(relu(z)) = 1.47 in power), 10^4 times over 50 layers: rounding errors
would grow as they never do in a trained network. With mean 1.25 the factor is 1.04, and with residual branches of a
third of the trunk's scale float32 and bfloat16 errors come out as those of trained networks.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_WEIGHTED = (*_CONVOLUTIONS, *_TRANSPOSED, nn.Linear)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# mean and standard deviation of a layer's output where nothing else was asked for
_BEFORE_RELU = (1.25, 1.0)
_ZERO_MEAN = (0.0, 1.0)
_BRANCH_END = (0.0, 0.35)
_ANY_MEAN = (None, 1.0)


def calibrated(make: Callable[[], Any], batch: tuple[Tensor, ...], seed: int = 0) -> Any:
    """Build a network with `make`, give it seeded weights calibrated on `batch` and return it in eval mode, frozen.

    The caller's global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with torch.device("meta"):  # spares PyTorch's own initialisation, which takes longer than ours
            model = make()
        model = model.to_empty(device="cpu").eval().requires_grad_(False)
        _initialise(model)
        _fit(model, batch)
    return model


def branch_end(layer: Any) -> Any:
    """Mark the last layer of a residual branch: calibration gives its output mean 0 and a small standard deviation."""
    layer.calibration_target = _BRANCH_END
    return layer


def zero_mean(layer: Any, deviation: float = 1.0) -> Any:
    """Mark a layer whose output meets no ReLU: calibration gives it mean 0 and this standard deviation."""
    layer.calibration_target = (0.0, deviation)
    return layer


def classifier(layer: Any) -> Any:
    """Mark a classifier on pooled features: only its scale is set.

    Pooled features are mostly the same for all images; removing that part would leave logits with the rounding errors
    of the whole and the size of the difference.
    """
    layer.calibration_target = _ANY_MEAN
    return layer


def with_mean(weight: Tensor, mean_input: Tensor, groups: int, mean_output: float) -> Tensor:
    """`weight` (out, in / groups, *kernel) with its component along `mean_input` (in,) chosen so that every output
    channel has the mean `mean_output`.
    """
    grouped = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    mean = mean_input.reshape(groups, -1)
    excess = torch.einsum("goik,gi->go", grouped, mean) - mean_output
    step = mean / (grouped.shape[3] * mean.square().sum(1, keepdim=True))
    return (grouped - excess[:, :, None, None] * step[:, None, :, None]).reshape(weight.shape)


def _initialise(model: Any) -> None:
    for tensor in chain(model.parameters(), model.buffers()):
        tensor.zero_()
    for module in model.modules():
        if isinstance(module, _WEIGHTED):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, (*_BATCH_NORMS, nn.LayerNorm)):
            mean, deviation = _target(module)
            nn.init.uniform_(module.weight, 0.8 * deviation, 1.2 * deviation)
            nn.init.normal_(module.bias, mean or 0.0, 0.1)
        elif isinstance(module, nn.RMSNorm):
            nn.init.uniform_(module.weight, 0.8, 1.2)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
        elif isinstance(module, nn.RNNBase):  # of unit scale in, before its functions
            for name, weight in module.named_parameters():
                if name.startswith("weight"):
                    nn.init.normal_(weight, 0.0, weight.shape[1] ** -0.5)
                else:
                    nn.init.normal_(weight, 0.0, 0.1)


def _fit(model: Any, batch: tuple[Tensor, ...]) -> None:
    handles = [
        module.register_forward_pre_hook(_fit_batch_norm)
        if isinstance(module, _BATCH_NORMS)
        else module.register_forward_hook(_fit_weights)
        for module in model.modules()
        if isinstance(module, (*_WEIGHTED, *_BATCH_NORMS))
    ]
    try:
        with torch.no_grad():
            model(*batch)
    finally:
        for handle in handles:
            handle.remove()


def _target(module: Any) -> tuple[float | None, float]:
    default = _BEFORE_RELU if isinstance(module, (*_CONVOLUTIONS, *_BATCH_NORMS)) else _ZERO_MEAN
    chosen: tuple[float | None, float] = getattr(module, "calibration_target", default)
    return chosen


def _fit_weights(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Forward hook: give a layer's output its mean and deviation; returns what it computes with its new weights."""
    mean, deviation = _target(module)
    channels_last = isinstance(module, nn.Linear)
    if module.bias is not None:
        shift = torch.zeros(()) if mean is None else _channel_mean(output, channels_last)
        shaped = shift if channels_last or mean is None else shift.view(-1, *[1] * (output.dim() - 2))
        scale = deviation / (output - shaped).square().mean().sqrt()
        module.weight.mul_(scale)
        module.bias.copy_((mean or 0.0) - shift * scale + 0.1 * deviation * torch.randn_like(module.bias))
        return module.forward(*inputs)
    groups = 1 if channels_last else module.groups
    mean_input = _channel_mean(inputs[0], channels_last)
    # a depthwise weight has one input channel, which carries the whole signal; an input without a mean offers no handle
    has_mean = bool(mean_input.square().mean() > 0.2 * inputs[0].square().mean())
    adjustable = not isinstance(module, _TRANSPOSED) and module.weight.shape[1] > 1 and has_mean and mean is not None
    if adjustable:
        module.weight.copy_(with_mean(module.weight, mean_input, groups, 0.0))
        output = module.forward(*inputs)
    module.weight.mul_(deviation / output.square().mean().sqrt())
    if adjustable:
        module.weight.copy_(with_mean(module.weight, mean_input, groups, mean or 0.0))
    return module.forward(*inputs)


def _fit_batch_norm(module: Any, inputs: tuple[Tensor, ...]) -> None:
    axes = [axis for axis in range(inputs[0].dim()) if axis != 1]
    variance, mean = torch.var_mean(inputs[0], axes)
    module.running_mean.copy_(mean)
    module.running_var.copy_(variance)


def _channel_mean(tensor: Tensor, channels_last: bool) -> Tensor:
    channel = tensor.dim() - 1 if channels_last else 1
    return tensor.mean([axis for axis in range(tensor.dim()) if axis != channel])
