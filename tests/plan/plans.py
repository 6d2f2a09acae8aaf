"""Random plans for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from bricolage.plan.plan import Bucket, Plan

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


def plans() -> st.SearchStrategy[Plan]:
    """Plans of any content that type annotations allow."""
    for kind in (float,):
        st.register_type_strategy(kind, finite)
    buckets = st.lists(st.from_type(Bucket), min_size=1, max_size=2).map(tuple)
    return st.builds(Plan, buckets=buckets)
