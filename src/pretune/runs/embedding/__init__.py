"""Contrastive training of sentence embeddings."""

from pretune.runs.embedding.train import TrainedEmbeddings, train_embeddings

__all__ = ["TrainedEmbeddings", "train_embeddings"]
