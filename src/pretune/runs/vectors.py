"""Static word vectors from a corpus: `pt.train_vectors` and `pretune vectors`.

vectors = pt.train_vectors(["books/"], kind="glove", width=200, out="vectors.txt")
vectors.find_nearest("film")
pt.embed("vectors.txt", ["A fine film."])
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields

from pretune.adaptation.cooccurrence import MAX_WORDS, Glove, Ppmi
from pretune.adaptation.word2vec import Word2Vec, WordCorpus
from pretune.core.api import take_options
from pretune.core.errors import UsageError, refuse_broken_link, suggest
from pretune.inference.word_vectors import WordVectors
from pretune.runs.options import VectorsOptions
from pretune.text.corpora import open_corpus

TRAINERS: Mapping[str, type[Word2Vec] | type[Glove] | type[Ppmi]] = {"word2vec": Word2Vec, "glove": Glove, "ppmi": Ppmi}
MAX_VALUES = {"width": 4096, "window": 100, "epochs": 1000, "min_count": 10**9, "max_words": 10_000_000}
"""The largest value of each option; the smallest is 1."""
_PART_BYTES = 2**24  # bytes per part of the corpus


@take_options(VectorsOptions, required_names=["inputs"])
def train_vectors(options: VectorsOptions) -> WordVectors:
    """Train word vectors on a corpus, and write them in word2vec's text format.

    Args:
        inputs: Text: files, folders, globs, or built-in names.
        out: File of the vectors; None: they are only returned.
        kind: "word2vec", "glove", or "ppmi" (counts and a singular value decomposition).
        mode: Of word2vec: "skip_gram" or "cbow".
        width: Width of the vectors; None, here and below: the paper's.
        window: Words on each side that are the context of a word.
        epochs: Passes over the text.
        min_count: Minimum frequency of a word.
        max_words: Size of the vocabulary.
        seed: Seed of the training.
        by: Unit of a document.
        field: Text field of tables.
        progress: Callback with the share of the corpus that is read.
    """
    return run_vectors(options)


def run_vectors(options: VectorsOptions) -> WordVectors:
    """Train word vectors and write them."""
    trainer, inputs, out = build_trainer(options), options.inputs, options.out
    names = [os.fspath(name) for name in ([inputs] if isinstance(inputs, str | os.PathLike) else inputs)]
    if out is not None:
        refuse_broken_link(out)
    parts = open_corpus(names, by=options.by, field=options.field).plan_parts(_PART_BYTES)

    def texts() -> Iterator[str]:
        for number, part in enumerate(parts):
            for document in part.read_documents():
                yield from document.sides
            if options.progress is not None:
                options.progress((number + 1) / len(parts))

    vectors = trainer.fit(
        WordCorpus.from_texts(texts(), min_count=trainer.min_count, max_words=trainer.max_words), seed=options.seed
    )
    if out is not None:
        vectors.save(out)
    return vectors


def build_trainer(options: VectorsOptions) -> Word2Vec | Glove | Ppmi:
    """Return the trainer of a kind with the options that are set; raise a UsageError for those of other kinds."""
    kind = options.kind
    if kind not in TRAINERS:
        raise UsageError(f"unknown kind '{kind[:60]}'{suggest(kind, TRAINERS)} (allowed: {', '.join(TRAINERS)})")
    field_names = {name: {field.name for field in fields(cls)} for name, cls in TRAINERS.items()}
    values = options.list_settings()
    for name, value in values.items():
        if name not in field_names[kind]:
            supported_kinds = ", ".join(other for other in TRAINERS if name in field_names[other])
            raise UsageError(f"{name.replace('_', '-')} is not an option of {kind}, only of {supported_kinds}")
        if name in MAX_VALUES and not 1 <= value <= MAX_VALUES[name]:
            raise UsageError(f"{name.replace('_', '-')} must be from 1 to {MAX_VALUES[name]}, got {value}")
    trainer = TRAINERS[kind](**values)
    if isinstance(trainer, Ppmi) and (trainer.max_words is None or trainer.max_words > MAX_WORDS):
        raise UsageError(f"max-words of ppmi must be from 1 to {MAX_WORDS}, got {trainer.max_words}")
    return trainer
