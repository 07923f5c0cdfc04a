"""Hugging Face files: configs, weights, heads and whole checkpoints, both ways."""
