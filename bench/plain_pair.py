"""Replaced-token detection with models of transformers, which has no pair: the peer of `family_throughput.py`."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn


class PlainPair(nn.Module):
    """Generator and discriminator of transformers (Clark et al., 2020), with our weights.

    ELECTRA's share their embeddings. DeBERTa's discriminator has the generator's token table without its gradient, plus
    offsets, and a head of its own (He et al., 2023), which transformers lacks. `ours` is our pair, saved in `folder`;
    `kind` is the class of the generator.
    """

    def __init__(self, ours: Any, folder: str, kind: str) -> None:
        super().__init__()
        self.generator = getattr(transformers, kind).from_pretrained(f"{folder}/generator")
        self.is_tied = ours.spec.sharing == "tied"
        if self.is_tied:
            self.discriminator = transformers.ElectraForPreTraining.from_pretrained(folder)
            self.generator.electra.embeddings = self.discriminator.electra.embeddings
            self.generator.generator_lm_head.weight = self.discriminator.electra.embeddings.word_embeddings.weight
            return
        self.discriminator = transformers.DebertaV2Model.from_pretrained(folder)
        self.discriminator.embeddings.word_embeddings = None
        self.offset = nn.Parameter(ours.discriminator.tokens.offset.detach().clone())
        detector = ours.discriminator.detector
        self.norm, self.dense, self.out = (
            nn.LayerNorm(len(detector.dense.bias), eps=1e-7),
            *copy.deepcopy((detector.dense, detector.out)),
        )
        self.norm.load_state_dict(detector.norm.state_dict())

    def detect(self, tokens: Tensor) -> Tensor:
        """Return the logits that tokens were replaced `[B, S]`."""
        if self.is_tied:
            logits: Tensor = self.discriminator(input_ids=tokens).logits
            return logits
        table = self.generator.deberta.embeddings.word_embeddings.weight.detach()
        vectors = F.embedding(tokens, table) + F.embedding(tokens, self.offset)
        states = self.discriminator(inputs_embeds=vectors, attention_mask=torch.ones_like(tokens)).last_hidden_state
        states = self.norm(states + states[:, :1])
        out: Tensor = self.out(F.gelu(self.dense(states))).squeeze(-1)
        return out

    def forward(self, input_ids: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """Return the loss of both; `index` has the targets' positions in the flat batch."""
        generated = self.generator(input_ids=input_ids, labels=labels)
        logits = generated.logits.detach().flatten(0, 1).index_select(0, index).float()
        samples = (logits - torch.rand_like(logits).clamp(min=1e-30).log().neg().log()).argmax(-1)
        filled = input_ids.flatten().index_copy(0, index, samples).view_as(input_ids)
        is_replaced = (labels >= 0) & (filled != labels)
        detected = F.binary_cross_entropy_with_logits(self.detect(filled).float(), is_replaced.float())
        loss: Tensor = generated.loss + 50 * detected
        return loss
