"""Prompt tuning (Lester et al., 2021): learned vectors before the text, in the place of token embeddings.

The data layout reserves slots (`data.sequences.reserve`, with the same count): the first positions of each
sequence, which the model fills from its table. In an encoder-decoder the encoder reads them. See also: prefix tuning
has such vectors in every block.

    layout   .  .  the cat        input   p0 p1 the cat        p: trained
"""

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from pretune.adaptation.peft.base import MAX_SIZE, PeftMethod, choose_tokens, refuse_recurrent
from pretune.core.config import Ge, Le, NonEmpty, spec
from pretune.core.types import Batch
from pretune.models.model import LanguageModel


@spec(kind="prompt")
class PromptTuning(PeftMethod):
    """Prompt tuning: learned vectors before the text, at the input only (Lester et al., 2021)."""

    count: Annotated[int, Ge(0), Le(MAX_SIZE)] = 20
    tokens: Annotated[tuple[int, ...], NonEmpty()] | None = None  # initial ids, repeated; None: sampled ones

    rate: ClassVar[float] = 0.03

    def insert_modules(self, model: LanguageModel, seed: int) -> None:
        """Add a table for the slots to the model."""
        refuse_recurrent(model, "prompt tuning needs attention to its virtual tokens, which a recurrent model lacks")
        tokens = choose_tokens(model, self.count, self.tokens, seed)
        model.prompt = PromptTable(model.tokens.weight.detach().index_select(0, tokens).clone())

    def list_trainable_names(self, model: LanguageModel) -> tuple[str, ...]:
        """Return the name of the table."""
        return () if model.prompt is None else ("prompt.table",)


class PromptTable(nn.Module):
    """`table` [P, width of the token table]: a row per slot."""

    is_adapter: ClassVar[bool] = True

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.table = Parameter(start)

    def forward(self, rows: Tensor, batch: Batch) -> Tensor:
        """Replace the token rows `[N, …]` of the slots, the first positions of every sequence, by the table's."""
        count = self.table.shape[0]
        if not count:
            return rows
        is_slot = (batch.positions < count) & (batch.sequence >= 0)
        prompt_rows = self.table.index_select(0, batch.positions.clamp(max=count - 1))
        return torch.where(is_slot[:, None], prompt_rows.to(rows.dtype), rows)
