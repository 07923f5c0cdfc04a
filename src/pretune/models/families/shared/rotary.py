"""Config keys of rotary positions, in all spellings of `transformers`."""

from collections.abc import Callable, Mapping
from typing import Any

from pretune.core.config import to_dict
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.models.hf.checks import (
    Check,
    allow_null,
    check_choice,
    check_positive,
    check_rate,
    check_size,
    read_key,
    read_object,
)
from pretune.models.hf.config import CustomKey, FixedKey
from pretune.models.spec import Model
from pretune.nn.positions import BandedScaling, LinearScaling, Rotary

ROPE_SCALINGS = {"default": (), "linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}
"""Supported values of rope_type and the numbers each requires; `llama3` also takes the original length."""


def build_rope_key(theta: float = 10000.0, fraction: float = 1.0, old_names: tuple[str, ...] = ()) -> CustomKey:
    """Return the keys of rotary positions: rope_theta and rope_scaling, or both inside rope_parameters.

    `theta` and `fraction` are the defaults of the reference. `old_names` are a family's former names of the base and
    of the rotated fraction of a head.
    """

    def read(hf_config: Mapping[str, Any]) -> dict[str, Any]:
        parameters = read_object(hf_config, "rope_parameters") | read_object(hf_config, "rope_scaling")
        all_keys = {**hf_config, **parameters}

        def get(name: str, check: Check, *aliases: str) -> Any:
            names = (f"rope_parameters.{name}", f"rope_scaling.{name}", *aliases)
            return read_key(all_keys, *names, check=allow_null(check), default=None)

        kind = get("rope_type", _check_rope_type, "rope_parameters.type", "rope_scaling.type") or "default"
        allowed_names = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *ROPE_SCALINGS[kind]}
        allowed_names |= {"original_max_position_embeddings"} if kind == "llama3" else set()
        for name, value in parameters.items():
            if name.partition(".")[2] not in allowed_names and value is not None:
                raise CheckpointError(f"key {format_value(name)} is unknown for rope_type '{kind}'")
        base = get("rope_theta", check_positive, "rope_theta", *old_names[:1])
        rotary_fraction = get("partial_rotary_factor", check_rate, "partial_rotary_factor", *old_names[1:])
        if not old_names:  # the reference then rotates whole heads, whatever the config states
            FixedKey("partial_rotary_factor", (1.0,)).read({"partial_rotary_factor": rotary_fraction})
        rotary = Rotary(
            theta=theta if base is None else base,
            fraction=fraction if rotary_fraction is None else rotary_fraction,
            scaling=_read_scaling(
                kind, get, read_key(hf_config, "max_position_embeddings", check=check_size, default=2048)
            ),
        )
        return {"decoder.position": to_dict(rotary)}

    def write(spec: Model) -> dict[str, Any]:
        assert spec.decoder is not None and isinstance(spec.decoder.position, Rotary)
        rotary = spec.decoder.position
        parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": rotary.theta}
        if fraction != 1.0 or rotary.fraction != 1.0:
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
        return {"rope_parameters": parameters}

    names = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", *old_names)
    return CustomKey(names, read, write)


def _check_rope_type(key: str, value: Any) -> str:
    return str(check_choice(key, value, {name: name for name in ROPE_SCALINGS}))


def _read_scaling(kind: str, get: Callable[[str, Check], Any], context: int) -> LinearScaling | BandedScaling | None:
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
