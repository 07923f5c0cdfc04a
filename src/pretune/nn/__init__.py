"""Building blocks of models. All modules work on flat tokens `[N, width]` of a ragged batch."""
