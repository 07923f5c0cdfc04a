"""Neighbours of a word: occurrences in a corpus whose states are nearest to its state in a sentence, and the static
vectors nearest to its own, which know no sentence (after Peters et al., 2018, table 4).

    found = neighbors(model, "play", "Kids play in the park.", open("corpus.txt"))
    found.context[0].text, found.static[0].word

The state of a word is the mean over its pieces at a layer; its static vector the mean of their rows in the token table.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pretune.core.errors import DataError, UsageError
from pretune.data.ragged import Ints
from pretune.data.sequences import Sequences
from pretune.inference.batching import encode_texts, pack_batches
from pretune.inference.embed import BATCH_TOKENS, ROW_TOKENS
from pretune.inference.finite_check import check_outputs
from pretune.inference.pooling import compute_states
from pretune.inference.text_model import eval_mode, get_language_model, get_tokenizer
from pretune.models.model import LanguageModel
from pretune.text.templates import TextPart
from pretune.text.tokenizer import Tokenizer

WORD_PATTERN = re.compile(r"\w+(?:['’]\w+)?")
CHUNK_LINES = 512
"""Lines of a corpus that are read together."""


class Occurrence(NamedTuple):
    """A word in a text, and how near it is."""

    word: str
    text: str
    line: int  # of the corpus, from 1 on
    start: int  # its first character
    score: float


class VocabularyNeighbor(NamedTuple):
    """A token of the vocabulary, and how near its vector is."""

    word: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbors:
    """What was found, best first."""

    pieces: tuple[str, ...]  # of the word in the sentence
    context: list[Occurrence]
    static: list[VocabularyNeighbor]
    word_count: int  # occurrences that were looked at
    truncated_lines: int  # lines of which only the beginning was read


@dataclass(frozen=True, slots=True)
class _WordIndex:
    """The words of texts: which text, which characters, and the word of each token (-1: none)."""

    text_ids: Ints  # [V]
    spans: list[tuple[int, int]]
    owner: Ints  # [T] of the flat tokens, special ones included


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
    """The k nearest occurrences and the k nearest static vectors, by cosine; with `same` only of the word itself.

    The sentence's own line is no neighbour where it stands in the corpus, nor are the word's own pieces.
    """
    found, tokenizer = get_language_model(model), get_tokenizer(model)
    if k < 1:
        raise UsageError(f"k is {k}; at least 1 neighbour has to be asked for")
    depth = found.spec.stacks[0].depth
    if layer is not None and not -depth - 1 <= layer <= depth:
        raise UsageError(f"layer {layer} is not among those of this model: 0 to {depth}, or from -1 back")
    with eval_mode(found):
        query, pieces = _compute_query(found, tokenizer, word, sentence, layer)
        best: list[Occurrence] = []
        seen = cut = 0
        every = enumerate((line.rstrip("\r\n") for line in corpus), 1)
        while texts := list(islice(every, CHUNK_LINES)):
            kept = [(number, text) for number, text in texts if text.strip() and text != sentence]
            if same_word:
                kept = [(number, text) for number, text in kept if _find_word(word, text) is not None]
            lines, lost = _find_occurrences(found, tokenizer, kept, query, layer, word if same_word else None)
            cut += lost
            for occurrence in lines:
                seen += 1
                best.append(occurrence)
            best = sorted(best, key=lambda one: (-one.score, one.line, one.start))[:k]
        if not seen:
            where = f"'{word}'" if same_word else "a word"
            raise DataError(f"the corpus has no line with {where} beside the sentence itself; give another")
        static = _find_static_neighbors(found, tokenizer, pieces, k)
    return Neighbors(
        pieces=tuple(tokenizer.get_token(i) for i in pieces),
        context=best,
        static=static,
        word_count=seen,
        truncated_lines=cut,
    )


def _compute_query(
    model: LanguageModel, tokenizer: Tokenizer, word: str, sentence: str, layer: int | None
) -> tuple[Tensor, list[int]]:
    """The state of the word in the sentence `[W]`, of length one, and its pieces."""
    span = _find_word(word, sentence)
    if span is None:
        raise UsageError(f"the sentence has no word '{word}'; write one that has it")
    made = encode_texts(tokenizer, [sentence], model.spec.max_length)
    words = _find_words(tokenizer, [sentence], made.sequences.lengths)
    number = next((i for i, found in enumerate(words.spans) if found[0] <= span[0] < found[1]), None)
    if number is None or not (words.owner == number).any():
        raise UsageError(f"the word '{word}' stands behind the {model.spec.max_length} tokens that the model reads")
    ((_, _, batch),) = pack_batches(made.sequences, tokens=1, row=1)
    states = compute_states(model, batch.to(model.tokens.weight.device), layer)
    check_outputs(states, "states")
    places = np.flatnonzero(words.owner == number)
    pieces = made.sequences.tokens[places].tolist()
    return F.normalize(states[torch.from_numpy(places).to(states.device)].float().mean(0), dim=0), pieces


def _find_occurrences(
    model: LanguageModel,
    tokenizer: Tokenizer,
    lines: Sequence[tuple[int, str]],
    query: Tensor,
    layer: int | None,
    only_word: str | None,
) -> tuple[Iterator[Occurrence], int]:
    """Every word of some lines with its nearness, and how many lines were cut."""
    if not lines:
        return iter(()), 0
    texts = [text for _, text in lines]
    made = encode_texts(tokenizer, texts, model.spec.max_length)
    words = _find_words(tokenizer, texts, made.sequences.lengths)
    scores = _score_words(model, made.sequences, words, query, layer)

    def found() -> Iterator[Occurrence]:
        for which, (start, end), score in zip(words.text_ids.tolist(), words.spans, scores.tolist(), strict=True):
            number, text = lines[which]
            if not np.isnan(score) and (only_word is None or text[start:end].lower() == only_word.lower()):
                yield Occurrence(text[start:end], text, number, start, score)

    return found(), made.truncated_texts


def _score_words(
    model: LanguageModel, sequences: Sequences, words: _WordIndex, query: Tensor, layer: int | None
) -> NDArray[np.float32]:
    """The cosine of each word's state with the query `[V]`; NaN where no token of it was read."""
    out = np.full(len(words.spans), np.nan, dtype=np.float32)
    kind = query.device.type
    room = {"tokens": BATCH_TOKENS.get(kind, BATCH_TOKENS["cuda"]), "row": ROW_TOKENS.get(kind, ROW_TOKENS["cuda"])}
    for ids, _, batch in pack_batches(sequences, **room):
        states = compute_states(model, batch.to(query.device), layer).float()
        owners = np.concatenate([words.owner[slice(*sequences.offsets[i : i + 2])] for i in ids.tolist()])
        inside = np.flatnonzero(batch.sequence.numpy() >= 0)[owners >= 0]
        numbers, group = np.unique(owners[owners >= 0], return_inverse=True)
        if not len(numbers):
            continue
        sums = states.new_zeros(len(numbers), states.shape[1])
        rows = states.index_select(0, torch.from_numpy(inside).to(query.device))
        sums.index_add_(0, torch.from_numpy(group.ravel()).to(query.device), rows)
        check_outputs(rows, "states")
        out[numbers] = (F.normalize(sums, dim=-1) @ query).cpu().numpy()
    return out


