"""Text to text as in the appendix of the T5 paper, from the published rows."""

from pathlib import Path

import pytest

from pretune.core.errors import DataError
from pretune.tasks import TASKS
from pretune.tasks.example import Example

CASES = {
    "cola": (Example(text="John made Bill master of himself.", label=1),
             "cola sentence: John made Bill master of himself.", "acceptable"),
    "rte": (Example(text="A.", pair="B.", label=1), "rte sentence1: A. sentence2: B.", "not_entailment"),
    "mnli": (Example(text="premise.", pair="hypothesis.", label=2),
             "mnli hypothesis: hypothesis. premise: premise.", "contradiction"),
    "stsb": (Example(text="A.", pair="B.", label=3.25), "stsb sentence1: A. sentence2: B.", "3.2"),
    "squad1": (Example(text="Who?", pair="He {did}.", answers=("He", "he")), "question: Who? context: He {did}.", "He"),
    "multi30k": (Example(text="A {man}.", target="Ein Mann."), "translate English to German: A {man}.", "Ein Mann."),
    "cb": (Example(text="p", pair="h", label=1), "cb hypothesis: h premise: p", "contradiction"),
    "copa": (Example(text="P.", choices=("One.", "Two."), label=1, facts={"question": "effect"}),
             "copa choice1: One. choice2: Two. premise: P. question: effect", "choice2"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_text_to_text(name: str) -> None:
    example, source, target = CASES[name]
    template = TASKS.get(name).template
    assert template is not None
    assert template.fill(example) == (source, target)
    if template.targets:
        assert template.parse_label(f" {target} ") == example.label
        assert template.parse_label("something else") is None
        assert template.fill(Example(text="x", pair="y", choices=("a", "b"), facts=example.facts))[1] is None


def test_an_unanswerable_question_has_an_empty_target(shared_data: Path) -> None:
    template = TASKS.get("squad2").template
    assert template is not None
    targets = [template.fill(example)[1] for example in TASKS.get("squad2").read("dev", shared_data)]
    assert targets.count("") == 5945


def test_a_field_that_an_input_lacks_is_told() -> None:
    """Published files have all fields of a template; what people ask may not."""
    template = TASKS.get("copa").template
    assert template is not None
    with pytest.raises(DataError, match=r"'question'.*text, choice1, choice2"):
        template.fill(Example(text="It rained.", choices=("a", "b")))
