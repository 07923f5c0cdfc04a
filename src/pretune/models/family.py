"""The type of a model family: spec builder, published sizes, training settings and Hugging Face layout."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pretune.models.generator_discriminator import Pair
from pretune.models.hf.config import Layout
from pretune.models.spec import Model
from pretune.nn.heads import PoolingConfig


@dataclass(frozen=True)
class Size:
    """A published size: arguments of `build_spec`, and the number of parameters of the released weights.

    `counted_params` names the field of `Params` that `params` equals: `total`, `body` or `body_with_pooler`.
    """

    settings: Mapping[str, Any]
    params: int
    counted_params: str = "total"
    training: Mapping[str, Any] = field(default_factory=dict)  # fields of `PaperDefaults` in which this size differs


ADAM = {"kind": "adam_w", "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01}
"""AdamW with the settings of BERT."""
ADAM_LARGE = {"kind": "adam_w", "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
"""AdamW with the settings of GPT-3."""


@dataclass(frozen=True, kw_only=True)
class PaperDefaults:
    """Training settings of a family's paper, as names and numbers; `pretune.runs` builds the run from them.

    `lr` is the learning rate at `width`; narrower models train with a proportionally higher rate. `batch_tokens` is the
    paper's batch size.
    """

    objective: Mapping[str, Any]
    samples: str = "documents"
    lengths: tuple[int, ...] = (512,)  # the last length is used for the last tenth of the steps
    batch_tokens: int
    lr: float
    width: int | None = None
    optimizer: Mapping[str, Any] = field(default_factory=lambda: ADAM)
    schedule: Mapping[str, Any] = field(default_factory=lambda: {"kind": "linear", "warmup": 10_000})
    tokenizer: tuple[str, str, int]  # kind, style, vocabulary size
    mixing: Mapping[str, Any] | None = None  # of corpora, such as one per language; None: proportional to size


@dataclass(frozen=True, kw_only=True)
class Family:
    """A published family. `build_spec` takes the settings (width, depth, heads, vocab, …) as keyword arguments."""

    build_spec: Callable[..., Model]
    sizes: Mapping[str, Size]
    default: str
    training: PaperDefaults | None = None  # None: not trained on its own
    layout: Layout | None = None  # None: saved in the native format only
    shape: str = field(default="")  # encoder, decoder or encoder-decoder
    build_pretraining_spec: Callable[[Model], Pair] | None = None  # adds the generator of a discriminator
    pooling: PoolingConfig | None = None  # for sequence classification; None: the default of its shape
    choice_pooling: PoolingConfig | None = None  # for multiple choice; None: the same as `pooling`
    adds_task_tokens: bool = False  # fine-tuning adds start, delimiter and extract tokens

    def get_training(self, size: str | None = None) -> PaperDefaults | None:
        """Return the paper's training settings for a size, or those of the family if `size` is None."""
        if self.training is None or size is None:
            return self.training
        return replace(self.training, **self.sizes[size].training)

    def resolve_spec(self, size: str | None = None, **settings: Any) -> Model:
        """Return the spec of a size (default: the family's default size) with `settings` overridden."""
        return self.build_spec(**{**self.sizes[size or self.default].settings, **settings})
