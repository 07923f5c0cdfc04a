"""The laws of specs: round trips, replay of differences, and refusal of everything else with one clear line."""

import json
import math
import re
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.config import (
    Constraint,
    Fraction,
    Ge,
    Gt,
    Le,
    Lt,
    NonEmpty,
    NonNegative,
    Positive,
    diff,
    from_dict,
    get_kind,
    list_paths,
    parse_assignments,
    replace,
    spec,
    to_dict,
)
from pretune.core.errors import DataError, UsageError


@spec
class LayerNorm:
    eps: float = 1e-12
    bias: bool = True


@spec
class RmsNorm:
    eps: float = 1e-6


@spec
class Alibi:
    pass


@spec
class Rotary:
    base: float


@spec
class Attention:
    heads: int = 2
    activation: Literal["gelu", "relu", "swish"] = "gelu"


@spec
class Encoder:
    width: int = 8
    depth: int = 2
    norm: LayerNorm | RmsNorm | None = LayerNorm()
    position: Alibi | Rotary | None = None
    blocks: tuple[Attention, ...] = (Attention(),)
    betas: tuple[float, float] = (0.9, 0.999)
    window: int | Literal["all"] | None = None

    def __post_init__(self) -> None:
        for block in self.blocks:
            if self.width % block.heads:
                raise UsageError(f"{block.heads} heads do not divide the width {self.width}")


@spec
class Model:
    encoder: Encoder = Encoder()
    decoder: Encoder | None = None
    name: str = "m"
    tags: tuple[str, ...] = ()
    share: bool = False
    note: str | None = None


@spec
class Tree:
    child: "Tree | None" = None


@spec
class Picky:
    rows: int = 1

    def __post_init__(self) -> None:
        if self.rows == 7:
            raise DataError("seven is refused")
        100 // self.rows


@spec
class Holder:
    picky: Picky = Picky()


floats = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**63), 2**63)
norms = st.none() | st.builds(LayerNorm, eps=floats, bias=st.booleans()) | st.builds(RmsNorm, eps=floats)
positions = st.none() | st.just(Alibi()) | st.builds(Rotary, base=floats)
attentions = st.builds(
    Attention, heads=st.sampled_from([1, 2, 4]), activation=st.sampled_from(["gelu", "relu", "swish"])
)
encoders = st.builds(
    Encoder,
    width=st.sampled_from([4, 8, 16]),
    depth=integers,
    norm=norms,
    position=positions,
    blocks=st.lists(attentions, max_size=3).map(tuple),
    betas=st.tuples(floats, floats),
    window=st.none() | st.just("all") | integers,
)
# 'none' and 'null' in a field of `str | None` are the one text that cannot be told from the absence of text.
notes = st.none() | st.text().filter(lambda text: text.strip().lower() not in ("none", "null"))
models = st.builds(
    Model,
    encoder=encoders,
    decoder=st.none() | encoders,
    name=st.text(),
    tags=st.lists(st.text(), max_size=3).map(tuple),
    share=st.booleans(),
    note=notes,
)


@given(models)
def test_round_trip_through_json(model: Model) -> None:
    data = to_dict(model)
    again = json.loads(json.dumps(data, allow_nan=False))
    assert again == data
    assert from_dict(Model, again) == model
    assert to_dict(from_dict(Model, again)) == data


@given(models, models)
def test_a_difference_replayed_is_the_other_spec(a: Model, b: Model) -> None:
    changes = diff(a, b)
    assert (a == b) == (not changes)
    assert replace(a, {path: right for path, (_, right) in changes.items()}) == b
    assert diff(b, a) == {path: (right, left) for path, (left, right) in changes.items()}


