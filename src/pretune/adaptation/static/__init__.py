"""Static word vectors: one vector per word, independent of context."""
