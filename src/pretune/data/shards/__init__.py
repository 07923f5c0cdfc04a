"""Tokens on disk: numpy's own files, memory-mapped, with the boundaries of documents, sentences and words.

    DATA/data.json                  what it is and what it was made from; the shards of each split
    DATA/train/00000.tokens.npy     uint16 | uint32 [T]    token ids
    DATA/train/00000.documents.npy  int64 [D + 1]          where each document starts, and the end
    DATA/train/00000.sentences.npy  int64 [S]              where each sentence starts; a document's first token is one
    DATA/train/00000.words.npy      uint8 [ceil(T / 8)]    one bit per token, the highest first: it starts a word
    DATA/train/00000.sources.npy    uint16 [D]             which source a document is from
    DATA/train/00000.sides.npy      int64 [D]              tokens of its first side where a document has two, else 0;
                                                           not there where none of the split has

    with atomic_directory("DATA") as folder:                       # published at once, or not at all
        with ShardWriter(folder / "train", token_dtype(vocab)) as writer:
            writer.add(tokens, offsets, words=words, sentences=sentences)
        write_index(folder, Index(vocab=vocab, …, splits={"train": Split(shards=writer.shards)}))
    shards = Shards.open("DATA", "train")

A document lies in one shard. Positions are those of one stream that goes through all shards in order.
"""

from pretune.data.shards.index import DataIndex, ShardFacts, ShardSplit, choose_token_dtype, read_index, write_index
from pretune.data.shards.reader import Shards
from pretune.data.shards.writer import ShardWriter

__all__ = [
    "DataIndex",
    "ShardFacts",
    "ShardWriter",
    "Shards",
    "ShardSplit",
    "read_index",
    "choose_token_dtype",
    "write_index",
]