@given(models, models)
def test_text_means_what_the_value_means(a: Model, b: Model) -> None:
    def as_text(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    assert replace(a, {path: as_text(right) for path, (_, right) in diff(a, b).items()}) == b


def get_value(model: Any, path: str) -> Any:
    for part in path.split("."):
        model = model[int(part)] if isinstance(model, tuple) else getattr(model, part)
    return model


@given(models)
def test_every_path_can_be_set_to_what_it_holds(model: Model) -> None:
    assert len(set(list_paths(model))) == len(list_paths(model))
    assert replace(model, {path: get_value(model, path) for path in list_paths(model)}) == model


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(models, json_values, st.data())
def test_hostile_data_is_either_a_spec_or_a_usage_error(model: Model, junk: Any, data: st.DataObject) -> None:
    tree = to_dict(model)
    node: Any = tree
    while True:  # put the junk somewhere in the tree, under a key that exists or not
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(
            st.sampled_from(keys) | st.text(max_size=3) if isinstance(node, dict) else st.sampled_from(keys)
        )
        inside = node.get(key) if isinstance(node, dict) else node[key]
        if not isinstance(inside, dict | list) or not inside or data.draw(st.booleans()):
            node[key] = junk
            break
        node = inside
    try:
        built = from_dict(Model, tree)
    except UsageError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
    else:
        assert from_dict(Model, to_dict(built)) == built


def test_the_plain_form_has_kind_first_and_every_field() -> None:
    assert list(to_dict(LayerNorm()).items()) == [("kind", "layer_norm"), ("eps", 1e-12), ("bias", True)]
    assert to_dict(Encoder())["blocks"] == [{"kind": "attention", "heads": 2, "activation": "gelu"}]


@pytest.mark.parametrize(
    ("name", "expected"), [("LayerNorm", "layer_norm"), ("RMSNorm", "rms_norm"), ("T5Bias", "t5_bias"), ("GLU", "glu")]
)
def test_kind(name: str, expected: str) -> None:
    cls = type(name, (), {})
    assert get_kind(cls) == get_kind(cls()) == expected


def test_specs_are_frozen_and_have_slots() -> None:
    norm = LayerNorm()
    with pytest.raises(AttributeError):
        norm.eps = 1.0  # type: ignore[misc]
    assert not hasattr(norm, "__dict__")
    with pytest.raises(TypeError):
        LayerNorm(1e-5)  # type: ignore[misc]


def test_a_field_called_kind_or_two_specs_of_one_kind_are_bugs() -> None:
    with pytest.raises(TypeError, match="kind"):

        @spec
        class Bad:
            kind: str = ""

    @spec
    class Outer:
        norm: LayerNorm | type("LayerNorm", (LayerNorm,), {})  # type: ignore[valid-type]

    with pytest.raises(TypeError, match="layer_norm"):
        from_dict(Outer, {"norm": {"kind": "layer_norm"}})


@pytest.mark.parametrize(
    ("data", "values"),
    [
        ({"encoder": {"dpth": 3}}, ("'config.encoder.dpth'", "'depth'", "width, ")),
        ({"encoder": {"norm": {"kind": "rms_nrm"}}}, ("config.encoder.norm: ", "'rms_nrm'", "'rms_norm'")),
        ({"encoder": {"norm": {}}}, ("config.encoder.norm: ", "'kind'", "layer_norm, rms_norm")),
        ({"encoder": {"position": {"kind": "rotary"}}}, ("config.encoder.position: ", "'base'", "rotary")),
        ({"kind": "encoder"}, ("config: ", "'encoder'", "model")),
        ({"kind": ["model"]}, ("config: ", "kind", "list")),
        ({"encoder": {"depth": True}}, ("config.encoder.depth: ", "int", "true")),
        ({"encoder": {"depth": 2.0}}, ("config.encoder.depth: ", "int", "2.0")),
        ({"encoder": {"depth": "2"}}, ("config.encoder.depth: ", "int", "'2'")),
        ({"encoder": {"depth": 2**63 + 1}}, ("config.encoder.depth: ", "64")),
        ({"encoder": {"depth": 10**5000}}, ("config.encoder.depth: ", "64")),
        ({"encoder": {"betas": [0.9, float("nan")]}}, ("config.encoder.betas.1: ", "nan")),
        ({"encoder": {"betas": [0.9]}}, ("config.encoder.betas: ", "2", "1")),
        ({"encoder": {"blocks": [{"activation": "gelo"}]}}, ("config.encoder.blocks.0.activation: ", "'gelo'")),
        ({"encoder": {"blocks": {}}}, ("config.encoder.blocks: ", "list", "object")),
        ({"encoder": None}, ("config.encoder: ", "encoder", "null")),
        ({"share": 1}, ("config.share: ", "bool", "1")),
        ({"name": 1}, ("config.name: ", "str", "1")),
        ({3: 1}, ("'config.3'",)),
        ([], ("config: ", "model", "list")),
        ({"encoder": {"width": 9}}, ("config.encoder: ", "2", "9")),
    ],
)
def test_refusals_name_the_place_and_the_remedy(data: Any, values: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        from_dict(Model, data)
    assert [value for value in values if value not in str(caught.value)] == []


def test_the_only_possible_kind_may_be_left_out() -> None:
    assert from_dict(Model, {"encoder": {"blocks": [{"heads": 4}]}}).encoder.blocks == (Attention(heads=4),)


def test_an_int_for_a_float_becomes_one() -> None:
    eps = from_dict(RmsNorm, {"eps": 1}).eps
    assert isinstance(eps, float)


def test_errors_of_the_spec_itself_keep_their_class_and_gain_their_path() -> None:
    with pytest.raises(DataError, match=r"^run\.picky: seven is refused$"):
        from_dict(Holder, {"picky": {"rows": 7}}, location="run")
    with pytest.raises(UsageError, match=r"^run\.picky: .*zero"):
        from_dict(Holder, {"picky": {"rows": 0}}, location="run")
    with pytest.raises(DataError, match=r"^picky: seven is refused$"):
        replace(Holder(), {"picky.rows": 7})


def nest(depth: int) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for _ in range(depth):
        data = {"child": data}
    return data


@pytest.mark.parametrize("depth", [100, 200_000])
def test_deep_data_is_refused_without_recursion(depth: int) -> None:
    data = nest(depth)
    with pytest.raises(UsageError, match="64"):
        from_dict(Tree, data)
    with pytest.raises(UsageError, match=r"^config\.depth: "):
        from_dict(Encoder, {"depth": data})


def test_moderately_deep_data_is_read() -> None:
    assert to_dict(from_dict(Tree, nest(60)))["child"] is not None


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("encoder.depth", "30_000", 30_000),
        ("encoder.depth", " 3e4 ", 30_000),
        ("encoder.depth", "-7", -7),
        ("encoder.norm.eps", "3e-4", 3e-4),
        ("encoder.norm.eps", "1", 1.0),
        ("encoder.norm.eps", ".5", 0.5),
        ("encoder.norm.bias", "FALSE", False),
        ("share", "true", True),
        ("encoder.norm", "rms_norm", RmsNorm()),
        ("encoder.norm", "null", None),
        ("encoder.norm", "None", None),
        ("encoder.norm", '{"kind": "rms_norm", "eps": 1}', RmsNorm(eps=1.0)),
        ("encoder.position", "alibi", Alibi()),
        ("encoder.blocks", '[{"heads": 4}, {}]', (Attention(heads=4), Attention())),
        ("encoder.blocks.0.activation", "relu", "relu"),
        ("encoder.window", "all", "all"),
        ("encoder.window", "12", 12),
        ("encoder.betas.1", "0.5", 0.5),
        ("tags", '["a", "b"]', ("a", "b")),
        ("name", "null", "null"),
        ("name", "{3", "{3"),
        ("note", "none", None),
        ("note", "12", "12"),
        ("encoder.betas", "0.8,0.99", (0.8, 0.99)),
        ("encoder.betas", " 0.8 , 1 ", (0.8, 1.0)),
        ("encoder.blocks", "attention,attention", (Attention(), Attention())),
        ("tags", "en,en-de", ("en", "en-de")),
        ("tags", "en-de", ("en-de",)),
        ("tags", '["a, b"]', ("a, b",)),
    ],
)
def test_text_is_typed_by_its_field(path: str, text: str, expected: Any) -> None:
    value = get_value(replace(Model(), {path: text}), path)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("encoder.depth", "3.5", "'3.5'"),
        ("encoder.depth", "1e400", "'1e400'"),
        ("encoder.depth", "9" * 30, "64"),
        ("encoder.depth", "9" * 10_000, "'999"),
        ("encoder.depth", "true", "'true'"),
        ("encoder.norm.eps", "nan", "'nan'"),
        ("encoder.norm.eps", "1e999", "inf"),
        ("encoder.norm", "rms_nrm", "'rms_norm'"),
        ("encoder.norm", '{"kind": "rms_norm", "kind": "layer_norm"}', "'kind'"),
        ("encoder.position", "rotary", "'base'"),
        ("share", "yes", "'yes'"),
        ("tags", "[" * 100_000, "JSON"),
        ("tags", "once, upon a time", "list"),  # a text with spaces may be one item
        ("tags", "a,,b", "list"),
        ("tags", "", "list"),
        ("encoder.betas", "0.8", "list"),
        ("encoder.betas", "0.8,0.9,1", "list"),
        ("encoder.betas", "0.8,x", "'x'"),
        ("encoder.norm", "layer_norm,rms_norm", "layer_norm,rms_norm"),
        ("encoder.width", "1,2", "'1,2'"),
    ],
)
def test_text_that_does_not_fit_is_refused(path: str, text: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        replace(Model(), {path: text})
    assert str(caught.value).startswith(path) and value in str(caught.value)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("encoder.dpth", ("'encoder.depth'", "'encoder'", "width, depth, ")),
        ("encodr.depth", ("'encoder.depth'", "encoder, decoder, ")),
        ("depth", ("'encoder.depth'",)),
        ("encoder.blocks.1.heads", ("'encoder.blocks.0.heads'",)),
        ("encoder.blocks.-1.heads", ()),
        ("encoder.depth.x", ("'encoder.depth'",)),
        ("encoder.position.base", ("'encoder.position'", "null", "rotary")),
        ("", ()),
        ("encoder.norm.kind", ()),
    ],
)
def test_unknown_paths_name_the_nearest(path: str, values: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        replace(Model(), {path: "1"})
    assert [value for value in (f"'{path}'", *values) if value not in str(caught.value)] == []


def test_changes_that_only_fit_together_are_made_together() -> None:
    changed = replace(Encoder(), {"blocks.0.heads": "3", "width": "9"})
    assert (changed.width, changed.blocks[0].heads) == (9, 3)
    with pytest.raises(UsageError, match=r"\b3\b.*\b8\b"):
        replace(Encoder(), {"blocks.0.heads": "3"})


def test_a_part_is_replaced_before_what_lies_inside() -> None:
    assert replace(Encoder(), {"norm.eps": "1e-3", "norm": "rms_norm"}).norm == RmsNorm(eps=1e-3)
    assert replace(Encoder(), {"position.base": "1e4", "position": "rotary"}).position == Rotary(base=1e4)
    deep = replace(Model(), {"decoder.norm.eps": "1", "decoder": "encoder"})  # of the new part only defaults are there
    assert deep.decoder == Encoder(norm=LayerNorm(eps=1.0))


def test_replace_leaves_what_it_is_given_alone() -> None:
    given: dict[str, Any] = {"kind": "layer_norm"}
    replace(Encoder(), {"norm": given, "norm.eps": 1.0})
    assert given == {"kind": "layer_norm"}


def test_a_spec_can_be_a_value() -> None:
    assert replace(Encoder(), {"norm": RmsNorm(), "blocks": (Attention(), Attention(heads=4))}) == Encoder(
        norm=RmsNorm(), blocks=(Attention(), Attention(heads=4))
    )


def test_paths_are_the_leaves() -> None:
    paths = "width depth norm.eps norm.bias position blocks.0.heads blocks.0.activation betas window"
    assert list_paths(Encoder(position=Alibi())) == paths.split()


def test_diff_shows_whole_parts_where_kinds_or_lengths_differ() -> None:
    a, b = Encoder(), Encoder(norm=None, blocks=(Attention(), Attention(heads=1)), depth=3)
    assert diff(a, b) == {
        "depth": (2, 3),
        "norm": (to_dict(LayerNorm()), None),
        "blocks": ([to_dict(Attention())], [to_dict(Attention()), to_dict(Attention(heads=1))]),
    }
    assert diff(Alibi(), Rotary(base=1.0)) == {"kind": ("alibi", "rotary")}


def test_assignments() -> None:
    assert parse_assignments(["a.b=1", " c = x=y ", "d="]) == {"a.b": "1", "c": " x=y ", "d": ""}


@pytest.mark.parametrize("item", ["a", "=1", "a..b=1", ".a=1", "a.=1", "a b=1", ""])
def test_a_bad_assignment_is_named(item: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_assignments(["ok=1", item])
    assert repr(item) in str(caught.value)


def test_a_path_set_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'a'.*'1'.*'2'"):
        parse_assignments(["a=1", "a=2"])


def test_a_literal_is_checked_when_a_spec_is_built() -> None:
    @spec
    class Choice:
        """A choice."""

        mode: Literal["one", "two"] = "one"
        side: Literal["left"] | None = None
        free: bool | Literal["never"] = "never"

    assert Choice(mode="two", side="left", free=True) == from_dict(
        Choice, {"mode": "two", "side": "left", "free": True}
    )
    for wrong in ({"mode": "tow"}, {"mode": None}, {"mode": 1}, {"side": "right"}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            Choice(**wrong)


def test_a_check_of_a_spec_runs_after_that_of_its_literals() -> None:
    @spec
    class Checked:
        """A spec with a check."""

        mode: Literal["a", "b"] = "a"

        def __post_init__(self) -> None:
            if self.mode == "b":
                raise UsageError("not b today")

    with pytest.raises(UsageError, match="not b today"):
        Checked(mode="b")
    with pytest.raises(UsageError, match="mode"):
        Checked(mode="c")  # type: ignore[arg-type]


def test_kinds_are_free_of_class_names():
    @spec(kind="prefix")
    class PrefixSomething:
        count: int = 1

    @spec(has_kind=False)
    class Section:
        part: PrefixSomething = PrefixSomething()

    assert get_kind(PrefixSomething) == get_kind(PrefixSomething()) == "prefix" and get_kind(Section) == "section"
    assert to_dict(Section()) == {"part": {"kind": "prefix", "count": 1}}
    assert from_dict(Section, to_dict(Section())) == Section()
    assert replace(Section(), {"part.count": "2"}).part.count == 2


@spec
class Ranged:
    rate: Annotated[float, Gt(0), Le(1)] = 0.5
    count: Positive[int] | None = None
    sizes: Annotated[tuple[NonNegative[int], ...], NonEmpty()] = (1,)
    pair: tuple[Fraction, Annotated[float, Ge(-1), Lt(1)]] = (0.0, 0.0)
    names: tuple[Literal["a", "b"], ...] = ()
    later: Positive[int] | None = None


@spec
class Outer:
    inner: Ranged = Ranged()


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"rate": 0.0}, "rate"),
        ({"rate": 1.1}, "rate"),
        ({"count": 0}, "count"),
        ({"sizes": ()}, "sizes"),
        ({"sizes": (1, 2, -3)}, "sizes.2"),
        ({"pair": (1.1, 0.0)}, "pair.0"),
        ({"pair": (1.0, 1.0)}, "pair.1"),
        ({"names": ("a", "c")}, "names.1"),
        ({"later": -1}, "later"),
    ],
)
def test_a_value_outside_its_range_is_refused_with_its_path(values: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError, match=f"^Ranged.{re.escape(field)} must be .*, got "):
        Ranged(**values)
    if field == "names.1":  # data from a tree get the error of the wrong type
        return
    with pytest.raises(UsageError, match=f"^run.inner.{re.escape(field)} must be .*, got "):
        from_dict(Outer, {"inner": values}, location="run")
    with pytest.raises(UsageError, match=f"^inner.{re.escape(field)} must be "):
        replace(Outer(), {f"inner.{name}": value for name, value in values.items()})


