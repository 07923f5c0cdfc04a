"""The module a spec builds: flat tokens in, states and logits out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pretune.core.errors import UsageError
from pretune.core.types import Batch, Loss, Output
from pretune.models.init import initialise
from pretune.models.memory import check_memory
from pretune.models.spec import Model, ModelShape
from pretune.nn.attention_mask import Backend
from pretune.nn.cache import KVCache
from pretune.nn.loss import linear_cross_entropy
from pretune.nn.segment_memory import SegmentMemory
from pretune.nn.stack import OutputFlags, StackOutput, TransformerStack
from pretune.nn.token_sampling import sample_tokens
from pretune.nn.two_stream import TwoStreamStack


@dataclass(slots=True)
class Assets:
    """What lay beside the weights: the tokenizer, and small files that are saved again as they were."""

    tokenizer: Any = None
    files: dict[str, bytes] = field(default_factory=dict)
    modules: dict[str, bytes] = field(default_factory=dict)  # those of sentence-transformers, with their folders


class LanguageModel(nn.Module):
    """A plain module over one token table. Its children: `tokens`, `encoder`, `decoder`, and the heads it has."""

    def __init__(self, spec: Model) -> None:
        super().__init__()
        self.spec = spec
        self.assets = Assets()
        self.attention_backend: Backend | None = None  # None: picked for every batch
        width, table = spec.width, spec.table
        self.tokens = nn.Embedding(spec.vocab, table)
        self.prompt: nn.Module | None = None  # what fills the slots that a layout leaves before each sequence
        self.encoder = spec.encoder.build(width=width) if spec.encoder else None
        shared = self.encoder if spec.shared and isinstance(self.encoder, TransformerStack) else None
        self.decoder = spec.decoder.build(width=width, shared=shared) if spec.decoder else None
        self.pooler = spec.pooler.build(width=width) if spec.pooler else None
        self.pair = spec.pair.build(width=width) if spec.pair else None
        self.detector = spec.detector.build(width=width) if spec.detector else None
        self.head = spec.head.build(vocab=spec.vocab, width=width, table=table) if spec.head else None
        self.span = spec.span.build(vocab=spec.vocab, width=width, table=table) if spec.span else None

    @property
    def shape(self) -> ModelShape:
        """What it is made of, in the word that objectives have for it."""
        return self.spec.shape

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that came with the weights, or None."""
        return self.assets.tokenizer

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        check_call(arguments, options)
        return super().__call__(*arguments, **options)

    def forward(
        self,
        batch: Batch,
        *,
        hidden: bool = False,
        attention: bool = False,
        cache: KVCache | None = None,
        memory: SegmentMemory | None = None,
    ) -> Output:
        """Read a batch. Logits are given at the batch's targets, or at every position where it has none.

        With `cache` (from `new_cache`) what was read is remembered, for `step` to go on from. With `memory` (from
        `new_memory`) the segments before are read as well, and this one is added to it.
        """
        ask = OutputFlags(hidden=hidden, attention=attention, backend=self.attention_backend)
        found, encoded = self._run(batch, ask, cache, memory)
        cross = (
            None
            if found.cross is None or batch.source is None
            else _split_by_sequence(found.cross, batch, batch.source)
        )
        source = None if encoded is None or batch.source is None else _make_output(encoded, batch.source)
        return replace(_make_output(found, batch), logits=self.logits(found.states, batch), cross=cross, source=source)

    def states(self, batch: Batch) -> Tensor:
        """The states `[N, W]` alone, without running the head."""
        return self._run(batch, OutputFlags(backend=self.attention_backend))[0].states

    def _run(
        self, batch: Batch, flags: OutputFlags, cache: KVCache | None = None, memory: SegmentMemory | None = None
    ) -> tuple[StackOutput, StackOutput | None]:
        """What the last stack says and, for an encoder-decoder, what the encoder says."""
        if memory is not None:
            return self._get_two_stream()(self._embed_input(batch), batch, flags=flags, memory=memory), None
        read = batch.source if self.spec.is_encoder_decoder else batch
        if read is None:
            raise UsageError("an encoder-decoder needs a batch with source and target")
        if batch.source is not None and not self.spec.is_encoder_decoder:
            raise UsageError("a batch with a source is for an encoder-decoder; this model reads one side only")
        self._check_positions(batch)
        if cache is not None:
            cache.assign_slots(batch)
        encoded: StackOutput | None = (
            None if self.encoder is None else self.encoder(self._embed_input(read), read, flags=flags)
        )
        if self.decoder is None:
            assert encoded is not None
            return encoded, None
        if encoded is None:
            return self.decoder(self._embed_input(batch), batch, None, flags=flags, cache=cache), None
        return self.decoder(self._embed_tokens(batch), batch, encoded.states, flags=flags, cache=cache), encoded

    def _check_positions(self, batch: Batch) -> None:
        """Refuse a sequence longer than the position table, where asking does not stop a GPU."""
        longest = self.spec.max_length
        last, first = self.decoder or self.encoder, self.encoder
        for side, stack in ((batch, last), (batch.source, first)):
            if longest is None or side is None or stack is None or side.tokens.is_cuda:
                continue
            if side.length + stack.prefix_length > longest:
                found = int(side.positions.max()) + 1
                if found + stack.prefix_length > longest:
                    raise UsageError(
                        f"a sequence of {found} tokens; {self._describe_limit(longest, stack.prefix_length)}"
                    )

    def logits(self, states: Tensor, batch: Batch | None = None) -> Tensor | None:
        """Vocabulary logits of states `[N, W]`: all of them, or at the batch's targets. None without a head."""
        if self.head is None:
            return None
        if batch is not None and batch.targets is not None:
            states = states.index_select(0, batch.targets.index)
        out: Tensor = self.head(states, self.tokens.weight)
        return out

    def loss(self, states: Tensor, batch: Batch) -> Loss:
        """The vocabulary head's summed loss at the batch's targets."""
        if self.head is None or batch.targets is None:
            raise UsageError("a vocabulary loss needs a model with a head and a batch with targets")
        rows = self.head.transform_states(states.index_select(0, batch.targets.index))
        weight = self.tokens.weight if self.head.weight is None else self.head.weight
        return linear_cross_entropy(rows, weight, self.head.bias, batch.targets.labels)

    def sample(self, states: Tensor, batch: Batch, chance: Tensor) -> Tensor:
        """A token `[M]` for every target, drawn from what the head says there; `chance` are numbers from 0 to 1."""
        if self.head is None or batch.targets is None:
            raise UsageError("sampling needs a model with a head and a batch with targets")
        with torch.no_grad():
            rows = self.head.transform_states(states.index_select(0, batch.targets.index))
            weight = self.tokens.weight if self.head.weight is None else self.head.weight
            return sample_tokens(rows, weight, self.head.bias, chance)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile block by block: all layers of a kind share one graph, whatever the batch is made of."""
        for stack in (self.encoder, self.decoder):
            if stack is not None:
                stack.compile(*args, **options)
        if self.head is not None and self.head.transform is not None:
            self.head.transform.compile(*args, **options)
        if self.detector is not None:
            self.detector.compile(*args, **options)

    def pool(self, states: Tensor, batch: Batch) -> Tensor:
        """The pooled first token of every cell `[C, W]`; those of filler and spare cells mean nothing."""
        if self.pooler is None:
            raise UsageError("this model has no pooler")
        first = batch.offsets[:-1].clamp(max=batch.tokens.shape[0] - 1).long()
        out: Tensor = self.pooler(states.index_select(0, first))
        return out

    def compute_span_loss(self, left: Tensor, right: Tensor, place: Tensor, labels: Tensor) -> Loss:
        """The span head's summed loss, from the states `[M, W]` at the edges of spans and the places in them `[M]`."""
        if self.span is None:
            raise UsageError("this model has no span head; set its `span`, or leave the boundary objective out")
        return linear_cross_entropy(self.span(left, right, place), self.tokens.weight, self.span.bias, labels)

    def new_cache(self, sequences: int, capacity: int, *, source: int = 0) -> KVCache:
        """An empty cache for so many sequences of up to `capacity` tokens (and `source` tokens to attend to)."""
        if self.decoder is None:
            raise UsageError("only a decoder can go on from a cache")
        longest, ahead = self.spec.max_length, self.decoder.prefix_length
        if longest is not None and max(capacity + ahead, source) > longest:
            raise UsageError(f"a cache of {max(capacity, source)} tokens; {self._describe_limit(longest, ahead)}")
        like = self.tokens.weight.detach()
        if torch.is_autocast_enabled(like.device.type):
            like = like.new_empty(0, dtype=torch.get_autocast_dtype(like.device.type))
        lengths = torch.zeros(sequences, dtype=torch.long, device=like.device)
        return KVCache(
            lengths=lengths,
            layers=self.decoder.new_caches(sequences, capacity, cross=False, like=like),
            cross=self.decoder.new_caches(sequences, source, cross=True, like=like)
            if self.spec.is_encoder_decoder
            else [],
            source_lengths=lengths.clone() if self.spec.is_encoder_decoder else None,
            prefix_length=ahead,
        )

    def new_memory(self, length: int) -> SegmentMemory:
        """An empty memory of the last `length` tokens of the segments before."""
        return self._get_two_stream().new_memory(length)

    def _get_two_stream(self) -> TwoStreamStack:
        if not isinstance(self.encoder, TwoStreamStack):
            raise UsageError(f"a segment memory is for models of two streams; this one is of the shape '{self.shape}'")
        return self.encoder

    def step(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Read one more token per sequence `[B]`: the logits `[B, vocab]` for what comes next."""
        if self.decoder is None or self.head is None:
            raise UsageError("stepping needs a decoder with a head")
        if not tokens.is_cuda and int(cache.lengths.max()) >= cache.capacity:
            raise UsageError(f"the cache is full: it holds {cache.capacity} tokens of a sequence")
        states = self.decoder.step(F.embedding(tokens, self.tokens.weight), cache)
        out: Tensor = self.head(states, self.tokens.weight)
        return out

    @staticmethod
    def _describe_limit(max_length: int, prefix_length: int) -> str:
        taken = f", of which its prefix takes {prefix_length}" if prefix_length else ""
        return f"this model's positions end at {max_length}{taken}"

    def _embed_input(self, batch: Batch) -> Tensor:
        """Token rows of the side that is read first, its slots filled."""
        rows = self._embed_tokens(batch)
        return rows if self.prompt is None else self.prompt(rows, batch)

    def _embed_tokens(self, batch: Batch) -> Tensor:
        return F.embedding(batch.tokens, self.tokens.weight)


def build(spec: Model, *, seed: int = 0, device: torch.device | str = "cpu") -> LanguageModel:
    """A new model with fresh weights."""
    check_memory(spec, device=device)
    model = build_empty(spec).to_empty(device=device)
    initialise(model, spec.init, spec.depth, seed)
    return model


def build_empty(spec: Model) -> LanguageModel:
    """The module without any memory behind its weights."""
    with torch.device("meta"), _SkipInit():
        return LanguageModel(spec)


class _SkipInit(TorchFunctionMode):
    """No weight is drawn while modules are made: there is nothing to draw into, and torch takes seconds to do so."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _make_output(output: StackOutput, batch: Batch) -> Output:
    attention = None if output.attention is None else _split_by_sequence(output.attention, batch, batch)
    return Output(states=output.states, hidden=output.hidden, attention=attention)


def _split_by_sequence(layers: tuple[Tensor, ...], queries: Batch, keys: Batch) -> tuple[tuple[Tensor, ...], ...]:
    """Weights `[rows, H, R, R]` per layer to one `[H, n, m]` per sequence."""
    pairs = list(zip(queries.list_spans(), keys.list_spans(), strict=True))
    cut = []
    for weights in layers:
        parts = []
        for (start, end), (key_start, key_end) in pairs:
            row, column, key_column = start // queries.length, start % queries.length, key_start % keys.length
            part = weights[row, :, column : column + end - start, key_column : key_column + key_end - key_start]
            parts.append(part)
        cut.append(tuple(parts))
    return tuple(cut)


def check_call(arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Refuse what models of other libraries are called with: a tensor of ids, texts, `input_ids`."""
    given = arguments[0] if arguments else options.get("batch")
    if isinstance(given, Batch):
        return
    name = next((name for name in options if name != "batch"), None) if not arguments and given is None else None
    found = f"'{name}'" if name else "nothing" if given is None else f"a {type(given).__name__}"
    raise UsageError(
        f"a model takes a batch, found {found}; write model(pt.batch([[101, 7592, 102], …])), and for texts "
        "pt.batch([model.tokenizer.encode(text).ids for text in texts])"
    )
