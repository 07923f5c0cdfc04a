"""Base classes of objectives: a spec that binds a corruption to a vocabulary and computes the loss.

    objective = MaskedLM(rate=0.3)                     # a value, stored in run.json
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    corruption = objective.bind(vocabulary, "encoder")  # in numpy: `lengths`, `corrupt`, `targets`
    stream = BatchStream(samples, shape, seed=0, corruption=corruption, words=objective.words)
    objective.loss(model, stream[0])                   # in torch: Loss(sum, count, parts)

To add one: a file here and a line in the table of `pretune.objectives` (docs/extending.md).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, Protocol, Self, TypeVar, get_args

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.core.config import get_kind, spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss, Targets
from pretune.data.sequences import Ints
from pretune.data.stream import Corruption
from pretune.nn.loss import count_top1
from pretune.text.template import TokenTemplate
from pretune.text.tokenizer import Tokenizer

ModelShape = Literal["encoder", "decoder", "encoder-decoder", "two-way", "generator-discriminator", "two-stream"]
"""Architecture of a model. Two-way: causal stacks of both directions; two-stream: content and query states."""
MODEL_SHAPES: tuple[ModelShape, ...] = get_args(ModelShape)
PairKind = Literal["other", "swapped", "kept", "apart"]
T = TypeVar("T")
Role = Literal["pad", "unk", "cls", "sep", "mask", "bos", "eos"]


@spec
class Vocabulary:
    """Size and special tokens of a tokenizer: all that objectives need of it."""

    size: int
    special: tuple[int, ...] = ()  # all special ids, ascending: never corrupted, never sampled
    roles: tuple[tuple[Role, int], ...] = ()
    sentinels: tuple[int, ...] = ()  # in order of use
    start: int | None = None  # decoder start token

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, *, start: int | None = None) -> "Vocabulary":
        """Return the vocabulary of a tokenizer; the default decoder start token is the first of bos, cls, pad, eos."""
        roles = {role: tokenizer.special[role] for role in get_args(Role) if role in tokenizer.special}
        if start is None:
            start = next((roles[role] for role in ("bos", "cls", "pad", "eos") if role in roles), None)
        return cls(
            size=tokenizer.vocab,
            special=tuple(sorted(tokenizer.special_ids)),
            roles=tuple(roles.items()),
            sentinels=tokenizer.sentinels,
            start=start,
        )

    def find(self, role: Role) -> int | None:
        """Return the id of a special token, or None."""
        return dict(self.roles).get(role)

    def require(self, role: Role, objective: str) -> int:
        """Return the id of a special token; UsageError if the tokenizer has none."""
        token = self.find(role)
        if token is None:
            raise UsageError(f"{objective} needs a {role} token, but this tokenizer has none; {_REMEDY}")
        return token

    def require_start(self, objective: str) -> int:
        """Return the decoder start token; UsageError if there is none."""
        if self.start is None:
            raise UsageError(f"{objective} needs a decoder start token (bos, cls, pad or eos); {_REMEDY}")
        return self.start

    def list_ordinary_ids(self) -> Ints:
        """Return all ids except the special ones; random tokens are sampled from them."""
        return np.setdiff1d(np.arange(self.size), np.asarray(self.special, dtype=np.int64))


_REMEDY = "train one with another --style (see `pretune list tokenizers`)"


def build_template(
    tokenizer: Tokenizer, vocabulary: Vocabulary, shape: ModelShape, *, blocks: bool = False
) -> TokenTemplate:
    """Return the special tokens around a text: the tokenizer's template, and start and end tokens for decoders.

    In blocks, documents are concatenated and have only an end token.
    """
    template = tokenizer.template
    if shape not in ("decoder", "two-way"):
        return template
    single, start, end = [*template.single], vocabulary.start, vocabulary.find("eos")
    if end is not None and not template.suffix:
        single.append((end, 0))
    if start is not None and not template.prefix and not blocks:
        single.insert(0, (start, 0))
    return TokenTemplate(single=tuple(single), pair=template.pair)


class PretrainingModel(Protocol):
    """Methods of a model that objectives call."""

    @property
    def pair(self) -> nn.Module | None:
        """Head with two classes over the pooled vector, or None."""

    def states(self, batch: Batch) -> Tensor:
        """Compute the states [N, W]."""

    def compute_output(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the states [N, W], and the last layer's output before the final dropout."""

    def loss(self, states: Tensor, batch: Batch) -> Loss:
        """Compute the summed loss of the vocabulary head at the batch's targets."""

    def pool(self, states: Tensor, batch: Batch) -> Tensor:
        """Pool the states to one vector per sequence cell [C, W]."""

    def compute_span_loss(self, left: Tensor, right: Tensor, place: Tensor, labels: Tensor) -> Loss:
        """Compute the summed loss of the span head from states at span edges [M, W] and positions in spans [M]."""