@pytest.mark.parametrize("number", [math.nan, math.inf, None])
def test_a_ranged_number_is_finite(number: Any) -> None:
    with pytest.raises(UsageError, match=r"^Ranged\.rate "):
        Ranged(rate=number)


def test_values_in_their_range_are_accepted() -> None:
    value = Ranged(rate=1, count=3, sizes=(0,), pair=(1.0, -1.0), names=("b",), later=2)
    assert from_dict(Ranged, to_dict(value)) == value


def test_an_added_field_leaves_hashes_of_older_files() -> None:
    @spec
    class Inner:
        width: int
        size: Positive[int] = 1

    @spec
    class Tree:
        parts: tuple[Inner, ...]
        mode: Literal["a", "b"] = "a"

    value = Tree(parts=(Inner(width=3),))
    inner = {"kind": "inner", "width": 3}
    assert to_dict(value, for_hash=True) == {"kind": "tree", "parts": [inner]}
    assert to_dict(value) == {"kind": "tree", "parts": [{**inner, "size": 1}], "mode": "a"}
    changed = replace(value, {"mode": "b", "parts.0.size": "2"})
    assert to_dict(changed, for_hash=True) == to_dict(changed)
    for tree in (to_dict(value, for_hash=True), to_dict(value)):
        assert from_dict(Tree, tree) == value
    with pytest.raises(UsageError, match=r"^Inner\.size must be > 0"):
        Inner(width=3, size=0)


def test_a_constraint_of_one_spec() -> None:
    class Even(Constraint):
        def allows(self, value: Any) -> bool:
            return bool(value % 2 == 0)

        def __str__(self) -> str:
            return "even"

    block = Annotated[int, Even()]

    @spec
    class Blocks:
        size: block = 2

    assert Blocks(size=4).size == 4
    with pytest.raises(UsageError, match=r"^Blocks\.size must be even, got 3$"):
        Blocks(size=3)
