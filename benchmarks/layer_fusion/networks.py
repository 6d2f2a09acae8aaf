"""The eight networks of Optimus, as layers for the model of memory traffic, and the machine that its authors put them on.

Dimensions are those of the networks' papers, in the variants that Optimus counts: no normalisations, no classifier in AlexNet, VGG
and ResNet-18, GoogLeNet without the pooling branch's pool, and depthwise convolutions without weights of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bricolage.search.layer_groups.layer_network import Layer, LayerNetwork
from bricolage.search.layer_groups.layer_price import MemoryLevels

OPTIMUS = MemoryLevels(words=65_536, buffer_cost=6.0, memory_cost=200.0, least_channels=32)
"""The authors' architecture of the overall experiment: 128 KiB of 16-bit words, 32 × 32 elements on columns × channels."""


class _Builder:
    def __init__(self, name: str, channels: int, size: int, batch: int) -> None:
        self._name, self._image, self._batch = name, channels * size * size, batch
        self._layers: list[Layer] = []
        self._channels: dict[str, int] = {"": channels}
        self.last = ""

    def conv(self, name: str, channels: int, size: int, window: int, stride: int = 1, reads: str | None = None) -> str:
        source = self.last if reads is None else reads
        return self._add(Layer(name, _named(source), self._channels[source], channels, size, window, stride))

    def local(
        self, name: str, size: int, window: int = 1, stride: int = 1, reads: Iterable[str] = (), joined: bool = False
    ) -> str:
        sources = tuple(reads) or (self.last,)
        channels = sum(self._channels[one] for one in sources) if joined else self._channels[sources[0]]
        return self._add(Layer(name, sources, channels, channels, size, window, stride, weighted=False))

    def _add(self, layer: Layer) -> str:
        self._layers.append(layer)
        self._channels[layer.name] = layer.channels
        self.last = layer.name
        return layer.name

    def done(self) -> LayerNetwork:
        return LayerNetwork(self._name, tuple(self._layers), self._image, self._batch)


def _named(source: str) -> tuple[str, ...]:
    return (source,) if source else ()


def alexnet(batch: int) -> LayerNetwork:
    """AlexNet in its two halves, without classifier (Krizhevsky et al., 2012)."""
    net = _Builder("alexnet", 3, 227, batch)

    def halves(add: Callable[[str], str]) -> None:
        add("a"), add("b")

    halves(lambda half: net.conv(f"conv1{half}", 48, 55, 11, 4, reads=""))
    halves(lambda half: net.local(f"pool1{half}", 27, 3, 2, reads=(f"conv1{half}",)))
    halves(lambda half: net.conv(f"conv2{half}", 128, 27, 5, reads=f"pool1{half}"))
    halves(lambda half: net.local(f"pool2{half}", 13, 3, 2, reads=(f"conv2{half}",)))
    net.local("join", 13, reads=("pool2a", "pool2b"), joined=True)
    halves(lambda half: net.conv(f"conv3{half}", 192, 13, 3, reads="join"))
    halves(lambda half: net.conv(f"conv4{half}", 192, 13, 3, reads=f"conv3{half}"))
    halves(lambda half: net.conv(f"conv5{half}", 128, 13, 3, reads=f"conv4{half}"))
    halves(lambda half: net.local(f"pool5{half}", 6, 3, 2, reads=(f"conv5{half}",)))
    return net.done()


def vgg(batch: int) -> LayerNetwork:
    """VGG-16 without classifier (Simonyan and Zisserman, 2014)."""
    net = _Builder("vgg", 3, 224, batch)
    size, number = 224, 0
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            number += 1
            net.conv(f"conv{number}", channels, size, 3)
        size //= 2
        net.local(f"pool{size}", size, 2, 2)
    return net.done()


_INCEPTIONS = {
    "3a": (28, 64, 96, 128, 16, 32, 32),
    "3b": (28, 128, 128, 192, 32, 96, 64),
    "4a": (14, 192, 96, 208, 16, 48, 64),
    "4b": (14, 160, 112, 224, 24, 64, 64),
    "4c": (14, 128, 128, 256, 24, 64, 64),
    "4d": (14, 112, 144, 288, 32, 64, 64),
    "4e": (14, 256, 160, 320, 32, 128, 128),
    "5a": (7, 256, 160, 320, 32, 128, 128),
    "5b": (7, 384, 192, 384, 48, 128, 128),
}


