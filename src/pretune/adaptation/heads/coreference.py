"""Coreference: clusters of mentions, end to end (Lee et al., 2017 and 2018; over segments: Joshi et al., 2019).

Every span of up to `max_width` words within a sentence is a candidate. Its vector is one layer over its first and last
word, the attended average of its words, and its number of words. The best `ratio` x words candidates are kept. Each is
linked to one of those before it, or to none (the dummy, with score 0): the best `antecedents` by a bilinear score are
scored again by a layer over both vectors, their product and their distance. The loss is the marginal likelihood of all
right antecedents among these; in training all mentions are kept, besides the best other spans. A word is one token (its
first, or for a left-to-right model its last). A document may be several sequences (`Batch.chunks`), which the encoder
reads independently. Simpler than the papers: all scores share the vector of a span, kept spans may cross (Kirstain et
al., 2021), and there is no higher-order inference (Xu and Choi, 2020); both found little use in these.

    words         Anna  sold  her  old  car  .  It  was  hers
    kept          [  ]        [  ] [ --- ]      [ ]      [  ]
    antecedent    none        Anna none         car      her

Legend: N tokens, D words of a document, L width limit, K kept spans, A antecedents of each, H hidden width.
"""

from collections.abc import Mapping
from typing import Annotated, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.adaptation.heads.base import HeadedModel, TokenHead, init_head
from pretune.adaptation.heads.token import get_targets
from pretune.adaptation.scalar_mix import Mixing
from pretune.core.config import Fraction, Gt, Le, Positive, spec
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch, Loss
from pretune.data.sequences import Ints
from pretune.models.model import LanguageModel
from pretune.models.spec import FanIn, Model

WIDTHS, CLUSTERS = 1 << 6, 1 << 12
"""Limits of the widths and the cluster numbers of targets …"""
MAX_SHIFT = 1 << 12
"""… and of the distance of a mention's first token from its slot, so that a target has 31 bits."""
DISTANCES = 10
"""Buckets of distances between spans: 1, 2, 3, 4, 5 to 7, 8 to 15, 16 to 31, 32 to 63, and more."""


@spec
class Coreference:
    """Clusters of mentions; the marginal likelihood of the right antecedents of kept spans."""

    hidden: Positive[int] = 512  # width of the vectors of spans, and of the layer over a pair of them
    max_width: Annotated[int, Gt(0), Le(WIDTHS - 1)] = 30  # words of a span
    ratio: Annotated[float, Gt(0), Le(1)] = 0.4  # kept spans per word
    antecedents: Positive[int] = 50
    dropout: Fraction = 0.3
    scalar_mix: Mixing | None = None  # scalar mix over all layers of a frozen model, instead of the last states

    def resolve(self, spec: Model) -> Self:
        return self

    def build(self, model: LanguageModel, *, seed: int = 0) -> nn.Module:
        width = 3 * self.hidden + 1
        with torch.device("meta"):
            head = SpanRanker(self, TokenHead(model.spec.width, width, 0.0))
        init_head(model, head, seed, init=FanIn())
        if self.scalar_mix is not None:
            head.project = self.scalar_mix.build(model, width, tagging=True, seed=seed)
        head.reset_scores()
        return head

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        get_targets(batch)
        counts = [self.count_kept(len(document.words)) for document in find_documents(batch)]
        return {"loss": torch.tensor(sum(counts), device=batch.tokens.device)}

    def count_kept(self, words: int) -> int:
        """Return the number of spans that are kept in a document."""
        return max(1, int(self.ratio * words))

    def loss(self, model: HeadedModel, batch: Batch) -> Loss:
        """Return the loss summed over kept spans."""
        head: SpanRanker = model.head
        return head.compute_loss(model.states(batch), batch)


class DocumentWords(NamedTuple):
    """The words of a document in a batch."""

    tokens: Tensor  # positions of all its tokens in the flat batch
    words: Tensor  # [D] tokens that stand for a word, as indices of `tokens`
    sentences: Tensor  # [D] sentence of each word


def find_documents(batch: Batch) -> list[DocumentWords]:
    """Return the documents of a batch; special tokens count as words, each with a sentence of its own."""
    if batch.words is None or batch.sentences is None:
        raise UsageError("this head needs words and sentences, but the batch has none")
    tokens = (batch.sequence >= 0).nonzero().flatten()
    if not len(tokens):
        return []
    cell = batch.sequence[tokens]
    is_first = _find_changes(cell)
    is_word = is_first | _find_changes(batch.words[tokens])
    sentence = (is_first | _find_changes(batch.sentences[tokens])).cumsum(0)
    is_start = is_first if batch.chunks is None else is_first & (batch.chunks[cell] == 0)
    sizes = torch.bincount(is_start.cumsum(0) - 1).tolist()
    parts = zip(*(torch.split(values, sizes) for values in (tokens, is_word, sentence)), strict=True)
    return [DocumentWords(tokens, words.nonzero().flatten(), sentences[words]) for tokens, words, sentences in parts]


