"""A `config.json` as data: which key stands for which place in the spec tree, both ways.

A key is read, known not to matter, or refused: nothing that changes the computation is passed over in silence, and
nothing that names code is followed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pretune.core import config
from pretune.core.errors import CheckpointError, nearest
from pretune.models.spec import Model
from pretune.models.weights import Rule

IGNORED = frozenset(
    """
    _commit_hash _name_or_path _attn_implementation _attn_implementation_autoset adapters attn_implementation
    begin_suppress_tokens bad_words_ids bos_token_ids chunk_size_feed_forward cross_attention_hidden_size
    custom_generate decoder diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing
    id2label is_encoder_decoder is_decoder keys_to_ignore_at_inference label2id length_penalty max_length min_length
    model_type no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions
    output_hidden_states output_past output_scores prefix problem_type pruned_heads remove_invalid_values
    repetition_penalty return_dict return_dict_in_generate sep_token_id summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj suppress_tokens task_specific_params temperature tf_legacy_loss
    tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript transformers_version typical_p use_bfloat16
    use_cache architectures classifier_dropout classif_dropout classifier_activation pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type directionality
    normalize_before normalize_embedding static_position_embeddings extra_pos_embeddings add_bias_logits
    add_final_layer_norm pretraining_tp init_device verbose n_ctx predict_special_tokens language unk_token_id
    """.split()  # noqa: SIM905 (a list of this length reads better as words)
)
"""Keys that do not change what the model computes: labels, generation, training, bookkeeping of old releases."""

CODE = ("auto_map", "custom_pipelines", "trust_remote_code")
"""Keys that name code to run."""

NEUTRAL = (None, False)
_MISSING = object()


@dataclass(frozen=True)
class Key:
    """One key and the paths in the tree it sets (`*` stands for every block of the pattern).

    `default` is what the reference assumes where the file is silent; without one the key is required.
    """

    name: str
    paths: tuple[str, ...]
    default: Any = _MISSING
    values: Mapping[Any, Any] | None = None  # their value -> ours, in order of preference on the way out
    aliases: tuple[str, ...] = ()  # older spellings

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def read(self, found: Mapping[str, Any]) -> dict[str, Any]:
        given = next((name for name in self.names if found.get(name) is not None), None)
        if given is None and self.default is _MISSING:
            raise CheckpointError(f"key '{self.name}' is missing")
        value = self.default if given is None else found[given]
        if self.values is not None and given is not None:
            if not isinstance(value, str | int | bool) or value not in self.values:
                allowed = ", ".join(repr(name) for name in self.values)
                raise CheckpointError(f"{given} = {value!r} is not supported; allowed: {allowed}")
            value = self.values[value]
        return dict.fromkeys(self.paths, value)

    def write(self, spec: Model) -> dict[str, Any]:
        value = look(spec, self.paths[0])
        if self.values is not None:
            value = next((theirs for theirs, ours in self.values.items() if ours == value), value)
        return {self.name: list(value) if isinstance(value, tuple) else value}


@dataclass(frozen=True)
class Fixed:
    """A key we support only at some values; absent is fine."""

    name: str
    allowed: tuple[Any, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def read(self, found: Mapping[str, Any]) -> dict[str, Any]:
        if self.name in found and found[self.name] not in self.allowed:
            allowed = ", ".join(repr(value) for value in self.allowed)
            raise CheckpointError(f"{self.name} = {found[self.name]!r} is not supported; allowed: {allowed}")
        return {}

    def write(self, spec: Model) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Odd:
    """Keys that need a word of their own: several keys for one place, or one key for several."""

    names: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    write: Callable[[Model], dict[str, Any]]


Entry = Key | Fixed | Odd
SPECIAL = (
    Key("pad_token_id", ("special.pad",), None),
    Key("bos_token_id", ("special.bos",), None),
    Key("decoder_start_token_id", ("special.start",), None),
)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a family lies on disk: its config keys, its tensor names, and its classes with the parts each has."""

    model_type: str
    template: Callable[[], Model]
    entries: tuple[Entry, ...]
    rules: tuple[Rule, ...] | Callable[[Model], tuple[Rule, ...]]
    classes: Mapping[str, frozenset[str]]  # class -> which of head, pooler, pair it has; the full one first
    prefix: str = ""  # of the body's tensors in every class but the bare one
    head: str | None = None  # the tensor of the vocabulary matrix, kept only where it is not the token table's
    copies: tuple[str, ...] = ()  # other names under which the token table may appear
    ignored: frozenset[str] = frozenset()  # keys that do not matter in this family
    skipped: tuple[str, ...] = ()  # patterns of tensors that are not weights
    twins: Mapping[str, str] = field(default_factory=dict)  # tensor -> a second one that the reference computes with
    zeros: tuple[str, ...] = ()  # tensors that are zero where they are missing
    marks: Mapping[str, str] = field(default_factory=dict)  # part -> the tensor that shows it is there

    def read(self, found: Mapping[str, Any], parts: frozenset[str], *, tied: bool) -> Model:
        """The spec of a config, with the parts and the tying that its tensors show."""
        refuse_code(found)
        template = self.template()
        known = {name for entry in (*self.entries, *SPECIAL) for name in entry.names}
        for name in found:
            if name in known | IGNORED | self.ignored | {"eos_token_id", "tie_word_embeddings", "pretune"}:
                continue
            if found[name] not in NEUTRAL:
                raise CheckpointError(
                    f"key '{name}' = {_short(found[name])} is not known for model_type '{self.model_type}'"
                    f"{nearest(name, known)}; what it changes cannot be reproduced"
                )
        changes: dict[str, Any] = {}
        for entry in self.entries:
            for path, value in entry.read(found).items():
                changes.update(dict.fromkeys(spread(template, path), value))
        for key in SPECIAL:
            if found.get(key.name) is not None:
                changes.update(key.read(found))
        eos = found.get("eos_token_id")
        if eos is not None:
            changes["special.eos"] = tuple(eos) if isinstance(eos, list) else (eos,)
        for part in ("head", "pooler", "pair"):
            if getattr(template, part) is not None and part not in parts:
                changes = {path: value for path, value in changes.items() if path.split(".")[0] != part}
                changes[part] = None
        if "head" in parts:
            changes["head.tied"] = tied
        return config.replace(template, {path: _typed(value) for path, value in changes.items()})

    def write(self, spec: Model) -> dict[str, Any]:
        """The config of a spec. It may say less than the spec does: read it back and compare."""
        has = frozenset(part for part in ("head", "pooler", "pair") if getattr(spec, part) is not None)
        out: dict[str, Any] = {"architectures": [self.best_class(has)], "model_type": self.model_type}
        for entry in (*self.entries, *SPECIAL):
            out.update(entry.write(spec))
        eos = spec.special.eos
        out["eos_token_id"] = None if not eos else eos[0] if len(eos) == 1 else list(eos)
        if spec.head is not None:
            out.setdefault("tie_word_embeddings", spec.head.tied)
        return out

    def rules_of(self, spec: Model) -> tuple[Rule, ...]:
        return self.rules(spec) if callable(self.rules) else self.rules

    def best_class(self, parts: frozenset[str]) -> str:
        """The class that has the most of these parts and no others."""
        fitting = [name for name, has in self.classes.items() if has <= parts]
        return max(fitting, key=lambda name: len(self.classes[name]))


