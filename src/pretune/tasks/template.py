"""Text-to-text templates in the wording of Raffel et al. (2020), "T5", appendix D.

    >>> from pretune.tasks.example import Example
    >>> cola = Template(source="cola sentence: {text}", targets=("unacceptable", "acceptable"))
    >>> cola.fill(Example(text="The sailors rode.", label=1))
    ('cola sentence: The sailors rode.', 'acceptable')

A source may use {text}, {pair}, {choice1}, {choice2}, … and the example's `facts` by name; a target {target}, {answer}
(the first one, or "" without answers), {score} (rounded to 0.2, as for STS-B) and the facts.
"""

from collections.abc import Mapping

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.tasks.example import Example


@spec
class Template:
    """Source and target of an example; the target is one of `targets` by label, else the filled `target`."""

    source: str
    targets: tuple[str, ...] = ()
    target: str = ""

    def fill(self, example: Example) -> tuple[str, str | None]:
        """Return (source, target) of an example; the target is None if its label is unknown."""
        values = _collect_values(example)
        source = _fill(self.source, values)
        if self.targets:
            return source, None if example.label is None else self.targets[int(example.label)]
        return source, _fill(self.target, values)

    def parse_label(self, text: str) -> int | None:
        """Return the label of a generated text; None if it is no label, which always counts as wrong."""
        return self.targets.index(text.strip()) if text.strip() in self.targets else None


def _fill(text: str, values: Mapping[str, str]) -> str:
    try:
        return text.format_map(values)
    except KeyError as missing:
        available = ", ".join(name for name, value in values.items() if value) or "none"
        raise DataError(f"template '{text[:80]}': unknown field {missing}; this example has {available}") from None


def _collect_values(example: Example) -> Mapping[str, str]:
    values = {"text": example.text, "pair": example.pair or "", "target": example.target or ""}
    values |= {f"choice{number}": choice for number, choice in enumerate(example.choices, start=1)}
    values["answer"] = example.answers[0] if example.answers else ""
    if isinstance(example.label, float):
        values["score"] = f"{round(example.label * 5) / 5:.1f}"
    return values | dict(example.facts)
