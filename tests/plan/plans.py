"""Random plans for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from bricolage.options import PRECISIONS, Options
from bricolage.plan.plan import Bucket, Plan, Provenance
from bricolage.work.implementation import KernelConfig

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


def plans() -> st.SearchStrategy[Plan]:
    """Plans of any content that type annotations allow."""
    for kind in (float,):
        st.register_type_strategy(kind, finite)
    options = st.builds(
        Options,
        precision=st.sampled_from(PRECISIONS),
        tolerance=st.none() | st.floats(1e-6, 0.5),
        threads=st.integers(1, 64),
        shapes=st.dictionaries(st.text(min_size=1), st.lists(st.integers(1, 512), min_size=1).map(tuple)),
        cores=st.none() | st.just((0, 1)),
    )
    configs = st.dictionaries(st.text(min_size=1), st.integers() | finite | st.text() | st.booleans())
    made = st.builds(lambda name, given: KernelConfig(name).tuned(given), st.text(min_size=1), configs)
    st.register_type_strategy(KernelConfig, made)
    buckets = st.lists(st.from_type(Bucket), min_size=1, max_size=2).map(tuple)
    return st.builds(Plan, buckets=buckets, provenance=st.builds(Provenance, options=options))
