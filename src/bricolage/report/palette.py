"""One colour for each backend, the same in every figure, for light and for dark pages.

The hues are chosen to be told apart by people with the common colour deficiencies too; and names accompany the
colours everywhere, so none is needed to read a figure.
"""

from __future__ import annotations

from collections.abc import Iterable

COLOURS: tuple[tuple[str, str], ...] = (
    ("#2a78d6", "#3987e5"),
    ("#eb6834", "#d95926"),
    ("#1baf7a", "#199e70"),
    ("#e3a000", "#c98500"),
    ("#d9629b", "#d55181"),
    ("#008300", "#2f9a2f"),
    ("#4a3aa7", "#9085e9"),
    ("#e34948", "#e66767"),
    ("#898781", "#898781"),
)
"""(light, dark); the last is for backends beyond eight."""
_OWN = ("onnxruntime", "openvino", "torch", "inductor", "xla", "tvm", "iree", "native")


def slots(names: Iterable[str]) -> dict[str, int]:
    """Backend → index into `COLOURS`. Known backends keep theirs; others take what is left, in alphabetical order."""
    wanted = dict.fromkeys(names)
    taken = {name: _OWN.index(name) for name in wanted if name in _OWN}
    left = [i for i in range(len(_OWN)) if i not in taken.values()]
    for name in sorted(name for name in wanted if name not in taken):
        taken[name] = left.pop(0) if left else len(COLOURS) - 1
    return {name: taken[name] for name in wanted}
