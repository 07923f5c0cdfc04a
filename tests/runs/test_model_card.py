"""Model cards: names of users are text, not Markdown."""

import pytest

from pretune.runs.model_card import escape_markdown


@pytest.mark.parametrize(
    "name", ["[a](javascript:b)", "![a](b)", "[a]: javascript:b", "<script>", "a|b", "`a`", "a\nb", "a\x1bb"]
)
def test_names_are_no_markdown(name: str) -> None:
    text = escape_markdown(name)
    assert not {*"[]<>|`\n\x1b"} & {*text} and len(text) == len(name)


def test_other_names_stay() -> None:
    assert escape_markdown("runs/my_run (2) $x^2$") == "runs/my_run (2) $x^2$"
