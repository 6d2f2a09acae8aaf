"""The networks of Gavel's seven kinds of jobs, as PyTorch modules of the sizes that its commands train, so that their steps can be
traced. Weights are random; nothing is run.

| kind | network | data |
|---|---|---|
| ResNet-18 | He et al.'s basic blocks, 64 to 512 channels | CIFAR-10, 32 x 32 |
| ResNet-50 | bottleneck blocks | ImageNet, 224 x 224 |
| Transformer | six layers each side, 512 wide | Multi30k, sentences of 30 tokens |
| LM | two layers of LSTM, 200 wide | WikiText-2, 33,278 words, 35 tokens |
| Recommendation | an autoencoder, 200 wide | MovieLens 20M, 20,108 films |
| A3C | four convolutions and an LSTM cell, twenty frames | Pong, 42 x 42 |
| CycleGAN | a generator of nine blocks | photographs, 256 x 256 |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

from bricolage.frontends.torch_training import trace_step
from bricolage.train.predict.variant import Variant
from bricolage.train.predict.variant_step import Running
from bricolage.train.step.spec import Optimiser
from bricolage.train.step.step import TrainingStep
from bricolage.work.training_step import StepGraph

_KIND = re.compile(r"(.*) \(batch size (\d+)\)")
_WORDS, _FILMS = 33_278, 20_108


def _conv(inner: int, outer: int, size: int, stride: int = 1, act: bool = True) -> nn.Sequential:
    layers = [nn.Conv2d(inner, outer, size, stride, size // 2, bias=False), nn.BatchNorm2d(outer)]
    return nn.Sequential(*layers, *([nn.ReLU()] if act else []))


class Block(nn.Module):
    """Convolutions, and their input added."""

    def __init__(self, inner: int, middle: int, outer: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        if bottleneck:
            parts = [_conv(inner, middle, 1), _conv(middle, middle, 3, stride), _conv(middle, outer, 1, act=False)]
        else:
            parts = [_conv(inner, middle, 3, stride), _conv(middle, outer, 3, act=False)]
        self.body = nn.Sequential(*parts)
        same = stride == 1 and inner == outer
        self.short = nn.Identity() if same else _conv(inner, outer, 1, stride, act=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, inner, H, W] to [N, outer, H / stride, W / stride]."""
        return torch.relu(self.body(x) + self.short(x))


def _resnet(stem: list[nn.Module], counts: tuple[int, ...], widen: int, classes: int) -> nn.Module:
    layers, inner = stem, 64
    for stage, count in enumerate(counts):
        middle = 64 << stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            layers.append(Block(inner, middle, widen * middle, stride, widen > 1))
            inner = widen * middle
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, classes))


class Translator(nn.Module):
    """Attention is all you need, base size, scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9000, 512)
        self.body = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
        self.out = nn.Linear(512, 9000)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """[N, 30] twice to [N, 9000, 30]."""
        scores: torch.Tensor = self.out(self.body(self.words(source), self.words(target)))
        return scores.transpose(1, 2)


class LanguageModel(nn.Module):
    """PyTorch's example of word language models."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, 200)
        self.lstm = nn.LSTM(200, 200, 2, batch_first=True)
        self.out = nn.Linear(200, _WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[N, 35] to [N, words, 35]."""
        scores: torch.Tensor = self.out(self.lstm(self.words(tokens))[0])
        return scores.transpose(1, 2)


class Player(nn.Module):
    """A3C's network over twenty frames of one game."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (1, 32, 32, 32, 32)
        self.eyes = nn.Sequential(*(part for a, b in pairwise(sizes) for part in (nn.Conv2d(a, b, 3, 2, 1), nn.ELU())))
        self.cell = nn.LSTMCell(288, 256)
        self.act, self.value = nn.Linear(256, 6), nn.Linear(256, 1)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """[20, 1, 42, 42] to [20, 7]."""
        state, found = None, []
        for frame in frames.unbind():
            state = self.cell(self.eyes(frame[None]).flatten(1), state)
            found.append(torch.cat([self.act(state[0]), self.value(state[0])], 1))
        return torch.cat(found)


def _painter() -> nn.Module:
    down = [_conv(3, 64, 7), _conv(64, 128, 3, 2), _conv(128, 256, 3, 2)]
    up: list[nn.Module] = []
    for inner, outer in ((256, 128), (128, 64)):
        up += [nn.Upsample(scale_factor=2), _conv(inner, outer, 3)]
    blocks = [Block(256, 256, 256, 1, False) for _ in range(9)]
    # Both directions are trained, and each makes three images a step.
    return nn.Sequential(*down, *blocks, *up, nn.Conv2d(64, 3, 7, 1, 3), nn.Tanh())


def _random(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def _whole(most: int, *shape: int) -> torch.Tensor:
    return torch.randint(most, shape)


def _step(kind: str, size: int) -> tuple[nn.Module, list[torch.Tensor], torch.Tensor, Callable[..., torch.Tensor]]:
    entropy, square = nn.functional.cross_entropy, nn.functional.mse_loss
    if kind == "ResNet-18":
        return _resnet([_conv(3, 64, 3)], (2, 2, 2, 2), 1, 10), [_random(size, 3, 32, 32)], _whole(10, size), entropy
    if kind == "ResNet-50":
        stem: list[nn.Module] = [_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
        return _resnet(stem, (3, 4, 6, 3), 4, 1000), [_random(size, 3, 224, 224)], _whole(1000, size), entropy
    if kind == "Transformer":
        tokens = _whole(9000, size, 30)
        return Translator(), [tokens, tokens], tokens, entropy
    if kind == "LM":
        return LanguageModel(), [_whole(_WORDS, size, 35)], _whole(_WORDS, size, 35), entropy
    if kind == "Recommendation":
        layers = nn.Sequential(nn.Linear(_FILMS, 200), nn.Tanh(), nn.Linear(200, _FILMS))
        return layers, [_random(size, _FILMS)], _random(size, _FILMS), square
    if kind == "A3C":
        return Player(), [_random(20, 1, 42, 42)], _random(20, 7), square
    return _painter(), [_random(6, 3, 256, 256)], _random(6, 3, 256, 256), square


def traced(kind: str) -> StepGraph:
    """The operators of a step of a kind of jobs, by its name: "ResNet-18 (batch size 16)"."""
    match = _KIND.fullmatch(kind)
    name, size = (match[1], int(match[2])) if match else (kind, 1)
    module, inputs, target, loss = _step(name, size)
    step = TrainingStep(module.train(), loss, tuple(inputs), (target,), Optimiser("adam"))

    def start(module: nn.Module, tensors: list[torch.Tensor]) -> tuple[Running, object]:
        running = Running(module, tensors, step, Variant())
        return running, running.lasting

    return trace_step(module, [*inputs, target], start)  # type: ignore[arg-type]
