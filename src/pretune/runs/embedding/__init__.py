"""Vectors by comparison: a model learns which texts belong together."""

from pretune.runs.embedding.train import TrainedEmbeddings, train_embeddings

__all__ = ["TrainedEmbeddings", "train_embeddings"]
