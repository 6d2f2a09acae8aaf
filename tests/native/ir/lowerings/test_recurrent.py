"""RNN, GRU and LSTM in all that ONNX lets them do, against float64, and against ONNX Runtime, which shares no equation with us."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import Native
from bricolage.errors import Refused
from bricolage.graph.inference import infer
from bricolage.native.fuse.fusion import plan
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.ir.lowerings.recurrent import LONGEST_SCAN
from bricolage.native.module import generate
from bricolage.verify.reference import evaluate
from tests.backends import regions
from tests.native.targets import FUSION, cpu_target

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
ACTIVATIONS = ("Sigmoid", "Tanh", "Relu", "HardSigmoid", "Softsign", "Softplus", "Elu", "LeakyRelu", "ThresholdedRelu")


@dataclass(frozen=True)
class Cell:
    """One recurrent operator; what is None or False is left out."""

    kind: str = "LSTM"
    steps: int = 5
    batch: int = 2
    inputs: int = 7
    hidden: int = 9
    direction: str = "forward"
    layout: int = 0
    activations: tuple[str, ...] = ()
    clip: float | None = None
    bias: bool = True
    lengths: tuple[int, ...] | None = None
    computed_lengths: bool = False
    states: bool = False
    peepholes: bool = False
    linear_before_reset: int = 0
    input_forget: int = 0
    backwards: tuple[str, ...] = ()
    """Activations of the second direction, where they are not those of the first."""

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def attributes(self) -> str:
        found = [f"hidden_size = {self.hidden}", f'direction = "{self.direction}"']
        if self.layout:
            found.append(f"layout = {self.layout}")
        if self.activations:
            second = (self.backwards or self.activations) if self.directions == 2 else ()
            names = ", ".join(f'"{name}"' for name in (*self.activations, *second))
            found.append(f"activations = [{names}]")
        if self.clip is not None:
            found.append(f"clip = {self.clip}")
        if self.kind == "GRU":
            found.append(f"linear_before_reset = {self.linear_before_reset}")
        if self.kind == "LSTM":
            found.append(f"input_forget = {self.input_forget}")
        return ", ".join(found)

    def write(self, folder: Path) -> tuple[RegionModel, list[np.ndarray]]:
        """The region, and values of its inputs."""
        d, b, h, gates = self.directions, self.batch, self.hidden, GATES[self.kind]
        constants = {
            "w": regions.noise(d, gates * h, self.inputs, seed=1),
            "r": regions.noise(d, gates * h, h, seed=2) / np.float32(h**0.5),
        }
        values = [regions.noise(*(b, self.steps) if self.layout else (self.steps, b), self.inputs)]
        declared = [_declared("float", values[0].shape, "x")]
        names = ["x", "w", "r", "", "", "", "", ""]
        if self.bias:
            constants["b"], names[3] = regions.noise(d, 2 * gates * h, seed=3), "b"
        if self.lengths is not None:
            lengths, names[4] = np.int32(self.lengths), "l"
            if self.computed_lengths:
                values.append(lengths)
                declared.append(_declared("int32", lengths.shape, "l"))
            else:
                constants["l"] = lengths
        for place, name in ((5, "h"), (6, "c"))[: 2 if self.kind == "LSTM" else 1] if self.states else ():
            values.append(regions.noise(*(b, d) if self.layout else (d, b), h, seed=place))
            declared.append(_declared("float", values[-1].shape, name))
            names[place] = name
        if self.peepholes:
            constants["p"], names[7] = regions.noise(d, 3 * h, seed=7), "p"
        while not names[-1]:
            names.pop()
        ends = ["y", "yh", "yc"][: 3 if self.kind == "LSTM" else 2]
        whole = (b, self.steps, d, h) if self.layout else (self.steps, d, b, h)
        last = (b, d, h) if self.layout else (d, b, h)
        outputs = [_declared("float", whole if name == "y" else last, name) for name in ends]
        given = ", ".join(name or '""' for name in names)
        body = f"{', '.join(ends)} = {self.kind} <{self.attributes()}> ({given})"
        return regions.region(folder, body, ", ".join(declared), ", ".join(outputs), opset=14, **constants), values


def _declared(kind: str, shape: tuple[int, ...], name: str) -> str:
    return f"{kind}[{', '.join(map(str, shape))}] {name}"


_GROWN = 10.0


def check(cell: Cell, folder: Path) -> None:
    model, values = cell.write(folder)
    feeds = {info.name: value for info, value in zip(model.inputs, values, strict=True)}
    exact = list(evaluate(model.model, feeds, dtype=np.float64).values())
    found = regions.answer(Native(), model, *values, resources=Resources(threads=2))
    # A cell whose activations let its state grow without limit multiplies every rounding from step to step.
    assume(all(np.abs(y).max(initial=0.0) < _GROWN for y in exact))
    assert _near(found, exact, 2e-6), cell
    # ONNX Runtime takes 0 for the threshold that ONNX's ThresholdedRelu has as 1.
    comparable = not cell.layout and "ThresholdedRelu" not in (*cell.activations, *cell.backwards)
    if importlib.util.find_spec("onnxruntime") is not None and comparable:
        import onnxruntime

        other = onnxruntime.InferenceSession(str(model.path), providers=["CPUExecutionProvider"]).run(None, feeds)
        assert _near(found, other, 5e-6), cell


def _near(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], bound: float) -> bool:
    """Within a relative bound; where activations leave nothing but zeros, exactly."""
    return all(
        float(np.linalg.norm(y.astype(np.float64) - e)) <= bound * float(np.linalg.norm(e.astype(np.float64)))
        for y, e in zip(found, expected, strict=True)
    )


@st.composite
def cells(draw: st.DrawFn) -> Cell:
    kind = draw(st.sampled_from(tuple(GATES)))
    steps, batch = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    lengths = draw(st.none() | st.lists(st.integers(1, steps), min_size=batch, max_size=batch).map(tuple))
    return Cell(
        kind,
        steps,
        batch,
        draw(st.integers(1, 20)),
        draw(st.integers(1, 40)),
        draw(st.sampled_from(("forward", "reverse", "bidirectional"))),
        draw(st.integers(0, 1)),
        draw(st.just(()) | st.tuples(*[st.sampled_from(ACTIVATIONS)] * FUNCTIONS[kind])),
        draw(st.none() | st.just(0.7)),
        draw(st.booleans()),
        lengths,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()) and kind == "LSTM",
        draw(st.integers(0, 1)),
        draw(st.integers(0, 1)),
    )


@settings(max_examples=4, deadline=None)
@given(cells())
def test_any_cell(cell: Cell) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(cell, Path(folder))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(cells())
def test_many_cells(cell: Cell) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(cell, Path(folder))


@pytest.mark.thinned("isa")
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.usefixtures("isa")
def test_everything_at_once(kind: str, tmp_path: Path) -> None:
    check(
        Cell(
            kind,
            hidden=33,
            batch=3,
            direction="bidirectional",
            clip=2.0,
            lengths=(5, 1, 3),
            computed_lengths=True,
            states=True,
            peepholes=kind == "LSTM",
            linear_before_reset=1,
        ),
        tmp_path,
    )


@pytest.mark.parametrize(("kind", "behind", "kernels"), [("RNN", 0, 1), ("GRU", 0, 3), ("GRU", 1, 2), ("LSTM", 0, 2)])
def test_steps_share_their_functions_and_their_weights(kind: str, behind: int, kernels: int, tmp_path: Path) -> None:
    def made(steps: int) -> tuple[int, int, int]:
        folder = tmp_path / str(steps)
        folder.mkdir()
        model, _ = Cell(kind, steps=steps, linear_before_reset=behind).write(folder)
        infer(model.model)
        planned = plan(*lower_region(model.model), FUSION)
        source = generate(planned, cpu_target(threads=1))
        return len(planned.kernels), source.text.count("__attribute__((noinline)) void"), source.weights.nbytes

    (few, functions, weights), (many, same, as_heavy) = made(10), made(30)
    assert many - few == 20 * kernels
    assert (same, as_heavy) == (functions, weights)


def test_what_it_refuses(tmp_path: Path) -> None:
    model, _ = Cell("RNN", steps=LONGEST_SCAN + 1, hidden=2, inputs=2).write(tmp_path)
    with pytest.raises(Refused, match=f"RNN needs recurrences over more than {LONGEST_SCAN} steps"):
        Native().compile(model, regions.F32, Resources(threads=1))