def _find_changes(values: Tensor) -> Tensor:
    """Return True where a value differs from the one before, and for the first."""
    return torch.cat((values.new_ones(1, dtype=torch.bool), values[1:] != values[:-1]))


class Links(NamedTuple):
    """The kept spans of a document, and the scores of their antecedents."""

    first: Tensor  # [K] first word, in ascending order
    last: Tensor  # [K]
    candidates: Tensor  # [K, A] spans before each
    scores: Tensor  # [K, 1 + A] none first; -inf for no span


class Mentions(NamedTuple):
    """The mentions of a batch: first token, number of words, and cluster of each."""

    tokens: Tensor
    widths: Tensor
    clusters: Tensor

    @classmethod
    def from_batch(cls, batch: Batch) -> Self:
        targets = get_targets(batch)
        is_mention = targets.labels != IGNORE_INDEX
        shift, width, cluster = decode_mentions(targets.labels[is_mention])
        return cls(targets.index[is_mention] + shift, width, cluster)

    def build_table(self, document: DocumentWords) -> Tensor:
        """Return the cluster of each span `[D, WIDTHS]`, by its first word and number of words; -1 if it has none."""
        words = document.tokens[document.words]
        is_inside = (self.tokens >= words[0]) & (self.tokens <= words[-1])
        first = torch.searchsorted(words, self.tokens[is_inside])
        table = words.new_full((len(words), WIDTHS), -1)
        table[first, self.widths[is_inside]] = self.clusters[is_inside]
        return table


