"""Calibration data: from arrays to samples, and what says nothing of what the model will see."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from bricolage.errors import UnusableCalibration
from bricolage.graph.graph import TensorInfo, describe
from bricolage.verify.held_back import Sample
from bricolage.verify.inputs import check_inputs, not_finite

FEW = 8
"""Samples below which scales may be of a few inputs' own."""
_NOISE = 0.02
"""Correlation of neighbours below which values look drawn at random."""
_LONG = 16
"""Of an axis along which neighbours are compared."""
_WIDER = 2.0
"""Times the range that calibration saw, from which on a held-back sample is told."""


def make_samples(model: ir.Model, arrays: Mapping[str, np.ndarray], *, more: bool = False) -> list[Sample]:
    """Inputs by name, one mapping for each sample; with `more`, arrays that are no inputs go along, such as labels.

    Args:
        arrays: for each input either `name.0`, `name.1` and so on, each a whole input; or `name`, whose first axis is the sample.
            An array with the rank of the input itself is cut along its first axis into pieces of the input's size (of one where
            that is open). What is no input has a row, or some, for each sample.

    Raises:
        UnusableCalibration: inputs have different numbers of samples, or none.
        MissingInput, UnknownInput, WrongType, WrongShape: an array does not fit the model.
    """
    inputs = {
        value.name or "": describe(value) for value in model.graph.inputs if value.name not in model.graph.initializers
    }
    others = {key: np.asarray(array) for key, array in arrays.items() if more and not _is_input(key, inputs)}
    pieces: dict[str, list[np.ndarray]] = {}
    for name, array in arrays.items():
        if name in others:
            continue
        stem, _, number = name.rpartition(".")
        if name not in inputs and stem in inputs and number.isdecimal():
            pieces.setdefault(stem, [])
        else:
            pieces[name] = _pieces(inputs.get(name), np.asarray(array))
    for name in pieces:
        numbered = sorted(int(key.rpartition(".")[2]) for key in arrays if _is_numbered(key, name))
        if numbered and numbered != list(range(len(numbered))):
            raise UnusableCalibration(reason=f"of '{name}' there is no sample {_gap(numbered)}")
        pieces[name] = pieces[name] or [np.asarray(arrays[f"{name}.{number}"]) for number in numbered]
    counts = {name: len(piece) for name, piece in pieces.items()}
    if len(set(counts.values())) > 1:
        counts_text = ", ".join(f"{count} of '{name}'" for name, count in counts.items())
        raise UnusableCalibration(reason=f"inputs have different numbers of samples: {counts_text}")
    if not any(counts.values()):
        raise UnusableCalibration(reason="it holds no sample")
    unread = _unread(model, pieces)
    samples = [
        {**unread, **{name: piece[number] for name, piece in pieces.items()}} for number in range(max(counts.values()))
    ]
    checked = [
        {name: np.asarray(value) for name, value in check_inputs(model, sample_inputs).items()}
        for sample_inputs in samples
    ]
    for name, array in others.items():
        if not array.ndim or len(array) % len(checked):
            mismatch = f"'{name}' has not as many rows as there are samples ({len(checked)})"
            raise UnusableCalibration(reason=mismatch)
        for sample, rows in zip(checked, np.split(array, len(checked)), strict=True):
            sample[name] = rows
    return list(checked)


def _is_input(name: str, inputs: Collection[str]) -> bool:
    return name in inputs or name.rpartition(".")[0] in inputs


def _unread(model: ir.Model, given: Collection[str]) -> dict[str, np.ndarray]:
    """Zeros for inputs that nothing reads and no data are given for: exporters leave such behind."""
    zeros: dict[str, np.ndarray] = {}
    for value in model.graph.inputs:
        info = describe(value)
        idle = not value.uses() and not value.is_graph_output() and info.name not in model.graph.initializers
        if idle and info.static and info.name not in given:
            zeros[info.name] = np.zeros(info.sizes, info.numpy)
    return zeros


def _is_numbered(key: str, name: str) -> bool:
    stem, _, number = key.rpartition(".")
    return stem == name and number.isdecimal()


def _gap(numbers: Sequence[int]) -> int:
    return next(at for at, number in enumerate([*numbers, -1]) if at != number)


