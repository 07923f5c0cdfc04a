"""The language model built from a spec: flat tokens in, states and logits out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss, Output, Targets
from pretune.models.spec import Model, ModelShape, check_memory, initialise
from pretune.models.tensor_files import Assets
from pretune.nn.attention_mask import Backend
from pretune.nn.bidirectional_stack import BidirectionalRecurrent, BidirectionalRecurrentStack
from pretune.nn.block import RegionalCompile
from pretune.nn.cache import KVCache, Memory
from pretune.nn.characters import CharacterEmbedding, SpellingTable
from pretune.nn.loss import linear_cross_entropy, linear_logprobs, sample_tokens
from pretune.nn.recurrent_stack import Recurrent, RecurrentStack
from pretune.nn.stack import OutputFlags, StackOutput, TransformerStack
from pretune.nn.two_stream import TwoStreamStack
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.open_vocabulary import OpenTokenizer, spell_numbers


class BatchModel(RegionalCompile):
    """Base class of models that take a batch: arguments of other libraries' models are refused with a hint."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        check_call(arguments, options)
        return super().__call__(*arguments, **options)

    def trainable_parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the parameters that require gradients, for an optimizer."""
        return (parameter for parameter in self.parameters() if parameter.requires_grad)


class LanguageModel(BatchModel):
    """A model over one token table. Its children: `tokens`, `encoder`, `decoder`, and its heads."""

    def __init__(self, spec: Model) -> None:
        super().__init__()
        self.spec = spec
        self.assets = Assets()
        self.peft_method: Any = None  # applied last; set by `adaptation.peft`
        self.attention_backend: Backend | None = None  # None: chosen per batch
        width, table = spec.width, spec.table
        self.tokens: nn.Embedding | CharacterEmbedding
        self.tokens = spec.characters.build(width=table) if spec.characters else nn.Embedding(spec.vocab, table)
        self._spellings: SpellingTable | None = None  # characters of the tokens, if the model reads them
        self.language: int | None = None  # of batches that name none; see `set_language`
        self.memory: Memory | None = None  # of passes that pass none: the state of contiguous streams in training
        self.prompt: nn.Module | None = None  # fills the virtual-token slots before each sequence
        self.encoder: TransformerStack | TwoStreamStack | BidirectionalRecurrentStack | None = None
        if isinstance(spec.encoder, BidirectionalRecurrent):
            self.encoder = spec.encoder.build(width=width, vocab=spec.vocab)
        elif spec.encoder is not None:
            self.encoder = spec.encoder.build(width=width)
        shared_stack = self.encoder if spec.shared and isinstance(self.encoder, TransformerStack) else None
        self.decoder: TransformerStack | RecurrentStack | None = None
        if isinstance(spec.decoder, Recurrent):
            self.decoder = spec.decoder.build(width=width, vocab=spec.vocab)
        elif spec.decoder is not None:
            self.decoder = spec.decoder.build(width=width, shared_stack=shared_stack)
        self.pooler = spec.pooler.build(width=width) if spec.pooler else None
        self.pair = spec.pair.build(width=width) if spec.pair else None
        self.detector = spec.detector.build(width=width) if spec.detector else None
        self.mask_decoder = spec.mask_decoder.build(width=width) if spec.mask_decoder else None
        self.head = spec.head.build(vocab=spec.vocab, width=spec.head_width, table=table) if spec.head else None
        self.span = spec.span.build(vocab=spec.vocab, width=width, table=table) if spec.span else None

    @property
    def shape(self) -> ModelShape:
        """Shape name, as objectives list it."""
        return self.spec.shape

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that came with the weights, or None. Calling it on texts gives a batch for the model."""
        return self.assets.load_tokenizer(None if self.spec.characters is None else self.spec.characters.length)

    def forward(
        self,
        batch: Batch,
        *,
        hidden: bool = False,
        attention: bool = False,
        cache: KVCache | None = None,
        memory: Memory | None = None,
    ) -> Output:
        """Run the model. Logits are those at the batch's targets, or at every position if it has none.

        `hidden` and `attention` return the states and attention weights of every layer. `cache` (from `new_cache`) is
        filled for `step`. `memory` (from `new_memory`) holds the previous segments; this one is appended to it.
        """
        flags = OutputFlags(hidden=hidden, attention=attention, backend=self.attention_backend)
        stack_output, encoder_output = self._run(batch, flags, cache, memory)
        states = stack_output.states if batch.targets is not None else self.decode_masks(stack_output, batch)
        cross = _split_by_sequence(stack_output.cross, batch, batch.source)
        source = None if encoder_output is None or batch.source is None else _make_output(encoder_output, batch.source)
        output, logits = _make_output(stack_output, batch), self.logits(states, batch)
        return replace(output, logits=logits, cross=cross, source=source)

    def states(self, batch: Batch) -> Tensor:
        """Return the states `[N, W]`, without running the head; at targets those of the mask decoder."""
        return self._run(batch, OutputFlags(backend=self.attention_backend))[0].states

    def run_stacks(self, batch: Batch, *, hidden: bool = False, scores: bool = False) -> tuple[StackOutput, ...]:
        """Return the output of every stack, the last one first, in the layout of the batch and without running heads.

        `scores` returns the attention scores before the softmax `[rows, H, R, R]` of every layer. Nothing synchronizes
        with the device.
        """
        flags = OutputFlags(hidden=hidden, attention=scores, scores=scores, backend=self.attention_backend)
        return tuple(output for output in self._run(batch, flags) if output is not None)

    def compute_output(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the states `[N, W]`, and the output of the last layer before its dropout: for its regularization."""
        output = self._run(batch, OutputFlags(backend=self.attention_backend))[0]
        return output.states, output.states if output.raw_states is None else output.raw_states

    def _run(
        self, batch: Batch, flags: OutputFlags, cache: KVCache | None = None, memory: Memory | None = None
    ) -> tuple[StackOutput, StackOutput | None]:
        """Return the output of the last stack and, for an encoder-decoder, of the encoder."""
        if (memory := memory or self.memory) is not None:
            return self._get_memory_stack()(self._embed_input(batch), batch, flags=flags, memory=memory), None
        read = batch.source if self.spec.is_encoder_decoder else batch
        if read is None:
            raise UsageError("an encoder-decoder needs a batch with source and target")
        if batch.source is not None and not self.spec.is_encoder_decoder:
            raise UsageError("a batch with a source needs an encoder-decoder; this model has one stack")
        read = self.add_language(read)
        self._check_positions(batch)
        if cache is not None:
            cache.assign_slots(batch)
        encoder_output: StackOutput | None = (
            None if self.encoder is None else self.encoder(self._embed_input(read), read, flags=flags)
        )
        if self.decoder is None:
            assert encoder_output is not None
            if batch.targets is None:
                return encoder_output, None
            return replace(encoder_output, states=self.decode_masks(encoder_output, batch)), None
        if encoder_output is None:
            return self.decoder(self._embed_input(batch), batch, None, flags=flags, cache=cache), None
        return self.decoder(
            self.embed_tokens(batch.tokens), batch, encoder_output.states, flags=flags, cache=cache
        ), encoder_output

    def decode_masks(self, output: StackOutput, batch: Batch) -> Tensor:
        """Return the states with those of the mask decoder, if there is one: at the targets, or else everywhere."""
        if self.mask_decoder is None or self.head is None:
            return output.states
        assert isinstance(self.encoder, TransformerStack)
        return self.mask_decoder.decode(self.encoder, output, batch)

    def set_language(self, language: int | None) -> None:
        """Set the language of batches that name none (None: no language is added); UsageError if it is unknown."""
        languages = self.spec.stacks[0].embed.languages
        if language is not None and not 0 <= language < (languages or 0):
            raise UsageError(f"no language {language}: this model has embeddings of {languages or 0} languages, from 0")
        self.language = language

    def add_language(self, batch: Batch) -> Batch:
        """Return a batch that names no language in the one set by `set_language`, if any."""
        if self.language is None or batch.segments is not None:
            return batch
        return replace(batch, segments=torch.full_like(batch.tokens, self.language))

    def _check_positions(self, batch: Batch) -> None:
        """Raise `UsageError` if a sequence exceeds the position table; skipped on a GPU, where it would synchronize."""
        longest = self.spec.max_length
        last, first = self.decoder or self.encoder, self.encoder
        for side, stack in ((batch, last), (batch.source, first)):
            if longest is None or side is None or stack is None or side.tokens.is_cuda:
                continue
            if side.length + stack.prefix_length > longest:
                length = int(side.positions.max()) + 1
                if length + stack.prefix_length > longest:
                    raise UsageError(
                        f"sequence of {length} tokens is too long: {self._describe_limit(longest, stack.prefix_length)}"
                    )

    def logits(self, states: Tensor, batch: Batch | None = None) -> Tensor | None:
        """Return the vocabulary logits of states `[N, W]`, or those at the batch's targets. None without a head.

        If the states are those of two directions, these are the logits of the next token.
        """
        if self.head is None:
            return None
        if batch is not None and batch.targets is not None:
            states = states.index_select(0, self._find_targets(batch, batch.targets).index)
        out: Tensor = self.head(states[:, : self.spec.head_width], self.tokens.weight)
        return out

    def loss(self, states: Tensor, batch: Batch) -> Loss:
        """Return the summed vocabulary loss at the batch's targets; of two directions, that of the next token."""
        if self.head is None or batch.targets is None:
            raise UsageError("a vocabulary loss needs a model with a head and a batch with targets")
        targets = self._find_targets(batch, batch.targets)
        factors, labels = self.get_logit_factors(states, targets.index), self.close_labels(targets.labels)
        sampling = self.head.sampling if self.training and torch.is_grad_enabled() else None
        if sampling is not None and sampling.samples < self.spec.vocab:
            return sampling.compute_loss(*factors, labels)
        return linear_cross_entropy(*factors, labels)

    def logprobs(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the log-probability of each of the batch's targets `[M]`, with gradients; 0 for unused ones."""
        if self.head is None or batch.targets is None:
            raise UsageError("log-probabilities need a model with a vocabulary head and a batch with targets")
        targets = self._find_targets(batch, batch.targets)
        return linear_logprobs(*self.get_logit_factors(states, targets.index), self.close_labels(targets.labels))

    def _find_targets(self, batch: Batch, targets: Targets) -> Targets:
        """Return the targets; a model that reads backward predicts the first token of a pair at the second.

        tokens    a b c        forward    b at a, c at b        backward    a at b, b at c
        """
        if not self.spec.reads_backward:
            return targets
        is_target = targets.labels != IGNORE_INDEX
        labels = batch.tokens.index_select(0, targets.index).masked_fill(~is_target, IGNORE_INDEX)
        return Targets(index=targets.index + is_target, labels=labels)

    def get_logit_factors(self, states: Tensor, index: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return rows, matrix and bias whose product are the vocabulary logits of the states, or of some of them."""
        if self.head is None:
            raise UsageError("this model has no vocabulary head")
        rows = states if index is None else states.index_select(0, index)
        rows = self.head.transform_states(rows[:, : self.spec.head_width])
        return rows, self.tokens.weight if self.head.weight is None else self.head.weight, self.head.bias

    def close_labels(self, labels: Tensor) -> Tensor:
        """Return the labels; if the model reads characters, words outside the vocabulary become unknown ones."""
        tokenizer = self.tokenizer if self.spec.characters is not None else None
        if not isinstance(tokenizer, OpenTokenizer) or tokenizer.spellings.unknown is None:
            return labels
        return torch.where(labels < tokenizer.vocab, labels, tokenizer.spellings.unknown)

    def compute_directional_states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return forward and backward states `[N, W / 2]` of a model that reads in both directions."""
        if not isinstance(self.encoder, BidirectionalRecurrentStack):
            raise UsageError(f"a model of shape '{self.shape}' has no states of two directions")
        left, right = self.states(batch).chunk(2, dim=-1)
        return left, right

    def get_direction(self, *, backward: bool = False) -> "LanguageModel":
        """Return one direction of a model that reads in both, as a decoder with the same weights.

        The backward one takes reversed sequences, and predicts the previous token.
        """
        if not isinstance(self.encoder, BidirectionalRecurrentStack):
            raise UsageError(f"a model of shape '{self.shape}' has no two directions")
        assert isinstance(self.spec.encoder, BidirectionalRecurrent)
        stack = self.spec.encoder.get_one_direction()
        spec = replace(self.spec, width=self.spec.head_width, encoder=None, decoder=stack, pooler=None, pair=None)
        model = build_empty(spec)
        model.tokens, model.head, model.assets = self.tokens, self.head, self.assets
        model.decoder = self.encoder.get_direction(backward=backward)
        model.attention_backend = self.attention_backend
        return model.train(self.training)

    def sample(self, states: Tensor, batch: Batch, chance: Tensor) -> Tensor:
        """Sample a token for every target `[M]` from the head's softmax; `chance` `[M]` is in [0, 1)."""
        if self.head is None or batch.targets is None:
            raise UsageError("sampling needs a model with a head and a batch with targets")
        with torch.no_grad():
            return sample_tokens(*self.get_logit_factors(states, batch.targets.index), chance)

    def list_compiled_parts(self) -> Iterable[nn.Module | None]:
        transform = None if self.head is None else self.head.transform
        return self.encoder, self.decoder, transform, self.detector, self.mask_decoder

    def pool(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the pooled first token of every cell `[C, W]`; rows of padding and spare cells are undefined."""
        if self.pooler is None:
            raise UsageError("this model has no pooler")
        first = batch.offsets[:-1].clamp(max=batch.tokens.shape[0] - 1).long()
        out: Tensor = self.pooler(states.index_select(0, first))
        return out

    def compute_span_loss(self, left: Tensor, right: Tensor, place: Tensor, labels: Tensor) -> Loss:
        """Return the span head's summed loss, from the boundary states `[M, W]` and the positions in the span `[M]`."""
        if self.span is None:
            raise UsageError("this model has no span head; set `span` in its spec, or remove the boundary objective")
        return linear_cross_entropy(self.span(left, right, place), self.tokens.weight, self.span.bias, labels)

    def new_cache(self, sequences: int, capacity: int, *, source: int = 0) -> KVCache:
        """Return an empty cache for `sequences` sequences of up to `capacity` tokens (and `source` source tokens)."""
        if self.decoder is None:
            raise UsageError("a cache needs a decoder")
        longest, prefix_length = self.spec.max_length, self.decoder.prefix_length
        if longest is not None and max(capacity + prefix_length, source) > longest:
            raise UsageError(
                f"cache of {max(capacity, source)} tokens is too long: {self._describe_limit(longest, prefix_length)}"
            )
        dtype, device = self.tokens.weight.dtype, self.tokens.weight.device
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        like = torch.empty(0, dtype=dtype, device=device)
        lengths = torch.zeros(sequences, dtype=torch.long, device=like.device)
        return KVCache(
            lengths=lengths,
            layers=self.decoder.new_caches(sequences, capacity, cross=False, like=like),
            cross=self.decoder.new_caches(sequences, source, cross=True, like=like)
            if self.spec.is_encoder_decoder
            else [],
            source_lengths=lengths.clone() if self.spec.is_encoder_decoder else None,
            prefix_length=prefix_length,
        )

    def new_memory(self, length: int) -> Memory:
        """Return an empty memory of previous segments: of the last `length` tokens, or of recurrent states."""
        return self._get_memory_stack().new_memory(length)

    def _get_memory_stack(self) -> TwoStreamStack | RecurrentStack:
        stack = self.encoder or self.decoder
        if not isinstance(stack, TwoStreamStack | RecurrentStack) or not self.spec.carries_state:
            raise UsageError(f"a segment memory needs a two-stream or a recurrent model, got shape '{self.shape}'")
        return stack

    def step(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Append one token per sequence `[B]`; return the logits of the next token `[B, vocab]`."""
        if self.decoder is None or self.head is None:
            raise UsageError("step needs a decoder with a vocabulary head")
        if not tokens.is_cuda and int(cache.lengths.max()) >= cache.capacity:
            raise UsageError(f"the cache is full: its capacity is {cache.capacity} tokens per sequence")
        states = self.decoder.step(self.embed_tokens(tokens), cache, backend=self.attention_backend)
        out: Tensor = self.head(states, self.tokens.weight)
        return out

    @staticmethod
    def _describe_limit(max_length: int, prefix_length: int) -> str:
        prefix = f", of which the prefix takes {prefix_length}" if prefix_length else ""
        return f"the maximum length of this model is {max_length}{prefix}"

    def _embed_input(self, batch: Batch) -> Tensor:
        """Return the token embeddings of the first stack's input, with virtual tokens filled in."""
        rows = self.embed_tokens(batch.tokens)
        return rows if self.prompt is None else self.prompt(rows, batch)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Return the rows of the token table `[N, table]` for tokens `[N]`, or vectors made from their characters."""
        has_characters = isinstance(self.tokens, CharacterEmbedding)
        spellings = (self._get_spellings().get(tokens.device),) if has_characters else ()
        out: Tensor = self.tokens(tokens, *spellings)
        return out

    def _get_spellings(self) -> SpellingTable:
        """Return the characters of the tokenizer's words; without a tokenizer, token ids are spelled in digits."""
        assert self.spec.characters is not None
        tokenizer = self.tokenizer
        spellings = tokenizer.spellings if isinstance(tokenizer, OpenTokenizer) else None
        if self._spellings is None or (spellings is not None and self._spellings.spellings is not spellings):
            self._spellings = SpellingTable(
                spell_numbers(self.spec.vocab, self.spec.characters.length) if spellings is None else spellings
            )
        return self._spellings


def build(spec: Model, *, seed: int = 0, device: torch.device | str = "cpu") -> LanguageModel:
    """Build a randomly initialized model."""
    check_memory(spec, device=device)
    model = build_empty(spec).to_empty(device=device)
    initialise(model, spec.init, spec.depth, seed)
    return model


def build_empty(spec: Model) -> LanguageModel:
    """Build the model on the meta device: no memory for its weights."""
    with torch.device("meta"), _SkipInit():
        return LanguageModel(spec)


class _SkipInit(TorchFunctionMode):
    """Skips `torch.nn.init`: on the meta device it has no effect but takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _make_output(output: StackOutput, batch: Batch) -> Output:
    attention = _split_by_sequence(output.attention, batch, batch)
    return Output(states=output.states, hidden=output.hidden, attention=attention)


def _split_by_sequence(
    layers: tuple[Tensor, ...] | None, queries: Batch, keys: Batch | None
) -> tuple[tuple[Tensor, ...], ...] | None:
    """Split weights `[rows, H, R, R]` per layer into one `[H, n, m]` per sequence; None without weights or keys."""
    if layers is None or keys is None:
        return None
    pairs = list(zip(queries.list_spans(), keys.list_spans(), strict=True))
    sequences = []
    for weights in layers:
        parts = []
        for (start, end), (key_start, key_end) in pairs:
            row, column, key_column = start // queries.length, start % queries.length, key_start % keys.length
            part = weights[row, :, column : column + end - start, key_column : key_column + key_end - key_start]
            parts.append(part)
        sequences.append(tuple(parts))
    return tuple(sequences)


def check_call(arguments: Sequence[object], options: Mapping[str, object]) -> None:
    """Raise `UsageError` for arguments of other libraries' models: a tensor of ids, texts, `input_ids`."""
    value = arguments[0] if arguments else options.get("batch")
    if isinstance(value, Batch):
        return
    name = next((name for name in options if name != "batch"), None) if not arguments and value is None else None
    description = f"'{name}'" if name else "nothing" if value is None else f"a {type(value).__name__}"
    raise UsageError(
        f"a model takes a batch, found {description}; write model(pt.batch([[101, 7592, 102], …])), and for texts "
        "model(model.tokenizer(texts))"
    )
