"""Continuous batching: texts join a running batch between steps, and a finished text makes room at once.

    decoder = ContinuousDecoder(model, GenerationTokens.from_model(model))
    decoder.admit([DecodingRow(prompt, config)])      # prefill, and the first new token
    while decoder.rows:
        decoder.step()                                # one more token for every row
        decoder.remove([row for row in decoder.rows if row.is_finished])

The rows of the static cache are compact: the running texts are its first rows. A step runs on those rows and on the
columns in use, so neither free rows nor free columns cost time. Storage doubles when it is full. On a GPU the forward
pass of a step is captured per number of rows and columns, rounded up to powers of two.
Each token is chosen by the functions of `generate`, and its random draw depends on the seed, the numbers of prompt and
return, and the position only: the texts are those that `generate` returns for one prompt at a time.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from pretune.core import log
from pretune.inference.decoding_state import LogitsProcessor, draw_uniforms, pad_rows, sample_next
from pretune.inference.engine import capture_graph, copy_rows
from pretune.inference.generation_config import GenerationConfig, GenerationTokens, Sampling
from pretune.inference.prefill_graph import run_prefill
from pretune.inference.prompts import count_prompt_slots, get_length_limits
from pretune.inference.text_model import make_non_finite_error
from pretune.models.model import LanguageModel
from pretune.nn.cache import KVCache, LayerCache, RecurrentState
from pretune.server.logprobs import TokenLogprob, list_logprobs

MIN_COLUMNS = 64
"""Smallest number of cached tokens per row."""
NON_FINITE = -1
"""Stands for the next token where the logits are not finite."""


@dataclass(slots=True, eq=False)
class DecodingRow:
    """A text that is being generated.

    `number` and `return_index` are the numbers of the prompt in its request and of its return, as for `generate`.
    """

    prompt: list[int]  # tokens of the decoder
    config: GenerationConfig
    source: list[int] | None = None  # tokens of the encoder
    number: int = 0
    return_index: int = 0
    logprob_count: int | None = None  # most probable tokens of every step; None: no log-probabilities
    tokens: list[int] = field(default_factory=list)  # new ones, without the end token
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the new tokens, and of the end token
    finish_reason: Literal["end", "length", "stop"] | None = None
    error: Exception | None = None
    is_isolated: bool = False  # runs without other rows, after a step of a batch has failed
    uniform_draws: list[float] = field(default_factory=list)  # one for every new token

    def __post_init__(self) -> None:
        search = self.config.search
        if isinstance(search, Sampling):
            draws = draw_uniforms(search.seed, [self.number], self.return_index + 1, self.config.max_new_tokens)
            self.uniform_draws = draws[self.return_index].tolist()

    @property
    def is_finished(self) -> bool:
        """True if no token follows."""
        return self.finish_reason is not None or self.error is not None

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability of the tokens, the end token included."""
        return sum(entry.logprob or 0.0 for entry in self.logprobs) / max(len(self.logprobs), 1)

    def append(self, token: int, eos: tuple[int, ...]) -> None:
        """Append the next token, or end the text."""
        if token == NON_FINITE:
            self.error = make_non_finite_error("logits")
        elif token in eos:
            self.finish_reason = "end"
        else:
            self.tokens.append(token)
            if len(self.tokens) >= self.config.max_new_tokens:
                self.finish_reason = "length"


