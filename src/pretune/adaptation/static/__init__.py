"""Static vectors: one for each word, whatever stands around it."""
