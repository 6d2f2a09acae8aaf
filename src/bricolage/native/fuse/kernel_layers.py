"""The kernels of a plan as layers for the model of memory traffic (`search.layer_groups`), and as groups of such layers.

A convolution of images or a product with constant weights is a layer with weights; a window over images (a pooling, a depthwise
convolution) passes rows; an element-wise function of several stored tensors is an element-wise layer. Everything else (attention,
softmax, normalisation, gathers, products of two tensors, volumes) is a layer apart: it moves what it reads and stores. What a
kernel's epilogue reads in addition to its root's result makes one element-wise layer more, and so does each further result that it
stores. So a plan is a partition of these layers, and what a search finds can be compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bricolage.native.fuse.kernel_plan import Buffer, FusionPlan, PlannedKernel, kernel_nodes
from bricolage.native.fuse.memory_cost import NANOSECONDS_PER_BYTE
from bricolage.native.ir.tensors import Constant, Conv, MatMul, Node, Reduce, View
from bricolage.search.layer_groups.layer_network import Layer, LayerNetwork
from bricolage.search.layer_groups.layer_price import MemoryLevels
from bricolage.work.bits import of

WORD_BYTES = 4
"""Of the words that layers count: float32."""


def buffer_levels(l2_bytes: int, lanes: int) -> MemoryLevels:
    """A core's second-level cache before the memory: words are float32, costs nanoseconds by the figures of `memory_cost`."""
    second, memory = NANOSECONDS_PER_BYTE["second level"], NANOSECONDS_PER_BYTE["memory"]
    return MemoryLevels(
        l2_bytes // WORD_BYTES, WORD_BYTES * second, WORD_BYTES * memory, least_channels=lanes, passing_free=False
    )


def kernel_layers(plan: FusionPlan) -> tuple[LayerNetwork, tuple[int, ...]]:
    """The layers of a plan, and by kernel the set of its layers, in the order in which they run."""
    layers = _Layers(plan)
    groups = tuple(layers.add_kernel(number, kernel) for number, kernel in enumerate(plan.kernels))
    return LayerNetwork("kernels", tuple(layers.layers), 0, layers.batch), groups


@dataclass(frozen=True)
class _Rows:
    """What a kernel's root is to the model: numbers of `Layer`, and what it reads its rows from."""

    channels_in: int
    channels: int
    size: int
    columns: int
    reads: Node
    window: int = 1
    stride: int = 1
    weighted: bool = True
    taps: int = 1
    groups: int = 1


