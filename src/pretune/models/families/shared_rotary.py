"""Config keys of rotary positions, which several families share, and kinds of attention layers."""

from collections.abc import Callable
from typing import Any

from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.models.hf.config import (
    Check,
    CustomKey,
    HfConfig,
    SpecChanges,
    allow_choices,
    allow_null,
    check_positive,
    check_rate,
    check_size,
)
from pretune.models.spec import Model
from pretune.nn.positions import BandedScaling, LinearScaling, Rotary

FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of attention layers, in `layer_types`."""

ROPE_SCALINGS = {"default": (), "linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}
"""Supported values of rope_type and the numbers each requires; `llama3` also takes the original length."""


def build_rope_key(theta: float = 10000.0, fraction: float = 1.0, old_names: tuple[str, ...] = ()) -> CustomKey:
    """Return the keys of rotary positions: rope_theta and rope_scaling, or both inside rope_parameters.

    `theta` and `fraction` are the defaults of the reference. `old_names` are a family's former names of the base and
    of the rotated fraction of a head.
    """

    def read(hf_config: HfConfig) -> SpecChanges:
        rotary = read_rotary(hf_config, theta=theta, fraction=fraction, old_names=old_names)
        return {"decoder.position": rotary}

    def write(spec: Model) -> dict[str, object]:
        assert spec.decoder is not None and isinstance(spec.decoder.position, Rotary)
        parameters = write_rotary(spec.decoder.position)
        if fraction != 1.0:  # the default of the reference, so 1 must be stated
            parameters["partial_rotary_factor"] = spec.decoder.position.fraction
        return {"rope_parameters": parameters}

    names = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", *old_names)
    return CustomKey(names, read, write)


def read_rotary(
    hf_config: HfConfig,
    *,
    theta: float,
    fraction: float = 1.0,
    key: str = "rope_parameters",
    old_names: tuple[str, ...] = (),
) -> Rotary:
    """Return the rotary positions of a config, from the object `key` or the older keys next to it."""
    parameters = hf_config.read_object(key) | hf_config.read_object("rope_scaling")
    all_keys = HfConfig(hf_config | parameters)

    def get(name: str, check: Check[Any], *aliases: str) -> Any:
        names = (f"{key}.{name}", f"rope_scaling.{name}", *aliases)
        return all_keys.read(*names, check=allow_null(check), default=None)

    check_type = allow_choices({name: name for name in ROPE_SCALINGS})
    kind = get("rope_type", check_type, f"{key}.type", "rope_scaling.type") or "default"
    allowed_names = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *ROPE_SCALINGS[kind]}
    allowed_names |= {"original_max_position_embeddings"} if kind == "llama3" else set()
    for name, value in parameters.items():
        if name.rpartition(".")[2] not in allowed_names and value is not None:
            raise CheckpointError(f"key {format_value(name)} is unknown for rope_type '{kind}'")
    base = get("rope_theta", check_positive, "rope_theta", *old_names[:1])
    rotary_fraction = get("partial_rotary_factor", check_rate, "partial_rotary_factor", *old_names[1:])
    if len(old_names) < 2:  # the reference then rotates whole heads, whatever the config states
        HfConfig(partial_rotary_factor=rotary_fraction).require("partial_rotary_factor", 1.0)
    return Rotary(
        theta=theta if base is None else base,
        fraction=fraction if rotary_fraction is None else rotary_fraction,
        scaling=_read_scaling(kind, get, hf_config.read("max_position_embeddings", check=check_size, default=2048)),
    )


def read_layer_rotary(hf_config: HfConfig, kind: str, *, theta: float, old_name: str) -> Rotary:
    """Return the rotary positions of one kind of layers, `FULL` or `SLIDING`; `old_name` was a key of their base."""
    parameters = hf_config.read_object("rope_parameters")
    for name in parameters:
        allow_choices({FULL: FULL, SLIDING: SLIDING})("rope_parameters", name.rpartition(".")[2])
    all_keys = HfConfig(hf_config | parameters)
    return read_rotary(all_keys, theta=theta, key=f"rope_parameters.{kind}", old_names=(old_name,))


def write_rotary(rotary: Rotary) -> dict[str, object]:
    """Return the object `rope_parameters` of rotary positions."""
    parameters: dict[str, object] = {"rope_type": "default", "rope_theta": rotary.theta}
    if rotary.fraction != 1.0:
        parameters["partial_rotary_factor"] = rotary.fraction
    if isinstance(rotary.scaling, LinearScaling):
        parameters |= {"rope_type": "linear", "factor": rotary.scaling.factor}
    elif isinstance(rotary.scaling, BandedScaling):
        parameters |= {
            "rope_type": "llama3",
            "factor": rotary.scaling.factor,
            "low_freq_factor": rotary.scaling.low,
            "high_freq_factor": rotary.scaling.high,
            "original_max_position_embeddings": rotary.scaling.original,
        }
    return parameters


def _read_scaling(
    kind: str, get: Callable[[str, Check[Any]], Any], context: int
) -> LinearScaling | BandedScaling | None:
    numbers = {name: get(name, check_positive) for name in ROPE_SCALINGS[kind]}
    for name, value in numbers.items():
        if value is None:
            raise CheckpointError(f"key 'rope_parameters.{name}' is missing; rope_type '{kind}' requires it")
    if kind == "linear":
        return LinearScaling(factor=numbers["factor"])
    if kind == "default":
        return None
    return BandedScaling(
        factor=numbers["factor"],
        low=numbers["low_freq_factor"],
        high=numbers["high_freq_factor"],
        original=get("original_max_position_embeddings", check_size) or context,
    )