def refuse_code(found: Mapping[str, Any]) -> None:
    """Config is data: keys that name code are refused whatever they say."""
    for name in CODE:
        if name in found:
            raise CheckpointError(f"key '{name}' names code to run; pretune reads data only")
    if found.get("quantization_config") is not None:
        raise CheckpointError("key 'quantization_config': quantised weights are not supported; use the original ones")


def look(spec: object, path: str) -> Any:
    """The value at a path; of `*` the first; None where a part on the way is absent."""
    for part in path.split("."):
        if spec is None:
            return None
        spec = spec[0 if part == "*" else int(part)] if isinstance(spec, tuple) else getattr(spec, part)
    return spec


def spread(spec: object, path: str) -> list[str]:
    """The paths a path with `*` stands for."""
    before, star, after = path.partition("*")
    if not star:
        return [path]
    return [f"{before}{i}{after}" for i in range(len(look(spec, before.rstrip("."))))]


def same(a: Model, b: Model) -> bool:
    """Whether two specs compute the same: names, dropout, initialisation and token roles aside."""
    return bool(_bare(config.to_dict(a)) == _bare(config.to_dict(b)))


def both(paths: Iterable[str]) -> tuple[str, ...]:
    """Paths in the encoder and in the decoder."""
    return tuple(f"{stack}.{path}" for path in paths for stack in ("encoder", "decoder"))


def _bare(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _bare(value) for key, value in tree.items() if key not in ("dropout", "init", "family", "special")}
    return [_bare(value) for value in tree] if isinstance(tree, list) else tree


def _typed(value: Any) -> Any:
    # NOTE: text is parsed by the editor of specs; a number that a stranger's file gives as text stays an error.
    if isinstance(value, str) and value[:1].isdigit():
        raise CheckpointError(f"expected a number, found the text {_short(value)}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
