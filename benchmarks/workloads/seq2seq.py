"""Sequence to sequence with attention: an encoder, one step of the decoder, and both in the loop that translates.

Bahdanau, Cho & Bengio, "Neural Machine Translation by Jointly Learning to Align and Translate", ICLR 2015: a bidirectional
encoder of gated recurrent units, additive attention over its states, and a decoder that reads its own last word. The loop is
greedy: it chooses the likeliest word, a fixed number of times, and keeps to the end-of-sentence word once it came.
"""

import tempfile
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads.calibrate import calibrated, zero_mean
from benchmarks.workloads.inputs import normal, tokens

VOCABULARY, EMBEDDING, UNITS = 8000, 256, 512
SOURCE, TARGET = 32, 24
"""Words of the sentence that is read, and of the one that is written."""
BEGIN, END = 1, 2
_OPSET = 17
_SEED = 1_000_003


class Encoder(nn.Module):
    """Words (batch, source) to states (batch, source, 2·units) and the decoder's first state (1, batch, units)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, EMBEDDING)
        self.units = nn.GRU(EMBEDDING, UNITS, batch_first=True, bidirectional=True)
        self.bridge = zero_mean(nn.Linear(UNITS, UNITS))

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        states, last = self.units(self.words(source))
        return states, torch.tanh(self.bridge(last[1:]))


class Step(nn.Module):
    """The last word (batch, 1), the state (1, batch, units) and the encoder's states to scores of the next word (batch,
    vocabulary) and the next state."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, EMBEDDING)
        self.of_state = zero_mean(nn.Linear(UNITS, UNITS, bias=False))
        self.of_source = zero_mean(nn.Linear(2 * UNITS, UNITS))
        self.energy = zero_mean(nn.Linear(UNITS, 1, bias=False))
        self.units = nn.GRU(EMBEDDING + 2 * UNITS, UNITS, batch_first=True)
        self.head = zero_mean(nn.Linear(UNITS + 2 * UNITS + EMBEDDING, VOCABULARY), 2.0)

    def forward(self, word: Tensor, state: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self.words(word)
        query = self.of_state(state.transpose(0, 1))
        scores = self.energy(torch.tanh(query + self.of_source(states)))
        context = functional.softmax(scores, 1).transpose(1, 2) @ states
        output, state = self.units(torch.cat((embedded, context), 2), state)
        return self.head(torch.cat((output, context, embedded), 2))[:, 0], state


class Translator(nn.Module):
    """Words (1, source) to words (1, target)."""

    def __init__(self, encoder: Any, step: Any) -> None:
        super().__init__()
        self.encoder, self.step = encoder, step

    def forward(self, source: Tensor) -> Tensor:
        states, state = self.encoder(source)
        word, written = torch.full((1, 1), BEGIN), []
        for _ in range(TARGET):
            scores, state = self.step(word, state, states)
            word = torch.where(word == END, END, scores.argmax(1, keepdim=True))
            written.append(word)
        return torch.cat(written, 1)


def encoder() -> Any:
    """The encoder alone."""
    return calibrated(Encoder, (torch.from_numpy(tokens((4, SOURCE), _SEED, VOCABULARY)),))


def step() -> Any:
    """One step of the decoder."""
    words = torch.from_numpy(tokens((4, 1), _SEED + 1, VOCABULARY))
    state, states = (
        torch.from_numpy(normal(shape, _SEED + 2)) * 0.4 for shape in ((1, 4, UNITS), (4, SOURCE, 2 * UNITS))
    )
    return calibrated(Step, (words, state, states))


def translator() -> Any:
    """Everything, with the loop."""
    return Translator(encoder(), step()).eval()


def write_encoder(path: Path) -> None:
    """As older tools export it: the recurrent layer is one operator."""
    _export(encoder(), (torch.zeros((1, SOURCE), dtype=torch.int64),), ["source"], ["states", "state"], path)


def write_step(path: Path) -> None:
    """One step of the decoder, exported in the same way."""
    examples = (torch.zeros((1, 1), dtype=torch.int64), torch.zeros(1, 1, UNITS), torch.zeros(1, SOURCE, 2 * UNITS))
    _export(step(), examples, ["word", "state", "states"], ["scores", "next_state"], path)


def write_translator(path: Path) -> None:
    """The encoder, and an ONNX `Loop` whose body is the decoder's step with the choice of the next word."""
    with tempfile.TemporaryDirectory() as folder:
        parts = [Path(folder) / name for name in ("encoder.onnx", "step.onnx")]
        write_encoder(parts[0])
        write_step(parts[1])
        first, second = (
            onnx.compose.add_prefix(onnx.load(part), prefix) for part, prefix in zip(parts, ("e_", "s_"), strict=True)
        )
    weights = [*first.graph.initializer, *second.graph.initializer]
    weights += [
        helper.make_tensor("begin", TensorProto.INT64, [1, 1], [BEGIN]),
        helper.make_tensor("end", TensorProto.INT64, [1, 1], [END]),
        helper.make_tensor("count", TensorProto.INT64, [], [TARGET]),
        helper.make_tensor("go", TensorProto.BOOL, [], [True]),
        helper.make_tensor("first_axis", TensorProto.INT64, [1], [0]),
    ]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["e_states"], ["s_states"]),
            *second.graph.node,
            helper.make_node("ArgMax", ["s_scores"], ["likeliest"], axis=1, keepdims=1),
            helper.make_node("Equal", ["s_word", "end"], ["ended"]),
            helper.make_node("Where", ["ended", "end", "likeliest"], ["next_word"]),
            helper.make_node("Squeeze", ["next_word", "first_axis"], ["written"]),
            helper.make_node("Identity", ["going"], ["still_going"]),
        ],
        "one_word",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s_word", TensorProto.INT64, [1, 1]),
            helper.make_tensor_value_info("s_state", TensorProto.FLOAT, [1, 1, UNITS]),
        ],
        [
            helper.make_tensor_value_info("still_going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next_word", TensorProto.INT64, [1, 1]),
            helper.make_tensor_value_info("s_next_state", TensorProto.FLOAT, [1, 1, UNITS]),
            helper.make_tensor_value_info("written", TensorProto.INT64, [1]),
        ],
    )
    loop = helper.make_node(
        "Loop", ["count", "go", "begin", "e_state"], ["last_word", "last_state", "columns"], body=body, name="loop"
    )
    graph = helper.make_graph(
        [*first.graph.node, loop, helper.make_node("Transpose", ["columns"], ["target"], perm=[1, 0])],
        "translator",
        [helper.make_tensor_value_info("source", TensorProto.INT64, [1, SOURCE])],
        [helper.make_tensor_value_info("target", TensorProto.INT64, [1, TARGET])],
        initializer=weights,
    )
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == "e_source":
                node.input[place] = "source"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _export(module: Any, examples: tuple[Tensor, ...], inputs: list[str], outputs: list[str], path: Path) -> None:
    with torch.no_grad():
        torch.onnx.export(
            module, examples, path, input_names=inputs, output_names=outputs, opset_version=_OPSET, dynamo=False
        )
