"""Enhanced mask decoder (He et al., 2021): absolute positions, for the prediction of masked tokens only.

The body has distances, not positions; the vocabulary head needs both, because a text's subject and object may have the
same neighbours. The decoder applies the last layer `steps` times: its queries start as the input of that layer plus the
positions, and every step attends to this input. Other heads take the states of the last layer.
Legend: N tokens, M targets, W width.
"""

from torch import Tensor, nn

from pretune.core.config import Positive, spec
from pretune.core.types import Batch
from pretune.nn.attention_mask import AttentionContext
from pretune.nn.block import TransformerBlock
from pretune.nn.relative_attention import QueryPositions
from pretune.nn.stack import StackOutput, TransformerStack


@spec
class MaskDecoder:
    """`rows` absolute positions, and the number of times that the last layer is applied."""

    rows: Positive[int]
    steps: Positive[int] = 2

    def build(self, *, width: int) -> "EnhancedMaskDecoder":
        return EnhancedMaskDecoder(self, width)

    def params(self, *, width: int) -> int:
        return self.rows * width


class EnhancedMaskDecoder(nn.Module):
    """Module of the decoder; the layer is an argument, because it belongs to the stack."""

    def __init__(self, spec: MaskDecoder, width: int) -> None:
        super().__init__()
        self.steps = spec.steps
        self.positions = nn.Embedding(spec.rows, width)

    def decode(self, stack: TransformerStack, output: StackOutput, batch: Batch) -> Tensor:
        """Return the stack's states `[N, W]` with the decoded ones at the targets, or everywhere without targets."""
        assert output.last_input is not None
        layer, positions = stack[stack.spec.layer_indices[-1]], stack.shift_positions(batch.positions)
        if batch.targets is None:
            return stack.apply_final_norm(self(layer, positions, *output.last_input, None))
        query_positions = QueryPositions.from_targets(batch.targets, batch.tokens.shape[0])
        decoded_states = stack.apply_final_norm(self(layer, positions, *output.last_input, query_positions))
        return query_positions.scatter(decoded_states, output.states)

    def forward(
        self,
        layer: TransformerBlock,
        positions: Tensor,
        states: Tensor,
        context: AttentionContext,
        query_positions: QueryPositions | None,
    ) -> Tensor:
        """Return the decoded states `[M, W]` at the queries, or `[N, W]` without `query_positions`.

        `states` `[N, W]` are the input of the stack's last `layer`, `positions` `[N]` those of the tokens. Queries are
        laid out over the whole batch for the attention alone, so that no shape depends on their number per row.
        """
        attention = layer.attention
        keys, values = attention.project_keys(layer.attention_norm.pre(states))
        x, positions = (
            (states, positions) if query_positions is None else map(query_positions.gather, (states, positions))
        )
        x = x + self.positions(positions).to(x.dtype)
        for _ in range(self.steps):
            q = attention.project_queries(layer.attention_norm.pre(x))
            if query_positions is not None:
                q = query_positions.scatter(q, q.new_zeros(()).expand(query_positions.count, *q.shape[1:]))
            out, _ = attention.attend_heads(q, keys, values, context)
            out = out if query_positions is None else query_positions.gather(out)
            x = layer.finish(x, attention.out(out.flatten(1)))
        return x
