"""A model that is served: what it can do, and each of these for a list of items.

model = ServedModel.load("reviews", "runs/reviews")
model.capabilities                               # ['embed', 'predict', …]
model.run("embed", ["a text", "another"])        # one result per item
"""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.io import load
from pretune.analysis.attention import analyze_attention, view_all_heads, view_attention
from pretune.analysis.attention_inputs import list_parts
from pretune.analysis.held_out import read_held_out
from pretune.analysis.importance import check_explainable, compute_importance
from pretune.analysis.neighbors import compare_words
from pretune.core.errors import PretuneError, UsageError, suggest
from pretune.core.hub import resolve_path
from pretune.core.run_dir import RunDir
from pretune.inference.decode import check_can_generate
from pretune.inference.embed import Embedder, WordEmbedder, build_embedder
from pretune.inference.fill import count_fill_sequences, fill, find_blanks, insert_answers
from pretune.inference.generate import choose_max_new_tokens
from pretune.inference.generation_config import GenerationTokens
from pretune.inference.index import Index
from pretune.inference.index_files import is_index
from pretune.inference.scoring import compute_token_logprobs, encode_passages
from pretune.inference.scoring.logprobs import build_scoring_method, is_bidirectional
from pretune.inference.text_model import get_language_model, get_predictive_model, get_tokenizer
from pretune.inference.word_vectors import WordVectors, is_word_vectors
from pretune.models.model import LanguageModel
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.server.config import CapabilityError, ServerConfig
from pretune.server.continuous import ContinuousDecoder
from pretune.server.logprobs import TokenLogprob, compute_prompt_logprobs
from pretune.server.neighbor_cache import NeighborCache
from pretune.text.tokenizer import Tokenizer
from pretune.training.distributed import resolve_device

NEIGHBOR_TEXTS = 200
"""Texts that are searched for neighbors, if a request has none."""
CHUNK_SIZES = {"embed": 64, "predict": 64, "fill": 16, "score": 16, "search": 64, "logprobs": 4}
"""Items that run as one batch, others one by one; between batches requests can be cancelled."""

CAPABILITIES = (
    "complete", "embed", "fill", "predict", "explain", "score", "search", "neighbors", "compare", "attention",
    "tokenize",
)  # fmt: skip


class EmbeddedText(NamedTuple):
    """Vector of a text, and its number of tokens."""

    vector: NDArray[np.float32]
    tokens: int


