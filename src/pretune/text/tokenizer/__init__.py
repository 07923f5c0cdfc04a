"""Tokenizers: one wrapper for all, five kinds to train, files that transformers reads.

    tokenizer = Tokenizer.load("runs/small")                     # any directory with a tokenizer.json
    tokenizer = train("unigram", texts, vocab=8000)              # the special tokens and layouts of a style
    found = tokenizer.encode_batch(texts, literal=True)          # flat ids, offsets, word starts, character starts

Read in this order: `wrapper` (what others use), `encode` and `cache` (why it is fast), `build_files` and `roles` (what is
read and written), `training` with `pipeline`, `sample`, `counting` and `unigram` (how one is made). The kinds and
styles are data: `pretune.text.styles`. Layouts and truncation: `pretune.text.templates`.
"""

from pretune.text.tokenizer.encode import TokenizedTexts
from pretune.text.tokenizer.tokenizer import Tokenizer
from pretune.text.tokenizer.training import TokenizerConfig, train, train_tokenizer

__all__ = ["TokenizedTexts", "TokenizerConfig", "Tokenizer", "train", "train_tokenizer"]
