"""Capabilities of served models: each checks a model, and works on a list of items.

    served_model.get(MaskFiller).run(["The [MASK] sat."], k=3, pieces=None)    # one result per item

A capability is listed in `served_model.CAPABILITIES`; a method of the engine calls it, and a request of `schemas.py`
that method.

For texts that come again, the states of their words are computed once; for a vocabulary that is read by characters, the
static vectors as well. Other static vectors are the rows of a table: they are not worth a copy.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pretune.adaptation.adapted import ModelWithHead
from pretune.analysis.attention import analyze_attention, view_all_heads, view_attention
from pretune.analysis.attention_inputs import list_parts
from pretune.analysis.held_out import read_held_out
from pretune.analysis.importance import check_explainable, compute_importance
from pretune.analysis.neighbors import WordStates, compare_words, compute_token_vectors, compute_word_states, neighbors
from pretune.core.errors import PretuneError, UsageError, suggest
from pretune.inference.chat import ChatModel
from pretune.inference.decode import check_can_generate
from pretune.inference.embed import build_embedder
from pretune.inference.fill import count_fill_sequences, fill, find_blanks, insert_answers
from pretune.inference.generation_config import GenerationTokens
from pretune.inference.prompts import get_length_limits
from pretune.inference.scoring import build_scoring_method, compute_token_logprobs, is_bidirectional
from pretune.inference.scoring_queries import encode_passages
from pretune.inference.text_model import get_predictive_model
from pretune.inference.word_vectors import WordVectors
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.server.config import ServerConfig
from pretune.server.loaded_model import LoadedModel
from pretune.server.logprobs import TokenLogprob, compute_prompt_logprobs
from pretune.text.chat import Message, encode_prompt

MAX_BYTES = 64 * 2**20
"""Size of the states of words that are kept, of all texts and layers."""
NEIGHBOR_TEXTS = 200
"""Texts that are searched for neighbors, if a request has none."""


class Capability:
    """Base of capabilities. The constructor raises a PretuneError for a model that lacks it."""

    name: ClassVar[str]
    chunk_size: int = 1  # items that run as one batch; between batches requests can be cancelled

    def __init__(self, model: LoadedModel) -> None:
        raise NotImplementedError


class Completer(Capability):
    """Text generation: the worker of the model runs it by continuous batching."""

    name, chunk_size = "complete", 4  # of prompts whose log-probabilities are computed

    def __init__(self, model: LoadedModel) -> None:
        self.tokenizer = model.get_tokenizer()
        if model.run is not None and isinstance(model.model, ModelWithHead) and model.get_network().head is None:
            raise UsageError("a fine-tuned run has no language-modelling head")
        self.decoder = get_predictive_model(model.get_network())
        check_can_generate(self.decoder)
        self.decoder.eval()
        self.tokens = GenerationTokens.from_model(self.decoder)
        if self.tokenizer.chat_template is not None and not self.decoder.spec.is_encoder_decoder:
            self.tokens = ChatModel(self.decoder).tokens  # which may end at the end of a turn, too

    def compute_logprobs(self, prompts: Sequence[Sequence[int]], *, count: int) -> list[list[TokenLogprob]]:
        """Return the log-probabilities of the tokens of prompts, and of the `count` most probable ones."""
        return compute_prompt_logprobs(self.decoder, prompts, count)


class Chatter(Completer):
    """Answers to chats, by the model's chat template."""

    name = "chat"

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(model)
        self.chat_model = ChatModel(self.decoder)

    def encode(
        self, messages: Sequence[Message], new_tokens: int | None, config: ServerConfig
    ) -> tuple[list[int], int]:
        """Return the prompt of a chat, and the number of new tokens: by default what is left of the model's length."""
        size = sum(len(message["content"]) for message in messages)
        if size > config.max_characters:
            raise UsageError(f"messages must have <= {config.max_characters} characters, got {size}")
        ids = encode_prompt(self.tokenizer, self.chat_model.template, messages)
        if new_tokens is None:
            limits = get_length_limits(self.decoder)[1], config.max_length
            room = min(limit for limit in limits if limit is not None) - len(ids)
            new_tokens = max(1, min(self.chat_model.default_new_tokens, config.max_new_tokens, room))
        return ids, new_tokens


