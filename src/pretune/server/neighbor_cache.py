"""Neighbors of words for a server: what does not depend on the word is computed once."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor

from pretune.analysis.neighbors import (
    Neighbors,
    WordStates,
    compute_token_vectors,
    compute_word_states,
    neighbors,
)
from pretune.models.model import LanguageModel

MAX_BYTES = 64 * 2**20
"""Size of the states of words that are kept, of all texts and layers."""


class NeighborCache:
    """States of the words of the latest texts, and static vectors of a vocabulary that is read by characters.

    Other static vectors are the rows of a table: they are not worth a copy.
    """

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
