"""One short file per published family; these tables are the only place that lists them."""

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

SIZES: dict[str, tuple[str, ...]] = {
    "bert": ("tiny", "mini", "small", "medium", "base", "large", "multilingual"),
    "roberta": ("base", "large"),
    "xlm-roberta": ("base", "large"),
    "babyberta": ("base",),
    "miniberta": ("base", "med-small"),
    "electra": ("small", "base", "large", "small-generator", "base-generator", "large-generator"),
    "xlnet": ("base", "large"),
    "gpt": ("base",),
    "gpt2": ("small", "medium", "large", "xl"),
    "gpt3": ("125m", "350m", "760m", "1.3b", "2.7b", "6.7b", "13b", "175b"),
    "llama": ("7b", "13b", "30b", "65b"),
    "llama2": ("7b", "13b", "70b"),
    "llama3": ("1b", "3b", "8b", "70b"),
    "mistral": ("7b",),
    "olmo": ("1b", "7b"),
    "olmo2": ("1b", "7b", "13b"),
    "opt": ("125m", "350m", "1.3b", "2.7b", "6.7b", "13b", "30b", "66b"),
    "pythia": ("14m", "31m", "70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b"),
    "mpt": ("7b", "30b"),
    "t5": ("small", "base", "large", "3b", "11b"),
    "t5v1.1": ("small", "base", "large", "xl", "xxl"),
    "mt5": ("small", "base", "large", "xl", "xxl"),
    "t5-table": ("enc-dec", "enc-dec-shared", "enc-dec-half", "lm", "prefix-lm"),
    "bart": ("base", "large"),
    "mbart": ("large",),
    "mass": ("base", "middle"),
}
"""The names of each family's sizes, for who may not wait for torch (a shell that completes a line); a test holds them
to the families' own."""

STYLE_FAMILIES = {"cls-sep": "bert", "s-mask": "roberta", "endoftext": "gpt", "sentinels": "t5", "cls-last": "xlnet"}
"""A style of special tokens -> the first family whose paper trained on it; held by the same test."""

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

OWNERS: dict[str, tuple[str, ...]] = {
    "google-bert": ("bert-base-", "bert-large-"),
    "FacebookAI": ("roberta-base", "roberta-large", "xlm-roberta-base", "xlm-roberta-large"),
    "openai-community": ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "openai-gpt"),
    "google-t5": ("t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b"),
    "google": ("electra-small-", "electra-base-", "electra-large-", "flan-t5-", "mt5-small", "mt5-base", "mt5-large"),
    "facebook": ("bart-base", "bart-large", "bart-large-", "mbart-large-", "opt-125m", "opt-350m", "opt-1.3b"),
    "albert": ("albert-",),
    "xlnet": ("xlnet-base-", "xlnet-large-"),
    "distilbert": ("distilbert-base-", "distilroberta-base", "distilgpt2"),
    "EleutherAI": ("pythia-", "gpt-neo-"),
    "microsoft": ("deberta-base", "deberta-v3-"),
    "sentence-transformers": ("all-MiniLM-", "all-mpnet-", "paraphrase-", "multi-qa-"),
}
"""Owners on the hub, and the names (or how they begin) of those models that are widely known without one."""
