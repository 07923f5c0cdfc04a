"""ADAPTATION: from a pre-trained model to a task: heads, strategies, parameter-efficient methods, static vectors."""
