"""Random inputs that look like data: smooth images, feature maps and clips, and token sequences."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def smooth_noise(shape: Sequence[int], seed: int) -> NDArray[np.float32]:
    """Noise with a 1/f amplitude spectrum over the dimensions after (batch, channel), unit variance overall.

    Natural images have this spectrum. White noise would be averaged away by the first pooling layers, and two
    white images would lead to nearly the same output; with a 1/f spectrum they differ at every scale.
    """
    rng = np.random.default_rng(seed)
    axes = tuple(range(2, len(shape)))
    spectrum = np.fft.fftn(rng.standard_normal(tuple(shape)), axes=axes)
    squared = np.zeros([1] * len(shape))
    for axis in axes:
        frequency = np.fft.fftfreq(shape[axis]) * max(shape[a] for a in axes)
        view = [1] * len(shape)
        view[axis] = shape[axis]
        squared = squared + np.square(frequency).reshape(view)
    smooth = np.fft.ifftn(spectrum / np.sqrt(1.0 + squared), axes=axes).real
    scaled: NDArray[np.float32] = (smooth / smooth.std()).astype(np.float32)
    return scaled


def normal(shape: Sequence[int], seed: int) -> NDArray[np.float32]:
    """Independent standard normal numbers, for latent vectors."""
    return np.random.default_rng(seed).standard_normal(tuple(shape)).astype(np.float32)


def tokens(shape: Sequence[int], seed: int, vocabulary: int) -> NDArray[np.int64]:
    """Uniform token numbers below `vocabulary`."""
    return np.random.default_rng(seed).integers(0, vocabulary, tuple(shape), dtype=np.int64)
