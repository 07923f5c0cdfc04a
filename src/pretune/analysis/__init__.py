"""LOOKING INSIDE: what states and weights know."""
