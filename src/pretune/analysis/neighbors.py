"""Nearest neighbours of a word: occurrences in a corpus whose contextual states are closest to its state in a sentence,
and tokens with the closest static vectors (after Peters et al., 2018, table 4).

    result = neighbors(model, "play", "Kids play in the park.", open("corpus.txt"))
    result.context[0].text, result.static[0].word

The state of a word is the mean over its pieces at a layer; its static vector the mean of their token embeddings.
For many words and the same corpus, `compute_word_states` and `compute_token_vectors` do once what does not depend on
the word.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pretune.analysis.words import WORD_PATTERN, WordIndex, find_words, format_tokens
from pretune.core.errors import DataError, UsageError
from pretune.data.layout import PackedBatch, pack_batches, pack_in_order
from pretune.data.sequences import Sequences
from pretune.inference.embed import BATCH_TOKENS, encode_texts
from pretune.inference.pooling import compute_layers, compute_states
from pretune.inference.text_model import check_outputs, eval_mode, get_language_model, get_tokenizer
from pretune.models.model import LanguageModel
from pretune.text.tokenizer import Tokenizer

CHUNK_TOKENS = 8192
"""Words of the vocabulary whose vectors are computed at once, if a model reads characters."""
CHUNK_LINES = 512
"""Lines of a corpus that are processed together."""


class Occurrence(NamedTuple):
    """A word in a text, and its similarity."""

    word: str
    text: str
    line: int  # of the corpus, from 1
    start: int  # its first character
    score: float


class VocabularyNeighbor(NamedTuple):
    """A token of the vocabulary, and the similarity of its vector."""

    word: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbors:
    """Neighbours, most similar first."""

    pieces: tuple[str, ...]  # of the word in the sentence
    context: list[Occurrence]
    static: list[VocabularyNeighbor]
    word_count: int  # occurrences compared
    truncated_lines: int  # lines longer than the model's maximum length


@dataclass(frozen=True, slots=True, kw_only=True)
class WordStates:
    """Words of the lines of a corpus, with their states at a layer."""

    lines: Sequence[tuple[int, str]]  # number from 1, and text
    line_ids: list[int]  # of each word
    spans: list[tuple[int, int]]  # of each word in its line
    vectors: Tensor  # [n, W] normalized
    layer: int | None
    truncated_lines: int

    def find(self, query: Tensor, sentence: str, only_word: str | None) -> Iterator[Occurrence]:
        """Yield every word with the cosine of its state and a query, but those of the sentence itself."""
        if not self.spans:
            return
        target = None if only_word is None else only_word.lower()
        for line_id, (start, end), score in zip(
            self.line_ids, self.spans, (self.vectors @ query).tolist(), strict=True
        ):
            number, text = self.lines[line_id]
            if text != sentence and (target is None or text[start:end].lower() == target):
                yield Occurrence(text[start:end], text, number, start, score)

    @property
    def nbytes(self) -> int:
        """Size of the vectors."""
        return self.vectors.numel() * self.vectors.element_size()


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSimilarity:
    """Cosines of two words: of their states at the embeddings and every layer, and of their static vectors."""

    layers: list[float]
    static: float


def neighbors(
    model: nn.Module,
    word: str,
    sentence: str,
    corpus: "Iterable[str] | WordStates",
    *,
    k: int = 10,
    layer: int | None = None,
    same_word: bool = False,
    token_vectors: Tensor | None = None,
) -> Neighbors:
    """Find the k nearest occurrences and the k nearest static vectors by cosine; `same_word`: only of the same word.

    The sentence itself and the word's own pieces are excluded. `token_vectors` are those of `compute_token_vectors`.
    """
    language_model, tokenizer = get_language_model(model), get_tokenizer(model)
    if k < 1:
        raise UsageError(f"k must be >= 1, got {k}")
    _check_layer(language_model, layer)
    if isinstance(corpus, WordStates) and corpus.layer != layer:
        raise UsageError(f"the states of the corpus are those of layer {corpus.layer}, not {layer}")
    with eval_mode(language_model):
        query, pieces = _compute_query(language_model, tokenizer, word, sentence, layer)
        best: list[Occurrence] = []
        word_count = truncated_lines = 0
        only_word = word if same_word else None
        chunks = [corpus] if isinstance(corpus, WordStates) else _iter_states(model, corpus, layer, sentence, only_word)
        for states in chunks:
            truncated_lines += states.truncated_lines
            for occurrence in states.find(query, sentence, only_word):
                word_count += 1
                best.append(occurrence)
            best = sorted(best, key=lambda occurrence: (-occurrence.score, occurrence.line, occurrence.start))[:k]
        if not word_count:
            target = f"'{word}'" if same_word else "a word"
            raise DataError(f"the corpus has no other line with {target}; pass another corpus")
        if token_vectors is None:
            token_vectors = compute_token_vectors(language_model)
        static = _find_static_neighbors(language_model, tokenizer, token_vectors, pieces, k)
    return Neighbors(
        pieces=tuple(tokenizer.get_token(i) for i in pieces),
        context=best,
        static=static,
        word_count=word_count,
        truncated_lines=truncated_lines,
    )


def compute_word_states(model: nn.Module, corpus: Iterable[str], *, layer: int | None = None) -> WordStates:
    """Compute the states of all words of a corpus, which are kept in memory."""
    _check_layer(get_language_model(model), layer)
    lines = [(number, line.rstrip("\r\n")) for number, line in enumerate(corpus, 1)]
    with eval_mode(get_language_model(model)):
        return _compute_states(model, [(number, text) for number, text in lines if text.strip()], layer)


@torch.no_grad()
def compute_token_vectors(model: nn.Module) -> Tensor:
    """Return the normalized static vectors `[V, W]` of the vocabulary; a model that reads characters computes them."""
    language_model = get_language_model(model)
    ids = torch.arange(get_tokenizer(model).vocab, device=language_model.tokens.weight.device)
    parts = [language_model.embed_tokens(part).float() for part in torch.split(ids, CHUNK_TOKENS)]
    return F.normalize(torch.cat(parts), dim=-1)


def compare_words(model: nn.Module, first: tuple[str, str], second: tuple[str, str]) -> WordSimilarity:
    """Return the similarity of two words, each with its sentence, at every layer and of their static vectors.

    Words are found in their sentences ignoring case; the first occurrence counts.
    """
    language_model, tokenizer = get_language_model(model), get_tokenizer(model)
    with eval_mode(language_model):
        vectors, static_vectors = list[Tensor](), list[Tensor]()
        for word, sentence in (first, second):
            sequences, positions = _locate_word(language_model, tokenizer, word, sentence)
            device = language_model.tokens.weight.device
            index = torch.from_numpy(positions).to(device)
            layers = compute_layers(language_model, pack_in_order(sequences).to(device))
            rows = torch.stack([states[index].float().mean(0) for states in layers])
            check_outputs(rows, "states")
            vectors.append(rows)
            pieces = torch.from_numpy(sequences.tokens[positions].astype(np.int64)).to(device)
            static_vectors.append(language_model.embed_tokens(pieces).float().mean(0))
        similarities: list[float] = F.cosine_similarity(vectors[0], vectors[1], dim=-1).tolist()
        static = float(F.cosine_similarity(static_vectors[0], static_vectors[1], dim=0))
    return WordSimilarity(layers=similarities, static=static)


def _locate_word(
    model: LanguageModel, tokenizer: Tokenizer, word: str, sentence: str
) -> tuple[Sequences, NDArray[np.int64]]:
    """Return a sentence as tokens, and the positions of the pieces of its word."""
    span = _find_word(word, sentence)
    if span is None:
        raise UsageError(f"the sentence does not contain the word '{word}'; pass another sentence")
    encoded_texts = encode_texts(tokenizer, [sentence], model.spec.max_length)
    words = find_words(tokenizer, [sentence], encoded_texts.sequences.lengths)
    number = next((i for i, word_span in enumerate(words.spans) if word_span[0] <= span[0] < word_span[1]), None)
    if number is None or not (words.owner == number).any():
        raise UsageError(f"the word '{word}' is beyond the model's maximum length of {model.spec.max_length} tokens")
    return encoded_texts.sequences, np.flatnonzero(words.owner == number)


def _compute_query(
    model: LanguageModel, tokenizer: Tokenizer, word: str, sentence: str, layer: int | None
) -> tuple[Tensor, list[int]]:
    """Return the normalized state of the word in the sentence `[W]`, and its pieces."""
    sequences, positions = _locate_word(model, tokenizer, word, sentence)
    states = compute_states(model, pack_in_order(sequences).to(model.tokens.weight.device), layer)
    check_outputs(states, "states")
    pieces = sequences.tokens[positions].tolist()
    return F.normalize(states[torch.from_numpy(positions).to(states.device)].float().mean(0), dim=0), pieces


def _check_layer(model: LanguageModel, layer: int | None) -> None:
    depth = model.spec.stacks[0].depth
    if layer is not None and not -depth - 1 <= layer <= depth:
        raise UsageError(f"layer must be from 0 to {depth}, or negative from the end, got {layer}")


def _iter_states(
    model: nn.Module, corpus: Iterable[str], layer: int | None, sentence: str, only_word: str | None
) -> Iterator[WordStates]:
    """Yield the states of a corpus by chunks of lines, without lines that cannot be answers."""
    numbered_lines = enumerate((line.rstrip("\r\n") for line in corpus), 1)
    while lines := list(islice(numbered_lines, CHUNK_LINES)):
        lines = [(number, text) for number, text in lines if text.strip() and text != sentence]
        if only_word is not None:
            lines = [(number, text) for number, text in lines if _find_word(only_word, text) is not None]
        if lines:
            yield _compute_states(model, lines, layer)


def _compute_states(model: nn.Module, lines: Sequence[tuple[int, str]], layer: int | None) -> WordStates:
    """Return the words of some lines with their states; words that are truncated have none."""
    language_model, tokenizer = get_language_model(model), get_tokenizer(model)
    texts = [text for _, text in lines]
    device = language_model.tokens.weight.device
    vectors, word_ids = list[Tensor](), list[int]()
    truncated_lines, words = 0, WordIndex(np.zeros(0, np.int64), [], np.zeros(0, np.int64))
    if texts:
        encoded_texts = encode_texts(tokenizer, texts, language_model.spec.max_length)
        truncated_lines, sequences = encoded_texts.truncated_texts, encoded_texts.sequences
        words = find_words(tokenizer, texts, sequences.lengths)
        size = BATCH_TOKENS.get(device.type, BATCH_TOKENS["cuda"])
        for part in pack_batches(sequences, tokens=size, device=device.type):
            owners = np.concatenate([words.owner[slice(*sequences.offsets[i : i + 2])] for i in part.indices.tolist()])
            ids, rows = _compute_part(language_model, part, owners, layer)
            vectors.append(rows)
            word_ids += ids
    order = np.argsort(word_ids, kind="stable")  # the batches are ordered by length
    ids = [word_ids[i] for i in order]
    return WordStates(
        lines=lines,
        line_ids=[int(words.text_ids[i]) for i in ids],
        spans=[words.spans[i] for i in ids],
        vectors=torch.cat(vectors)[torch.from_numpy(order).to(device)] if vectors else torch.zeros(0, 0),
        layer=layer,
        truncated_lines=truncated_lines,
    )


def _compute_part(
    model: LanguageModel, part: PackedBatch, owners: NDArray[np.int64], layer: int | None
) -> tuple[list[int], Tensor]:
    """Return the words of a batch, and their normalized states `[n, W]`; `owners` are the words of its tokens."""
    device = model.tokens.weight.device
    states = compute_states(model, part.batch.to(device), layer).float()
    inside = part.token_positions[owners >= 0]
    word_ids, group = np.unique(owners[owners >= 0], return_inverse=True)
    sums = states.new_zeros(len(word_ids), states.shape[1])
    rows = states.index_select(0, torch.from_numpy(inside).to(device))
    sums.index_add_(0, torch.from_numpy(group.ravel()).to(device), rows)
    check_outputs(rows, "states")
    return word_ids.tolist(), F.normalize(sums, dim=-1)


def _find_static_neighbors(
    model: LanguageModel, tokenizer: Tokenizer, vectors: Tensor, pieces: Sequence[int], k: int
) -> list[VocabularyNeighbor]:
    """Return the tokens with the nearest vectors, except special tokens and the word's own pieces."""
    query = F.normalize(model.embed_tokens(torch.tensor(pieces, device=vectors.device)).float().mean(0), dim=0)
    scores = vectors @ query
    hidden_ids = [i for i in sorted({*tokenizer.special_ids, *pieces}) if i < tokenizer.vocab]
    scores[torch.tensor(hidden_ids, dtype=torch.long, device=vectors.device)] = -2.0
    values, tokens = scores.topk(min(k, len(scores)))
    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
    return [VocabularyNeighbor(format_tokens(tokenizer, [i])[0], value) for i, value in pairs if value > -2.0]


def _find_word(word: str, text: str) -> tuple[int, int] | None:
    """Return the span of the first occurrence of a word in a text, ignoring case."""
    lower_word = word.lower()
    return next((match.span() for match in WORD_PATTERN.finditer(text) if match.group().lower() == lower_word), None)
