"""Values that fastjson and Python print differently."""

from __future__ import annotations

from hypothesis import strategies as st

TEXTS = st.text(st.characters(codec="utf-8"), max_size=10)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | TEXTS
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)
