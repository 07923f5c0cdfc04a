"""The two small models inside the package: they open by name under every verb, are whole, and know some English."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import pretune as pt
from pretune.cli import main
from pretune.core.errors import CheckpointError
from pretune.core.hub import INSTALLED_MODELS
from pretune.models.compact import COMPACT_FILE
from pretune.models.model import LanguageModel
from pretune.runs.finetune.defaults import find_brief_rate

ENCODER, DECODER = "small-encoder", "small-decoder"
BOTH = pytest.mark.parametrize("name", [ENCODER, DECODER])
FILES = {
    "README.md",
    "MANIFEST.json",
    "config.json",
    COMPACT_FILE,
    "tokenizer.json",
    "run.json",
    "cost.json",
    "metrics.jsonl",
}
CAPITAL = "The capital of France is [MASK]."
MAX_MODEL_BYTES, MAX_BYTES = 16_000_000, 30 * 2**20
Capture = pytest.CaptureFixture[str]

absent = [name for name in (ENCODER, DECODER) if INSTALLED_MODELS[name].find() is None]
pytestmark = pytest.mark.skipif(bool(absent), reason=f"this checkout has no weights of {' and '.join(absent)}")


def find(name: str) -> Path:
    """Return the directory of a model."""
    folder = INSTALLED_MODELS[name].find()
    assert folder is not None
    return folder


@pytest.fixture(scope="module")
def models() -> dict[str, LanguageModel]:
    return {name: pt.load(name) for name in (ENCODER, DECODER)}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with texts and a table."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("The king opened the door.\nThe river was frozen.\nShe wrote a letter.\n")
    rows = [f"a {word} film,{label}" for word, label in [("lovely", "good"), ("dull", "bad")] * 10]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]))
    return tmp_path


class TestFiles:
    @BOTH
    def test_everything_is_there_and_small(self, name: str) -> None:
        sizes = {path.name: path.stat().st_size for path in find(name).iterdir()}
        assert {*sizes} >= FILES and sum(sizes.values()) <= MAX_MODEL_BYTES
        assert not {*sizes} & {"model.safetensors", "checkpoints", "data"}

    def test_both_fit_into_the_wheel(self) -> None:
        folders = [find(name) for name in (ENCODER, DECODER)]
        assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) <= MAX_BYTES

    @BOTH
    def test_the_card_names_data_licences_command_and_limits(self, name: str) -> None:
        card = (find(name) / "README.md").read_text(encoding="utf-8")
        words = ("CC BY-SA 3.0", "CC BY 4.0", "CC BY 2.5", "Apache-2.0", "Wikipedia", "ELTeC", "Wikinews", "8 bits")
        assert [word for word in words if word not in card] == []
        assert f"# {name}" in card and "pretune pretrain" in card and re.search(r"^\| +step", card, re.MULTILINE)

    @BOTH
    def test_no_file_names_a_path_of_a_machine(self, name: str) -> None:
        for file in ("README.md", "run.json", "cost.json", "metrics.jsonl", "config.json", "tokenizer_config.json"):
            text = (find(name) / file).read_text(encoding="utf-8")
            assert not re.search(r"(?<![\w./:])/(?:home|root|tmp|work|mnt|Users|workspace)/", text), file

    @BOTH
    def test_hashes_are_verified(self, name: str, tmp_path: Path) -> None:
        lines = pt.verify(name)
        assert "SHA-256" in lines[0] and any("all finite" in line for line in lines)
        listed = json.loads((find(name) / "MANIFEST.json").read_text())["files"]
        assert {*listed} >= FILES - {"README.md", "MANIFEST.json"}
        damaged = tmp_path / name
        shutil.copytree(find(name), damaged)
        data = bytearray((damaged / COMPACT_FILE).read_bytes())
        data[-1] ^= 1
        (damaged / COMPACT_FILE).write_bytes(data)
        with pytest.raises(CheckpointError, match="SHA-256"):
            pt.verify(damaged)

    @BOTH
    def test_the_learning_curve_falls(self, name: str) -> None:
        lines = [json.loads(line) for line in (find(name) / "metrics.jsonl").read_text().splitlines()]
        losses = [line["held_out"]["loss"] for line in lines if "held_out" in line]
        summary = json.loads((find(name) / "cost.json").read_text())["run"]
        assert losses[-1] < min(losses[0], summary["unigram_loss"]) and summary["held_out"]["loss"] in losses
        assert not any("sample" in line for line in lines)


class TestEnglish:
    def test_the_encoder_knows_a_capital(self, models: dict[str, LanguageModel]) -> None:
        assert "paris" in {answer.word.lower() for answer in pt.fill(models[ENCODER], CAPITAL, k=5)[0]}

    def test_the_encoder_sees_both_sides(self, models: dict[str, LanguageModel]) -> None:
        words = [pt.fill(models[ENCODER], text)[0][0].word for text in ("She [MASK] a letter.", "He is a [MASK] man.")]
        assert len({*words}) == 2 and all(word.isalpha() for word in words)

    def test_the_decoder_continues_text(self, models: dict[str, LanguageModel]) -> None:
        prompts = ["The king", "The government said"]
        for prompt, text in zip(prompts, pt.generate(models[DECODER], prompts, max_new_tokens=20), strict=True):
            assert text.startswith(prompt) and len({*text.removeprefix(prompt).split()}) >= 5

    def test_text_is_better_than_shuffled_words(self, place: Path, capsys: Capture) -> None:
        (place / "text.txt").write_text("The old house stood at the end of the street, and no one had lived in it.")
        (place / "shuffled.txt").write_text("it stood no the. and street the in end house of had at one lived the, old")
        (text,), (shuffled,) = (pt.evaluate(DECODER, text=[name]) for name in ("text.txt", "shuffled.txt"))
        assert 2 * text.scores["perplexity"] < shuffled.scores["perplexity"]


class TestVerbs:
    @pytest.mark.parametrize(
        "command",
        [
            f"fill {ENCODER} '{CAPITAL}'",
            f"generate {DECODER} 'The king' --max-new-tokens 3",
            f"embed {ENCODER} --input lines.txt --out v.npy",
            f"evaluate {DECODER} --text lines.txt",
            f"neighbors {ENCODER} river --in 'the river was frozen' --corpus lines.txt -k 2",
            f"analyze attention {ENCODER} --input lines.txt",
            f"show {DECODER}",
            f"verify {ENCODER}",
            f"export {DECODER} --to compact --out copy",
            f"index {ENCODER} --input lines.txt --out library",
            f"show-batch masked --text 'a lovely film' --tokenizer {ENCODER}",
            f"report {ENCODER} --out page.html",
        ],
        ids=lambda command: command.split()[0],
    )
    def test_a_verb_opens_it(self, command: str, place: Path) -> None:
        assert main(shlex.split(command)) == 0

    def test_a_chat_is_refused_in_one_line(self, capsys: Capture) -> None:
        assert main(["--quiet", "chat", DECODER]) == 2
        assert "no chat template" in (error := capsys.readouterr().err) and error.count("\n") == 1

    def test_a_prediction_is_refused_in_one_line(self, place: Path, capsys: Capture) -> None:
        assert main(["predict", ENCODER, "--input", "lines.txt"]) != 0
        assert "not a fine-tuned run" in (error := capsys.readouterr().err) and error.count("\n") == 1

    @BOTH
    def test_fine_tuning_has_the_settings_after_its_pre_training(
        self, name: str, place: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        """They follow from run.json and cost.json; without them the model would be taken for a long-trained one."""
        assert find_brief_rate(name) > 0
        outputs = []
        shutil.copytree(find(name), tmp_path / "run")
        for model in (name, "run"):
            assert main(["finetune", model, "--train", "rows.csv", "--dry-run", "--json"]) == 0
            tree = json.loads(capsys.readouterr().out)
            outputs.append({section: tree[section] for section in ("method", "tune", "train", "plan")})
        assert outputs[0] == outputs[1]

    @BOTH
    def test_the_server_has_its_abilities(self, name: str, place: Path) -> None:
        from pretune.server.served_model import ServedModel

        capability = "fill" if name == ENCODER else "complete"
        assert capability in ServedModel.load(name, name, "cpu").capabilities

    @pytest.mark.slow
    @BOTH
    def test_fine_tune_predict_and_analyze(self, name: str, place: Path) -> None:
        options = ["--method", "lora", "--steps", "2", "--baselines", "none", "--out", "tuned"]
        assert main(["finetune", name, "--train", "rows.csv", *options]) == 0
        assert json.loads(Path("tuned/run.json").read_text())["base"]["path"] == name
        for words in (["predict", "tuned", "--input", "lines.txt"], ["analyze", "diff", "tuned"], ["verify", "tuned"]):
            assert main(words) == 0
        assert main(["analyze", "layers", name, "--task", "length", "--examples", "30"]) == 0
        assert main(["export", name, "--to", "hf", "--out", "hf"]) == 0
        assert np.allclose(pt.embed(name, ["a film"]), pt.embed("hf", ["a film"]), atol=1e-5)

    @pytest.mark.slow
    @pytest.mark.parametrize(("name", "recipe"), [(ENCODER, "encoder"), (DECODER, "decoder")])
    def test_its_training_continues(self, name: str, recipe: str, place: Path) -> None:
        sentences = "The king opened the door. The river was frozen, and she wrote a letter."
        Path("texts.txt").write_text("\n\n".join(f"{number}. {sentences}" for number in range(400)))
        words = ["pretrain", recipe, "--text", "texts.txt", "--from", name, "--budget", "20s", "--out", "further"]
        assert main([*words, "--set", "train.batch_tokens=256"]) == 0
        assert main(["verify", "further"]) == 0
