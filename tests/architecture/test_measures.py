"""The size and width of the package stay below their ceilings."""

import pytest

from tests.architecture import measures


@pytest.mark.slow  # `make check` runs it
def test_no_measure_is_above_its_ceiling() -> None:
    values = measures.measure()
    assert set(values) == set(measures.CEILINGS)
    assert {name: value for name, value in values.items() if value > measures.CEILINGS[name]} == {}


def test_code_lines_leave_out_docstrings_comments_and_blanks() -> None:
    lines = ['"""Docstring', 'of two lines."""', "", "# comment", "x = (", "    1,  # one", ")", "", "def f():"]
    text = "\n".join([*lines, '    """Doc."""', "    return x", ""])
    assert measures.count_code_lines(text) == 5
