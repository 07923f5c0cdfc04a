"""Small texts and a tokenizer whose tokens are bytes, so that what was written can be read back to the letter."""

import random
from itertools import pairwise
from pathlib import Path

import tokenizers

from pretune.data.prepared_data import PreparedData

_PROSE = "the old house sea was quiet and nobody knew who had lived there before"
WORDS = tuple(_PROSE.split())


def byte_tokenizer(folder: Path, extra: int = 0) -> Path:
    """A directory with a tokenizer of 256 bytes and an unknown token; `extra` more tokens that no text has."""
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    names = ["[UNK]", *sorted(letters), *(f"<extra_{number}>" for number in range(extra))]
    vocab = {name: number for number, name in enumerate(names)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["[UNK]"])
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    return folder


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(4, 12))).capitalize() + "."


def story(number: int, sentences: int = 4) -> str:
    """A text that no other number has."""
    rng = random.Random(number)
    return " ".join([f"Story {number} begins.", *(sentence(rng) for _ in range(sentences))])


def stories(count: int, first: int = 0) -> list[str]:
    return [story(number) for number in range(first, first + count)]


def blocks(path: Path, texts: list[str]) -> str:
    """A file with an empty line between documents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(texts) + "\n")
    return str(path)


def texts_of(data: PreparedData, split: str = "train") -> list[str]:
    """The documents of a split, as they were."""
    from pretune.text.tokenizer import Tokenizer

    if split not in data.index.splits:
        return []
    tokenizer, shards = Tokenizer.load(data.tokenizer), data.open_shards(split)
    edges = shards.documents.tolist()
    return [tokenizer.decode(shards.read_tokens(a, b).tolist()) for a, b in pairwise(edges)]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


MANY = stories(300)
