"""Plans of recipes: choices follow from text, device and time, and from what a user has set."""

import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import ResourceError, UsageError
from pretune.models import catalog
from pretune.runs.config import read_objective
from pretune.runs.recipes import RECIPES, facts
from pretune.runs.recipes.facts import DeviceFacts, Facts, TextFacts
from pretune.runs.recipes.plan import FIT_UNIGRAM, MAX_EPOCHS, RecipePlan, SizeEstimate, count_effective_tokens
from pretune.runs.recipes.recipe import choose_tokenizer
from tests.conftest import Patch

GPU = DeviceFacts(name="h200", device_type="cuda", flops=790e12, bandwidth=4e12, memory=140e9)
CPU = DeviceFacts(name="two cores", device_type="cpu", flops=200e9, bandwidth=15e9, memory=24e9)
TEXT = TextFacts(bytes=170_000_000, tokens=40_000_000)
NAMES = RECIPES.list_names()


def plan(
    name: str, seconds: float, device: DeviceFacts = GPU, text: TextFacts = TEXT, **more: Any
) -> tuple[RecipePlan, SizeEstimate]:
    return RECIPES.get(name).plan(Facts(text=text, device=device, seconds=seconds), more.pop("sets", {}), **more)


@pytest.mark.parametrize("name", NAMES)
class TestSize:
    def test_more_time_gives_a_larger_model(self, name: str) -> None:
        much = TextFacts(bytes=17_000_000_000, tokens=4_000_000_000)
        sizes = [plan(name, seconds, text=much)[1] for seconds in (30, 600, 6000)]
        assert sizes[0].parameters < sizes[1].parameters < sizes[2].parameters
        assert sizes[0].flops < sizes[1].flops < sizes[2].flops

    def test_little_text_gives_a_smaller_one(self, name: str) -> None:
        little = TextFacts(bytes=6_000_000, tokens=1_500_000)
        assert plan(name, 600, text=little)[1].parameters <= 2.5 * 1_500_000 < plan(name, 600)[1].parameters

    def test_a_processor_trains_a_smaller_one(self, name: str) -> None:
        assert plan(name, 600, CPU)[1].total_parameters < plan(name, 600)[1].total_parameters / 10

    def test_little_memory_gives_a_smaller_one(self, name: str) -> None:
        small = DeviceFacts(name="small", device_type="cuda", flops=790e12, bandwidth=4e12, memory=0.3e9)
        assert plan(name, 6000, small)[1].total_parameters * 16 < 0.3e9
        with pytest.raises(ResourceError, match="tiny"):
            plan(name, 60, DeviceFacts(name="tiny", device_type="cuda", flops=1e12, bandwidth=1e12, memory=1e6))

    def test_several_devices_read_more(self, name: str) -> None:
        two = DeviceFacts(name="h200", device_type="cuda", flops=790e12, bandwidth=4e12, memory=140e9, count=2)
        assert plan(name, 600, two)[1].flops > 1.5 * plan(name, 600)[1].flops

    def test_the_settings_give_the_model(self, name: str) -> None:
        chosen, size = plan(name, 60)
        settings = {path: value for path, value in chosen.list_settings().items() if path.startswith("model.")}
        spec = catalog.resolve(RECIPES.get(name).family, {"vocab": size.vocab, **settings})
        assert spec.params().total == size.total_parameters


@pytest.mark.parametrize("name", NAMES)
class TestSettings:
    def test_what_a_user_sets_is_kept_and_the_rest_follows(self, name: str) -> None:
        sets = {"model.width": "96", "model.depth": 3, "data.max_length": "64"}
        chosen, size = plan(name, 60, sets=sets)
        assert (size.settings["width"], size.settings["depth"]) == (96, 3)
        assert 96 % size.settings["heads"] == 0 and size.settings["hidden"] < 300
        assert chosen.choices["data.max_length"].value == 64
        assert not sets.keys() & chosen.list_settings().keys()
        assert chosen.choices["train.batch_tokens"].value > 1024

    def test_hidden_widths_fill_tensor_cores_unless_a_user_sets_one(self, name: str) -> None:
        assert all(plan(name, seconds)[1].settings["hidden"] % 32 == 0 for seconds in (10, 60, 600, 6000))
        assert plan(name, 60, sets={"model.hidden": "301"})[1].settings["hidden"] == 301

    def test_values_of_another_type_are_refused(self, name: str) -> None:
        for value in ("wide", 1.5, "1.5"):
            with pytest.raises(UsageError, match=r"model\.width"):
                plan(name, 60, sets={"model.width": value})

    def test_every_choice_has_a_reason(self, name: str) -> None:
        choices = plan(name, 60)[0].choices.values()
        assert len(choices) > 10 and all(choice.reason and choice.path in str(choice) for choice in choices)


