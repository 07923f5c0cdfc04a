"""Sizes and methods of the quick start."""

from dataclasses import dataclass

from pretune.core.config import spec


@spec
class QuickstartPlan:
    """Sizes, chosen on reviews outside the test set (docs/results.md)."""

    labels: tuple[int, ...] = (200, 1000)
    steps: tuple[int, ...] = (50, 125)  # for each number of labels
    share: tuple[float, ...] = (0.12, 0.25)  # maximum share of the budget per training of the encoder
    min_steps: int = 12  # on the slowest machine
    seeds: int = 3
    test: int = 1000
    dev: int = 100  # validation reviews; they select nothing
    length: int = 64  # maximum tokens per review
    batch: int = 16
    size: str = "tiny"  # of the small model
    vocab: int = 8192  # of the small model
    pretrain: float = 1 / 6  # share of the budget in which the small model is pre-trained


@dataclass(frozen=True, slots=True)
class QuickstartRow:
    """Row of the results table; `finetune_method` and `lr` are arguments of `pt.finetune`."""

    method: str
    group: str
    about: str
    finetune_method: str = ""
    lr: float = 0.0


ROWS = {
    "majority": QuickstartRow("majority class", "baseline", "predicts the more frequent label"),
    "svm": QuickstartRow("TF-IDF + SVM", "baseline", "linear SVM on TF-IDF of words and word pairs"),
    "static": QuickstartRow(
        "averaged static vectors", "baseline", "word vectors from co-occurrence counts in the reviews"
    ),
    "random": QuickstartRow(
        "random weights", "random", "a small model, trained from scratch on the labels", "full+from-scratch", 1e-3
    ),
    "own": QuickstartRow("pre-trained here", "pretrained", "the same small model, pre-trained here", "full", 1e-3),
    "frozen": QuickstartRow(
        "feature extraction", "pretrained", "a linear classifier on the frozen encoder", "frozen", 1e-5
    ),
    "lora": QuickstartRow("LoRA", "pretrained", "low-rank updates of the pre-trained encoder", "lora", 2e-3),
    "full": QuickstartRow("full fine-tuning", "pretrained", "all weights of the pre-trained encoder", "full", 1e-4),
}
SMALL_MODEL_ROWS = ("random", "own")
"""Rows of the small model; the other networks use the pre-trained encoder."""
