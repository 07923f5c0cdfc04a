"""Inference with a pre-trained model: generate, fill masks, embed, search, and score."""