class EmbeddedText(NamedTuple):
    """Vector of a text, and its number of tokens."""

    vector: NDArray[np.float32]
    tokens: int


class TextEmbedder(Capability):
    """Vectors of texts, in the pooling of the model's directory."""

    name, chunk_size = "embed", 64

    def __init__(self, model: LoadedModel) -> None:
        self.embedder = model.embedder or build_embedder(model.get_readable_network())

    def run(self, texts: Sequence[str]) -> list[EmbeddedText]:
        """Return the vectors of texts."""
        result = self.embedder(list(texts))
        return [*map(EmbeddedText, result.vectors, result.lengths.tolist())]


class MaskFiller(Capability):
    """Words for the masks of texts."""

    name, chunk_size = "fill", 16

    def __init__(self, model: LoadedModel) -> None:
        self.model, tokenizer = model.get_network(), model.get_tokenizer()
        spec = self.model.spec
        if spec.shape in ("decoder", "two-way"):
            raise UsageError(f"a model of shape '{spec.shape}' does not see the text after a mask")
        if spec.is_encoder_decoder:
            check_can_generate(self.model)
        elif self.model.head is None:
            raise UsageError("it has no vocabulary head")
        if tokenizer.special.get("mask") is None and not (spec.is_encoder_decoder and tokenizer.sentinels):
            raise UsageError("its tokenizer has neither a mask token nor sentinels")

    def get_chunk_size(self, k: int, pieces: int | None) -> int:
        """Return the number of texts of a batch: one if fillers of several tokens are searched."""
        return 1 if count_fill_sequences(self.model, 1, k=k, pieces=pieces) > 1 else self.chunk_size

    def check_masks(self, texts: Sequence[str], *, k: int, pieces: int | None, config: ServerConfig) -> None:
        """Raise a UsageError for a text without masks, with too many, or whose fillers take too many sequences."""
        for text in texts:
            masks = find_blanks(self.model, text).count
            if masks > config.max_masks:
                raise UsageError(f"a text must have <= {config.max_masks} masks, got {masks}")
            sequences = count_fill_sequences(self.model, masks, k=k, pieces=pieces)
            if sequences > config.max_fill_sequences:
                raise UsageError(
                    f"a text may take {config.max_fill_sequences} sequences, {masks} masks with k {k} and "
                    f"pieces {pieces} take {sequences}; lower k or pieces, or send texts with fewer masks"
                )

    def run(self, texts: Sequence[str], *, k: int, pieces: int | None) -> list[dict[str, object]]:
        """Return the predictions for every mask, and the text with the best ones."""
        return [
            {
                "blanks": [[prediction._asdict() for prediction in blank] for blank in answers],
                "filled": insert_answers(find_blanks(self.model, text), answers),
            }
            for text, answers in zip(texts, fill(self.model, list(texts), k=k, pieces=pieces), strict=True)
        ]


class RunPredictor(Capability):
    """Predictions of a fine-tuned run, or of one task of several."""

    name, chunk_size = "predict", 64

    def __init__(self, model: LoadedModel) -> None:
        if model.run is None:
            raise UsageError("it is not a fine-tuned run")
        self.finetuned_run, self._select_task = model.run, cache(model.run.select_task)

    def select_run(self, task: str | None) -> FinetunedRun:
        """Return the run, or that of one of its tasks."""
        return self.finetuned_run if task is None else self._select_task(task)

    def run(self, items: Sequence[Any], *, task: str | None) -> list[dict[str, object]]:
        """Return the predictions for texts, pairs of texts, or rows of columns."""
        return self.select_run(task).predict(items)


class Explainer(RunPredictor):
    """Importance of the tokens of an input for its prediction."""

    name, chunk_size = "explain", 1

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(model)
        if not self.finetuned_run.saved_task.members:
            check_explainable(self.finetuned_run.load_predictor().encoder)

    def explain(self, items: Sequence[Any], *, task: str | None, label: str | None) -> list[dict[str, object]]:
        """Return the importance for the predicted labels, or for another one."""
        run = self.select_run(task)
        predictor, examples = run.load_predictor(), [run.saved_task.build_example(item, "input") for item in items]
        explain = partial(compute_importance, predictor.model, predictor.encoder, label=label)
        return [asdict(explain(example)) for example in examples]


