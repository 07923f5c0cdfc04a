"""What a family file states: a recipe, its published sizes, and how its weights lie on disk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pretune.models.huggingface import Layout
from pretune.models.spec import Model


@dataclass(frozen=True)
class Size:
    """A published size: the recipe's settings, and the parameters of the released weights.

    `params` counts what the release holds: `of` says whether that is the whole model or its body with the pooler.
    """

    settings: Mapping[str, Any]
    params: int
    of: str = "total"


@dataclass(frozen=True, kw_only=True)
class Family:
    """One published family. `recipe` takes the common settings (width, depth, heads, vocab, …) by keyword."""

    recipe: Callable[..., Model]
    sizes: Mapping[str, Size]
    default: str
    layout: Layout | None = None  # None: saved in our own names only
    shape: str = field(default="")  # encoder, decoder or encoder-decoder

    def spec(self, size: str | None = None, **settings: Any) -> Model:
        """The spec of a size, with some settings changed."""
        return self.recipe(**{**self.sizes[size or self.default].settings, **settings})
