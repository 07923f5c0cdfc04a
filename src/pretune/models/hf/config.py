"""Mapping between the keys of a `config.json` and paths in the spec, in both directions.

Every key is read, known to be irrelevant, or refused: no key that changes the output is ignored, and no key that names
code is followed.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pretune.core import config
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.models.spec import Model
from pretune.nn.layers import ActivationName

MAX_SIZE = 2**31 - 1
"""Largest size; a file with a larger one is damaged or hostile."""
MAX_NUMBER = 1e30

T = TypeVar("T")
Default = TypeVar("Default")

Check = Callable[[str, Any], T]
"""Takes a key and its value; returns the checked value or raises `CheckpointError`."""

SpecChanges = Mapping[str, object]
"""Values to set in a spec, by path; `*` stands for every block of the pattern."""


def check_size(key: str, value: Any, minimum: int = 1) -> int:
    """Return a size: an integer of at least 1, or another minimum."""
    if type(value) is not int or not minimum <= value <= MAX_SIZE:
        raise _make_invalid_error(key, value, f"an integer from {minimum} to {MAX_SIZE}")
    return value


def check_number(key: str, value: Any) -> float:
    """Return a finite number of at least 0."""
    return _check_range(key, value, "a number of at least 0", lambda number: 0 <= number <= MAX_NUMBER)


def check_positive(key: str, value: Any) -> float:
    """Return a finite number greater than 0."""
    return _check_range(key, value, "a number greater than 0", lambda number: 0 < number <= MAX_NUMBER)


def check_rate(key: str, value: Any) -> float:
    """Return a number from 0 to 1."""
    return _check_range(key, value, "a number from 0 to 1", lambda number: 0 <= number <= 1)


def _check_range(key: str, value: Any, requirement: str, is_allowed: Callable[[float], bool]) -> float:
    if type(value) not in (int, float) or not is_allowed(value):
        raise _make_invalid_error(key, value, requirement)
    return float(value)


def check_flag(key: str, value: Any) -> bool:
    """Return a boolean."""
    if type(value) is not bool:
        raise _make_invalid_error(key, value, "true or false")
    return value


def allow_null(check: Check[T]) -> Check[T | None]:
    """Return a check that also accepts null."""
    return lambda key, value: None if value is None else check(key, value)


def allow_choices(options: Mapping[Any, T]) -> Check[T]:
    """Return a check that accepts the names or booleans in `options` and returns our value for them."""

    def check(key: str, value: Any) -> T:
        if not isinstance(value, str | bool) or value not in options:
            raise make_unsupported_error(key, value, options)
        return options[value]

    return check


def check_token(key: str, value: Any) -> int | None:
    """Return a token id, or None for null."""
    if value is None or (type(value) is int and value == -1):  # NOTE: -1 means none in some early releases
        return None
    if type(value) is not int or not 0 <= value <= MAX_SIZE:
        raise _make_invalid_error(key, value, "a token id or null")
    return value


class HfConfig(dict[str, Any]):
    """Keys of a `config.json`. Its reads check the values; their errors name the key."""

    @property
    def class_name(self) -> object:
        """The class of `transformers` that it names, or None."""
        classes = self.get("architectures") or [None]
        return classes[0] if isinstance(classes, list) else classes

    def read(self, *names: str, check: Check[T], default: Default) -> T | Default:
        """Return the checked value of a key under any of its names, or `default` if all are absent.

        Raises `CheckpointError` if several names are present with different values; null is ignored.
        """
        values = {name: check(name, self[name]) for name in names if name in self}
        non_null = [name for name, value in values.items() if value is not None]
        for name in non_null:
            if values[name] != values[non_null[0]]:
                raise CheckpointError(
                    f"keys '{non_null[0]}' = {format_value(self[non_null[0]])} and '{name}' = "
                    f"{format_value(self[name])} contradict each other"
                )
        return next((values[name] for name in (*non_null, *values)), default)

    def read_object(self, key: str) -> "HfConfig":
        """Return the fields of an object under their full names, such as `attn_config.clip_qkv`; none for null."""
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise _make_invalid_error(key, value, "an object")
        return HfConfig({f"{key}.{name}": inner for name, inner in (value or {}).items()})

    def read_layer_types(self, default: list[str], choices: tuple[str, ...]) -> list[str]:
        """Return the kind of attention of every layer."""
        kinds: Any = self.get("layer_types")
        if kinds is None:
            return default
        if not isinstance(kinds, list) or len(kinds) != len(default) or any(kind not in choices for kind in kinds):
            raise make_unsupported_error("layer_types", kinds, [f"{len(default)} times {' or '.join(choices)}"])
        return kinds

    def read_token_roles(self) -> SpecChanges:
        """Return the special tokens; an explicit null means none."""
        roles: dict[str, object] = {
            place: check_token(name, self[name]) for name, place in TOKEN_ROLES.items() if name in self
        }
        if "eos_token_id" in self:
            eos = self["eos_token_id"]
            token_ids = [check_token("eos_token_id", end) for end in (eos if isinstance(eos, list) else [eos])]
            roles["special.eos"] = tuple(end for end in token_ids if end is not None)
        return roles

    def require(self, key: str, *allowed_values: object) -> None:
        """Raise `CheckpointError` if a key has another value than these; it may be absent or null."""
        value = self.get(key)
        # NOTE: 1 is not True, nor 0 False.
        if value is not None and not any(
            value == allowed_value and isinstance(value, bool) == isinstance(allowed_value, bool)
            for allowed_value in allowed_values
        ):
            raise make_unsupported_error(key, value, allowed_values)

    def refuse_code(self) -> None:
        """Raise `CheckpointError` for keys that name code; they are never followed."""
        remedy = "which is never executed; remove the key to load the model without it"
        for name in CODE_KEYS:
            if name in self:
                raise CheckpointError(f"key '{name}' names code, {remedy}")
        for name in ("_attn_implementation", "attn_implementation"):
            if isinstance(self.get(name), str) and "/" in self[name]:  # a kernel to fetch
                raise CheckpointError(f"key '{name}' = {format_value(self[name])} names code, {remedy}")
        if self.get("quantization_config") is not None:
            raise CheckpointError(
                "key 'quantization_config': quantized weights are not supported; use the original model"
            )


def make_unsupported_error(key: str, value: Any, choices: Iterable[Any]) -> CheckpointError:
    """Return the error for an unsupported value, with the allowed ones."""
    allowed_values = ", ".join(format_value(choice) for choice in choices)
    return CheckpointError(f"key '{key}' = {format_value(value)} is not supported; allowed: {allowed_values}")


def _make_invalid_error(key: str, value: Any, requirement: str) -> CheckpointError:
    return CheckpointError(f"key '{key}' = {format_value(value)}: must be {requirement}")


IGNORED_KEYS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path _num_labels architectures
    attn_implementation bad_words_ids begin_suppress_tokens chunk_size_feed_forward classif_dropout
    classifier_activation classifier_dropout directionality diversity_penalty do_sample dtype early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task force_bos_token_to_be_generated
    forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label init_device is_decoder is_encoder_decoder
    keys_to_ignore_at_inference label2id language length_penalty max_length min_length model_type n_ctx
    no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions
    output_hidden_states output_past output_scores pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type predict_special_tokens prefix pretraining_tp problem_type remove_invalid_values
    repetition_penalty return_dict return_dict_in_generate save_step sep_token_id summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens task_specific_params
    temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript transformers_version typical_p
    unk_token_id use_bfloat16 use_cache verbose xla_device
    """.split()  # noqa: SIM905 (a list of this length reads better as words)
)
"""Keys that do not change the model's output: labels, generation, training, metadata of old releases."""

