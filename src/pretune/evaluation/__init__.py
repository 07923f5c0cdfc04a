"""Evaluation: perplexity, minimal pairs, few-shot prompting, retrieval, similarity and baselines."""
