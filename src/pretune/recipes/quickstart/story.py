"""What the numbers mean, in sentences; where the simple baseline wins, they say so."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pretune.metrics.significance import margin, over_seeds

Facts = dict[str, Any]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Method:
    """One line of the table: its name, what colour it has, and what it is."""

    name: str
    group: str
    about: str


METHODS: dict[str, Method] = {
    "majority": Method("majority class", "baseline", "the more frequent label for every review"),
    "svm": Method("TF-IDF + SVM", "baseline", "weighted words and word pairs, a linear support vector machine"),
    "static": Method(
        "averaged static vectors",
        "baseline",
        "shallow pre-training: the mean of vectors that were counted from the text",
    ),
    "random": Method("random weights", "random", "the same network without pre-training, trained on the labels alone"),
    "frozen": Method("feature extraction", "pretrained", "the pre-trained network as it is, a linear model on top"),
    "lora": Method("LoRA", "pretrained", "low-rank changes of the pre-trained network"),
    "gradual": Method("gradual unfreezing", "pretrained", "from the top down, one part after the other"),
    "full": Method("full fine-tuning", "pretrained", "all weights of the pre-trained network"),
    "other": Method("MiniLM, feature extraction", "other", "what much more pre-training by someone else buys"),
}
"""The rows of the table, in their order."""


@dataclass(slots=True)
class Scores:
    """What was measured so far: the scores of each row, and of each number of labels, one for every seed."""

    each: dict[tuple[str, int], dict[int, float]] = field(default_factory=dict)
    notes: dict[tuple[str, int], str] = field(default_factory=dict)

    def add(self, method: str, labels: int, seed: int, score: float) -> None:
        """One more score."""
        self.each.setdefault((method, labels), {})[seed] = score

    def rows(self) -> list[Facts]:
        """The table, as `results.json` has it."""
        found = []
        for key, method in METHODS.items():
            for name, labels in sorted(one for one in self.each if one[0] == key):
                scores = self.each[name, labels]
                known = over_seeds([*scores.values()])
                about = "; ".join(filter(None, (method.about, self.notes.get((name, labels)))))
                row: Facts = {"method": method.name, "labels": labels, "mean": round(known.mean, 4)}
                row |= {"seeds": [*scores], "each": [round(score, 4) for score in scores.values()]}
                if known.std is not None and known.low is not None and known.high is not None:
                    row |= {
                        "std": round(known.std, 4),
                        "low": round(max(known.low, 0.0), 4),
                        "high": round(min(known.high, 1.0), 4),
                    }
                found.append({**row, "group": method.group, "about": about})
        return found


def story(rows: Sequence[Row], examples: int) -> list[str]:
    """The conclusion, from the rows with the most labels that both kinds of network have, and a word on the fewest."""
    counts = [{row["labels"] for row in rows if row["group"] == group} for group in ("pretrained", "random")]
    if not counts[0] & counts[1]:
        return []
    most, fewest = max(counts[0] & counts[1]), min(counts[0] & counts[1])
    best = _best(rows, most)
    told = [*_gain(best, most, examples), *_beside(best, examples)]
    return told if fewest == most else [*told[:1], _fewer(_best(rows, fewest), fewest, examples), *told[1:]]


def _best(rows: Sequence[Row], labels: int) -> dict[str, Row]:
    """The best row of each group with so many labels, and that of full fine-tuning, where there is one, as `whole`."""
    some = [row for row in rows if row["labels"] == labels]
    best = {
        group: max((row for row in some if row["group"] == group), key=lambda row: float(row["mean"]))
        for group in {row["group"] for row in some}
    }
    full = (row for row in some if row["method"] == METHODS["full"].name)
    return {**best, "whole": next(full, best["pretrained"])}


def _gain(best: Mapping[str, Row], labels: int, examples: int) -> Iterator[str]:
    """What pre-training bought: the same training from two starts."""
    ours, without = best["whole"], best["random"]
    what = (
        f"With {labels:,} labels the pre-trained network ({ours['method']}) is right on {ours['mean']:.1%} of unseen "
        f"reviews, the same network from random weights on {without['mean']:.1%}"
    )
    worth = _worth(ours, without, examples)
    if worth is not None:
        yield f"{what}: pre-training was worth {worth}."
    else:
        yield f"{what}: in this little time pre-training was worth nothing that {examples:,} reviews could show."


def _fewer(best: Mapping[str, Row], labels: int, examples: int) -> str:
    """The same where labels are fewest."""
    ours, without, simple = best["whole"], best["random"], best.get("baseline")
    worth = _worth(ours, without, examples) or f"nothing that {examples:,} reviews could show"
    beside = "" if simple is None else f"; the best simple baseline there, {simple['method']}: {simple['mean']:.1%}"
    return f"With {labels:,} labels it was worth {worth}: {ours['mean']:.1%} against {without['mean']:.1%}{beside}."


def _worth(ours: Row, without: Row, examples: int) -> str | None:
    """In points, if that is more than chance."""
    gain = ours["mean"] - without["mean"]
    return f"{100 * gain:.1f} points" if gain > margin(ours["mean"], without["mean"], examples) else None


def _beside(best: Mapping[str, Row], examples: int) -> Iterator[str]:
    """The best way to use the network beside what is simpler, and beside far more pre-training."""
    ours = best["pretrained"]
    simple = best.get("baseline")
    if simple is not None:
        lead = ours["mean"] - simple["mean"]
        close = abs(lead) <= margin(ours["mean"], simple["mean"], examples)
        chance = " The difference could be chance." if close else ""
        if lead < 0:
            yield (
                f"The simple baseline wins: {simple['method']} is right on {simple['mean']:.1%}, the best of the "
                f"pre-trained ({ours['method']}) on {ours['mean']:.1%}.{chance}"
            )
        else:
            yield (
                f"The best way to use it, {ours['method']} ({ours['mean']:.1%}), is ahead of the best simple baseline, "
                f"{simple['method']} ({simple['mean']:.1%}).{chance}"
            )
    if "other" in best:
        other = best["other"]
        name, _, how = other["method"].partition(", ")
        note = other["about"].partition("; ")[2]
        yield (
            f"{name}, which someone else has trained for far longer and on other text, is right on {other['mean']:.1%} "
            f"by {how}{note and f' ({note})'}."
        )
