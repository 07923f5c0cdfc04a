"""The table of published model families, one file each.

`list_sizes` and `find_style_family` parse the family files instead of importing them, so that shell completion and
error messages do not wait for torch.
"""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.core.errors import CheckpointError, explain_missing, suggest, suggest_file
from pretune.core.hub import GGUF_SUFFIX, INSTALLED_MODELS, is_repository
from pretune.core.registry import Registry

if TYPE_CHECKING:
    from pretune.models.families.shared import Family

FAMILIES: "Registry[Family]" = Registry(
    "family",
    {
        "bert": "pretune.models.families.bert:bert",
        "roberta": "pretune.models.families.roberta:roberta",
        "xlm-roberta": "pretune.models.families.roberta:xlm_roberta",
        "babyberta": "pretune.models.families.roberta:babyberta",
        "miniberta": "pretune.models.families.roberta:miniberta",
        "xlm": "pretune.models.families.xlm:xlm",
        "modernbert": "pretune.models.families.modernbert:modernbert",
        "electra": "pretune.models.families.electra:electra",
        "albert": "pretune.models.families.albert:albert",
        "spanbert": "pretune.models.families.bert:spanbert",
        "distilbert": "pretune.models.families.distilbert:distilbert",
        "tinybert": "pretune.models.families.bert:tinybert",
        "deberta": "pretune.models.families.deberta:deberta",
        "xlnet": "pretune.models.families.xlnet:xlnet",
        "elmo": "pretune.models.families.elmo:elmo",
        "gpt": "pretune.models.families.gpt:gpt",
        "gpt2": "pretune.models.families.gpt2:gpt2",
        "gpt3": "pretune.models.families.gpt2:gpt3",
        "llama": "pretune.models.families.llama:llama",
        "llama2": "pretune.models.families.llama:llama2",
        "llama3": "pretune.models.families.llama:llama3",
        "mistral": "pretune.models.families.llama:mistral",
        "olmo": "pretune.models.families.olmo:olmo",
        "olmo2": "pretune.models.families.olmo:olmo2",
        "qwen2": "pretune.models.families.qwen:qwen2",
        "qwen3": "pretune.models.families.qwen:qwen3",
        "smollm3": "pretune.models.families.smollm:smollm3",
        "gemma3": "pretune.models.families.gemma:gemma3",
        "opt": "pretune.models.families.opt:opt",
        "pythia": "pretune.models.families.pythia:pythia",
        "mpt": "pretune.models.families.mpt:mpt",
        "bloom": "pretune.models.families.bloom:bloom",
        "xglm": "pretune.models.families.xglm:xglm",
        "t5": "pretune.models.families.t5:t5",
        "t5v1.1": "pretune.models.families.t5:t5_v1_1",
        "mt5": "pretune.models.families.t5:mt5",
        "t5-table": "pretune.models.families.t5:t5_table",
        "bart": "pretune.models.families.bart:bart",
        "mbart": "pretune.models.families.bart:mbart",
        "mass": "pretune.models.families.bart:mass",
        "ulmfit": "pretune.models.families.ulmfit:ulmfit",
    },
    group="pretune.families",
    list_reserved=lambda: [f"{family}-{size}" for family in FAMILIES.table for size in list_sizes(family)],
)

OWNERS: dict[str, tuple[str, ...]] = {
    "google-bert": ("bert-base-", "bert-large-"),
    "FacebookAI": ("roberta-base", "roberta-large", "xlm-roberta-base", "xlm-roberta-large", "xlm-mlm-"),
    "openai-community": ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "openai-gpt"),
    "google-t5": ("t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b"),
    "google": ("electra-small-", "electra-base-", "electra-large-", "flan-t5-", "mt5-small", "mt5-base", "mt5-large"),
    "facebook": ("bart-base", "bart-large", "bart-large-", "mbart-large-", "opt-125m", "opt-350m", "opt-1.3b", "xglm-"),
    "albert": ("albert-",),
    "answerdotai": ("ModernBERT-",),
    "xlnet": ("xlnet-base-", "xlnet-large-"),
    "bigscience": ("bloom-560m", "bloom-1b1", "bloom-1b7", "bloom-3b", "bloom-7b1"),
    "distilbert": ("distilbert-base-", "distilroberta-base", "distilgpt2"),
    "Qwen": ("Qwen2-", "Qwen2.5-", "Qwen3-"),
    "HuggingFaceTB": ("SmolLM3-",),
    "EleutherAI": ("pythia-", "gpt-neo-"),
    "microsoft": ("deberta-base", "deberta-v2-", "deberta-v3-", "mdeberta-v3-"),
    "SpanBERT": ("spanbert-base-cased", "spanbert-large-cased"),
    "huawei-noah": ("TinyBERT_General_4L_312D", "TinyBERT_General_6L_768D"),
    "sentence-transformers": ("all-MiniLM-", "all-mpnet-", "paraphrase-", "multi-qa-"),
}
"""Owners on the Hugging Face Hub, and their models that are known without an owner: a name, or a prefix ending in -."""