class ServedModel:
    """A loaded model with its name and capabilities."""

    def __init__(
        self,
        name: str,
        *,
        path: Path | None = None,
        model: nn.Module | None = None,
        run: FinetunedRun | None = None,
        index: Index | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        self.name, self.path, self.run_, self.index = name, path, run, index
        self.model = None if model is None else model.eval()
        self.language_model: LanguageModel | None = None
        self.decoder: LanguageModel | None = None
        self.tokenizer: Tokenizer | None = None
        if model is not None:
            self.language_model = get_language_model(model)
            self.tokenizer = self.language_model.tokenizer
        self.embedder = embedder
        self._runs: dict[str, FinetunedRun] = {}
        self._corpus: list[str] | None = None
        tests: dict[str, Callable[[], object]] = {
            "complete": self._prepare_decoder,
            "embed": self._prepare_embedder,
            "fill": self._check_fill,
            "predict": lambda: _require(self.run_, "a fine-tuned run"),
            "explain": self._check_explain,
            "score": lambda: build_scoring_method(get_predictive_model(self._get_model()), self._get_tokenizer()),
            "search": lambda: _require(self.index, "an index"),
            "neighbors": self._check_neighbors,
            "compare": self._check_neighbors,
            "attention": lambda: (self._get_tokenizer(), list_parts(self._get_model())),
            "tokenize": self._get_tokenizer,
        }
        self.reasons: dict[str, str] = {}  # of what it cannot do
        for capability, test in tests.items():
            try:
                test()
            except PretuneError as error:
                self.reasons[capability] = str(error)

    @classmethod
    def load(cls, name: str, source: str | os.PathLike[str] | nn.Module, device: str | None = None) -> "ServedModel":
        """Load a model directory, a fine-tuned run, an index, or a file of word vectors; or take a model."""
        if isinstance(source, nn.Module):
            return cls(name, model=source)
        target = resolve_device(device)
        if not Path(source).is_dir() and is_word_vectors(source):
            return cls(name, path=Path(source), embedder=WordEmbedder(WordVectors.load(source)))
        folder = resolve_path(source)
        if is_index(folder):
            index = Index.open(folder)
            embedder = index.load_embedder(device=target)
            return cls(name, path=folder, model=embedder.encoder.model, index=index, embedder=embedder)
        if RunDir(folder).is_finetuned:
            run = FinetunedRun.open(folder, device=target)
            if run.saved_task.members:
                return cls(name, path=folder, model=load(folder, device=target), run=run)
            return cls(name, path=folder, model=run.load(), run=run)
        return cls(name, path=folder, model=load(folder, device=target, head="tied"))

    @property
    def capabilities(self) -> list[str]:
        """Names of what the model can do."""
        return [name for name in CAPABILITIES if name not in self.reasons]

    def can(self, capability: str) -> bool:
        """Return whether the model has a capability."""
        return capability not in self.reasons

    def check(self, capability: str) -> None:
        """Raise a CapabilityError for what the model cannot do; it states what it can do."""
        if not self.can(capability):
            raise CapabilityError(
                f"model '{self.name}' cannot {capability}: {self.reasons[capability]} "
                f"(it can {', '.join(self.capabilities) or 'do nothing that is served'})"
            )

    def get_chunk_size(self, kind: str, options: Mapping[str, Any]) -> int:
        """Return the number of items of a batch; 1 if a text takes many sequences.

        A bidirectional model scores a copy of a text for every token, and fillers of several tokens are searched.
        """
        model, is_costly = self.language_model, False
        if model is not None and kind == "score":
            is_costly = is_bidirectional(model)
        elif model is not None and kind == "fill":
            is_costly = count_fill_sequences(model, 1, k=options["k"], pieces=options["pieces"]) > 1
        return 1 if is_costly else CHUNK_SIZES.get(kind, 1)

    def check_lengths(self, items: Sequence[Any], limit: int) -> None:
        """Raise a UsageError for a text of more tokens than the limit, if the model has no limit of its own."""
        if self.language_model is None or self.tokenizer is None or self.language_model.spec.max_length is not None:
            return
        texts = [text for item in items for text in list_texts(item)]
        longest = int(np.diff(self.tokenizer.encode_batch(texts).offsets).max(initial=0))
        if longest > limit:
            raise UsageError(f"a text must have <= {limit} tokens, got {longest}; shorten it")

    def run(self, kind: str, items: Sequence[Any], **options: Any) -> list[Any]:
        """Return one result per item."""
        function: Callable[..., list[Any]] = getattr(self, f"_{kind}")
        return function(items, **options)

    def build_decoder(self) -> ContinuousDecoder:
        """Return a decoder for continuous batching."""
        assert self.decoder is not None
        return ContinuousDecoder(self.decoder, self.generation_tokens)

    @property
    def generation_tokens(self) -> GenerationTokens:
        """Special tokens of generation."""
        assert self.decoder is not None
        return GenerationTokens.from_model(self.decoder)

    @property
    def default_new_tokens(self) -> int:
        """Number of new tokens, if a request has none."""
        assert self.decoder is not None
        return choose_max_new_tokens(self.decoder)

    def tokenize(self, text: str) -> list[dict[str, Any]]:
        """Return the tokens of a text, special ones included, with ids and the characters at which they start."""
        tokenizer = self._get_tokenizer()
        encoding, template = tokenizer.encode_batch([text]), tokenizer.template
        ids = tokenizer.encode(text)
        starts: list[int | None] = [None] * len(ids)
        first = len(template.prefix)
        starts[first : first + len(encoding.ids)] = encoding.starts.tolist()
        return [
            {"id": token, "token": tokenizer.get_token(token) if token < tokenizer.vocab else "", "start": start}
            for token, start in zip(ids, starts, strict=True)
        ]

    def _embed(self, texts: Sequence[str]) -> list[EmbeddedText]:
        assert self.embedder is not None
        result = self.embedder(list(texts))
        return [*map(EmbeddedText, result.vectors, result.lengths.tolist())]

    def check_masks(self, texts: Sequence[str], *, k: int, pieces: int | None, config: ServerConfig) -> None:
        """Raise a UsageError for a text without masks, with too many, or whose fillers take too many sequences."""
        model = self._get_model()
        for text in texts:
            masks = find_blanks(model, text).count
            if masks > config.max_masks:
                raise UsageError(f"a text must have <= {config.max_masks} masks, got {masks}")
            sequences = count_fill_sequences(model, masks, k=k, pieces=pieces)
            if sequences > config.max_fill_sequences:
                raise UsageError(
                    f"a text may take {config.max_fill_sequences} sequences, {masks} masks with k {k} and "
                    f"pieces {pieces} take {sequences}; lower k or pieces, or send texts with fewer masks"
                )

    def _fill(self, texts: Sequence[str], *, k: int, pieces: int | None) -> list[dict[str, Any]]:
        model = self._get_model()
        return [
            {
                "blanks": [[prediction._asdict() for prediction in blank] for blank in answers],
                "filled": insert_answers(find_blanks(model, text), answers),
            }
            for text, answers in zip(texts, fill(model, list(texts), k=k, pieces=pieces), strict=True)
        ]

    def _select_run(self, task: str | None) -> FinetunedRun:
        assert self.run_ is not None
        if task is None:
            return self.run_
        if task not in self._runs:
            self._runs[task] = self.run_.select_task(task)
        return self._runs[task]

    def _predict(self, items: Sequence[Any], *, task: str | None) -> list[dict[str, Any]]:
        return self._select_run(task).predict(items)

    def _explain(self, items: Sequence[Any], *, task: str | None, label: str | None) -> list[dict[str, Any]]:
        run = self._select_run(task)
        predictor = run.load_predictor()
        return [
            asdict(
                compute_importance(
                    predictor.model, predictor.encoder, run.saved_task.build_example(item, "input"), label=label
                )
            )
            for item in items
        ]

    def _score(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        passages = encode_passages(self._get_tokenizer(), list(texts))
        result = compute_token_logprobs(self._get_model(), passages)
        return [
            {
                "logprob": float(total),
                "tokens": int(count),
                "truncated": bool(count < passages.span_lengths[number]),  # only the start is scored
                "token_logprobs": [None if np.isnan(value) else value for value in result[number].tolist()],
            }
            for number, (total, count) in enumerate(zip(result.sums, result.counts, strict=True))
        ]

    def _logprobs(self, prompts: Sequence[Sequence[int]], *, count: int) -> list[list[TokenLogprob]]:
        assert self.decoder is not None
        return compute_prompt_logprobs(self.decoder, prompts, count)

    def _search(self, queries: Sequence[str], *, k: int, words: bool) -> list[list[dict[str, Any]]]:
        assert self.index is not None
        hits = self.index.search(list(queries), k, model=None if words else self.embedder, words=words)
        return [[hit._asdict() for hit in row] for row in hits]

    def _attention(self, texts: Sequence[str], **options: Any) -> list[dict[str, Any]]:
        return [view_attention(self._get_model(), text, **options).to_dict() for text in texts]

    def _heads(self, texts: Sequence[str], *, part: Any) -> list[dict[str, Any]]:
        """Return the weights of all heads for texts, and the pattern of each head; "" for a text without patterns."""
        results = []
        for text in texts:
            view = view_all_heads(self._get_model(), text, part=part)
            try:
                heads = analyze_attention(self._get_model(), [text], length=max(len(view.keys), 4))
                patterns = heads.classes[view.part].tolist()
            except PretuneError:  # a text of a single token
                patterns = [[""] * len(layer) for layer in view.weights]
            weights = np.round(view.weights.astype(np.float64), 3).tolist()
            results.append(
                {
                    "part": view.part,
                    "tokens": view.tokens,
                    "keys": view.keys,
                    "weights": weights,
                    "patterns": patterns,
                    "truncated": view.truncated,
                }
            )
        return results

    def _compare(self, items: Sequence[tuple[tuple[str, str], tuple[str, str]]]) -> list[dict[str, Any]]:
        """Return the similarities of two words in their sentences; word vectors have no layers."""
        if self.language_model is None:
            assert isinstance(self.embedder, WordEmbedder)
            vectors = self.embedder.vectors
            pairs = [[self._find_word(word) for word, _ in item] for item in items]
            return [{"layers": [], "static": vectors.compare(*pair)} for pair in pairs]
        return [asdict(compare_words(self._get_model(), first, second)) for first, second in items]

    def _neighbors(self, items: Sequence[tuple[str, str, tuple[str, ...]]], *, k: int, **options: Any) -> list[Any]:
        """Return the neighbors of words in sentences; for word vectors, of words."""
        if self.language_model is None:
            return [self._find_static_neighbors(word, k) for word, _, _ in items]
        results = []
        for word, sentence, texts in items:
            result = self._neighbor_cache.find(word, sentence, texts or self._read_corpus(), k=k, **options)
            results.append(
                {
                    "pieces": list(result.pieces),
                    "context": [neighbor._asdict() for neighbor in result.context],
                    "static": [neighbor._asdict() for neighbor in result.static],
                    "words": result.word_count,
                }
            )
        return results

    def _find_static_neighbors(self, word: str, k: int) -> dict[str, Any]:
        assert isinstance(self.embedder, WordEmbedder)
        vectors, name = self.embedder.vectors, self._find_word(word)
        return {
            "pieces": [name],
            "context": [],
            "static": [{"word": other, "score": float(score)} for other, score in vectors.find_nearest(name, k)],
            "words": len(vectors),
        }

    def _find_word(self, word: str) -> str:
        """Return the spelling of a word among word vectors. Raises a UsageError if there is none."""
        assert isinstance(self.embedder, WordEmbedder)
        vectors = self.embedder.vectors
        name = word if word in vectors else word.lower()
        if name not in vectors:
            raise UsageError(f"no vector of '{word[:60]}'{suggest(name, vectors.words[:100_000])}")
        return name

    def _read_corpus(self) -> list[str]:
        """Return held-out texts to search for neighbors."""
        if self._corpus is None:
            model = self._get_model()
            self._corpus = read_held_out(self.path or model, model, NEIGHBOR_TEXTS, sentences=True).texts
        return self._corpus

    @functools.cached_property
    def _neighbor_cache(self) -> NeighborCache:
        return NeighborCache(self._get_model())

    def _get_model(self) -> LanguageModel:
        if self.language_model is None:
            raise UsageError("word vectors are no model")
        return self.language_model

    def _get_tokenizer(self) -> Tokenizer:
        return get_tokenizer(self._get_model())

    def _prepare_decoder(self) -> None:
        self._get_tokenizer()
        if self.run_ is not None and isinstance(self.model, ModelWithHead) and self._get_model().head is None:
            raise UsageError("a fine-tuned run has no language-modelling head")
        decoder = get_predictive_model(self._get_model())
        check_can_generate(decoder)
        self.decoder = decoder.eval()

    def _prepare_embedder(self) -> None:
        if self.embedder is None:
            self._get_tokenizer()
            self.embedder = build_embedder(self._get_model())

    def _check_fill(self) -> None:
        model, tokenizer = self._get_model(), self._get_tokenizer()
        if model.spec.shape in ("decoder", "two-way"):
            raise UsageError(f"a model of shape '{model.spec.shape}' does not see the text after a mask")
        if model.spec.is_encoder_decoder:
            check_can_generate(model)
        elif model.head is None:
            raise UsageError("it has no vocabulary head")
        if tokenizer.special.get("mask") is None and not (model.spec.is_encoder_decoder and tokenizer.sentinels):
            raise UsageError("its tokenizer has neither a mask token nor sentinels")

    def _check_explain(self) -> None:
        _require(self.run_, "a fine-tuned run")
        assert self.run_ is not None
        if not self.run_.saved_task.members:
            check_explainable(self.run_.load_predictor().encoder)

    def _check_neighbors(self) -> None:
        if not isinstance(self.embedder, WordEmbedder):
            self._get_tokenizer()
            if self._get_model().prompt is not None:
                raise UsageError("a model with a tuned prompt has no states of plain text")


def list_texts(item: Any) -> list[str]:
    """Return all texts of an item: a text, a pair, or a mapping of values."""
    if isinstance(item, str):
        return [item]
    values: Any = item.values() if isinstance(item, Mapping) else item if isinstance(item, Sequence) else ()
    return [text for value in values for text in list_texts(value)]


def _require(part: object, noun: str) -> None:
    if part is None:
        raise UsageError(f"it is not {noun}")