CODE_KEYS = ("auto_map", "custom_generate", "custom_pipelines", "trust_remote_code")
"""Keys that name code to run."""

ACTIVATIONS: dict[str, ActivationName] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
}
"""Names of activation functions in `transformers` -> ours."""

TOKEN_ROLES = {"pad_token_id": "special.pad", "bos_token_id": "special.bos", "decoder_start_token_id": "special.start"}


@dataclass(frozen=True)
class Key:
    """A key and the paths in the spec that it sets (`*` stands for every block of the pattern).

    `default` is the reference's default, in our values before the shift; its type determines the check.
    """

    name: str
    paths: tuple[str, ...]
    default: Any
    values: Mapping[Any, object] | None = None  # their value -> ours; the first match is written
    aliases: tuple[str, ...] = ()  # other spellings
    check: Check[Any] | None = None  # None: by the type of the default
    shift: int = 0  # added to their number

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def read(self, hf_config: HfConfig) -> SpecChanges:
        value = hf_config.read(*self.names, check=self.check or self._choose_check(), default=self.default)
        return dict.fromkeys(self.paths, value + self.shift if self.shift else value)

    def write(self, spec: Model) -> dict[str, object]:
        value = get_path(spec, self.paths[0])
        if self.values is not None:
            value = next((theirs for theirs, ours in self.values.items() if ours == value), value)
        return {self.name: value - self.shift if self.shift else value}

    def _choose_check(self) -> Check[Any]:
        if self.values is not None:
            return allow_choices(self.values)
        if self.paths[0].endswith("dropout"):
            return check_rate
        checks: dict[type, Check[Any]] = {bool: check_flag, int: check_size, float: check_number}
        return checks[type(self.default)]


