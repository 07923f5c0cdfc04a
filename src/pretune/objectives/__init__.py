"""Pre-training objectives: corruption of sequences and the loss; one file each. This table is their only list."""

from typing import TYPE_CHECKING

from pretune.core.config import replace
from pretune.core.registry import Registry

if TYPE_CHECKING:
    from pretune.objectives.base import Objective

OBJECTIVES: "Registry[type[Objective]]" = Registry(
    "objective",
    {
        "causal": "pretune.objectives.causal:CausalLM",
        "bidirectional": "pretune.objectives.causal:Bidirectional",
        "masked": "pretune.objectives.masked:MaskedLM",
        "masked_next": "pretune.objectives.masked_next:MaskedNextToken",
        "span_masked": "pretune.objectives.span_masked:SpanMaskedLM",
        "next_sentence": "pretune.objectives.next_sentence:NextSentence",
        "sentence_order": "pretune.objectives.next_sentence:SentenceOrder",
        "translation": "pretune.objectives.translation:Translation",
        "replaced_token": "pretune.objectives.replaced_token:ReplacedToken",
        "supervised": "pretune.objectives.supervised:SupervisedSeq2seq",
        "prefix": "pretune.objectives.prefix:PrefixLM",
        "span_corruption": "pretune.objectives.span_corruption:SpanCorruption",
        "denoising": "pretune.objectives.denoising:Denoising",
        "autoencoder": "pretune.objectives.autoencoder:SequenceAutoencoder",
        "masked_seq2seq": "pretune.objectives.masked_seq2seq:MaskedSeq2seq",
        "multitask_masked": "pretune.objectives.multitask_masked:MultitaskMaskedLM",
        "permuted": "pretune.objectives.permuted:PermutationLM",
        "mixture": "pretune.objectives.mixture:Mixture",
        "distill": "pretune.objectives.distill:Distill",
    },
    group="pretune.objectives",
)


def build_objective(name: str, **settings: object) -> "Objective":
    """Return an objective by its name, the paper's settings replaced by `settings`; public as `pretune.objective`.

    Raises UsageError for an unknown name or setting.

    >>> build_objective("causal").shapes
    ('decoder',)
    """
    return replace(OBJECTIVES.get(name)(), settings)
