"""Names that a shell can complete: those of the registries, found without importing what they name.

Every function here takes what is typed so far and gives names, as typer's `autocompletion` wants them.
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
        "train.schedule.warmup", "train.seed", "tune.decay",
    ),
    "show": ("depth", "heads", "vocab", "width"),
}  # fmt: skip
"""Settings that are changed often; all others are told by --dry-run, and by the error of one that is not there."""


def complete_families(incomplete: str = "") -> list[str]:
    """Families, and their sizes once a family is typed."""
    from pretune.models.families import FAMILIES, SIZES

    names = (name for family in FAMILIES for name in (family, *(f"{family}-{size}" for size in SIZES.get(family, ()))))
    return _filter_by_prefix(names, incomplete)


def complete_objectives(incomplete: str = "") -> list[str]:
    """What a model can learn from text alone."""
    from pretune.objectives import OBJECTIVES

    return _filter_by_prefix(OBJECTIVES, incomplete)


def complete_methods(incomplete: str = "") -> list[str]:
    """Methods of fine-tuning; several may stand together: lora+gradual."""
    from pretune.adaptation import METHOD_PRESETS, METHODS

    return _complete_last([*METHODS, *METHOD_PRESETS], incomplete, "+")


def complete_tasks(incomplete: str = "") -> list[str]:
    """Tasks to fine-tune for, with commas between them."""
    from pretune.tasks import TASKS

    return _complete_last([*TASKS, "embedding"], incomplete, ",")


def complete_eval_tasks(incomplete: str = "") -> list[str]:
    """Tasks to evaluate on, with commas between them; and the kinds of files that are evaluated like tasks."""
    from pretune.tasks import TASKS

    return _complete_last([*TASKS, *FILE_TASKS], incomplete, ",")


def complete_tokenizer_kinds(incomplete: str = "") -> list[str]:
    """Kinds of tokenizers."""
    from pretune.text.styles import KINDS

    return _filter_by_prefix(KINDS, incomplete)


def complete_styles(incomplete: str = "") -> list[str]:
    """Styles of special tokens."""
    from pretune.text.styles import STYLES

    return _filter_by_prefix(STYLES, incomplete)


def complete_cleaners(incomplete: str = "") -> list[str]:
    """Cleaners and presets of them, with commas between them."""
    from pretune.text.cleaning import CLEANERS, PRESETS

    return _complete_last([*PRESETS, *CLEANERS], incomplete, ",")


def complete_splitters(incomplete: str = "") -> list[str]:
    """Splitters of sentences."""
    from pretune.text.sentences import SPLITTERS

    return _filter_by_prefix(SPLITTERS, incomplete)


def complete_baselines(incomplete: str = "") -> list[str]:
    """Baselines, with commas between them."""
    from pretune.evaluation.baselines import BASELINES

    return _complete_last(["default", "all", "none", *BASELINES, "probe", "random", "cosine"], incomplete, ",")


def complete_from(*names: str) -> Completer:
    """One of a few names."""

    def complete(typed: str) -> list[str]:
        return _filter_by_prefix(names, typed)

    return complete


def complete_settings(verb: str) -> Completer:
    """Paths that `--set` takes, up to their values."""
    return complete_from(*(f"{path}=" for path in SETTING_PATHS[verb]))


def _filter_by_prefix(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _complete_last(names: Sequence[str], incomplete: str, separator: str) -> list[str]:
    """Names for the last part; those before it stay as they are, and do not come twice."""
    before, mark, part = incomplete.rpartition(separator)
    taken = before.split(separator)
    return [f"{before}{mark}{name}" for name in names if name.startswith(part) and name not in taken]


def find_family(special: Collection[str]) -> tuple[str, list[str]]:
    """The first family that is usually trained on such special tokens, with its sizes; else the first of all."""
    from pretune.models.families import FAMILIES, SIZES, STYLE_FAMILIES
    from pretune.text.styles import STYLES

    there = [(len(style.marks), name) for name, style in STYLES.items() if {m.text for m in style.marks} <= {*special}]
    style = max(there, default=(0, ""))[1]
    family = STYLE_FAMILIES.get(style) or FAMILIES.list_names()[0]
    return family, [*SIZES.get(family, ())]
