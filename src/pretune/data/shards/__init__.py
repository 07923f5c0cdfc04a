"""Token shards: memory-mapped .npy files of tokens and of the boundaries of documents, sentences and words.

    DATA/data.json                  index: tokenizer, settings, sources, and the shards of each split
    DATA/train/00000.tokens.npy     uint16 | uint32 [T]    token ids
    DATA/train/00000.documents.npy  int64 [D + 1]          start of each document, and the end of the last
    DATA/train/00000.sentences.npy  int64 [S]              start of each sentence; every document starts one
    DATA/train/00000.words.npy      uint8 [ceil(T / 8)]    one bit per token, highest first: 1 if it starts a word
    DATA/train/00000.sources.npy    uint16 [D]             source number of each document
    DATA/train/00000.sides.npy      int64 [D]              tokens of the first side of a text pair, else 0;
                                                           absent if the split has no pairs

    with atomic_directory("DATA") as folder:                       # published completely or not at all
        with ShardWriter(folder / "train", choose_token_dtype(vocab)) as writer:
            writer.add(tokens, offsets, words=words, sentences=sentences)
        write_index(folder, DataIndex(vocab=vocab, …, splits={"train": ShardSplit(shards=tuple(writer.shards))}))
    shards = Shards.open("DATA", "train")

A document is never divided between shards. In `Shards`, positions count tokens through all shards of a split, in order.
"""

from pretune.data.shards.files import DataIndex, ShardFacts, ShardSplit, choose_token_dtype, read_index, write_index
from pretune.data.shards.reader import Shards
from pretune.data.shards.writer import ShardWriter
