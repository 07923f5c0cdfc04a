"""What a family file states: a recipe, its published sizes, and how its weights lie on disk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pretune.models.generator_discriminator import Pair
from pretune.models.hf.config import Layout
from pretune.models.spec import Model
from pretune.nn.pooling import Reading


@dataclass(frozen=True)
class Size:
    """A published size: the recipe's settings, and the parameters of the released weights.

    `params` counts what the release holds: `counted_params` says whether that is the whole model or its body with the pooler.
    """

    settings: Mapping[str, Any]
    params: int
    counted_params: str = "total"
    training: Mapping[str, Any] = field(default_factory=dict)  # fields of `PaperDefaults` in which this size differs


ADAM = {"kind": "adam_w", "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01}
"""As the first encoders used it."""
ADAM_LARGE = {"kind": "adam_w", "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
"""As large decoders use it."""


@dataclass(frozen=True, kw_only=True)
class PaperDefaults:
    """How its paper trained a family: names and numbers, which `pretune.runs` turns into a run.

    `lr` is that of models of `width`; narrower ones learn at proportionally higher rates. Batch sizes are the paper's.
    """

    objective: Mapping[str, Any]
    samples: str = "documents"
    lengths: tuple[int, ...] = (512,)  # the last is that of the last tenth of the steps
    batch_tokens: int
    lr: float
    width: int | None = None
    optimizer: Mapping[str, Any] = field(default_factory=lambda: ADAM)
    schedule: Mapping[str, Any] = field(default_factory=lambda: {"kind": "linear", "warmup": 10_000})
    tokenizer: tuple[str, str, int]  # kind, style, size
    mixing: Mapping[str, Any] | None = None  # of several corpora, such as one per language; None: by their sizes


@dataclass(frozen=True, kw_only=True)
class Family:
    """One published family. `build_spec` takes the common settings (width, depth, heads, vocab, …) by keyword."""

    build_spec: Callable[..., Model]
    sizes: Mapping[str, Size]
    default: str
    training: PaperDefaults | None = None  # None: it is not trained by itself
    layout: Layout | None = None  # None: saved in our own names only
    shape: str = field(default="")  # encoder, decoder or encoder-decoder
    build_pretraining_spec: Callable[[Model], Pair] | None = (
        None  # with what it is pre-trained, where its paper has a partner
    )
    pooling: Reading | None = None  # of a whole sequence by a task's head; None: as its shape is usually read
    choice_pooling: Reading | None = None  # the same for choices among sequences; None: no other
    adds_task_tokens: bool = False  # fine-tuning adds start, delimiter and extract tokens that the vocabulary lacks

    def get_training(self, size: str | None = None) -> PaperDefaults | None:
        """Return how the paper trained a size, or the family where none is named."""
        if self.training is None or size is None:
            return self.training
        return replace(self.training, **self.sizes[size].training)

    def resolve_spec(self, size: str | None = None, **settings: Any) -> Model:
        """The spec of a size, with some settings changed."""
        return self.build_spec(**{**self.sizes[size or self.default].settings, **settings})
