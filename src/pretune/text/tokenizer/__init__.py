"""Tokenizers: one wrapper for all, five kinds to train, files that transformers reads.

    tokenizer = Tokenizer.load("runs/small")                     # any directory with a tokenizer.json
    tokenizer = train("unigram", texts, vocab=8000)              # with the special tokens and templates of a style
    tokens= tokenizer.encode_batch(texts, literal=True)          # flat ids, offsets, word starts, character starts

Reading order: `tokenizer` (the interface), `cache` (speed), `files` (input and output, roles of special
tokens), `training` with `sample` and `unigram` (training). Kinds and styles are data:
`pretune.text.styles`. Templates and truncation: `pretune.text.template`.
"""

from pretune.text.tokenizer.tokenizer import TokenizedTexts, Tokenizer

__all__ = ["TokenizedTexts", "Tokenizer"]
