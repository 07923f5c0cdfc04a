"""Vectors by comparison: a model learns which texts belong together."""

from pretune.runs.embedding.train import Trained, train_embeddings

__all__ = ["Trained", "train_embeddings"]
