"""One short file per published family; this table is the only place that lists them."""

from typing import TYPE_CHECKING

from pretune.core.registry import Registry

if TYPE_CHECKING:
    from pretune.models.family import Family

FAMILIES: "Registry[Family]" = Registry(
    "family",
    {
        "bert": "pretune.models.families.bert:bert",
        "roberta": "pretune.models.families.roberta:roberta",
        "xlm-roberta": "pretune.models.families.roberta:xlm_roberta",
        "babyberta": "pretune.models.families.roberta:babyberta",
        "miniberta": "pretune.models.families.roberta:miniberta",
        "electra": "pretune.models.families.electra:electra",
        "xlnet": "pretune.models.families.xlnet:xlnet",
        "gpt": "pretune.models.families.gpt:gpt",
        "gpt2": "pretune.models.families.gpt2:gpt2",
        "gpt3": "pretune.models.families.gpt2:gpt3",
        "llama": "pretune.models.families.llama:llama",
        "llama2": "pretune.models.families.llama:llama2",
        "llama3": "pretune.models.families.llama:llama3",
        "mistral": "pretune.models.families.mistral:mistral",
        "olmo": "pretune.models.families.olmo:olmo",
        "olmo2": "pretune.models.families.olmo:olmo2",
        "opt": "pretune.models.families.opt:opt",
        "pythia": "pretune.models.families.pythia:pythia",
        "mpt": "pretune.models.families.mpt:mpt",
        "t5": "pretune.models.families.t5:t5",
        "t5v1.1": "pretune.models.families.t5:t5_v1_1",
        "mt5": "pretune.models.families.t5:mt5",
        "t5-table": "pretune.models.families.t5_table:t5_table",
        "bart": "pretune.models.families.bart:bart",
        "mbart": "pretune.models.families.bart:mbart",
        "mass": "pretune.models.families.bart:mass",
    },
)

MODEL_TYPES = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "xlm-roberta",
    "electra": "electra",
    "xlnet": "xlnet",
    "openai-gpt": "gpt",
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "mistral",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "opt": "opt",
    "gpt_neox": "pythia",
    "mpt": "mpt",
    "t5": "t5",
    "mt5": "mt5",
    "bart": "bart",
    "mbart": "mbart",
}
"""The `model_type` of a config.json -> the family that reads it."""