def _pieces(info: TensorInfo | None, array: np.ndarray) -> list[np.ndarray]:
    """Along the first axis."""
    if info is None or info.shape is None or array.ndim != len(info.shape) or not array.ndim:
        return list(array) if array.ndim else [array]
    size = info.shape[0] if isinstance(info.shape[0], int) else 1
    if not size or array.shape[0] % size:
        return [array]  # which is refused for its shape
    return np.split(array, array.shape[0] // size)


def require_telling(found: Sequence[Sample], least: int = 2) -> None:
    """Refuses samples that say nothing of what the model will see.

    Raises:
        UnusableCalibration: there are fewer than `least`, of which one is held back where that is 2; numbers are not finite; or an
            input of float numbers is the same everywhere in all samples.
    """
    if len(found) < least:
        shortage = "1 sample, and one more is needed to measure errors on" if found else "no sample"
        raise UnusableCalibration(reason=f"it holds {shortage}")
    for name, arrays in _floats(found):
        for number, array in enumerate(arrays):
            if not np.isfinite(array).all():
                raise UnusableCalibration(reason=f"'{name}' of sample {number} holds NaN or infinite numbers")
        first = arrays[0].flat[0] if arrays[0].size else 0.0
        if any(array.size > 1 for array in arrays) and all((array == first).all() for array in arrays):
            raise UnusableCalibration(reason=f"'{name}' is {first:g} everywhere in every sample")


def doubts(seen: Sequence[Sample], held: Sequence[Sample]) -> list[str]:
    """What a user should know of samples that can be used."""
    count = len(seen) + len(held)
    concerns = [f"{count} samples are few: give {FEW} or more"] if count < FEW else []
    for name, arrays in _floats(seen):
        if _is_noise(arrays):
            concerns.append(
                f"'{name}' looks drawn at random: neighbours have nothing in common, so that ranges may be wrong"
            )
    held_back = dict(_floats(held))
    for name, arrays in _floats(seen):
        ends, others = _largest(arrays), _largest(held_back.get(name, []))
        if others > _WIDER * ends:
            concerns.append(f"'{name}' reaches {others:.3g} in samples held back and {ends:.3g} in those calibrated on")
    contents = {_content(sample) for sample in seen}
    again = sum(_content(sample) in contents for sample in held)
    if again:
        subject = "1 sample held back is one" if again == 1 else f"{again} samples held back are some"
        concerns.append(
            f"{subject} that calibration has seen, so that the error is too small: give samples that differ"
        )
    copies = len(seen) - len(contents)
    if copies:
        subject = "1 sample calibrated on is a copy" if copies == 1 else f"{copies} samples calibrated on are copies"
        concerns.append(
            f"{subject} of others and adds nothing" if copies == 1 else f"{subject} of others and add nothing"
        )
    return concerns


def _content(sample: Sample) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, array.tobytes()) for name, array in sorted(sample.items()))


def _floats(found: Sequence[Sample]) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Inputs of float numbers, as float64."""
    for name in found[0] if found else ():
        arrays = [np.asarray(sample[name]) for sample in found]
        if arrays[0].dtype.kind in "fV":
            yield name, [array.astype(np.float64) for array in arrays]


def _largest(arrays: Sequence[np.ndarray]) -> float:
    return max((float(np.abs(array).max()) for array in arrays if array.size), default=0.0)


def _is_noise(arrays: Sequence[np.ndarray]) -> bool:
    """Whether neighbours along the last two axes, of images and signals, are as unlike as any two values."""
    first = arrays[0]
    if first.ndim < 3 or min(first.shape[-2:]) < _LONG:
        return False
    return all(_correlation(array, axis) < _NOISE for array in arrays for axis in (-1, -2))


def _correlation(array: np.ndarray, axis: int) -> float:
    rows = np.moveaxis(array, axis, -1)
    centred = rows - rows.mean()
    power = float((centred**2).sum())
    return abs(float((centred[..., 1:] * centred[..., :-1]).sum())) / power if power else 1.0


def split_samples(samples: Sequence[Sample], held_back: float) -> tuple[list[Sample], list[Sample]]:
    """Those that calibration sees, and those that errors are measured on, evenly spread: one of each at least."""
    count = min(max(1, round(len(samples) * held_back)), len(samples) - 1)
    picked = {int((at + 0.5) * len(samples) / count) for at in range(count)}
    seen = [sample for number, sample in enumerate(samples) if number not in picked]
    return seen, [samples[number] for number in sorted(picked)]


def inputs_of(model: ir.Model, sample: Sample) -> Sample:
    """What of a sample the model takes: data may hold labels as well."""
    input_names = {value.name for value in model.graph.inputs}
    return {name: array for name, array in sample.items() if name in input_names}


def hold_back(
    model: ir.Model, samples: Sequence[Sample], held_back: Sequence[Sample] | None, share: float
) -> tuple[list[Sample], list[Sample]]:
    """What calibration sees, inputs alone; and what errors are measured on.

    Raises:
        UnusableCalibration: samples are too few, constant or not finite.
    """
    require_telling([inputs_of(model, sample) for sample in samples], least=2 if held_back is None else 1)
    for number, sample in enumerate(held_back or ()):
        if bad := not_finite(inputs_of(model, sample)):
            raise UnusableCalibration(reason=f"'{bad[0]}' of sample {number} to judge by holds NaN or infinite numbers")
    seen, held = split_samples(samples, share) if held_back is None else (samples, list(held_back))
    return [inputs_of(model, sample) for sample in seen], held
