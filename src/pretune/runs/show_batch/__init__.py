"""Inputs, targets and attention masks of an objective on a sentence, as values for `pretune show-batch`."""

from pretune.runs.show_batch.describe import AttentionMap, ModelSide, ShownSequence
from pretune.runs.show_batch.example import BatchExample, build_example

__all__ = ["AttentionMap", "BatchExample", "ModelSide", "ShownSequence", "build_example"]
