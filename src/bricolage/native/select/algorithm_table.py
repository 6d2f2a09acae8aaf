"""All algorithms of kernels, and which of them computes a kernel.

| algorithm | when it is chosen |
|---|---|
| replaced rows | rows that are written into a cache |
| cached attention | attention to rows of a cache |
| attention | two products with a softmax between them, which fusion has joined |
| separable convolution | a grouped convolution and the pointwise one behind it, which fusion has joined |
| grouped convolution | convolutions in groups whose channels lie in vectors, or that have one channel a group |
| contraction | all other products and convolutions, unless another one is cheaper: |
| Winograd | plain 3×3 convolutions in an arithmetic that allows it, where transforming is cheaper than multiplying |
| group norm | normalisations over several dimensions, or over rows that no thread can keep |
| rows | softmax and normalisations of rows |
| reduction | sums, means, extremes and products along dimensions |
| element-wise | all that has none of these in it |

To add one: a file with an `Algorithm`, and its place in `ALGORITHMS`.
"""

from __future__ import annotations

from dataclasses import replace

from bricolage.native.cpu.phase import ConstantBlock, Phase
from bricolage.native.cpu.sharing import MOST
from bricolage.native.select.algorithm import Algorithm, KernelRequest, Parameters
from bricolage.native.select.attention import ATTENTION
from bricolage.native.select.cached_attention import CACHED_ATTENTION
from bricolage.native.select.elementwise import ELEMENTWISE
from bricolage.native.select.group_norm import GROUP_NORM
from bricolage.native.select.grouped_conv import GROUPED_CONV
from bricolage.native.select.panel_products import CONTRACTION
from bricolage.native.select.reduction import REDUCTION
from bricolage.native.select.replaced_rows import REPLACED_ROWS
from bricolage.native.select.rows import ROWS
from bricolage.native.select.separable_conv import SEPARABLE_CONV
from bricolage.native.select.winograd import WINOGRAD, choose_transform

ALGORITHMS: tuple[Algorithm, ...] = (
    REPLACED_ROWS,
    CACHED_ATTENTION,
    ATTENTION,
    SEPARABLE_CONV,
    GROUPED_CONV,
    CONTRACTION,
    WINOGRAD,
    GROUP_NORM,
    ROWS,
    REDUCTION,
    ELEMENTWISE,
)
"""Of those that apply the cheapest is taken, the first of equals."""
_PIECES = tuple(2**n for n in range(MOST.bit_length()))


def choose_algorithm(request: KernelRequest) -> Algorithm:
    """What computes a kernel."""
    able = (algorithm for algorithm in ALGORITHMS if algorithm.applies(request))
    return min(able, key=lambda algorithm: algorithm.cost(request))


def generate_phases(request: KernelRequest, weights: ConstantBlock) -> list[Phase]:
    """The loops of a kernel, as it was chosen."""
    choice, target = request.choice, request.target
    if choice.pieces is not None:
        usual = generate_phases(replace(request, choice=replace(choice, pieces=None)), weights)
        return [replace(phase, share=replace(phase.share, most=choice.pieces)) for phase in usual]
    if choice.look_up is not None:
        request = replace(request, target=replace(target, isa=replace(target.isa, looks_up=choice.look_up)))
    return choose_algorithm(request).generate(request, weights)


def used_tile(request: KernelRequest) -> int:
    """The tile of Winograd's transformation that computes a kernel; 0 where another algorithm does."""
    return choose_transform(request).m if choose_algorithm(request) is WINOGRAD else 0


def list_parameters(request: KernelRequest) -> Parameters:
    """All that may be chosen of a kernel: of its algorithm, and into how many pieces threads share its loops."""
    pieces: Parameters = {"pieces": _PIECES} if request.target.threads > 1 else {}
    return {**pieces, **choose_algorithm(request).parameters(request)}
