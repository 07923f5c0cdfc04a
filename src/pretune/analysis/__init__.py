"""Analysis of the states and weights of models."""
