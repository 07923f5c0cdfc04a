"""Verifiable answers: the share of texts that pass a check against their reference.

    exact     the same text, white space aside
    number    the last number is that of the reference: "so 40 + 32 = 72." passes for "#### 72"
    regex     the reference is a pattern that is found in the text

They are rewards of `pretune finetune --reward`, as is a function of the user's: `register_reward` makes it a metric of
this process.
"""

import inspect
import math
import re
import runpy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from pretune.core.errors import DataError, UsageError
from pretune.metrics import METRICS, check_pairs, to_texts

NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|(?<![\w.])-?\.\d+")
"""A number, with commas between thousands or without."""
FUNCTION_PREFIX = "reward."
"""Start of the names of users' functions."""

RewardFunction = Callable[[str, str], float]
"""Function of an answer and its reference."""


def exact(gold: Iterable[str | Sequence[str]], predictions: Iterable[str]) -> float:
    """Share of answers that are a reference, white space aside.

    >>> exact(["a b", "c"], [" a  b", "C"])
    0.5
    """
    return _compute_share(gold, predictions, lambda text, reference: text.split() == reference.split())


def number(gold: Iterable[str | Sequence[str]], predictions: Iterable[str]) -> float:
    """Share of answers whose last number is that of a reference; an answer without a number is wrong.

    >>> number(["#### 1,200", "-3"], ["It is 1200.0, so yes", "3"])
    0.5
    """

    def passes(text: str, reference: str) -> bool:
        value = find_number(reference)
        if value is None:
            raise DataError(f"the reference {reference[:40]!r} has no number")
        return find_number(text) == value

    return _compute_share(gold, predictions, passes)


def regex(gold: Iterable[str | Sequence[str]], predictions: Iterable[str]) -> float:
    """Share of answers in which the pattern of a reference is found.

    >>> regex([r"\\bcat\\b", "^dog"], ["A cat.", "A dog."])
    0.5
    """

    def passes(text: str, reference: str) -> bool:
        try:
            return re.search(reference, text) is not None
        except re.error as error:
            raise DataError(f"the reference {reference[:40]!r} is no regular expression: {error}") from None

    return _compute_share(gold, predictions, passes)


def find_number(text: str) -> Decimal | None:
    """Return the last number of a text, or None.

    >>> [find_number(text) for text in ("7 + 8 = 15.0", "x2", "$1,000!")]
    [Decimal('15.0'), None, Decimal('1000')]
    """
    numbers = NUMBER.findall(text)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


def _compute_share(
    gold: Iterable[str | Sequence[str]], predictions: Iterable[str], passes: Callable[[str, str], bool]
) -> float:
    references, texts = check_pairs(gold, predictions)
    pairs = zip(map(to_texts, references), texts, strict=True)
    return sum(any(passes(text, reference) for reference in answers) for answers, text in pairs) / len(texts)


@dataclass(frozen=True, slots=True)
class MeanReward:
    """A user's function as a metric: its mean over answers."""

    function: RewardFunction

    def __call__(self, gold: Iterable[str | Sequence[str]], predictions: Iterable[str]) -> float:
        references, texts = check_pairs(gold, predictions)
        pairs = zip(map(to_texts, references), texts, strict=True)
        return math.fsum(float(self.function(text, answers[0])) for answers, text in pairs) / len(texts)


def register_reward(function: RewardFunction) -> str:
    """Make a function a metric of this process, and return its name."""
    if not callable(function):
        raise UsageError(f"a reward must be a name or a function of answer and reference, got {function!r:.60}")
    name = FUNCTION_PREFIX + str(getattr(function, "__name__", type(function).__name__))
    METRICS.register(name, MeanReward(function))
    return name


def read_reward(text: str) -> str:
    """Return the name of a reward as typed: `number`, or FILE.py:function, whose code is run.

    Only for what a person types: a config never names code.
    """
    file, separator, name = text.rpartition(":")
    if not separator:
        return text
    path = Path(file).expanduser()
    if path.suffix != ".py" or not path.is_file():
        raise UsageError(f"--reward {text}: no file {file}; expected FILE.py:function")
    try:
        attributes: dict[str, object] = runpy.run_path(str(path))
    except Exception as fault:  # any that the user's code may raise
        raise UsageError(f"--reward {text}: {path} raised {describe_fault(fault)}") from None
    function = attributes.get(name)
    if not callable(function):
        functions = [key for key, value in attributes.items() if inspect.isfunction(value)]
        raise UsageError(f"--reward {text}: no function '{name}' in {path} (it has {', '.join(functions) or 'none'})")
    return register_reward(function)


def describe_fault(fault: Exception) -> str:
    """Return an exception as one line."""
    return " ".join(f"{type(fault).__name__}: {fault}".split())[:300]
