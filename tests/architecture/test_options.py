"""Public functions take the fields of their options: `take_options`. The tokenizer's arguments are written out."""

import inspect
import typing

import pretune as pt
from pretune.runs.options import TokenizerOptions


def test_the_tokenizer_has_the_arguments_of_its_options() -> None:
    signature = inspect.signature(pt.train_tokenizer, eval_str=True)
    extra = typing.get_type_hints(typing.get_args(signature.parameters["options"].annotation)[0])
    names = {*signature.parameters, *extra} - {"options", "errors"}
    assert names == {*TokenizerOptions.__dataclass_fields__} - {"out"}  # type: ignore[attr-defined]
