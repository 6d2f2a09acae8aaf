"""Parameters of the native engine's configurations that change its plan of kernels."""

from __future__ import annotations

LAYOUT = "layout"
"""Parameter: which images lie with their channels last, by name (`fuse.channels_last`); without it all of them."""
WAVES = "waves"
"""Parameter: whether kernels that do not depend on each other run as one parallel section (`fuse.waves`)."""
FUSED = "fused"
"""Parameter with the numbers of the only kernels that may compute several operators, as in "0-2,5"; without it all may."""
STRUCTURAL = frozenset([FUSED, LAYOUT, WAVES])
"""Parameters that change the plan of kernels."""
