"""Configs: frozen specs that nest, print as JSON, and are edited by path.

    @spec
    class Encoder:
        '''A stack of blocks.'''
        width: Positive[int]
        depth: Annotated[int, Ge(1), Le(100)] = 12
        norm: LayerNorm | RmsNorm | None = LayerNorm()

    encoder = from_dict(Encoder, {"width": 768, "norm": {"kind": "rms_norm"}})
    replace(encoder, {"depth": "6", "norm.eps": "1e-6"})     # text (as from `--set`) is parsed by the field's type
    diff(encoder, replace(encoder, {"depth": 6}))            # {'depth': (12, 6)}

A config cannot name code: `kind` only selects among the classes that the field's annotation lists.
"""

from pretune.core.config.edit import diff, list_paths, parse_assignments, replace
from pretune.core.config.read import from_dict
from pretune.core.config.records import Amount, Count, Number, check_record, read_record, read_records
from pretune.core.config.specs import (
    Constraint,
    Fraction,
    Ge,
    Gt,
    Le,
    Lt,
    NonEmpty,
    NonNegative,
    PathText,
    Positive,
    PossiblePath,
    Seed,
    SumsToOne,
    check_path,
    get_kind,
    spec,
    to_dict,
)