def list_sizes(family: str) -> tuple[str, ...]:
    """Return the names of a family's sizes, read from the `sizes={...}` literal in its file if it is built in."""
    if family not in FAMILIES.table:
        return tuple(FAMILIES.get(family).sizes)
    sizes = _find_keyword(_parse_family(family), "sizes")
    if not isinstance(sizes, ast.Dict):
        raise TypeError(f"family '{family}': sizes must be a dict literal")
    return tuple(ast.literal_eval(key) for key in sizes.keys if key is not None)


def list_names() -> list[str]:
    """Return the names of families and of their sizes: bert, bert-tiny, …"""
    return [name for family in FAMILIES for name in (family, *(f"{family}-{size}" for size in list_sizes(family)))]


def find_style_family(style: str, *, has_words: bool = True) -> str | None:
    """Return the first built-in family whose paper trained a tokenizer with this style of special tokens.

    Without `has_words`, families of whole words are left out.
    """
    for family in FAMILIES.table:
        training = _find_keyword(_parse_family(family), "training")
        tokenizer = _find_keyword(training, "tokenizer") if isinstance(training, ast.Call) else None
        if tokenizer is None:
            continue
        kind, family_style, _ = ast.literal_eval(tokenizer)
        if family_style == style and (has_words or kind != "words"):
            return family
    return None


def find_by_model_type(model_type: str) -> str | None:
    """Return the first family whose config.json has this `model_type`; imports others only if names differ."""
    families = sorted(FAMILIES, key=lambda family: family != model_type)  # stable: the family of that name, then all
    layouts = ((family, FAMILIES.get(family).layout) for family in families)
    return next((family for family, layout in layouts if layout and layout.model_type == model_type), None)


def get_model_types() -> Mapping[str, str]:
    """Return `model_type` of a config.json -> the first family with that layout. Imports every family."""
    model_types: dict[str, str] = {}
    for family in FAMILIES:
        layout = FAMILIES.get(family).layout
        if layout is not None:
            model_types.setdefault(layout.model_type, family)
    return model_types


def _parse_family(name: str) -> ast.Call:
    """Return the syntax tree of `name = Family(...)`."""
    module, _, attribute = FAMILIES.table[name].partition(":")
    for node in _parse_file(Path(__file__).with_name(f"{module.rpartition('.')[2]}.py")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call() as call) if target == attribute:
                return call
    raise TypeError(f"family '{name}': {module} must assign a Family(...) call to {attribute}")


@cache
def _parse_file(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def _find_keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


MISSING_REMEDY = "; pass a run, a Hugging Face directory, or"


def make_missing_error(folder: Path) -> CheckpointError:
    """Return the error for a missing directory, with a hint for names of families and of models on the Hub."""
    name, hub_name = str(folder), format_hub_name(str(folder))
    if name in FAMILIES or any(name == f"{family}-{size}" for family in FAMILIES for size in list_sizes(family)):
        remote = hub_name or "hf:OWNER/NAME"
        remedy = f"; it is a family: train it with `pretune pretrain {name}`, or pass a run or {remote}"
    elif hub_name is not None and "/" not in name:
        remedy = f"{MISSING_REMEDY} {hub_name}"
    else:
        if folder.exists():
            return CheckpointError(f"{folder}: {explain_missing(folder, 'directory')}")
        remedy = suggest_file(folder) or suggest(name, INSTALLED_MODELS) or f"{MISSING_REMEDY} hf:OWNER/NAME"
        if hub_name is not None and not folder.parent.exists():
            remedy += f"; a model on the Hub is written {hub_name}"
    return CheckpointError(f"{folder}: no such {'file' if folder.suffix == GGUF_SUFFIX else 'directory'}{remedy}")


def format_hub_name(name: str) -> str | None:
    """Return `hf:OWNER/NAME` for a model on the Hub, or None if the text cannot be its name.

    >>> format_hub_name("owner/model"), format_hub_name("my-model"), format_hub_name("../x")
    ('hf:owner/model', None, None)
    """
    if not is_repository(name):
        return None
    if "/" in name:
        return f"hf:{name}"
    names = ((start, owner) for owner, starts in OWNERS.items() for start in starts)
    owner = next((o for start, o in names if name == start or (start[-1] == "-" and name.startswith(start))), None)
    return None if owner is None else f"hf:{owner}/{name}"
