"""Which hints are for inputs in flight: names of any length, and patterns that can be no symbol's."""

from __future__ import annotations

from commcc.graph.index.outside import ends_given


def test_names_of_any_length_and_long_patterns_are_for_inputs():
    hints = {"x": 7, "u*": 5, "reduce*": 3}
    found = ends_given(hints, ("x", "u1", "reduce_scatter_tensor", "y"))
    assert found == {"x": 7_000, "reduce_scatter_tensor": 3_000}