class SpanRanker(nn.Module):
    """Scores of the mentions and of their antecedents, from the states of tokens."""

    is_single_part = True  # with a scalar mix its LSTM is part of the head, not a block of the model
    has_host_sizes = True  # the spans of a document differ in number, so that no CUDA graph can be captured

    def __init__(self, spec: Coreference, project: nn.Module) -> None:
        super().__init__()
        self.spec, hidden = spec, spec.hidden
        self.project = project
        self.dropout = nn.Dropout(spec.dropout)
        self.width = nn.Embedding(spec.max_width, hidden)
        self.mention = nn.Linear(hidden, 1)
        self.coarse = nn.Linear(hidden, hidden, bias=False)
        self.span = nn.Linear(hidden, hidden)
        self.antecedent = nn.Linear(hidden, hidden, bias=False)
        self.product = nn.Linear(hidden, hidden, bias=False)
        self.distance = nn.Embedding(DISTANCES, hidden)
        self.out = nn.Linear(hidden, 1)

    @property
    def reads_all_layers(self) -> bool:
        """True if the input is all layers, not the last states."""
        return bool(getattr(self.project, "reads_all_layers", False))

    @torch.no_grad()
    def reset_scores(self) -> None:
        """Start with equal bilinear scores, so that the first antecedents are the likeliest mentions."""
        self.coarse.weight.zero_()

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Return `[N, 3]`: a row for each kept span, at the first tokens of its document; -1 in the others.

        A row is the first and the last token of the span, counted in the document, and the row of its antecedent; -1
        for none.
        """
        vectors = self.project(states, batch)
        out = torch.full((len(batch.tokens), 3), -1.0, device=vectors.device)
        for document in find_documents(batch):
            links = self.link(vectors[document.tokens[document.words]], document.sentences)
            best = links.scores.argmax(1)
            antecedent = links.candidates.gather(1, (best - 1).clamp(min=0)[:, None]).squeeze(1)
            antecedent = torch.where(best == 0, -1, antecedent)
            rows = torch.stack((document.words[links.first], document.words[links.last], antecedent), dim=1)
            out[document.tokens[: len(rows)]] = rows.to(out.dtype)
        return out

    def compute_loss(self, states: Tensor, batch: Batch) -> Loss:
        """Return the loss of a batch with targets; spans that are no mention have no antecedent."""
        vectors = self.project(states, batch)
        mentions = Mentions.from_batch(batch)
        # A part of a batch may have no document; its gradients are zero.
        total, count = (vectors.sum() + sum(weight.sum() for weight in self.parameters())).float() * 0, 0
        for document in find_documents(batch):
            table = mentions.build_table(document)
            links = self.link(vectors[document.tokens[document.words]], document.sentences, table >= 0)
            cluster = table[links.first, links.last - links.first + 1]
            is_right = (cluster[links.candidates] == cluster[:, None]) & (cluster >= 0)[:, None]
            is_right &= links.scores[:, 1:] > -torch.inf
            is_right = torch.cat((~is_right.any(1, keepdim=True), is_right), dim=1)
            right = links.scores.masked_fill(~is_right, -torch.inf)
            total = total + (links.scores.logsumexp(1) - right.logsumexp(1)).sum()
            count += len(is_right)
        return Loss(sum=total, count=torch.tensor(count, device=vectors.device))

    def link(self, vectors: Tensor, sentences: Tensor, is_mention: Tensor | None = None) -> Links:
        """Return the kept spans of a document and the scores of their antecedents, from the vectors of its words.

        In training all mentions are kept: with few of them, none might be, and nothing would be learned.
        """
        first, last, hidden, mention = self._select_spans(vectors, sentences, is_mention)
        order = torch.arange(len(first), device=first.device)
        coarse = (self.coarse(hidden) @ hidden.T + mention[:, None] + mention).float()
        coarse = coarse.masked_fill(order >= order[:, None], -torch.inf)
        top, candidates = coarse.topk(min(self.spec.antecedents, len(order)), dim=1)
        pair = self.product(hidden[:, None] * hidden[candidates]) + self.antecedent(hidden)[candidates]
        pair = pair + self.span(hidden)[:, None] + self.distance(_find_bucket(order[:, None] - candidates))
        scores = top + self.out(self.dropout(F.relu(pair))).squeeze(-1).float()
        return Links(first, last, candidates, torch.cat((scores.new_zeros(len(order), 1), scores), dim=1))

    def _select_spans(
        self, vectors: Tensor, sentences: Tensor, is_mention: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the first and last words `[K]` of the kept spans in their order, their vectors `[K, H]` and scores."""
        start, end, value, attention = torch.split(vectors.float(), [*[self.spec.hidden] * 3, 1], dim=-1)
        word = torch.arange(len(vectors), device=vectors.device)
        average, total = value, attention
        widths: list[Tensor] = []
        is_span: list[Tensor] = []
        longest = int(torch.bincount(sentences - sentences[0]).max())  # words of a sentence
        for width in range(min(self.spec.max_width, longest)):
            end_word = (word + width).clamp(max=len(word) - 1)
            if width:  # a running softmax: the next word takes its share of the average
                average = average + torch.sigmoid(attention[end_word] - total) * (value[end_word] - average)
                total = torch.logaddexp(total, attention[end_word])
            widths.append(start + end[end_word] + average + self.width.weight[width])
            is_span.append((word + width < len(word)) & (sentences[end_word] == sentences))
        spans = self.dropout(F.relu(torch.stack(widths, dim=1)))  # [D, L, H]
        mention = self.mention(spans).squeeze(-1).float()
        mention = mention.masked_fill(~torch.stack(is_span, dim=1), -torch.inf).flatten()
        rank = mention
        if is_mention is not None:
            rank = mention.masked_fill(is_mention[:, 1 : 1 + len(widths)].flatten(), torch.inf)
        best = rank.topk(self.spec.count_kept(len(word))).indices.sort().values
        first = best // len(widths)
        return first, first + best % len(widths), spans.flatten(0, 1)[best], mention[best]


def _find_bucket(distance: Tensor) -> Tensor:
    """Return the bucket of distances from 1; those below 1, of no span, have that of 1."""
    logarithm = distance.clamp(min=1).float().log2().floor().long() + 2
    return torch.where(distance < 5, distance.clamp(min=1) - 1, logarithm).clamp(max=DISTANCES - 1)


def encode_mentions(shift: Ints, width: Ints, cluster: Ints) -> Ints:
    """Return the targets of mentions: distance of the first token from the slot, number of words, cluster.

    The slots are the first tokens of a sequence, since several mentions may begin at one token.

    >>> decode_mentions(torch.from_numpy(encode_mentions(np.array([0, -3]), np.array([1, 30]), np.array([2, 0]))))
    (tensor([ 0, -3]), tensor([ 1, 30]), tensor([2, 0]))
    """
    zigzag = np.where(shift < 0, -2 * shift - 1, 2 * shift)
    return np.asarray((zigzag * WIDTHS + width) * CLUSTERS + cluster)


def decode_mentions(labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distances, widths and clusters of targets, the inverse of `encode_mentions`."""
    zigzag = labels // (WIDTHS * CLUSTERS)
    shift = torch.where(zigzag % 2 == 1, -(zigzag + 1) // 2, zigzag // 2)
    return shift, labels // CLUSTERS % WIDTHS, labels % CLUSTERS