def _find_words(tokenizer: Tokenizer, texts: Sequence[str], lengths: Ints) -> _WordIndex:
    """Which word every token of the framed texts is of, by the characters at which tokens start."""
    encoded = tokenizer.encode_batch(texts)
    before = next(i for i, part in enumerate(tokenizer.template.single) if isinstance(part, TextPart))
    extra = tokenizer.template.count_special_tokens(False)
    owner = np.full(int(lengths.sum()), -1, dtype=np.int64)
    of, spans, at = list[int](), list[tuple[int, int]](), 0
    for i, text in enumerate(texts):
        found = [match.span() for match in WORD_PATTERN.finditer(text)]
        kept = int(lengths[i]) - extra
        starts = encoded.starts[encoded.offsets[i] : encoded.offsets[i] + kept]
        if found:
            begins, ends = np.array(found).T
            which = np.searchsorted(begins, starts, "right") - 1
            inside = (which >= 0) & (starts < ends[np.maximum(which, 0)])
            owner[at + before : at + before + kept][inside] = which[inside] + len(spans)
        of += [i] * len(found)
        spans += found
        at += int(lengths[i])
    return _WordIndex(np.array(of, dtype=np.int64), spans, owner)


def _find_static_neighbors(
    model: LanguageModel, tokenizer: Tokenizer, pieces: Sequence[int], k: int
) -> list[VocabularyNeighbor]:
    """The tokens whose rows of the table are nearest to the mean of the word's, special ones and its own left out."""
    table = model.tokens.weight[: tokenizer.vocab].float()
    query = F.normalize(table[torch.tensor(pieces, device=table.device)].mean(0), dim=0)
    scores = F.normalize(table, dim=-1) @ query
    scores[torch.tensor(sorted({*tokenizer.special_ids, *pieces}), device=table.device)] = -2.0
    values, places = scores.topk(min(k, len(scores)))
    pairs = zip(places.tolist(), values.tolist(), strict=True)
    return [VocabularyNeighbor(_format_token(tokenizer, i), value) for i, value in pairs if value > -2.0]


def _format_token(tokenizer: Tokenizer, token: int) -> str:
    """A token as people read it, or as it is spelled where it is no whole character."""
    text = tokenizer.decode([token]).strip()
    return text if text and "\ufffd" not in text else tokenizer.get_token(token)


def _find_word(word: str, text: str) -> tuple[int, int] | None:
    """Where a word stands in a text first, whatever its case."""
    wanted = word.lower()
    return next((match.span() for match in WORD_PATTERN.finditer(text) if match.group().lower() == wanted), None)
