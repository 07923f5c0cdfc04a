"""Hugging Face formats: configs, weights, task heads and checkpoints."""
