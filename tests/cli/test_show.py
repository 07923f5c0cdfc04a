import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import pretune as pt
from pretune.cli import show
from pretune.core import log
from pretune.core.config import from_dict, replace
from pretune.core.errors import UsageError
from pretune.models import catalog
from pretune.models.devices import DEVICES
from pretune.models.spec import Model
from tests.conftest import Capture, run_command
from tests.selection import keep_quick


def facts(capsys: Capture, *arguments: str) -> Any:
    out, err = run_command(capsys, ["show", *arguments, "--json"])
    assert err == ""
    return json.loads(out)


def page(capsys: Capture, *arguments: str) -> str:
    out, err = run_command(capsys, ["show", *arguments])
    assert all(line.startswith(("next: pretune ", "or: pretune ")) for line in err.splitlines())
    return out


def refused(capsys: Capture, *arguments: str) -> str:
    out, err = run_command(capsys, ["show", *arguments], code=2)
    assert out == ""
    assert err.count("\n") == 1
    return err


class TestJson:
    @pytest.mark.parametrize(
        ("name", "which", "count"),
        [
            ("bert-base", "body_with_pooler", 109_482_240),
            ("roberta-base", "body_with_pooler", 124_645_632),
            ("gpt2-small", "total", 124_439_808),
            ("t5-small", "total", 60_506_624),
            ("bart-base", "total", 139_420_416),
            ("llama2-7b", "total", 6_738_415_616),
        ],
    )
    def test_published_counts(self, capsys: Capture, name: str, which: str, count: int) -> None:
        assert facts(capsys, name)["params"][which] == count

    def test_a_model_that_is_trained_with_another(self, capsys: Capture) -> None:
        """The other is shown and its FLOPs are counted; the parameters are those of the model that is kept."""
        found = facts(capsys, "electra-base", "--length", "512")["flops_per_token"]
        generator = facts(capsys, "electra-base-generator", "--length", "512")["flops_per_token"]["training"]
        assert found["training with its generator"] == pytest.approx(found["training"] + generator)
        shown = page(capsys, "electra-base")
        assert "width 256, hidden 1024, 4 heads of 64" in re.sub(r"\s+", " ", shown)
        assert "generator  " not in page(capsys, "electra-base-generator")

    def test_what_it_holds(self, capsys: Capture) -> None:
        found = facts(capsys, "bert-base")
        assert [*found] == [
            *("name", "family", "params", "flops_per_token", "memory", "devices", "assumptions", "spec")
        ]
        assert (found["name"], found["family"]) == ("bert-base", "bert")
        assert found["flops_per_token"] == {
            "training": pytest.approx(587_858_688),
            "inference": pytest.approx(587_858_688 / 3),
        }
        parts = ["weights", "gradients", "optimizer", "activations", "cache", "total"]
        for usage in found["memory"].values():
            assert [*usage] == parts
            assert usage["total"] == sum(usage[part] for part in parts[:-1])
        assert found["memory"]["training"]["gradients"] == 4 * found["params"]["total"]
        assert found["memory"]["inference"]["weights"] == 2 * found["params"]["total"]
        assert [*found["devices"]] == [*DEVICES]
        assert found["assumptions"] == {
            "tokens": 10**9,
            "length": 512,
            "target_length": None,
            "targets": 0.15,
            "training_batch_tokens": 8192,
            "inference_batch_tokens": 512,
            "precision": "bf16",
            "kg_co2_per_kwh": 0.475,
            "dollars_per_kwh": 0.30,
        }
        assert from_dict(Model, found["spec"]) == catalog.resolve("bert-base")

    def test_a_device(self, capsys: Capture) -> None:
        found = facts(capsys, "bert-base", "--tokens", "2e9")["devices"]["h100"]
        seconds = 2e9 * 587_858_688 / (989e12 * 0.4)
        assert found["fits"]
        assert found["seconds"] == pytest.approx(seconds)
        assert found["kwh"] == pytest.approx(seconds / 3600 * 0.7)
        assert found["co2_kg"] == pytest.approx(found["kwh"] * 0.475)
        assert found["dollars"] == pytest.approx(seconds / 3600 * found["dollars_per_hour"])

    def test_what_does_not_fit_has_no_estimate(self, capsys: Capture) -> None:
        found = facts(capsys, "llama2-7b")["devices"]
        assert [name for name, device in found.items() if device["fits"]] == []
        assert found["h200"]["seconds"] is None
        smaller = facts(capsys, "pythia-2.8b")["devices"]
        assert [name for name, device in smaller.items() if device["fits"]] == ["h200", "h100", "a100"]

    def test_arguments_reach_the_estimate(self, capsys: Capture) -> None:
        found = facts(capsys, "bert-base", "--length", "128", "--targets", "1", "--tokens", "300M")
        assert found["assumptions"]["tokens"] == 300_000_000
        expected = 6 * 12 * 12 * 768**2 + 12 * 12 * 768 * 128 + 6 * (768 * 30522 + 768**2)
        assert found["flops_per_token"]["training"] == pytest.approx(expected)

    def test_several_devices(self, capsys: Capture) -> None:
        arguments = ("llama2-70b", "--devices", "8xh100,64xh100", "--tokens", "1T")
        clusters = facts(capsys, *arguments)["clusters"]
        assert clusters["8xh100"] == {"fits": False}
        assert clusters["64xh100"]["activation_checkpointing"] and clusters["64xh100"]["memory"] < 80e9

    def test_settings(self, capsys: Capture) -> None:
        found = facts(capsys, "bert", "--set", "depth=6", "--set", "model.vocab=8e3", "--set", "encoder.share=2")
        assert found["name"] == "bert-base depth=6 model.vocab=8e3 encoder.share=2"
        assert found["spec"]["encoder"]["depth"] == 6
        assert found["spec"]["encoder"]["share"] == 2
        assert found["spec"]["vocab"] == 8000

    def test_the_usual_length(self, capsys: Capture) -> None:
        names = ("gpt2-small", "llama2-7b", "llama3-1b", "t5-small", "mpt-7b")
        found = [facts(capsys, name)["assumptions"]["length"] for name in names]
        assert found == [1024, 4096, 4096, 512, 2048]  # llama3-1b is made for 131,072

    def test_an_encoder_decoder_states_both_lengths(self, capsys: Capture) -> None:
        given = facts(capsys, "t5-small")["assumptions"]
        assert (given["length"], given["target_length"]) == (512, 512)
        assert (given["training_batch_tokens"], given["inference_batch_tokens"]) == (8192, 1024)

    def test_nothing_is_built(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        def build(*_: object) -> None:
            raise AssertionError("a module was made")

        monkeypatch.setattr(nn.Module, "__init__", build)
        assert facts(capsys, "gpt3-175b")["params"]["total"] == 174_604_259_328


class TestPage:
    def test_what_it_says(self, capsys: Capture) -> None:
        text = page(capsys, "bert-base")
        assert text.startswith("bert-base\nBERT: ")
        for line in (
            "  encoder     12 layers, width 768, hidden 3072, 12 heads of 64",
            "  vocabulary  30,522 tokens",
            "  body with pooler   109,482,240",
            "  total              110,106,428",
            "    token table       23,440,896  21.3%",
            "  training   588M",
            "  inference  196M",
            "  batch        16 x 512    1 x 512",
            "  h200        141 GB   24.8 min  0.289 kWh  0.137 kg  $1.57",
        ):
            assert line in text.splitlines()
        for part in ("512 tokens", "15%", "1B tokens", "5.88e17 FLOPs", "0.475 kg CO2e per kWh"):
            assert part in text

    def test_what_does_not_fit_is_marked(self, capsys: Capture) -> None:
        lines = page(capsys, "gpt3-175b").splitlines()
        devices = [line.split() for line in lines if line.split()[:1] and line.split()[0] in DEVICES]
        assert len(devices) == len(DEVICES) and not any("kWh" in words for words in devices)

    @pytest.mark.parametrize("tokens", keep_quick(["1", "1B", "1e18"]))
    def test_no_line_is_longer_than_80(self, capsys: Capture, tokens: str) -> None:
        for name in catalog.list_names():
            lines = page(capsys, name, "--tokens", tokens).splitlines()
            assert max(map(len, lines)) <= 80, name
            assert all(line == line.rstrip() for line in lines), name

    def test_a_terminal_gets_colours_and_the_same_words(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = page(capsys, "mistral-7b")
        for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        drawn = page(capsys, "mistral-7b")
        assert "\x1b[" in drawn
        bare = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
        assert max(map(len, bare.splitlines())) <= 80
        assert bare.split() == plain.split()

    def test_several_kinds_of_layers_and_shared_ones(self, capsys: Capture) -> None:
        block = '{"attention": {"heads": 2}, "feedforward": {"hidden": 256}, "norms": {}}'
        local = block.replace('"heads": 2', '"heads": 2, "window": 8')
        settings = (f"encoder.blocks=[{block}, {local}, {local}]", "encoder.depth=6", "encoder.share=3")
        text = page(capsys, "bert-tiny", *(word for setting in settings for word in ("--set", setting)))
        flat = " ".join(text.split())
        assert re.search(r"6 layers \(3 .*\), width 128, hidden 256, 2 heads of 64 \(.*\b2\b.* types\)", flat)


class TestDirectory:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.chdir(tmp_path)
        pt.save(catalog.build("bert-tiny", width=16, heads=2, vocab=30), "bert")
        return tmp_path

    def test_a_directory_is_shown(self, capsys: Capture, folder: Path) -> None:
        found = facts(capsys, "./bert")
        assert (found["name"], found["family"], found["spec"]["vocab"]) == ("./bert", "bert", 30)
        assert facts(capsys, str(folder / "bert"))["params"] == found["params"]
        deeper = facts(capsys, "./bert", "--set", "encoder.depth=4")
        assert deeper["params"]["total"] > found["params"]["total"]
        assert page(capsys, "./bert").startswith("./bert\nBERT:")

    @pytest.mark.usefixtures("folder")
    def test_a_name_of_the_catalogue_comes_first(self, capsys: Capture) -> None:
        assert facts(capsys, "bert")["name"] == "bert-base"

    def test_a_damaged_one(self, capsys: Capture, folder: Path) -> None:
        (folder / "bert" / "config.json").write_text("{")
        assert "config.json" in run_command(capsys, ["show", "./bert"], code=4).err

    def test_a_family_nobody_knows_cannot_steer_the_terminal(self, capsys: Capture, folder: Path) -> None:
        spec = replace(pt.load(folder / "bert").spec, {"family": "\x1b[31mred"})
        pt.save(catalog.build(spec), folder / "odd")
        assert "'\\x1b[31mred'" in page(capsys, "./odd")


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "found"),
        [
            (["brt-base"], "'bert-base'"),
            (["bert-bse"], "'base'"),
            (["bert", "--set", "dept=6"], "'depth'"),
            (
                ["bert", "--set", "encoder.blocks.0.atention.heads=2"],
                "'encoder.blocks.0.attention.heads'",
            ),
            (["bert", "--set", "depth"], "path=value"),
            (["bert", "--set", "depth=six"], "'six'"),
            (["bert", "--set", "heads=7"], "heads 7"),
            (["bert", "--tokens", "many"], "--tokens 'many'"),
            (["bert", "--length", "0"], "--length '0'"),
            (["bert", "--length", "513"], "512"),
            (["bert", "--targets", "1.5"], "1.5"),
            (["bert", "--targets", "nan"], "nan"),
            (["bert", "--devices", "many"], "64xh100"),
            (["bert", "--devices", "8xt4"], "known: h200, h100, a100"),
            (["./nowhere"], "./nowhere"),
            ([""], "''"),
            (["bert", "gpt2"], "gpt2"),
        ],
    )
    def test_one_line_with_what_to_do(self, capsys: Capture, arguments: list[str], found: str) -> None:
        assert found in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("1e9", 10**9), ("10B", 10**10), ("10b", 10**10), ("300M", 3 * 10**8), ("2k", 2000), ("1.5T", 15 * 10**11)),
        *(("1_000", 1000), ("7", 7), (" 7 ", 7), (".5k", 500), ("1e3k", 10**6), ("1e18", 10**18)),
    ],
)
def test_counts(text: str, number: int) -> None:
    assert log.parse_count(text, "--tokens") == number


@pytest.mark.parametrize(
    "text", ["", "k", "-1", "0", "0.4", "1e19", "1e99", "1e999", "nan", "inf", "1,000", "1 000", "9" * 99, "0x10", "٣"]
)
def test_no_counts(text: str) -> None:
    with pytest.raises(UsageError, match=r"--tokens .*1 to 1e18"):
        log.parse_count(text, "--tokens")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.5 s"), (59, "59 s"), (90, "1.5 min"), (7200, "2 h"), (86400 * 3, "3 days"), (86400 * 365 * 3, "3 years")],
)
def test_times(seconds: float, text: str) -> None:
    assert show._format_time(seconds) == text


def test_digits() -> None:
    values = (0.00001, 0.01234, 12.345, 12345.6, 1.2e9, 1e20)
    assert [*map(show._format_digits, values)] == ["<0.001", "0.0123", "12.3", "12,346", "1.2e9", "1e20"]
