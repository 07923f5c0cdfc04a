"""Nearest neighbours of a word: occurrences in a corpus whose contextual states are closest to its state in a sentence,
and tokens with the closest static vectors (after Peters et al., 2018, table 4).

    result = neighbors(model, "play", "Kids play in the park.", open("corpus.txt"))
    result.context[0].text, result.static[0].word

The state of a word is the mean over its pieces at a layer; its static vector the mean of their token embeddings.
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

from pretune.analysis.words import WORD_PATTERN, WordIndex, find_words
from pretune.core.errors import DataError, UsageError
from pretune.data.layout import pack_batches, pack_in_order
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
class WordSimilarity:
    """Cosines of two words: of their states at the embeddings and every layer, and of their static vectors."""

    layers: list[float]
    static: float


def neighbors(
    model: nn.Module,
    word: str,
    sentence: str,
    corpus: Iterable[str],
    *,
    k: int = 10,
    layer: int | None = None,
    same_word: bool = False,
) -> Neighbors:
    """Find the k nearest occurrences and the k nearest static vectors by cosine; `same_word`: only of the same word.

    The sentence itself and the word's own pieces are excluded.
    """
    language_model, tokenizer = get_language_model(model), get_tokenizer(model)
    if k < 1:
        raise UsageError(f"k must be >= 1, got {k}")
    depth = language_model.spec.stacks[0].depth
    if layer is not None and not -depth - 1 <= layer <= depth:
        raise UsageError(f"layer must be from 0 to {depth}, or negative from the end, got {layer}")
    with eval_mode(language_model):
        query, pieces = _compute_query(language_model, tokenizer, word, sentence, layer)
        best: list[Occurrence] = []
        word_count = truncated_lines = 0
        numbered_lines = enumerate((line.rstrip("\r\n") for line in corpus), 1)
        while texts := list(islice(numbered_lines, CHUNK_LINES)):
            candidates = [(number, text) for number, text in texts if text.strip() and text != sentence]
            if same_word:
                candidates = [(number, text) for number, text in candidates if _find_word(word, text) is not None]
            occurrences, truncated_count = _find_occurrences(
                language_model, tokenizer, candidates, query, layer, word if same_word else None
            )
            truncated_lines += truncated_count
            for occurrence in occurrences:
                word_count += 1
                best.append(occurrence)
            best = sorted(best, key=lambda occurrence: (-occurrence.score, occurrence.line, occurrence.start))[:k]
        if not word_count:
            target = f"'{word}'" if same_word else "a word"
            raise DataError(f"the corpus has no other line with {target}; pass another corpus")
        static = _find_static_neighbors(language_model, tokenizer, pieces, k)
    return Neighbors(
        pieces=tuple(tokenizer.get_token(i) for i in pieces),
        context=best,
        static=static,
        word_count=word_count,
        truncated_lines=truncated_lines,
    )


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


def _find_occurrences(
    model: LanguageModel,
    tokenizer: Tokenizer,
    lines: Sequence[tuple[int, str]],
    query: Tensor,
    layer: int | None,
    only_word: str | None,
) -> tuple[Iterator[Occurrence], int]:
    """Return every word of some lines with its similarity, and the number of truncated lines."""
    if not lines:
        return iter(()), 0
    texts = [text for _, text in lines]
    encoded_texts = encode_texts(tokenizer, texts, model.spec.max_length)
    words = find_words(tokenizer, texts, encoded_texts.sequences.lengths)
    scores = _score_words(model, encoded_texts.sequences, words, query, layer)

    def iter_occurrences() -> Iterator[Occurrence]:
        for text_id, (start, end), score in zip(words.text_ids.tolist(), words.spans, scores.tolist(), strict=True):
            number, text = lines[text_id]
            if not np.isnan(score) and (only_word is None or text[start:end].lower() == only_word.lower()):
                yield Occurrence(text[start:end], text, number, start, score)

    return iter_occurrences(), encoded_texts.truncated_texts


def _score_words(
    model: LanguageModel, sequences: Sequences, words: WordIndex, query: Tensor, layer: int | None
) -> NDArray[np.float32]:
    """Return the cosine of each word's state with the query `[V]`; NaN for truncated words."""
    out = np.full(len(words.spans), np.nan, dtype=np.float32)
    device = query.device.type
    for part in pack_batches(sequences, tokens=BATCH_TOKENS.get(device, BATCH_TOKENS["cuda"]), device=device):
        states = compute_states(model, part.batch.to(query.device), layer).float()
        owners = np.concatenate([words.owner[slice(*sequences.offsets[i : i + 2])] for i in part.indices.tolist()])
        inside = part.token_positions[owners >= 0]
        numbers, group = np.unique(owners[owners >= 0], return_inverse=True)
        if not len(numbers):
            continue
        sums = states.new_zeros(len(numbers), states.shape[1])
        rows = states.index_select(0, torch.from_numpy(inside).to(query.device))
        sums.index_add_(0, torch.from_numpy(group.ravel()).to(query.device), rows)
        check_outputs(rows, "states")
        out[numbers] = (F.normalize(sums, dim=-1) @ query).cpu().numpy()
    return out


def _find_static_neighbors(
    model: LanguageModel, tokenizer: Tokenizer, pieces: Sequence[int], k: int
) -> list[VocabularyNeighbor]:
    """Return the tokens with the nearest embeddings, except special tokens and the word's own pieces."""
    device = model.tokens.weight.device
    parts = torch.split(torch.arange(tokenizer.vocab, device=device), CHUNK_TOKENS)
    table = torch.cat([model.embed_tokens(part).float() for part in parts])
    query = F.normalize(model.embed_tokens(torch.tensor(pieces, device=device)).float().mean(0), dim=0)
    scores = F.normalize(table, dim=-1) @ query
    hidden_ids = [i for i in sorted({*tokenizer.special_ids, *pieces}) if i < tokenizer.vocab]
    scores[torch.tensor(hidden_ids, dtype=torch.long, device=device)] = -2.0
    values, tokens = scores.topk(min(k, len(scores)))
    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
    return [VocabularyNeighbor(_format_token(tokenizer, i), value) for i, value in pairs if value > -2.0]


def _format_token(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of a token, or its spelling if it is not a complete character."""
    text = tokenizer.decode([token]).strip()
    return text if text and "\ufffd" not in text else tokenizer.get_token(token)


def _find_word(word: str, text: str) -> tuple[int, int] | None:
    """Return the span of the first occurrence of a word in a text, ignoring case."""
    lower_word = word.lower()
    return next((match.span() for match in WORD_PATTERN.finditer(text) if match.group().lower() == lower_word), None)
