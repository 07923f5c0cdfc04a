"""TOKENS -> BATCHES: how sequences of tokens become the ragged batch a model reads."""