class TextScorer(Capability):
    """Log-probabilities of texts."""

    name = "score"

    def __init__(self, model: LoadedModel) -> None:
        self.model, self.tokenizer = model.get_network(), model.get_tokenizer()
        build_scoring_method(get_predictive_model(self.model), self.tokenizer)
        # NOTE: a bidirectional model scores a copy of a text for every token.
        self.chunk_size = 1 if is_bidirectional(self.model) else 16

    def run(self, texts: Sequence[str]) -> list[dict[str, object]]:
        """Return the log-probabilities of texts and of their tokens."""
        passages = encode_passages(self.tokenizer, list(texts))
        result = compute_token_logprobs(self.model, passages)
        return [
            {
                "logprob": float(total),
                "tokens": int(count),
                "truncated": bool(count < passages.span_lengths[number]),  # only the start is scored
                "token_logprobs": [None if np.isnan(value) else value for value in result[number].tolist()],
            }
            for number, (total, count) in enumerate(zip(result.sums, result.counts, strict=True))
        ]


class IndexSearcher(Capability):
    """Search of an index, by meaning or by BM25."""

    name, chunk_size = "search", 64

    def __init__(self, model: LoadedModel) -> None:
        if model.index is None:
            raise UsageError("it is not an index")
        self.index, self.embedder = model.index, model.embedder

    def run(self, queries: Sequence[str], *, k: int, words: bool) -> list[list[dict[str, object]]]:
        """Return the best texts for every query."""
        hits = self.index.search(list(queries), k, model=None if words else self.embedder, words=words)
        return [[hit._asdict() for hit in row] for row in hits]


class AttentionViewer(Capability):
    """Attention weights of a text."""

    name = "attention"

    def __init__(self, model: LoadedModel) -> None:
        self.model = model.get_readable_network()
        list_parts(self.model)

    def run(self, texts: Sequence[str], *, layer: Any, head: int | None, part: Any) -> list[dict[str, object]]:
        """Return the weights of a head, or of the mean of all."""
        return [view_attention(self.model, text, layer=layer, head=head, part=part).to_dict() for text in texts]

    def run_heads(self, texts: Sequence[str], *, part: Any) -> list[dict[str, object]]:
        """Return the weights of all heads, and the pattern of each head; "" for a text without patterns."""
        results = []
        for text in texts:
            view = view_all_heads(self.model, text, part=part)
            try:
                heads = analyze_attention(self.model, [text], length=max(len(view.keys), 4))
                patterns = heads.classes[view.part].tolist()
            except PretuneError:  # a text of a single token
                patterns = [[""] * len(layer) for layer in view.weights]
            facts = {name: getattr(view, name) for name in ("part", "tokens", "keys", "truncated")}
            weights = np.round(view.weights.astype(np.float64), 3).tolist()
            results.append({**facts, "weights": weights, "patterns": patterns})
        return results


class TextTokenizer(Capability):
    """Tokens of texts."""

    name = "tokenize"

    def __init__(self, model: LoadedModel) -> None:
        self.tokenizer = model.get_tokenizer()

    def run(self, text: str) -> list[dict[str, object]]:
        """Return the tokens of a text, special ones included, with ids and the characters at which they start."""
        tokenizer = self.tokenizer
        encoding, ids, first = tokenizer.encode_batch([text]), tokenizer.encode(text), len(tokenizer.template.prefix)
        starts: list[int | None] = [None] * len(ids)
        starts[first : first + len(encoding.ids)] = encoding.starts.tolist()
        return [
            {"id": token, "token": tokenizer.get_token(token) if token < tokenizer.vocab else "", "start": start}
            for token, start in zip(ids, starts, strict=True)
        ]


