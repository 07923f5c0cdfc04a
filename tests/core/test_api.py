"""Unknown keyword arguments and result objects."""

import inspect
from typing import Any

import pytest

from pretune.core.api import (
    Option,
    Options,
    Result,
    ResultList,
    UnknownArgumentError,
    check_arguments,
    flatten,
    option,
    option_set,
    positional,
    render_table,
    take_options,
)
from pretune.core.errors import UsageError


@check_arguments(paths=["train.warmup", "data.max_length"])
def train(model: str, *, lr: float = 1e-3, epochs: int = 1) -> tuple[str, float, int]:
    """Train."""
    return model, lr, epochs


def test_known_arguments_pass() -> None:
    assert train("bert", lr=1.0) == ("bert", 1.0, 1)
    assert [*inspect.signature(train).parameters] == ["model", "lr", "epochs"] and train.__doc__ == "Train."


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("learning_rate", "'lr'"),
        ("epoch", "'epochs'"),
        ("warmup_steps", "train.warmup"),
        ("max_seq_length", "data.max_length"),
        ("zzz", "epochs"),
    ],
)
def test_an_unknown_argument_names_the_nearest(name: str, hint: str) -> None:
    options: dict[str, Any] = {name: 1}
    with pytest.raises(UnknownArgumentError, match=name) as caught:
        train("bert", **options)
    assert hint in str(caught.value) and isinstance(caught.value, TypeError) and isinstance(caught.value, UsageError)


@option_set
class TuneOptions(Options):
    model: str | None = positional(Option("MODEL", "Model."), default=None, kw_only=False)
    out: str | None = option("--out DIR", "Output directory.")


@take_options(TuneOptions, required_names=["out"])
def tune(options: TuneOptions) -> TuneOptions:
    """Tune."""
    return options


def test_a_function_of_options_has_their_fields_as_arguments() -> None:
    assert tune("bert", out="runs") == TuneOptions(model="bert", out="runs") and tune.__doc__ == "Tune."
    assert str(inspect.signature(tune)) == f"(model: str | None = None, *, out: str | None) -> {__name__}.TuneOptions"
    for faulty in ({"model": "bert"}, {"out": "runs", "rate": 1.0}):
        with pytest.raises(TypeError, match=r"out|rate"):
            tune(**faulty)  # type: ignore[arg-type]


class Scores(Result):
    def to_dict(self) -> dict[str, Any]:
        return {"task": "<b>", "scores": {"f1": 0.25, "n": None}, "notes": ["x"]}


def test_results_as_tables() -> None:
    assert flatten(Scores().to_dict()) == {"task": "<b>", "scores.f1": 0.25, "scores.n": None}
    page = Scores()._repr_html_()
    assert "&lt;b&gt;" in page and "<b>" not in page and "0.25" in page
    both = ResultList([Scores(), Scores()])
    assert len(both.to_rows()) == 2 and both._repr_html_().count("<tr>") == 3
    assert both.to_dict() == {"results": [Scores().to_dict()] * 2}
    assert render_table([]) == "<table><thead><tr></tr></thead><tbody></tbody></table>"


def test_a_data_frame_where_pandas_is() -> None:
    pytest.importorskip("pandas")
    frame = ResultList([Scores(), Scores()]).to_pandas()
    assert frame.shape == (2, 3) and frame["scores.f1"].tolist() == [0.25, 0.25]
