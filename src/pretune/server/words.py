"""Words of a served model: the nearest neighbors of a word, and the similarity of two.

For texts that come again, the states of their words are computed once; for a vocabulary that is read by characters, the
static vectors as well. Other static vectors are the rows of a table: they are not worth a copy.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from pretune.analysis.held_out import read_held_out
from pretune.analysis.neighbors import (
    Neighbors,
    WordStates,
    compare_words,
    compute_token_vectors,
    compute_word_states,
    neighbors,
)
from pretune.core.errors import UsageError, suggest
from pretune.inference.word_vectors import WordVectors
from pretune.models.model import LanguageModel
from pretune.server.capabilities import Capability
from pretune.server.loaded_model import LoadedModel

MAX_BYTES = 64 * 2**20
"""Size of the states of words that are kept, of all texts and layers."""
NEIGHBOR_TEXTS = 200
"""Texts that are searched for neighbors, if a request has none."""


class NeighborCache:
    """States of the words of the latest texts."""

    def __init__(self, model: LanguageModel, max_bytes: int = MAX_BYTES) -> None:
        self.model, self.max_bytes = model, max_bytes
        self._states: OrderedDict[tuple[tuple[str, ...], int | None], WordStates] = OrderedDict()
        self._token_vectors: Tensor | None = None

    def find(
        self,
        word: str,
        sentence: str,
        texts: Sequence[str],
        *,
        k: int,
        layer: int | None = None,
        same_word: bool = False,
    ) -> Neighbors:
        """Return the neighbors of a word of a sentence among texts, as `neighbors` does."""
        states = self._get_states(tuple(texts), layer, is_computed=not same_word)
        if self.model.spec.characters is not None and self._token_vectors is None:
            self._token_vectors = compute_token_vectors(self.model)
        return neighbors(
            self.model,
            word,
            sentence,
            texts if states is None else states,
            k=k,
            layer=layer,
            same_word=same_word,
            token_vectors=self._token_vectors,
        )

    def _get_states(self, texts: tuple[str, ...], layer: int | None, *, is_computed: bool) -> WordStates | None:
        """Return the states of texts, computed if they are not there; None if they are neither."""
        key = texts, layer
        if key in self._states:
            self._states.move_to_end(key)
            return self._states[key]
        if not is_computed:  # few lines have a given word
            return None
        states = compute_word_states(self.model, texts, layer=layer)
        if states.nbytes <= self.max_bytes:
            self._states[key] = states
            while sum(other.nbytes for other in self._states.values()) > self.max_bytes:
                self._states.popitem(last=False)
        return states


class WordComparer(Capability):
    """Similarities of two words, each in a sentence; word vectors have no layers."""

    name = "compare"

    def __init__(self, model: LoadedModel) -> None:
        self.vectors, self.model = model.word_vectors, model
        if self.vectors is None and model.get_readable_network().prompt is not None:
            raise UsageError("a model with a tuned prompt has no states of plain text")

    def run(self, items: Sequence[tuple[tuple[str, str], tuple[str, str]]]) -> list[dict[str, Any]]:
        """Return the similarities of pairs of words."""
        if self.vectors is None:
            return [asdict(compare_words(self.model.get_network(), first, second)) for first, second in items]
        pairs = [[find_word(self.vectors, word) for word, _ in item] for item in items]
        return [{"layers": [], "static": self.vectors.compare(*pair)} for pair in pairs]


class NeighborFinder(WordComparer):
    """Neighbors of a word of a sentence, in context and static; of word vectors, static ones."""

    name = "neighbors"

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(model)
        self._cache = None if model.network is None else NeighborCache(model.network)
        self._corpus: list[str] = []

    def find(
        self, items: Sequence[tuple[str, str, tuple[str, ...]]], *, k: int, layer: int | None, same_word: bool
    ) -> list[dict[str, Any]]:
        """Return the neighbors of words in sentences, among texts, or among held-out ones."""
        results = []
        for word, sentence, texts in items:
            if self.vectors is not None:
                results.append(_list_static_neighbors(self.vectors, word, k))
                continue
            assert self._cache is not None
            result = self._cache.find(
                word, sentence, texts or self._read_corpus(), k=k, layer=layer, same_word=same_word
            )
            results.append(
                {
                    "pieces": list(result.pieces),
                    "context": [neighbor._asdict() for neighbor in result.context],
                    "static": [neighbor._asdict() for neighbor in result.static],
                    "words": result.word_count,
                }
            )
        return results

    def _read_corpus(self) -> list[str]:
        """Return held-out texts to search for neighbors."""
        if not self._corpus:
            network = self.model.get_network()
            self._corpus = read_held_out(self.model.path or network, network, NEIGHBOR_TEXTS, sentences=True).texts
        return self._corpus


def _list_static_neighbors(vectors: WordVectors, word: str, k: int) -> dict[str, Any]:
    name = find_word(vectors, word)
    static = [{"word": other, "score": float(score)} for other, score in vectors.find_nearest(name, k)]
    return {"pieces": [name], "context": [], "static": static, "words": len(vectors)}


def find_word(vectors: WordVectors, word: str) -> str:
    """Return the spelling of a word among word vectors. Raises a UsageError if there is none."""
    name = word if word in vectors else word.lower()
    if name not in vectors:
        raise UsageError(f"no vector of '{word[:60]}'{suggest(name, vectors.words[:100_000])}")
    return name
