"""The model that a recipe continues (`--from`): its architecture and vocabulary, or its weights for a new vocabulary.

pretune pretrain encoder --text reviews/ --from minilm --budget 3m --out runs/mine
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pretune.adaptation.surgery import replace_vocabulary
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.hub import resolve_path
from pretune.models.families import FAMILIES
from pretune.models.families.shared import PaperDefaults
from pretune.models.hf import checkpoint
from pretune.models.spec import Model
from pretune.objectives.base import Objective
from pretune.runs.defaults import replace_heads
from pretune.runs.recipes.facts import TextFacts
from pretune.text.tokenizer import Tokenizer

MAX_UNKNOWN = 0.05
"""Share of unknown tokens from which a vocabulary is refused."""
VOCAB_PATH = "model.vocab"
"""The only setting of the architecture that a user may change: a vocabulary of this size is trained on the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialModel:
    """A model directory, its spec with the heads of an objective, and its tokenizer."""

    name: str  # as passed
    path: Path
    spec: Model
    tokenizer: Tokenizer
    paper: PaperDefaults

    @classmethod
    def open(cls, name: str, shape: str, objective: Objective, overrides: Collection[str]) -> "InitialModel":
        """Open a model without its weights; one that does not have the shape of the recipe is a UsageError."""
        path = resolve_path(name)
        spec = checkpoint.inspect_checkpoint(path)[0]
        if spec.shape != shape:
            raise UsageError(
                f"{name} has the shape '{spec.shape}', which the recipe '{shape}' cannot "
                "continue; use a model of its shape"
            )
        paper = FAMILIES.get(spec.family).training if spec.family in FAMILIES else None
        if paper is None:
            raise UsageError(f"{name}: family '{spec.family}' has no training defaults; choose another model")
        for setting in overrides:
            if setting.startswith("model.") and setting != VOCAB_PATH:
                raise UsageError(
                    f"'{setting}' cannot be set with --from: {name} keeps its architecture (width "
                    f"{spec.width}, {spec.depth} layers); leave the setting or --from out"
                )
        if not (path / "tokenizer.json").is_file():
            raise CheckpointError(f"{path}: no tokenizer.json in it, so it cannot read text; choose another model")
        tokenizer = Tokenizer.load(path)
        return cls(name=name, path=path, spec=replace_heads(spec, objective), tokenizer=tokenizer, paper=paper)

    def describe(self) -> str:
        """Return its family and size in words."""
        return f"{self.spec.family} with width {self.spec.width} and {self.spec.depth} layers, trained further"

    def explain_vocab(self, vocab: int, bytes_per_token: float) -> str:
        """Return the reason for a size of the vocabulary: its own, or a new one."""
        if vocab != self.spec.vocab:
            return f"a new vocabulary; new tokens get the mean vector of their pieces in that of {self.name}"
        return f"that of {self.name}: {bytes_per_token:.2g} bytes of this text for each token"

    def check_text(self, text: TextFacts) -> None:
        """Raise a DataError for text whose language the vocabulary does not cover."""
        if text.unknown > MAX_UNKNOWN:
            raise DataError(
                f"{text.unknown:.0%} of the text is unknown to the vocabulary of {self.name}; train another with --set "
                f"{VOCAB_PATH}=8192, or leave --from out"
            )

    def check_weights(self) -> None:
        """Raise a CheckpointError if the weights are damaged."""
        checkpoint.check_weights(checkpoint.load(self.path), self.path)

    def save_with_vocabulary(self, tokenizer: Tokenizer, directory: Path) -> None:
        """Write the model for the vocabulary of another tokenizer: new tokens get the mean of their old pieces."""
        checkpoint.save(replace_vocabulary(checkpoint.load(self.path), tokenizer), directory, overwrite=True)