def test_another_objective_has_its_own_settings_and_no_fit() -> None:
    encoder = RECIPES.get("encoder")
    assert encoder.with_objective(read_objective("masked")) is encoder
    facts = Facts(text=TEXT, device=CPU, seconds=600)
    for kind, counts in (("replaced_token", False), ("span_masked", True)):
        chosen, _ = encoder.with_objective(read_objective(kind)).plan(facts, {})
        assert not any(path.startswith("objective.") for path in chosen.choices)
        assert ("train.token_vectors" in chosen.choices) == counts
        assert "expected loss (" not in chosen.choices["model.width"].reason


def test_vocabularies_follow_text_and_size() -> None:
    small = TextFacts(bytes=700_000, tokens=160_000)
    assert plan("encoder", 600, text=small)[1].vocab == 1024
    assert plan("encoder", 60)[1].vocab <= plan("encoder", 6000)[1].vocab
    assert plan("encoder", 60, vocab=5000)[1].vocab == 5000  # that of existing data
    assert plan("encoder", 60, sets={"model.vocab": "3000"})[1].vocab == 3000


def test_repeated_text_gets_a_stronger_decay_and_dropout() -> None:
    for name, dropouts in (("encoder-decoder", (0.0, 0.1)), ("encoder", (0.1, 0.1))):
        much, little = plan(name, 15)[0], plan(name, 600, text=TextFacts(bytes=4_000_000, tokens=1_000_000))[0]
        for chosen, dropout, decay in zip((much, little), dropouts, (0.1, 0.3), strict=True):
            assert chosen.choices["model.dropout"].value == dropout
            assert chosen.choices["train.optimizer"].value["weight_decay"] == decay


def test_the_expected_loss_follows_text_and_counted_vectors() -> None:
    easier = replace(TEXT, unigram=0.9 * FIT_UNIGRAM)
    (_, usual), (_, easy) = plan("encoder", 60), plan("encoder", 60, text=easier)
    assert easy.loss == pytest.approx(0.9 * usual.loss) and easy.settings == usual.settings
    sets = {"train.token_vectors": "own"}
    (_, counted), (_, own) = plan("encoder", 60, CPU), plan("encoder", 60, CPU, sets=sets)
    assert counted.loss < own.loss and counted.settings == own.settings and counted.tokens == own.tokens


def test_repetitions_are_worth_less_than_new_text() -> None:
    assert count_effective_tokens(500, 1000) == 500
    assert 3500 < count_effective_tokens(4000, 1000) < 4000
    assert count_effective_tokens(1e9, 1000) == pytest.approx(16_000, rel=0.01)


def test_text_without_spaces_gets_a_tokenizer_that_needs_none() -> None:
    for name in NAMES:
        kind, _ = RECIPES.get(name).tokenizer
        assert choose_tokenizer(kind, TEXT)[0] == kind
        chosen, reason = choose_tokenizer(kind, TextFacts(bytes=9, tokens=3, has_spaces=False))
        assert chosen in ("unigram", "bpe") and reason


def test_so_little_text_that_the_time_is_not_used() -> None:
    little = TextFacts(bytes=60_000, tokens=15_000)
    chosen, size = plan("encoder", 6000, text=little)
    assert size.epochs == MAX_EPOCHS and size.seconds < 6000 / 2 and "epochs" in chosen.choices
    chosen, size = plan("encoder", 60)
    assert size.seconds == pytest.approx(60) and "epochs" not in chosen.choices


def test_the_pace_of_real_steps() -> None:
    slow = plan("encoder", 60, replace(CPU, pace=0.1))[1]
    fast = plan("encoder", 60, CPU)[1]
    assert slow.tokens < fast.tokens and slow.parameters <= fast.parameters


def test_compressed_text_counts_as_what_it_probably_holds(tmp_path: Path, monkeypatch: Patch) -> None:
    """Where a text is not read to its end."""
    monkeypatch.setattr(facts, "SCANNED_BYTES", 1000)
    content = "\n\n".join(f"document {number}" for number in range(2000)).encode()
    for name, data, factor in (("plain.txt", content, 1), ("packed.txt.xz", lzma.compress(content), 4)):
        (tmp_path / name).write_bytes(data)
        assert TextFacts.scan([tmp_path / name]).bytes == factor * len(data)


def test_encoders_on_processors_begin_with_counted_vectors() -> None:
    path = "train.token_vectors"
    assert plan("encoder", 600, CPU)[0].list_settings()[path] == "counted"
    assert path not in plan("encoder", 600, CPU, sets={path: "own"})[0].list_settings()
    assert all(path not in plan(*case)[0].choices for case in (("encoder", 600, GPU), ("decoder", 600, CPU)))
