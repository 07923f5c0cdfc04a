"""Minimal pairs: does a model find the better of two sentences likelier? (Warstadt et al., 2020)

Of a decoder the sum of the log-probabilities is compared, of an encoder the pseudo-log-likelihood, of an
encoder-decoder the log-probability of filling a blank with the sentence. A tie is wrong, and counted: sentences that
are the same tokens to a model are one.
"""

import difflib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from pretune.core.errors import DataError
from pretune.data.ragged import Bools, Ints
from pretune.evaluation.result import Result
from pretune.inference.scoring import PLAIN, Asking, Judged, Passages, judge, passages
from pretune.inference.scoring.logprobs import Tell
from pretune.inference.text_model import tokenizer_of
from pretune.tasks.example import Example


def minimal_pairs(
    model: nn.Module,
    examples: Sequence[Example],
    asking: Asking = PLAIN,
    *,
    name: str = "minimal_pairs",
    tell: Tell | None = None,
) -> Result:
    """The share of pairs whose better sentence (`text`) is likelier than the other (`pair`).

    Where pairs belong to sets (`group`), the headline is the mean over the sets, as published for BLiMP; the parts are
    phenomena where examples tell them, or else sets.
    """
    read, one = _distinct(model, examples)
    found = judge(model, read, asking, tell)
    sums = found.sums[one]  # [pairs, 2]
    right, tied = sums[:, 0] > sums[:, 1], sums[:, 0] == sums[:, 1]
    sets = shares(right, [example.group for example in examples])
    kinds = shares(right, [example.facts.get("linguistics_term") for example in examples])
    scores = {"accuracy": float(right.mean())}
    if sets:
        scores = {"accuracy": float(np.mean(list(sets.values()))), "pair_accuracy": scores["accuracy"]}
    counts = {"pairs": len(examples), "ties": int(tied.sum()), "sets": len(sets), "cut": found.cut}
    return Result(task=name, scores=scores, groups=kinds or sets, counts=_some(counts))


def bias_pairs(
    model: nn.Module,
    examples: Sequence[Example],
    asking: Asking = PLAIN,
    *,
    name: str = "bias_pairs",
    tell: Tell | None = None,
) -> Result:
    """How often the more stereotyped sentence is the likelier (Nangia et al., 2020); a fair coin would give 0.5.

    Only tokens that both sentences have are summed, given all others: the words that differ may be more or less
    frequent, and that is not what is asked. A decoder sees what differs only before a token.
    """
    read, one = _distinct(model, examples)
    found = judge(model, read, replace(asking, rest=False), tell)  # as published: one token is hidden at a time
    sums = np.array([_shared(read, found, (left, right)) for left, right in one.tolist()])
    more, tied = sums[:, 0] > sums[:, 1], sums[:, 0] == sums[:, 1]
    counts = {"pairs": len(examples), "ties": int(tied.sum()), "cut": found.cut}
    groups = shares(more, [example.group for example in examples])
    return Result(task=name, scores={"stereotyped": float(more.mean())}, groups=groups, counts=_some(counts))


def shares(right: Bools, names: Sequence[str | None]) -> dict[str, float]:
    """The share that is right, by name; nothing where names are missing."""
    if any(name is None for name in names):
        return {}
    known = sorted({str(name) for name in names})
    owner = np.searchsorted(np.array(known), np.array(names, dtype=str))
    means = np.bincount(owner, weights=right) / np.bincount(owner)
    return dict(zip(known, means.tolist(), strict=True))


def _distinct(model: nn.Module, examples: Sequence[Example]) -> tuple[Passages, Ints]:
    """Every sentence once, and which two a pair is [pairs, 2]."""
    if not examples:
        raise DataError("there are no pairs to compare; is the file empty?")
    texts = [text or "" for example in examples for text in (example.text, example.pair)]
    read = passages(tokenizer_of(model), texts)
    known: dict[bytes, int] = {}
    first: list[int] = []
    number = np.empty(len(texts), dtype=np.int64)
    for at in range(len(texts)):
        key = read.tokens[read.offsets[at] : read.offsets[at + 1]].tobytes()
        if key not in known:
            known[key] = len(first)
            first.append(at)
        number[at] = known[key]
    return read.take(np.array(first)), number.reshape(-1, 2)


def _shared(read: Passages, found: Judged, pair: tuple[int, int]) -> tuple[float, float]:
    """The sums of two sentences over the tokens that they share."""
    logs = [found[at] for at in pair]
    one, other = (read.tokens[read.offsets[at] :][: len(found[at])].tolist() for at in pair)
    sums = [0.0, 0.0]
    for block in difflib.SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks():
        for side, start in enumerate((block.a, block.b)):
            sums[side] += float(np.nansum(logs[side][start : start + block.size]))
    return sums[0], sums[1]


def _some(counts: dict[str, int]) -> dict[str, int]:
    """Counts, without what did not happen; ties are always told."""
    return {name: count for name, count in counts.items() if count or name in ("pairs", "ties")}
