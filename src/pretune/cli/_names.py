"""Names that a shell can complete: those of the registries, found without importing what they name.

Every function here takes what is typed so far and gives names, as typer's `autocompletion` wants them.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

Complete = Callable[[str], list[str]]

DEVICES = ("cpu", "cuda", "cuda:0")
FILES = ("minimal_pairs", "bias_pairs", "cloze", "scored_pairs", "triplets")
POOLINGS = ("mean", "cls", "max", "last", "mean_sqrt", "weighted", "static")
SHAPES = ("encoder", "decoder", "encoder-decoder", "two-way", "generator-discriminator", "two-stream")
PATHS = {
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


def families(typed: str = "") -> list[str]:
    """Families, and their sizes once a family is typed."""
    from pretune.models.families import FAMILIES, SIZES

    names = (name for family in FAMILIES for name in (family, *(f"{family}-{size}" for size in SIZES.get(family, ()))))
    return _beginning(names, typed)


def objectives(typed: str = "") -> list[str]:
    """What a model can learn from text alone."""
    from pretune.objectives import OBJECTIVES

    return _beginning(OBJECTIVES, typed)


def methods(typed: str = "") -> list[str]:
    """Methods of fine-tuning; several may stand together: lora+gradual."""
    from pretune.adaptation import METHODS, MORE

    return _last([*METHODS, *MORE], typed, "+")


def tasks(typed: str = "") -> list[str]:
    """Tasks to fine-tune for, with commas between them."""
    from pretune.tasks import TASKS

    return _last([*TASKS, "embedding"], typed, ",")


def judged(typed: str = "") -> list[str]:
    """Tasks to evaluate on, with commas between them; and the kinds of files that are evaluated like tasks."""
    from pretune.tasks import TASKS

    return _last([*TASKS, *FILES], typed, ",")


def kinds(typed: str = "") -> list[str]:
    """Kinds of tokenizers."""
    from pretune.text.styles import KINDS

    return _beginning(KINDS, typed)


def styles(typed: str = "") -> list[str]:
    """Styles of special tokens."""
    from pretune.text.styles import STYLES

    return _beginning(STYLES, typed)


def cleaners(typed: str = "") -> list[str]:
    """Cleaners and presets of them, with commas between them."""
    from pretune.text.cleaning import CLEANERS, PRESETS

    return _last([*PRESETS, *CLEANERS], typed, ",")


def splitters(typed: str = "") -> list[str]:
    """Splitters of sentences."""
    from pretune.text.sentences import SPLITTERS

    return _beginning(SPLITTERS, typed)


def baselines(typed: str = "") -> list[str]:
    """Baselines, with commas between them."""
    from pretune.evaluation.baselines import BASELINES

    return _last(["default", "all", "none", *BASELINES, "probe", "random", "cosine"], typed, ",")


def among(*names: str) -> Complete:
    """One of a few names."""

    def complete(typed: str) -> list[str]:
        return _beginning(names, typed)

    return complete


def settings(verb: str) -> Complete:
    """Paths that `--set` takes, up to their values."""
    return among(*(f"{path}=" for path in PATHS[verb]))


def _beginning(names: Iterable[str], typed: str) -> list[str]:
    return [name for name in names if name.startswith(typed)]


def _last(names: Sequence[str], typed: str, between: str) -> list[str]:
    """Names for the last part; those before it stay as they are, and do not come twice."""
    before, mark, part = typed.rpartition(between)
    taken = before.split(between)
    return [f"{before}{mark}{name}" for name in names if name.startswith(part) and name not in taken]


def family_of(special: Collection[str]) -> tuple[str, list[str]]:
    """The first family that is usually trained on such special tokens, with its sizes; else the first of all."""
    from pretune.models.families import FAMILIES, SIZES, STYLED
    from pretune.text.styles import STYLES

    there = [(len(style.marks), name) for name, style in STYLES.items() if {m.text for m in style.marks} <= {*special}]
    style = max(there, default=(0, ""))[1]
    family = STYLED.get(style) or FAMILIES.names()[0]
    return family, [*SIZES.get(family, ())]