@dataclass
class _Layers:
    """Layers so far, and which of them stored each buffer."""

    plan: FusionPlan
    layers: list[Layer] = field(default_factory=list)
    writers: dict[Buffer, str] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Images that pass together: those of the first convolution."""
        roots = (kernel.root for kernel in self.plan.kernels)
        return next((root.shape[0] for root in roots if isinstance(root, Conv) and len(root.shape) == 4), 1)

    def add_kernel(self, number: int, kernel: PlannedKernel) -> int:
        """The set of a kernel's layers, which are added."""
        begin, name = len(self.layers), f"kernel_{number}"
        inside, reads = kernel_nodes(kernel, self.plan)
        rows = _rows_of(kernel, self.batch)
        elements = -(-kernel.result.elements // self.batch)
        if rows is None or rows.channels * rows.size * rows.columns != elements:
            constants = sum(node.nbytes for node in inside if isinstance(node, Constant)) // WORD_BYTES
            names, given = self._sources(reads)
            self._add(Layer(name, names, 1, elements, 1, weighted=False, apart=constants, barred=names, given=given))
        else:
            self._add_rows(name, rows, kernel, reads)
        self.writers[kernel.target] = self.layers[-1].name
        for extra, (_, buffer) in enumerate(kernel.secondary_outputs):
            self._add_elementwise(f"{name}_output_{extra + 1}", (), 0)
            self.writers[buffer] = self.layers[-1].name
        return of(range(begin, len(self.layers)))

    def _add_rows(self, name: str, rows: _Rows, kernel: PlannedKernel, reads: Sequence[Buffer]) -> None:
        passing = _buffers_below(rows.reads, kernel, self.plan)
        names, given = self._sources(passing)
        sources = [self._layer(source) for source in names]
        channels = [source.channels for source in sources]
        fitting = sum(channels) == rows.channels_in or set(channels) == {rows.channels_in}
        barred = tuple(source.name for source in sources if not (fitting and _passes_rows(source, rows)))
        self._add(
            Layer(
                name,
                names,
                rows.channels_in,
                rows.channels,
                rows.size,
                window=rows.window,
                stride=rows.stride,
                weighted=rows.weighted,
                columns=rows.columns,
                taps=rows.taps,
                groups=rows.groups,
                barred=barred,
                given=given,
            )
        )
        others, given = self._sources([buffer for buffer in reads if buffer not in passing])
        others = tuple(other for other in others if other not in names)
        if others or given:
            self._add_elementwise(f"{name}_sum", others, given)

    def _add_elementwise(self, name: str, others: tuple[str, ...], given: int) -> None:
        """A layer that reads the last one, and others element by element; those of another size are no rows of it."""
        last = self.layers[-1]
        barred = tuple(
            other
            for other in others
            if (self._layer(other).channels, self._layer(other).pixels) != (last.channels, last.pixels)
        )
        self._add(
            Layer(
                name,
                (last.name, *others),
                last.channels,
                last.channels,
                last.size,
                weighted=False,
                columns=last.width,
                barred=barred,
                given=given,
            )
        )

    def _add(self, layer: Layer) -> None:
        self.layers.append(layer)

    def _layer(self, name: str) -> Layer:
        return next(layer for layer in reversed(self.layers) if layer.name == name)

    def _sources(self, reads: Iterable[Buffer]) -> tuple[tuple[str, ...], int]:
        """The layers that store these buffers, and the words of one image in buffers that none stores."""
        names: dict[str, None] = {}
        given = 0
        for buffer in reads:
            stored = [self.writers[buffer]] if buffer in self.writers else self._overlapping(buffer)
            names.update(dict.fromkeys(stored))
            if not stored:
                given += -(-_elements(buffer) // self.batch)
        return tuple(names), given

    def _overlapping(self, buffer: Buffer) -> list[str]:
        """The layers that stored parts of a buffer."""
        first, last = buffer.extent
        return [
            name
            for stored, name in self.writers.items()
            if stored.storage == buffer.storage and stored.extent[0] < last and first < stored.extent[1]
        ]


def _elements(buffer: Buffer) -> int:
    elements = 1
    for extent in buffer.shape:
        elements *= extent
    return elements


def _passes_rows(source: Layer, rows: _Rows) -> bool:
    """Whether rows of a source are the rows that are read, but for a border as wide as a window."""
    if source.apart is not None:
        return False
    tall, wide = source.size - rows.size * rows.stride, source.width - rows.columns * rows.stride
    return abs(tall) <= rows.window and abs(wide) <= max(rows.window, rows.stride)


def _rows_of(kernel: PlannedKernel, batch: int) -> _Rows | None:
    """A kernel's root in the model's terms; None of what has none."""
    root, producer = kernel.root, kernel.fused_producer
    if producer is not None:
        return _separable(root, producer[0]) if isinstance(root, Conv) else None
    match root:
        case Conv():
            return _convolution(root)
        case MatMul() if isinstance(root.right, Constant):
            count = root.elements // root.shape[-1]
            size, rest = divmod(count, batch)
            return None if rest else _Rows(root.depth, root.shape[-1], size, 1, root.left)
        case Reduce():
            return _window(root, kernel)
        case None if len(kernel.result.shape) == 4:
            _, channels, size, columns = kernel.result.shape
            return _Rows(channels, channels, size, columns, kernel.result, weighted=False)
    return None


def _convolution(root: Conv) -> _Rows | None:
    if len(root.shape) != 4 or root.strides[0] != root.strides[1] or not isinstance(root.weight, Constant):
        return None
    _, channels, size, columns = root.shape
    height, width = root.weight.shape[2:]
    window = (height - 1) * root.dilations[0] + 1
    if root.depthwise:  # its weights are few, and the model of the paper leaves them out
        return _Rows(channels, channels, size, columns, root.source, window, root.strides[0], weighted=False)
    channels_in, stride = root.source.shape[1], root.strides[0]
    taps, groups = height * width, root.groups
    return _Rows(channels_in, channels, size, columns, root.source, window, stride, taps=taps, groups=groups)


def _separable(root: Conv, producer: Node) -> _Rows | None:
    """A grouped convolution and the pointwise one behind it: a layer with the weights of the second and the window of the first."""
    if not isinstance(producer, Conv) or len(root.shape) != 4 or producer.strides[0] != producer.strides[1]:
        return None
    _, channels, size, columns = root.shape
    window = (producer.weight.shape[2] - 1) * producer.dilations[0] + 1
    channels_in = producer.source.shape[1]
    return _Rows(channels_in, channels, size, columns, producer.source, window, producer.strides[0])


def _window(root: Reduce, kernel: PlannedKernel) -> _Rows | None:
    """A pooling: its source is a view of windows, or an image whose rows and columns vanish."""
    if len(kernel.result.shape) != 4:
        return None
    _, channels, size, columns = kernel.result.shape
    if root.axes == (2, 3) and len(root.source.shape) == 4:
        height = root.source.shape[2]
        return _Rows(channels, channels, 1, 1, root.source, height, height, weighted=False)
    if root.axes != (4, 5) or not isinstance(root.source, View) or len(root.source.source.shape) != 4:
        return None
    image = root.source.source
    window = root.source.shape[4]
    stride = max(1, round(image.shape[2] / size))
    return _Rows(image.shape[1], channels, size, columns, image, window, stride, weighted=False)


def _buffers_below(node: Node, kernel: PlannedKernel, plan: FusionPlan) -> list[Buffer]:
    """Buffers that a node of a kernel is computed from, or its own where another kernel stored it."""
    buffers: dict[Buffer, None] = {}
    todo, seen = [node], {node}
    while todo:
        below = todo.pop()
        buffer = plan.buffers.get(below)
        if buffer is not None and buffer not in kernel.targets:
            buffers.setdefault(buffer)
            continue
        fresh = [source for source in below.sources if source not in seen]
        seen.update(fresh)
        todo.extend(fresh)
    return list(buffers)