@dataclass(frozen=True)
class FixedKey:
    """A key that is supported only at some values; it may be absent or null."""

    name: str
    allowed_values: tuple[Any, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def read(self, hf_config: HfConfig) -> SpecChanges:
        hf_config.require(self.name, *self.allowed_values)
        return {}

    def write(self, spec: Model) -> dict[str, object]:
        return {}


@dataclass(frozen=True)
class CustomKey:
    """Keys with their own read and write functions: several keys for one path, or one key for several."""

    names: tuple[str, ...]
    read: Callable[[HfConfig], SpecChanges]
    write: Callable[[Model], dict[str, object]]


Entry = Key | FixedKey | CustomKey


def build_summary_keys(kind: str, activation: str | None, *, to_labels: bool) -> tuple[FixedKey, ...]:
    """Return the keys of a task head that summarizes the states: the supported values of its state and layer."""
    return (
        FixedKey("summary_type", (kind,)),
        FixedKey("summary_activation", (activation,)),
        FixedKey("summary_use_proj", (True,)),
        FixedKey("summary_proj_to_labels", (to_labels,)),
    )


def get_path(spec: object, path: str) -> Any:
    """Return the value at a path; `*` is the first block; None if a part of the path is None."""
    for part in path.split("."):
        if spec is None:
            return None
        spec = spec[0 if part == "*" else int(part)] if isinstance(spec, tuple) else getattr(spec, part)
    return spec


def expand_path(spec: object, path: str, changes: SpecChanges | None = None) -> list[str]:
    """Return the paths that a path with `*` stands for, in the spec or in the tuple that `changes` replaces it with."""
    prefix, star, suffix = path.partition(".*")
    if not star:
        return [path]
    items: Any = (changes or {}).get(prefix) or get_path(spec, prefix)
    return [f"{prefix}.{i}{suffix}" for i in range(len(items))]


IRRELEVANT_FIELDS = ("init", "family", "special", "span", "context")
"""Fields of a spec that do not change states and logits."""


def is_equivalent(first: Model, second: Model) -> bool:
    """Return True if two specs have the same states and logits.

    Ignored are name, dropout, initialization, training length, special tokens and the span boundary head.
    """
    return bool(_strip_irrelevant(config.to_dict(first)) == _strip_irrelevant(config.to_dict(second)))


def expand_sides(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths in the encoder and in the decoder."""
    return tuple(f"{stack}.{path}" for path in paths for stack in ("encoder", "decoder"))


def name_projections(side: str, tensor: str) -> dict[str, str]:
    """Return the names of the four projections of the self-attention of a layer; `{part}` is q, k, v or out.

    >>> name_projections("decoder", "layers.{i}.{part}_proj.{p}")["decoder.{i}.attention.q.{p}"]
    'layers.{i}.q_proj.{p}'
    """
    parts = ("q", "k", "v", "out")
    return {f"{side}.{{i}}.attention.{part}.{{p}}": tensor.replace("{part}", part) for part in parts}


def _strip_irrelevant(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {
            key: _strip_irrelevant(value)
            for key, value in tree.items()
            if key not in IRRELEVANT_FIELDS and not key.endswith("dropout")
        }
    return [_strip_irrelevant(value) for value in tree] if isinstance(tree, list) else tree


def name_keys(error: str, keys: Mapping[str, list[str]]) -> str:
    """Return the keys that set the paths named in an error, as a prefix of the message."""
    words = set(re.findall(r"\w+", error))
    key_names = {f"'{name}'" for place, names in keys.items() if place.rpartition(".")[2] in words for name in names}
    return f"key {', '.join(sorted(key_names))}: " if key_names else ""