class WordComparer(Capability):
    """Similarities of two words, each in a sentence; word vectors have no layers."""

    name = "compare"

    def __init__(self, model: LoadedModel) -> None:
        self.vectors, self.model = model.word_vectors, model
        if self.vectors is None and model.get_readable_network().prompt is not None:
            raise UsageError("a model with a tuned prompt has no states of plain text")

    def run(self, items: Sequence[tuple[tuple[str, str], tuple[str, str]]]) -> list[dict[str, object]]:
        """Return the similarities of pairs of words."""
        if self.vectors is None:
            return [asdict(compare_words(self.model.get_network(), first, second)) for first, second in items]
        pairs = [[find_word(self.vectors, word) for word, _ in item] for item in items]
        return [{"layers": [], "static": self.vectors.compare(*pair)} for pair in pairs]


class NeighborFinder(WordComparer):
    """Neighbors of a word of a sentence, in context and static; of word vectors, static ones."""

    name = "neighbors"

    def __init__(self, model: LoadedModel, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(model)
        self.max_bytes = max_bytes
        self._states: OrderedDict[tuple[tuple[str, ...], int | None], WordStates] = OrderedDict()
        self._token_vectors: Tensor | None = None
        self._corpus: tuple[str, ...] = ()

    def find(
        self, items: Sequence[tuple[str, str, tuple[str, ...]]], *, k: int, layer: int | None, same_word: bool
    ) -> list[dict[str, object]]:
        """Return the neighbors of words in sentences, among texts, or among held-out ones."""
        if self.vectors is not None:
            return [_list_static_neighbors(self.vectors, word, k) for word, _, _ in items]
        network = self.model.get_network()
        if network.spec.characters is not None and self._token_vectors is None:
            self._token_vectors = compute_token_vectors(network)
        search = partial(neighbors, network, k=k, layer=layer, same_word=same_word, token_vectors=self._token_vectors)
        results = []
        for word, sentence, texts in items:
            texts = texts or self._read_corpus()
            states = self._get_states(texts, layer, is_computed=not same_word)
            results.append(search(word, sentence, texts if states is None else states))
        return [
            {
                "pieces": list(result.pieces),
                "context": [neighbor._asdict() for neighbor in result.context],
                "static": [neighbor._asdict() for neighbor in result.static],
                "words": result.word_count,
            }
            for result in results
        ]

    def _get_states(self, texts: tuple[str, ...], layer: int | None, *, is_computed: bool) -> WordStates | None:
        """Return the states of the words of texts, computed if they are not there; None if they are neither."""
        key = texts, layer
        if key in self._states:
            self._states.move_to_end(key)
            return self._states[key]
        if not is_computed:  # few lines have a given word
            return None
        states = compute_word_states(self.model.get_network(), texts, layer=layer)
        if states.nbytes <= self.max_bytes:
            self._states[key] = states
            while sum(other.nbytes for other in self._states.values()) > self.max_bytes:
                self._states.popitem(last=False)
        return states

    def _read_corpus(self) -> tuple[str, ...]:
        """Return held-out texts to search for neighbors."""
        if not self._corpus:
            network = self.model.get_network()
            held_out = read_held_out(self.model.path or network, network, NEIGHBOR_TEXTS, sentences=True)
            self._corpus = tuple(held_out.texts)
        return self._corpus


def _list_static_neighbors(vectors: WordVectors, word: str, k: int) -> dict[str, object]:
    name = find_word(vectors, word)
    static = [{"word": other, "score": float(score)} for other, score in vectors.find_nearest(name, k)]
    return {"pieces": [name], "context": [], "static": static, "words": len(vectors)}


def find_word(vectors: WordVectors, word: str) -> str:
    """Return the spelling of a word among word vectors. Raises a UsageError if there is none."""
    name = word if word in vectors else word.lower()
    if name not in vectors:
        raise UsageError(f"no vector of '{word[:60]}'{suggest(name, vectors.words[:100_000])}")
    return name


def list_texts(item: Any) -> list[str]:
    """Return all texts of an item: a text, a pair, or a mapping of values."""
    if isinstance(item, str):
        return [item]
    values: Any = item.values() if isinstance(item, Mapping) else item if isinstance(item, Sequence) else ()
    return [text for value in values for text in list_texts(value)]
