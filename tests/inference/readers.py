"""A tiny encoder and a tiny decoder with tokenizers of their own, for tests of vectors and search."""

from copy import deepcopy
from functools import cache

import pretune as pt
from pretune.models.model import LanguageModel

WORDS = "the a cat dog house river bridge play plays stage child film music bank money tree bird sings runs old new"
TEXTS = (
    "the cat plays",
    "a child plays music on the old stage",
    "the dog runs",
    "",
    "money in the bank",
    "the old house by the river and the new bridge over the river where a bird sings in a tree",
    "the cat plays",
    "bank of the river",
)


@cache
def _made(name: str, kind: str) -> LanguageModel:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "texts.txt").write_text("\n".join([WORDS, *TEXTS]))
        tokenizer = pt.train_tokenizer(kind, [folder], vocab=150 if kind == "wordpiece" else 400)
    model = pt.build(name, seed=1, width=32, depth=2, heads=4, hidden=48, vocab=tokenizer.vocab, positions=40)
    model.assets.files = tokenizer.build_files()
    model.assets.tokenizer = tokenizer.raw
    return model.eval()


def encoder() -> LanguageModel:
    """Texts in special tokens, at most 40 tokens."""
    return deepcopy(_made("bert", "wordpiece"))


def decoder() -> LanguageModel:
    """Texts without special tokens."""
    return deepcopy(_made("gpt2", "bpe"))
