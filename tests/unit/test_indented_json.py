"""JSON with indentation: the same text as that of the standard library."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udpbench.indented_json import indented

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, width=32) | st.text()
)
DATA = st.recursive(
    SCALARS.filter(lambda value: value not in (float("inf"), float("-inf"))),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(DATA)
def test_it_is_what_the_standard_library_writes(data: Any) -> None:
    """Whatever lies in what: empty lists, too."""
    assert json.dumps(data, indent=2) == "".join(indented(data))


@pytest.mark.parametrize("data", [float("inf"), [float("nan")], {"a": {"b": float("-inf")}}])
def test_an_infinite_number_is_refused(data: Any) -> None:
    """JSON has none."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        "".join(indented(data))
