"""EVALUATION: perplexity, minimal pairs, in-context, baselines, comparisons, reports."""