class Objective(ABC):
    """Base class of objectives: a spec with its settings, the corruption it binds to a vocabulary, and the loss.

    A subclass overrides only what differs from the defaults. Class attributes without an annotation (`shapes =
    ("encoder",)`) override the properties; annotated ones are settings, stored in run.json.
    """

    __slots__ = ()

    difficulty_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that only make training harder: the validation loss has their defaults, the paper's."""

    @property
    @abstractmethod
    def shapes(self) -> tuple[ModelShape, ...]:
        """Shapes of the models that it trains."""

    @property
    def inner(self) -> tuple["Objective", ...]:
        """Objectives that it is made of, such as its masking: it needs what they need."""
        masking = getattr(self, "masking", None)
        return () if masking is None else (masking,)

    @property
    def words(self) -> bool:
        """True if the corruption needs word boundaries (`Sequences.words`)."""
        return any(objective.words for objective in self.inner)

    @property
    def sentences(self) -> bool:
        """True if the corruption needs sentence boundaries (`Sequences.sentences`)."""
        return any(objective.sentences for objective in self.inner)

    @property
    def pairs(self) -> PairKind | None:
        """Kind of pairs that it reads; None for single texts.

        Two segments of a document, half of the pairs corrupted ("other", "swapped": `SegmentPairs`); or the two sides
        of parallel documents, in one sequence ("kept") or as source and target ("apart").
        """
        return None

    @property
    def needs_attention(self) -> bool:
        """True if tokens of a decoder attend to later ones (`Batch.prefix`), which a recurrent model cannot."""
        return getattr(self, "prefix", False) or any(objective.needs_attention for objective in self.inner)

    @property
    def needs_recurrence(self) -> bool:
        """True if a decoder must keep the text in its state: one with attention copies it and learns nothing."""
        return any(objective.needs_recurrence for objective in self.inner)

    @property
    def allows_streams(self) -> bool:
        """True if it trains on windows of contiguous streams, with a state that the model carries between them."""
        return False

    @property
    def name(self) -> str:
        """Name in the table of objectives, for messages."""
        return get_kind(self)

    def bind(self, vocabulary: Vocabulary, shape: ModelShape) -> Corruption:
        """Return the corruption for a vocabulary and a shape of model.

        Raises UsageError if the objective does not train this shape, or the vocabulary lacks a special token.
        """
        if shape not in self.shapes:
            choices = ", ".join(self.shapes)
            raise UsageError(f"{self.name} does not train models of the shape '{shape}'; it trains: {choices}")
        return self.build_corruption(vocabulary, shape)

    @abstractmethod
    def build_corruption(self, vocabulary: Vocabulary, shape: ModelShape) -> Corruption:
        """Return the corruption for one of `shapes`."""

    def to_evaluation(self) -> Self:
        """Return the objective of the validation loss: equal for all settings that only make training harder."""
        if not self.difficulty_settings:
            return self
        defaults = type(self)()
        changes = {name: getattr(defaults, name) for name in self.difficulty_settings}
        return replace(self, **changes)  # type: ignore[type-var]

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        """Count the targets of each loss term, by its name, before the model runs."""
        return {"loss": count_vocabulary_targets(batch)}

    def loss(self, model: PretrainingModel, batch: Batch) -> Loss:
        """Compute the summed loss of a batch."""
        return self.loss_from_states(model, model.states(batch), batch)

    def loss_from_states(self, model: PretrainingModel, states: Tensor, batch: Batch) -> Loss:
        """Compute the loss from the model's states [N, W], for objectives that add a term to it."""
        return model.loss(states, batch)


def require_targets(batch: Batch) -> Targets:
    """Return the targets of a batch; UsageError if it has none."""
    if batch.targets is None:
        raise UsageError("the batch has no targets; build its stream with the corruption of an objective")
    return batch.targets


def count_vocabulary_targets(batch: Batch) -> Tensor:
    """Count the tokens that the vocabulary head predicts."""
    return (require_targets(batch).labels != IGNORE_INDEX).sum()


def count_pairs(batch: Batch) -> Tensor:
    """Count the sequences with a label."""
    if batch.labels is None:
        raise UsageError("the batch has no pair labels; use data.samples=pairs")
    return (batch.labels != IGNORE_INDEX).sum()


def pair_loss(model: PretrainingModel, states: Tensor, batch: Batch) -> Loss:
    """Compute the summed loss of the pair head over all sequences with a label."""
    count = count_pairs(batch)
    if model.pair is None or batch.labels is None:
        raise UsageError("the model has no pair head; use a family with one, or an objective without pairs")
    logits = model.pair(model.pool(states, batch)).float()
    total = F.cross_entropy(logits, batch.labels, ignore_index=IGNORE_INDEX, reduction="sum")
    return Loss(sum=total, count=count, correct=None if total.requires_grad else count_top1(logits, batch.labels))


def rename_loss_term(terms: Mapping[str, T], name: str) -> dict[str, T]:
    """Give the only loss term of an objective another name."""
    return {name if term == "loss" else term: value for term, value in terms.items()}


def bound_target_slots(mean: float, variance: float, max_slots: int) -> int:
    """Return target slots for a random number of targets: mean plus six standard deviations, at most `max_slots`."""
    return min(max_slots, int(np.ceil(mean + 6 * np.sqrt(variance))) + 1)
