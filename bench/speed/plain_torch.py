"""Peers in plain torch and transformers, with our weights: AWD-LSTM, ELMo, and replaced-token detection.

`recurrent.py` has those on torch's LSTM. `family_throughput.py` has the pair, which transformers lacks.
"""

import copy
import itertools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pretune.text.tokenizer.open_vocabulary import spell_numbers

PENALTIES = {"activation_penalty": 2.0, "temporal_penalty": 1.0}
RATES = {"token": 0.02, "input": 0.25, "hidden": 0.15, "output": 0.1, "weight": 0.2}


class PlainAwdLstm(nn.Module):
    """AWD-LSTM on torch's LSTM, with dropout of token types, inputs, outputs and recurrent weights."""

    def __init__(self, vocab: int, width: int, hidden: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        sizes = [width, hidden, hidden, width]
        self.lstms = nn.ModuleList(nn.LSTM(a, b, batch_first=True) for a, b in itertools.pairwise(sizes))
        self.bias = nn.Parameter(torch.zeros(vocab))

    def load(self, ours: dict[str, Tensor]) -> None:
        """Take over the weights of our model."""
        names = {"tokens.weight": "tokens.weight", "bias": "head.bias"}
        for i in range(len(self.lstms)):
            for theirs, part in (("ih", "input"), ("hh", "recurrent")):
                names |= {f"lstms.{i}.{p}_{theirs}_l0": f"decoder.{i}.{part}.{p}" for p in ("weight", "bias")}
        self.load_state_dict({theirs: ours[name] for theirs, name in names.items()})

    def compute_loss(self, tokens: Tensor) -> Tensor:
        """Return the mean loss of the next words, with the penalties of activations and of their changes."""
        rate = RATES if self.training else dict.fromkeys(RATES, 0.0)
        table = self.tokens.weight
        x = F.embedding(tokens, table * F.dropout(table.new_ones(len(table), 1), rate["token"]))
        x = self._drop_units(x, rate["input"])
        for i, lstm in enumerate(self.lstms):
            weights = [
                lstm.weight_ih_l0,
                F.dropout(lstm.weight_hh_l0, rate["weight"]),
                lstm.bias_ih_l0,
                lstm.bias_hh_l0,
            ]
            zeros = [x.new_zeros(1, x.shape[0], lstm.hidden_size)] * 2
            output = torch.lstm(x, zeros, weights, True, 1, 0.0, self.training, False, True)[0]
            x = self._drop_units(output, rate["output" if i + 1 == len(self.lstms) else "hidden"])
        logits = F.linear(x[:, :-1].flatten(0, 1), table, self.bias)
        loss = F.cross_entropy(logits, tokens[:, 1:].flatten())
        changes = (output[:, 1:] - output[:, :-1]).float()
        return (
            loss
            + PENALTIES["activation_penalty"] * x.float().square().mean()
            + PENALTIES["temporal_penalty"] * changes.square().mean()
        )

    def _drop_units(self, x: Tensor, rate: float) -> Tensor:
        """Drop the same units in all steps."""
        return x * F.dropout(x.new_ones(x.shape[0], 1, x.shape[2]), rate)


class PlainElmo(nn.Module):
    """ELMo on torch's LSTM: padded batches, the characters of all words."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        cnn, block = spec.characters, spec.encoder.blocks[0]
        half, self.vocab, self.samples = block.projection, spec.vocab, spec.head.sampling.samples
        self.spellings: Tensor
        self.register_buffer("spellings", torch.from_numpy(spell_numbers(spec.vocab, 50)).long(), persistent=False)
        self.characters = nn.Embedding(cnn.characters, cnn.width)
        self.filters = nn.ModuleList(nn.Conv1d(cnn.width, group.count, group.width) for group in cnn.filters)
        self.dense, self.gate = (
            nn.ModuleList(nn.Linear(cnn.features, cnn.features) for _ in range(cnn.highways)) for _ in range(2)
        )
        self.project = nn.Linear(cnn.features, half)
        self.forwards, self.backwards = (
            nn.ModuleList(nn.LSTM(half, block.hidden, proj_size=half, batch_first=True) for _ in spec.encoder.blocks)
            for _ in range(2)
        )
        self.weight, self.bias = nn.Parameter(torch.zeros(spec.vocab, half)), nn.Parameter(torch.zeros(spec.vocab))

    def load(self, ours: dict[str, Tensor]) -> None:
        """Take over the weights of our model; its second bias is zero."""
        state = dict(self.state_dict())
        for name, value in ours.items():
            parts = name.split(".")
            if parts[0] == "head":
                state[parts[1]] = value
            elif parts[0] == "encoder":
                kind, part = f"{parts[2]}.{parts[1]}.", ".".join(parts[3:])
                names = {"input.weight": "weight_ih_l0", "input.bias": "bias_ih_l0", "recurrent.weight": "weight_hh_l0"}
                state[kind + (names | {"project.weight": "weight_hr_l0"})[part]] = value
                state[f"{kind}bias_hh_l0"] = torch.zeros_like(state[f"{kind}bias_hh_l0"])
            elif parts[1] == "highways":
                state[f"{parts[3]}.{parts[2]}.{parts[4]}"] = value
            else:
                state[name.removeprefix("tokens.")] = value
        self.load_state_dict(state)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the vectors of words from their characters `[B, S, W / 2]`."""
        x = self.characters(self.spellings[tokens.flatten()]).transpose(1, 2)
        x = torch.cat([F.relu(convolve(x)).amax(-1) for convolve in self.filters], -1)
        for dense, gate in zip(self.dense, self.gate, strict=True):
            g = torch.sigmoid(gate(x))
            x = g * F.relu(dense(x)) + (1 - g) * x
        out: Tensor = self.project(x).view(*tokens.shape, -1)
        return out

    def run_layers(self, layers: nn.ModuleList, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the states of one direction; all layers but the first have a residual connection."""
        for i, layer in enumerate(layers):
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            y = pad_packed_sequence(layer(packed)[0], batch_first=True)[0]
            x = y + x if i else y
        return x

    def compute_states(self, tokens: Tensor, reverse: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states of both directions, each in its own order."""
        x = self.embed(tokens)
        y = x.gather(1, reverse[..., None].expand_as(x))
        return self.run_layers(self.forwards, x, lengths), self.run_layers(self.backwards, y, lengths)

    def compute_loss(self, tokens: Tensor, reverse: Tensor, lengths: Tensor) -> Tensor:
        """Return the sum of the mean losses of both directions, with a sampled softmax."""
        is_last = torch.arange(tokens.shape[1], device=tokens.device) >= lengths.to(tokens.device)[:, None] - 1
        losses = []
        states = self.compute_states(tokens, reverse, lengths)
        for direction, words in zip(states, (tokens, tokens.gather(1, reverse)), strict=True):
            labels = F.pad(words[:, 1:], (0, 1)).masked_fill(is_last, -100)
            losses.append(self._compute_sampled_loss(direction.flatten(0, 1), labels.flatten()))
        return losses[0] + losses[1]

    def _compute_sampled_loss(self, rows: Tensor, labels: Tensor) -> Tensor:
        keep = labels >= 0
        rows, labels = rows[keep], labels[keep]
        scale = np.log(self.vocab + 1)
        ids = ((torch.rand(self.samples, device=rows.device, dtype=torch.float64) * scale).exp() - 1).long()

        def get_log_probability(words: Tensor) -> Tensor:
            chance = ((words.double() + 2) / (words + 1)).log() / scale
            return (-(torch.log1p(-chance) * self.samples).expm1()).log().float()

        own = (rows * self.weight[labels]).sum(-1) + self.bias[labels] - get_log_probability(labels)
        logits = rows @ self.weight[ids].t() + (self.bias[ids] - get_log_probability(ids))
        logits = logits.float().masked_fill(labels[:, None] == ids, -1e9)
        return F.cross_entropy(torch.cat((own.float()[:, None], logits), 1), torch.zeros_like(labels))


class PlainPair(nn.Module):
    """Generator and discriminator of transformers (Clark et al., 2020), with our weights.

    ELECTRA's share their embeddings. DeBERTa's discriminator has the generator's token table without its gradient, plus
    offsets, and a head of its own (He et al., 2023), which transformers lacks. `ours` is our pair, saved in `folder`;
    `kind` is the class of the generator.
    """

    def __init__(self, ours: Any, folder: str, kind: str) -> None:
        import transformers

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