def googlenet(batch: int) -> LayerNetwork:
    """GoogLeNet (Szegedy et al., 2014)."""
    net = _Builder("googlenet", 3, 224, batch)
    net.conv("conv1", 64, 112, 7, 2)
    net.local("pool1", 56, 3, 2)
    net.conv("conv2a", 64, 56, 1)
    net.conv("conv2b", 192, 56, 3)
    source = net.local("pool2", 28, 3, 2)
    for name, (size, ones, before3, threes, before5, fives, pooled) in _INCEPTIONS.items():
        if name in ("4a", "5a"):
            source = net.local(f"pool{name}", size, 3, 2)
        first = net.conv(f"{name}/1", ones, size, 1, reads=source)
        net.conv(f"{name}/3r", before3, size, 1, reads=source)
        second = net.conv(f"{name}/3", threes, size, 3)
        net.conv(f"{name}/5r", before5, size, 1, reads=source)
        third = net.conv(f"{name}/5", fives, size, 5)
        fourth = net.conv(f"{name}/p", pooled, size, 1, reads=source)
        source = net.local(name, size, reads=(first, second, third, fourth), joined=True)
    net.local("pool5", 1, 7, 7)
    net.conv("fc", 1000, 1, 1)
    return net.done()


def mobilenet(batch: int) -> LayerNetwork:
    """MobileNet (Howard et al., 2017)."""
    net = _Builder("mobilenet", 3, 224, batch)
    net.conv("conv1", 32, 112, 3, 2)
    size = 112
    steps = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for number, (channels, stride) in enumerate(steps):
        size //= stride
        net.local(f"{number}/depthwise", size, 3, stride)
        net.conv(f"{number}/pointwise", channels, size, 1)
    net.local("pool", 1, 7, 7)
    net.conv("fc", 1000, 1, 1)
    return net.done()


def _resnet(name: str, blocks: tuple[int, ...], batch: int, wide: bool) -> LayerNetwork:
    net = _Builder(name, 3, 224, batch)
    net.conv("conv1", 64, 112, 7, 2)
    shortcut = net.local("pool1", 56, 3, 2)
    size = 56
    for stage, count in enumerate(blocks):
        inner = 64 << stage
        outer = 4 * inner if wide else inner
        for block in range(count):
            stride = 2 if stage and not block else 1
            size //= stride
            prefix = f"{stage}.{block}"
            if wide:
                net.conv(f"{prefix}/a", inner, size, 1, stride, reads=shortcut)
                net.conv(f"{prefix}/b", inner, size, 3)
                end = net.conv(f"{prefix}/c", outer, size, 1)
            else:
                net.conv(f"{prefix}/a", inner, size, 3, stride, reads=shortcut)
                end = net.conv(f"{prefix}/b", outer, size, 3)
            if not block:
                shortcut = net.conv(f"{prefix}/shortcut", outer, size, 1, stride, reads=shortcut)
            shortcut = net.local(f"{prefix}/sum", size, reads=(shortcut, end))
    net.local("pool5", 1, 7, 7)
    if wide:
        net.conv("fc", 1000, 1, 1)
    return net.done()


def squeezenet(batch: int) -> LayerNetwork:
    """SqueezeNet 1.0 (Iandola et al., 2016)."""
    net = _Builder("squeezenet", 3, 227, batch)
    net.conv("conv1", 96, 111, 7, 2)
    net.local("pool1", 55, 3, 2)
    size = 55
    for number, (squeezed, expanded) in enumerate(
        ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256)), 2
    ):
        if number in (5, 9):
            size //= 2
            net.local(f"pool{number}", size, 3, 2)
        source = net.conv(f"{number}/squeeze", squeezed, size, 1)
        first = net.conv(f"{number}/1", expanded, size, 1, reads=source)
        second = net.conv(f"{number}/3", expanded, size, 3, reads=source)
        net.local(f"{number}/join", size, reads=(first, second), joined=True)
    net.conv("conv10", 1000, size, 1)
    net.local("pool10", 1, 13, 13)
    return net.done()


NETWORKS: Mapping[str, Callable[[int], LayerNetwork]] = {
    "alexnet": alexnet,
    "vgg": vgg,
    "googlenet": googlenet,
    "mobilenet": mobilenet,
    "resnet18": lambda batch: _resnet("resnet18", (2, 2, 2, 2), batch, wide=False),
    "resnet50": lambda batch: _resnet("resnet50", (3, 4, 6, 3), batch, wide=True),
    "resnet152": lambda batch: _resnet("resnet152", (3, 8, 36, 3), batch, wide=True),
    "squeezenet": squeezenet,
}