class ContinuousDecoder:
    """A model, its static cache, and the texts that run in it."""

    def __init__(self, model: LanguageModel, generation_tokens: GenerationTokens) -> None:
        self.model, self.generation_tokens = model, generation_tokens
        self.rows: list[DecodingRow] = []
        self.device = model.tokens.weight.device
        self._slots = 0 if model.spec.is_encoder_decoder else count_prompt_slots(model)
        self._cache: KVCache | None = None
        self._lengths: list[int] = []  # cached tokens of every row
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._tokens = torch.zeros(0, dtype=torch.long, device=self.device)
        self._uses_graphs = self.device.type == "cuda"

    @torch.no_grad()
    def admit(self, rows: Sequence[DecodingRow]) -> None:
        """Run the model on the prompts of new rows, and choose their first tokens.

        Equal prompts run once. A row that has tokens already continues after them.
        """
        contexts: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        index = []
        for row in rows:
            key = (*row.prompt, *row.tokens), tuple(row.source or ())
            index.append(contexts.setdefault(key, len(contexts)))
        prompts, sources = [list(prompt) for prompt, _ in contexts], [list(source) for _, source in contexts]
        cache, logits = run_prefill(self.model, prompts, sources if self.model.spec.is_encoder_decoder else None)
        count, lengths = len(self.rows), [len(prompts[i]) + self._slots for i in index]
        source_length = max(map(len, sources)) if self.model.spec.is_encoder_decoder else 0
        self._reserve(count + len(rows), max(lengths) + 1, source_length)
        rows_of_prompts = torch.tensor(index, device=self.device)
        assert self._cache is not None
        copy_rows(cache, self._cache, rows_of_prompts, count)
        self.rows += rows
        self._lengths += lengths
        self._choose(logits[rows_of_prompts], rows)

    @torch.no_grad()
    def step(self) -> None:
        """Append one token to every row. Rows that end must be removed before the next step."""
        self._reserve(len(self.rows), max(self._lengths) + 1, 0)
        logits = self._forward()
        self._lengths = [length + 1 for length in self._lengths]
        self._choose(logits, self.rows)

    def remove(self, rows: Collection[DecodingRow]) -> None:
        """Remove rows; the last of the others take their places."""
        is_kept = [row not in rows for row in self.rows]
        size = sum(is_kept)
        holes = [i for i in range(size) if not is_kept[i]]
        movers = [i for i in range(size, len(self.rows)) if is_kept[i]]
        if holes:
            assert self._cache is not None
            targets, sources = (torch.tensor(part, device=self.device) for part in (holes, movers))
            stores = [store for layer in (*self._cache.layers, *self._cache.cross) for store in layer.store]
            for values in (*stores, self._cache.lengths, self._cache.source_lengths, self._tokens):
                if values is not None:
                    values[targets] = values[sources]
            for hole, mover in zip(holes, movers, strict=True):
                self.rows[hole], self._lengths[hole] = self.rows[mover], self._lengths[mover]
        del self.rows[size:], self._lengths[size:]

    def _reserve(self, rows: int, columns: int, source: int) -> None:
        """Enlarge the cache, if it has too few rows or columns."""
        cache = self._cache
        old_rows, old_columns = (0, 0) if cache is None else (cache.lengths.shape[0], cache.capacity)
        old_source = 0 if cache is None or not cache.cross else cache.cross[0].keys.shape[2]
        if rows <= old_rows and columns <= old_columns and source <= old_source:
            return
        source_limit, limit = get_length_limits(self.model)
        limit = None if limit is None else limit + self._slots
        new_rows = max(_round_up(rows), old_rows)
        new_columns = max(_round_size(columns, limit), old_columns)
        new_source = max(_round_size(source, source_limit), old_source) if source else old_source
        self._graphs.clear()
        self._cache = self.model.new_cache(new_rows, new_columns, source=new_source)
        self._tokens = torch.cat((self._tokens, self._tokens.new_zeros(new_rows - old_rows)))
        if cache is not None:
            copy_rows(cache, self._cache, torch.arange(len(self.rows), device=self.device))

    def _view(self, rows: int, columns: int) -> KVCache:
        """Return the first rows and columns of the cache."""
        cache = self._cache
        assert cache is not None

        def cut(layer: LayerCache, size: int) -> LayerCache:
            keys, values = (store[: rows + 1, :, :size] for store in layer.store)
            return replace(layer, store=(keys, values))

        return KVCache(
            lengths=cache.lengths[:rows],
            layers=[cut(layer, columns + cache.prefix_length) for layer in cache.layers],
            cross=[cut(layer, layer.keys.shape[2]) for layer in cache.cross],
            source_lengths=None if cache.source_lengths is None else cache.source_lengths[:rows],
            prefix_length=cache.prefix_length,
        )

    def _forward(self) -> Tensor:
        """Return the logits `[rows, V]` of the next tokens, and append the last ones to the cache."""
        cache, count = self._cache, len(self.rows)
        assert cache is not None
        if self._uses_graphs:
            columns = min(_round_size(max(self._lengths) + 1, None), cache.capacity)
            logits = self._replay(min(_round_up(count), cache.lengths.shape[0]), columns)[:count]
        else:
            logits = self.model.step(self._tokens[:count], self._view(count, cache.capacity))
        cache.lengths[:count] += 1
        return logits

    def _replay(self, rows: int, columns: int) -> Tensor:
        """Run a step of a fixed size as a CUDA graph, which is captured at its first use."""
        cache, count = self._cache, len(self.rows)
        assert cache is not None
        cache.lengths[count:rows] = 0  # positions of unused rows stay valid
        if cache.source_lengths is not None:
            cache.source_lengths[count:rows] = 1
        if (rows, columns) not in self._graphs:
            try:
                self._graphs[rows, columns] = self._capture(rows, columns)
            except RuntimeError as error:
                log.warn(f"CUDA graph capture failed, steps run eagerly: {str(error).splitlines()[0]}")
                self._uses_graphs = False
        if not self._uses_graphs:
            return self.model.step(self._tokens[:rows], self._view(rows, columns))
        graph, logits = self._graphs[rows, columns]
        graph.replay()
        return logits

    def _capture(self, rows: int, columns: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Capture a step. It writes the last tokens to the cache, as the replay after it does again."""
        view = self._view(rows, columns)
        # NOTE: recurrent states are no keys at a column: a warm-up step would advance them.
        states = [
            tuple(store.clone() for store in layer.store) for layer in view.layers if isinstance(layer, RecurrentState)
        ]
        logits = torch.empty(0)

        def run() -> None:
            nonlocal logits
            logits = self.model.step(self._tokens[:rows], self._view(rows, columns))

        graph = capture_graph(run)
        for layer, saved_stores in zip(view.layers, states, strict=False):
            for store, saved_store in zip(layer.store, saved_stores, strict=True):
                store.copy_(saved_store)
        return graph, logits

    def _choose(self, logits: Tensor, rows: Sequence[DecodingRow]) -> None:
        """Append the next token to rows, the last ones of the cache, by their logits `[n, V]`."""
        groups: dict[GenerationConfig, list[int]] = {}
        for i, row in enumerate(rows):
            groups.setdefault(_get_group(row.config, self.generation_tokens), []).append(i)
        is_finite, logits = torch.isfinite(logits).all(-1), logits.float()
        first = len(self.rows) - len(rows)
        chosen_tokens = self._tokens[first : len(self.rows)]
        for config, members in groups.items():
            is_everything = len(members) == len(rows)
            index = torch.tensor(members, device=self.device)
            group_tokens = self._pick(logits if is_everything else logits[index], config, [rows[i] for i in members])
            chosen_tokens[index] = group_tokens
        self._add_logprobs(logits, chosen_tokens, rows)
        for row, token in zip(rows, chosen_tokens.where(is_finite, NON_FINITE).tolist(), strict=True):
            row.append(token, self.generation_tokens.eos)

    def _add_logprobs(self, logits: Tensor, tokens: Tensor, rows: Sequence[DecodingRow]) -> None:
        """Append the log-probabilities of chosen tokens to the rows that want them."""
        counts = {i: row.logprob_count for i, row in enumerate(rows) if row.logprob_count is not None}
        if not counts:
            return
        index = torch.tensor([*counts], device=self.device)
        entries = list_logprobs(logits[index], tokens[index], max(counts.values()))
        for (i, count), entry in zip(counts.items(), entries, strict=True):
            rows[i].logprobs.append(entry._replace(top=entry.top[:count]))

    def _pick(self, logits: Tensor, config: GenerationConfig, rows: Sequence[DecodingRow]) -> Tensor:
        """Return the next token `[n]` of rows with the same settings."""
        contexts = [[*row.prompt, *row.tokens] if config.needs_history else [] for row in rows]
        history, lengths = map(torch.from_numpy, pad_rows(contexts, max(map(len, contexts))))
        counts = torch.tensor([[len(row.tokens)] for row in rows], device=self.device)
        process = LogitsProcessor(config, self.generation_tokens, self.device)
        logits = process(logits, history.to(self.device), lengths.to(self.device), counts)
        if not isinstance(config.search, Sampling):
            return logits.argmax(-1)
        draws = [row.uniform_draws[len(row.tokens)] for row in rows]
        return sample_next(logits, config.search, torch.tensor(draws, dtype=torch.float64, device=self.device))


def _get_group(config: GenerationConfig, generation_tokens: GenerationTokens) -> GenerationConfig:
    """Return the settings that the choice of a token depends on, besides its draw: rows with equal ones are grouped."""
    length = config.max_new_tokens if generation_tokens.forced_eos is not None else max(config.min_new_tokens, 1)
    return replace(config.without_seed(), returns=1, max_new_tokens=length)


def _round_up(count: int) -> int:
    """Return the next power of two.

    >>> [_round_up(n) for n in (1, 2, 3, 9)]
    [1, 2, 4, 16]
    """
    return 1 << (count - 1).bit_length()


def _round_size(size: int, limit: int | None) -> int:
    """Return the next power of two from `MIN_COLUMNS`, but at most the limit."""
    rounded_size = max(MIN_COLUMNS, _round_up(size))
    return rounded_size if limit is None else max(min(rounded_size, limit), size)
