"""The public functions: explicit signatures, documented arguments, suggestions for unknown ones."""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any, get_args

import pytest

import pretune as pt
from pretune.adaptation.adapted import HeadKind
from pretune.adaptation.heads import HEADS
from pretune.core.api import UnknownArgumentError
from pretune.runs.options import PrepareOptions, PretrainOptions, VectorsOptions
from pretune.runs.task_options import EmbeddingOptions, EvaluateOptions, FinetuneOptions
from pretune.studies.options import CompareOptions

OPTIONS: dict[Any, type] = {
    pt.prepare: PrepareOptions,
    pt.pretrain: PretrainOptions,
    pt.finetune: FinetuneOptions,
    pt.evaluate: EvaluateOptions,
    pt.train_embeddings: EmbeddingOptions,
    pt.train_vectors: VectorsOptions,
    pt.compare: CompareOptions,
}
FUNCTIONS = (*OPTIONS, pt.export, pt.verify, pt.add_head)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: str(function.__name__))
def test_every_argument_is_typed_and_documented(function: Any) -> None:
    page = inspect.getdoc(function) or ""
    arguments = page.partition("\nArgs:\n")[2].partition("\n\n")[0]
    documented = re.findall(r"^    (\w+): \S", arguments, re.MULTILINE)
    parameters = inspect.signature(function).parameters
    assert documented == [*parameters]
    assert all(one.kind is not one.VAR_KEYWORD and one.annotation is not one.empty for one in parameters.values())


@pytest.mark.parametrize("function", OPTIONS, ids=lambda function: str(function.__name__))
def test_arguments_are_those_of_the_options(function: Any) -> None:
    fields = {field.name: field for field in dataclasses.fields(OPTIONS[function])}
    parameters = inspect.signature(function).parameters
    assert [*parameters] == [*fields]
    for name, parameter in parameters.items():
        assert parameter.annotation == fields[name].type, name
        assert parameter.default in (inspect.Parameter.empty, fields[name].default), name


@pytest.mark.parametrize(
    ("function", "argument", "hint"),
    [
        (pt.finetune, "learning_rate", "'lr'"),
        (pt.finetune, "train_example", "'train_examples'"),
        (pt.finetune, "batch_size", "'train.batch'"),
        (pt.pretrain, "learning_rate", "'train.lr'"),
        (pt.pretrain, "max_steps", "'steps'"),
        (pt.pretrain, "hidden_size", "'model.width'"),
        (pt.pretrain, "override", "'overrides'"),
        (pt.train_embeddings, "learning_rate", "'lr'"),
        (pt.evaluate, "shot", "'shots'"),
    ],
)
def test_an_unknown_argument_names_the_nearest(function: Any, argument: str, hint: str, tmp_path: Path) -> None:
    out = {} if function is pt.evaluate else {"out": tmp_path / "run"}
    with pytest.raises(UnknownArgumentError, match=argument) as caught:
        function("model", **out, **{argument: 1})
    assert hint in str(caught.value) and not (tmp_path / "run").exists()


def test_names_of_what_there_is() -> None:
    assert {"bert-base", "gpt2-small", "t5-small"} <= {*pt.list_models()}
    assert pt.list_models("bert") == [name for name in pt.list_models() if name.startswith("bert-")]
    assert "masked" in pt.list_objectives() and "sst2" in pt.list_tasks()
    assert {"full", "lora", "freeze-first", "scalar-mix"} <= {*pt.list_methods()}
    assert set(get_args(HeadKind)) == {*HEADS}
