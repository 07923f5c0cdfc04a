"""Shell completion of registry names, without importing what they name.

Each function takes the incomplete word and returns candidates, as typer's `autocompletion` expects.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

Completer = Callable[[str], list[str]]

DEVICES = ("cpu", "cuda", "cuda:0")
FILE_TASKS = ("minimal_pairs", "bias_pairs", "cloze", "scored_pairs", "triplets")
POOLINGS = ("mean", "cls", "max", "last", "mean_sqrt", "weighted", "static")
SHAPES = ("encoder", "decoder", "encoder-decoder", "two-way", "generator-discriminator", "two-stream")
SETTING_PATHS = {
    "pretrain": (
        "data.max_length", "model.depth", "model.heads", "model.width", "train.attention_backend", "train.batch_tokens",
        "train.checkpoint_every", "train.eval_every", "train.lr", "train.precision", "train.schedule.warmup",
        "train.seed", "train.workers",
    ),
    "finetune": (
        "data.max_length", "method.rank", "train.batch", "train.eval_every", "train.lr", "train.patience",
        "train.schedule.warmup", "train.seed", "tune.layer_decay",
    ),
    "show": ("depth", "heads", "vocab", "width"),
}  # fmt: skip
"""Frequently changed settings; `--dry-run` prints all of them."""


def complete_families(incomplete: str = "") -> list[str]:
    """Complete families, and their sizes once a family is typed."""
    from pretune.models.families import FAMILIES, list_sizes

    names = (name for family in FAMILIES for name in (family, *(f"{family}-{size}" for size in list_sizes(family))))
    return _filter_by_prefix(names, incomplete)


def complete_objectives(incomplete: str = "") -> list[str]:
    """Complete pre-training objectives."""
    from pretune.objectives import OBJECTIVES

    return _filter_by_prefix(OBJECTIVES, incomplete)


def complete_methods(incomplete: str = "") -> list[str]:
    """Complete fine-tuning methods, which combine with +: lora+gradual."""
    from pretune.adaptation import METHOD_PRESETS, METHODS

    return _complete_last([*METHODS, *METHOD_PRESETS], incomplete, "+")


def complete_tasks(incomplete: str = "") -> list[str]:
    """Complete comma-separated fine-tuning tasks."""
    from pretune.tasks import TASKS

    return _complete_last([*TASKS, "embedding"], incomplete, ",")


def complete_eval_tasks(incomplete: str = "") -> list[str]:
    """Complete comma-separated evaluation tasks, including file formats evaluated like tasks."""
    from pretune.tasks import TASKS

    return _complete_last([*TASKS, *FILE_TASKS], incomplete, ",")


def complete_tokenizer_kinds(incomplete: str = "") -> list[str]:
    """Complete tokenizer kinds."""
    from pretune.text.styles import KINDS

    return _filter_by_prefix(KINDS, incomplete)


def complete_styles(incomplete: str = "") -> list[str]:
    """Complete styles of special tokens."""
    from pretune.text.styles import STYLES

    return _filter_by_prefix(STYLES, incomplete)


def complete_cleaners(incomplete: str = "") -> list[str]:
    """Complete comma-separated cleaners and presets."""
    from pretune.text.cleaning import CLEANERS, PRESETS

    return _complete_last([*PRESETS, *CLEANERS], incomplete, ",")


def complete_splitters(incomplete: str = "") -> list[str]:
    """Complete sentence splitters."""
    from pretune.text.sentences import SPLITTERS

    return _filter_by_prefix(SPLITTERS, incomplete)


def complete_baselines(incomplete: str = "") -> list[str]:
    """Complete comma-separated baselines."""
    from pretune.evaluation.baselines import BASELINES

    return _complete_last(["default", "all", "none", *BASELINES, "probe", "random", "cosine"], incomplete, ",")


def complete_from(*names: str) -> Completer:
    """Return a completer of the given names."""

    def complete(incomplete: str) -> list[str]:
        return _filter_by_prefix(names, incomplete)

    return complete


def complete_settings(verb: str) -> Completer:
    """Return a completer of the paths of `--set`, up to the `=`."""
    return complete_from(*(f"{path}=" for path in SETTING_PATHS[verb]))


def _filter_by_prefix(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _complete_last(names: Sequence[str], incomplete: str, separator: str) -> list[str]:
    """Complete the last part; earlier parts stay and are not offered again."""
    prefix, mark, part = incomplete.rpartition(separator)
    previous = prefix.split(separator)
    return [f"{prefix}{mark}{name}" for name in names if name.startswith(part) and name not in previous]


def find_family(special: Collection[str]) -> tuple[str, list[str]]:
    """Return the first family that uses these special tokens, with its sizes; else the first family."""
    from pretune.models.families import FAMILIES, find_style_family, list_sizes
    from pretune.text.styles import STYLES

    matches = [
        (len(style.special_tokens), name)
        for name, style in STYLES.items()
        if {m.text for m in style.special_tokens} <= {*special}
    ]
    style = max(matches, default=(0, ""))[1]
    family = find_style_family(style) or FAMILIES.list_names()[0]
    return family, [*list_sizes(family)]
