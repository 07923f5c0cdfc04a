"""Each public function of a verb has the arguments of its options, and nothing is left untyped below it."""

import inspect
import os
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest

import pretune as pt
from pretune.core.api import Options
from pretune.runs.options import pretrain, tasks, text

FUNCTIONS: dict[type[Options], Callable[..., Any]] = {
    pretrain.PretrainOptions: pt.pretrain,
    tasks.FinetuneOptions: pt.finetune,
    tasks.EmbeddingOptions: pt.train_embeddings,
    tasks.EvaluateOptions: pt.evaluate,
    text.PrepareOptions: pt.prepare,
    text.VectorsOptions: pt.train_vectors,
}


def resolve(annotation: Any, function: Any) -> Any:
    """The annotation of a field, whose text names what the module of the function imports."""
    names = {**vars(inspect.getmodule(function)), "StrPath": str | os.PathLike[str]}
    return eval(annotation, names) if isinstance(annotation, str) else annotation


@pytest.mark.parametrize(("cls", "function"), FUNCTIONS.items(), ids=lambda value: value.__name__)
def test_a_public_function_has_the_arguments_of_its_options(cls: Any, function: Any) -> None:
    parameters = inspect.signature(inspect.unwrap(function), eval_str=True).parameters
    fields = cls.__dataclass_fields__
    assert [*parameters] == [*fields]
    for name, parameter in parameters.items():
        annotation, default = resolve(fields[name].type, function), fields[name].default
        is_required = parameter.default is inspect.Parameter.empty
        if is_required and types.NoneType in typing.get_args(annotation):  # a run without it fails, a dry run does not
            annotation = typing.Union[tuple(set(typing.get_args(annotation)) - {types.NoneType})]  # noqa: UP007
        assert parameter.annotation == annotation, name
        assert is_required or parameter.default == default, name


def test_the_tokenizer_has_the_arguments_of_its_options() -> None:
    signature = inspect.signature(pt.train_tokenizer, eval_str=True)
    extra = typing.get_type_hints(typing.get_args(signature.parameters["options"].annotation)[0])
    names = {*signature.parameters, *extra} - {"options", "errors"}
    assert names == {*text.TokenizerOptions.__dataclass_fields__} - {"out"}  # type: ignore[attr-defined]
