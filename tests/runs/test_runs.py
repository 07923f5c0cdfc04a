"""Runs from beginning to end: repeated bit for bit, of any length, from other weights; what they write and refuse."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.core.errors import CheckpointError, DataError, PretuneError, UsageError
from pretune.core.log import COST_SPAN, TRAINING_TIME, format_duration
from pretune.reports.page import report
from pretune.runs import pretrain_run
from pretune.runs.data_phases import DataPhases
from pretune.runs.options import PretrainOptions
from pretune.runs.prepare import prepare
from pretune.runs.pretrain import pretrain, run_pretrain
from pretune.runs.pretrain_run import PretrainedRun
from pretune.runs.recipes.facts import DeviceFacts
from pretune.runs.samples import SampleHook
from pretune.text.tokenizer import Tokenizer
from pretune.training import validation as evaluation
from pretune.training.checkpoints.manager import CheckpointHook, CheckpointManager
from pretune.training.loop import Loop
from pretune.training.run_logger import read_metrics
from tests.conftest import Capture, Patch
from tests.data.texts import blocks, stories
from tests.runs.small import FAST, Prepared, make, shrunk
from tests.selection import keep_quick

BERT = {**shrunk("bert-tiny"), **FAST, "data.length_schedule": None}


def run(data: Path | None, out: Path, name: str | None = "bert-tiny", **wishes: Any) -> PretrainedRun:
    length = {"steps": 4} if not {"steps", "tokens", "epochs", "budget", "config", "resume"} & {*wishes} else {}
    changes = {**(BERT if name == "bert-tiny" else {}), **wishes.pop("overrides", {})}
    wishes = {"data": data, **length, **wishes}
    return pretrain(name, out=out, overrides=changes, **{k: v for k, v in wishes.items() if v is not None})


def same(one: Path, other: Path) -> bool:
    return (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def state(where: Path) -> Any:
    """What the newest checkpoint of a run says of it."""
    newest = max((where / "checkpoints").iterdir())
    return json.loads((newest / "state.json").read_text())["facts"]["state"]


def refused(kind: type[PretuneError], data: Path | None, out: Path, *args: Any, **wishes: Any) -> str:
    """The one line; nothing was trained or written."""
    with pytest.raises(kind) as error:
        run(data, out, *args, **wishes)
    assert "\n" not in str(error.value) and not (out / "checkpoints").exists()
    return str(error.value)


@pytest.fixture
def data(prepared: Prepared) -> Path:
    return prepared()


class Clockwork:
    """A clock that the work of a run moves, each part by so many seconds, and none by how busy the machine is."""

    def __init__(self, monkeypatch: Patch) -> None:
        self.spent, self.slower, self.patch = 0.0, 1.0, monkeypatch
        begun = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: begun + self.spent)
        monkeypatch.setattr(time, "process_time", lambda: self.spent)
        facts = DeviceFacts(name="x", device_type="cpu", flops=1e10, bandwidth=1e10, memory=1e9)
        monkeypatch.setattr(DeviceFacts, "measure", lambda *_: facts)
        self.takes(pretrain_run.PretrainRun, "_start_workers", 10.0)
        self.takes(evaluation, "compute_validation_loss", 4.0)
        self.takes(CheckpointManager, "save", 2.0)
        self.takes(Loop, "_compute_gradients", 0.8)
        self.takes(pretrain_run.PretrainRun, "_write", 3.0)

    def takes(self, owner: Any, name: str, seconds: float) -> None:
        real = getattr(owner, name)

        def work(*given: Any, **more: Any) -> Any:
            self.spent += seconds * (self.slower if self.spent > 50 else 1.0)
            return real(*given, **more)

        self.patch.setattr(owner, name, work)


@pytest.fixture
def clockwork(monkeypatch: Patch) -> Clockwork:
    return Clockwork(monkeypatch)


class TestRepeating:
    @pytest.mark.slow
    def test_settings_are_a_run(self, data: Path, tmp_path: Path) -> None:
        """From the file of a run, and from that file with a change and back again."""
        run(data, tmp_path / "a", objective="masked")
        run(None, tmp_path / "b", None, config=tmp_path / "a/run.json")
        assert same(tmp_path / "a", tmp_path / "b")
        run(None, tmp_path / "c", None, config=tmp_path / "b", overrides={"train.seed": "5"})
        assert not same(tmp_path / "a", tmp_path / "c")
        run(None, tmp_path / "d", None, config=tmp_path / "c", overrides={"train.seed": "0", "train.workers": "1"})
        assert same(tmp_path / "a", tmp_path / "d")

    def test_what_was_resumed_is_finished(self, data: Path, tmp_path: Path, capsys: Capture) -> None:
        first = run(data, tmp_path / "a")
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*") if path.is_file()}
        capsys.readouterr()
        again = run(None, tmp_path / "a", None, resume=True)
        assert again.summary == json.loads(json.dumps(first.summary)) and again.loss == first.loss
        assert str(tmp_path / "a") in capsys.readouterr().err
        assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*") if path.is_file()}
        with pytest.raises(CheckpointError, match=r"train\.steps .*4.*9"):
            run(None, tmp_path / "a", None, resume=True, steps=9)

    def test_one_run_a_directory(self, data: Path, tmp_path: Path) -> None:
        run(data, tmp_path / "a")
        with pytest.raises(UsageError, match=r"--resume.*--out"):
            run(data, tmp_path / "a")
        with pytest.raises(CheckpointError, match=r"run\.json"):
            run(None, tmp_path / "b", None, resume=True)

    def test_what_killed_writers_left_is_swept(self, data: Path, tmp_path: Path) -> None:
        (tmp_path / "a/.tmp-0123456789ab").mkdir(parents=True)
        run(data, tmp_path / "a")
        assert not [*(tmp_path / "a").glob(".tmp-*")]


class TestLengths:
    def test_tokens_and_epochs(self, data: Path, tmp_path: Path) -> None:
        found = run(data, tmp_path / "a", objective="masked", tokens=256 * 3).summary
        assert found["steps"] == 4 and 256 * 3 <= found["tokens"] < 256 * 4  # rows are not full
        found = run(data, tmp_path / "b", objective="masked", epochs=0.5).summary
        tokens = json.loads((data / "card.json").read_text())["splits"]["train"]["tokens"]
        assert found["tokens"] == pytest.approx(tokens / 2, abs=256)  # whole steps

    def test_short_sequences_first(self, data: Path, tmp_path: Path) -> None:
        short = {"data.length_schedule": (0.5, 8), "data.max_length": 64}
        run(data, tmp_path / "a", objective="masked", steps=6, overrides=short)
        run(None, tmp_path / "b", None, config=tmp_path / "a/run.json")
        assert same(tmp_path / "a", tmp_path / "b")
        assert state(tmp_path / "a")["phases"] == [0, 3]

    @pytest.mark.slow
    def test_the_switch_of_lengths_is_logged(
        self, data: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
    ) -> None:
        """Once, in the log and in the metrics; a run that was stopped there and went on has it once, too."""
        changes = {"data.length_schedule": (0.5, 8), "data.max_length": 64, "train.checkpoint_every": 1}
        run(data, tmp_path / "a", objective="masked", steps=6, overrides=changes)
        logged = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step 3: ") and "64" in line]
        events = [line for line in read_metrics(tmp_path / "a") if "event" in line]
        assert len(logged) == 1 and events == [{"step": 3, "event": "length", "length": 64}]
        for step in (3, 4):
            out = tmp_path / str(step)
            with monkeypatch.context() as patch:
                patch.setattr(
                    CheckpointHook, "__call__", lambda self, loop, reports, at=step: 1 / (loop.state.step - at)
                )
                with pytest.raises(ZeroDivisionError):
                    run(data, out, objective="masked", steps=6, overrides=changes)
            run(None, out, None, resume=True)
            assert [line for line in read_metrics(out) if "event" in line] == events
            assert same(tmp_path / "a", out)

    @pytest.mark.slow
    def test_against_the_clock(self, data: Path, tmp_path: Path, monkeypatch: Patch, clockwork: Clockwork) -> None:
        """It ends in time, its rate comes down to nothing, and it can be repeated bit for bit, also after a stop."""
        found = run(
            data, tmp_path / "a", budget="60s", overrides={"data.length_schedule": (0.5, 16), "train.log_every": 1}
        )
        assert found.summary["elapsed"] < clockwork.spent <= 60 and found.summary["steps"] > 20
        told = json.loads((tmp_path / "a/run.json").read_text())
        rates = [line["rate"] for line in read_metrics(tmp_path / "a") if "rate" in line]
        assert max(rates) == pytest.approx(told["train"]["lr"], rel=0.2) and rates[-1] < 0.1 * max(rates)
        run(None, tmp_path / "b", None, config=tmp_path / "a/run.json")
        assert same(tmp_path / "a", tmp_path / "b")
        assert rates == [line["rate"] for line in read_metrics(tmp_path / "b") if "rate" in line]
        with monkeypatch.context() as patch:
            patch.setattr(
                SampleHook, "__call__", lambda self, loop, reports: 1 / (loop.state.step - 7)
            )  # a bug, at a step
            with pytest.raises(ZeroDivisionError):
                run(None, tmp_path / "c", None, config=tmp_path / "a", overrides={"train.checkpoint_every": 5})
        run(None, tmp_path / "c", None, resume=True)
        assert same(tmp_path / "a", tmp_path / "c")
        assert state(tmp_path / "b")["planned_ends"] == [*state(tmp_path / "a")["phases"][1:], found.summary["steps"]]

    @pytest.mark.parametrize("slower", keep_quick([1.0, 2.0], 2.0))
    def test_a_budget_has_room_for_the_end(
        self, data: Path, tmp_path: Path, clockwork: Clockwork, slower: float
    ) -> None:
        """Evaluations, saves and the last files take seconds, from the middle on some more."""
        clockwork.slower = slower
        found = run(data, tmp_path / "a", budget="100s", overrides={"train.samples_every": 0})
        assert 80 < clockwork.spent <= 100 and found.summary["steps"] > 20

    def test_a_budget_for_a_few_steps_is_told_to_be_too_small(
        self, data: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        found = run(data, tmp_path / "a", budget="0.01s")
        steps = found.summary["steps"]
        assert steps < 5 and re.search(rf"warning: .*\b{steps}\b.*--budget", capsys.readouterr().err)
        run(data, tmp_path / "b", steps=4)  # which were asked for
        assert not re.search(r"warning: .*\b4 steps\b", capsys.readouterr().err)

    def test_a_clock_asked_for_anew_is_not_repeated(self, data: Path, tmp_path: Path) -> None:
        from pretune.runs.options import PretrainOptions
        from pretune.runs.pretrain import load_clock_history
        from tests.runs.configs import build_pretrain_config

        settings = build_pretrain_config("bert-tiny", data=data, budget="2s", device="cpu")
        (tmp_path / "run.json").write_text(json.dumps(settings.to_dict()))
        for found in (
            load_clock_history(settings, PretrainOptions()),
            load_clock_history(settings, PretrainOptions(config=tmp_path, budget="2s")),
            load_clock_history(settings, PretrainOptions(config=tmp_path / "run.json")),  # it is not finished
            load_clock_history(settings.replace({"train.budget": 3.0}), PretrainOptions(config=tmp_path)),
        ):
            assert not found.planned_ends


class TestStarting:
    def test_from_a_run_with_another_objective(self, data: Path, tmp_path: Path) -> None:
        run(data, tmp_path / "a")  # next_sentence
        run(
            data,
            tmp_path / "b",
            None,
            init_from=tmp_path / "a",
            objective="masked",
            overrides=FAST | {"data.length_schedule": None},
        )
        told = json.loads((tmp_path / "b/run.json").read_text())
        assert told["train"]["init_from"] == str(tmp_path / "a") and told["model"]["pooler"] is None
        frozen = {**FAST, "data.length_schedule": None, "train.lr": 1e-12}
        run(data, tmp_path / "c", "bert", init_from=tmp_path / "a", objective="masked", overrides=frozen)
        old, new = pt.load(tmp_path / "a"), pt.load(tmp_path / "c")
        for name, tensor in new.named_parameters():
            torch.testing.assert_close(tensor, dict(old.named_parameters())[name], rtol=0, atol=1e-9)
        run(None, tmp_path / "d", None, config=tmp_path / "b/run.json")
        assert same(tmp_path / "b", tmp_path / "d")

    def test_from_an_encoder_to_a_pair_and_on(self, data: Path, tmp_path: Path, capsys: Capture) -> None:
        run(data, tmp_path / "a", objective="masked")
        still = {**FAST, "data.length_schedule": None, "train.lr": 1e-12}
        run(data, tmp_path / "b", None, init_from=tmp_path / "a", objective="replaced_token", overrides=still)
        assert re.search(f"{tmp_path / 'a'}: .*generator", capsys.readouterr().err)
        body, pair = pt.load(tmp_path / "a"), pt.load(tmp_path / "b")
        torch.testing.assert_close(pair.tokens.weight, body.tokens.weight, rtol=0, atol=1e-9)
        run(data, tmp_path / "c", None, init_from=tmp_path / "b", objective="replaced_token", overrides=still)
        inner = [pt.load(tmp_path / name / "generator") for name in "bc"]
        torch.testing.assert_close(inner[1].head.bias, inner[0].head.bias, rtol=0, atol=1e-9)

    def test_from_a_directory_of_transformers(self, data: Path, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
        settings = transformers.BertConfig(**size, vocab_size=Tokenizer.load(data / "tokenizer").vocab)
        transformers.BertForMaskedLM(settings).save_pretrained(tmp_path / "hf")
        for file in (data / "tokenizer").iterdir():
            (tmp_path / "hf" / file.name).write_bytes(file.read_bytes())
        found = run(
            data,
            tmp_path / "a",
            None,
            init_from=tmp_path / "hf",
            objective="masked",
            overrides={**FAST, "data.length_schedule": None},
        )
        assert found.load().spec.width == 32

    def test_a_boundary_objective(self, data: Path, tmp_path: Path) -> None:
        """The head that it asks for is there, is trained, and is saved."""
        edges = {"objective.boundary": "boundary"}
        run(data, tmp_path / "a", objective="span_masked", overrides=edges)
        assert "boundary" in read_metrics(tmp_path / "a")[-1]["held_out"]
        assert pt.load(tmp_path / "a").span is not None

    def test_what_does_not_belong_together(self, data: Path, prepared: Prepared, tmp_path: Path) -> None:
        run(data, tmp_path / "a", objective="masked")
        other = make(tmp_path / "other", "wordpiece", "cls-sep", count=30)
        out = tmp_path / "b"
        assert "tokenizer.json" in refused(CheckpointError, other, out, None, init_from=tmp_path / "a")
        large = prepared("unigram", "sentinels")
        sizes = [Tokenizer.load(folder / "tokenizer").vocab for folder in (data, large)]
        assert re.search(
            f"{sizes[0]}.*{sizes[1]}", refused(CheckpointError, large, out, None, init_from=tmp_path / "a")
        )
        assert "'gpt2'" in refused(UsageError, data, out, "gpt2", init_from=tmp_path / "a")
        changed = {**FAST, "model.width": 64, "data.length_schedule": None}
        told = refused(
            CheckpointError, data, out, None, init_from=tmp_path / "a", objective="masked", overrides=changed
        )
        assert re.search(r"\[.*\b32\b.*\].*\[.*\b64\b.*\]", told)
        assert str(tmp_path / "nowhere") in refused(CheckpointError, data, out, None, init_from=tmp_path / "nowhere")


class TestData:
    def test_what_is_not_there(self, tmp_path: Path) -> None:
        assert str(tmp_path / "none") in refused(DataError, tmp_path / "none", tmp_path / "run")

    def test_a_slice(self, data: Path, tmp_path: Path) -> None:
        text = blocks(tmp_path / "a.txt", stories(40))
        prepare([text], tokenizer=data / "tokenizer", out=tmp_path / "slice", shard="1/2", workers=0)
        assert "pretune prepare --merge" in refused(DataError, tmp_path / "slice", tmp_path / "run")

    def test_text_shorter_than_a_sequence(self, data: Path, tmp_path: Path) -> None:
        text = blocks(tmp_path / "a.txt", ["The old house."])
        prepare([text], tokenizer=data / "tokenizer", out=tmp_path / "short", holdout=0, workers=0)
        told = refused(DataError, tmp_path / "short", tmp_path / "run", objective="masked")
        assert re.search(r"\b32\b", told)

    def test_nothing_held_out(self, data: Path, tmp_path: Path, capsys: Capture) -> None:
        text = blocks(tmp_path / "a.txt", stories(20))
        prepare([text], tokenizer=data / "tokenizer", out=tmp_path / "data", holdout=0, workers=0)
        found = run(tmp_path / "data", tmp_path / "run", objective="masked", overrides={"train.samples_every": 2})
        assert found.loss is None and f"warning: {tmp_path / 'data'}: " in capsys.readouterr().err

    def test_too_little_held_out_for_pairs(self, data: Path, tmp_path: Path, capsys: Capture) -> None:
        text, one = blocks(tmp_path / "a.txt", stories(20)), blocks(tmp_path / "b.txt", ["A house. A river. A road."])
        prepare([text], valid=[one], tokenizer=data / "tokenizer", out=tmp_path / "data", workers=0)
        assert run(tmp_path / "data", tmp_path / "run", objective="next_sentence").loss is None
        told = capsys.readouterr().err
        assert told.count("warning: ") >= 2 and "pretune prepare --holdout" in told

    def test_what_is_held_out_fills_no_batch(self, data: Path, tmp_path: Path) -> None:
        text = blocks(tmp_path / "a.txt", stories(12))
        prepare([text], tokenizer=data / "tokenizer", out=tmp_path / "data", holdout=0.05, workers=0)
        changes = {"train.samples_every": 1, "train.batch_tokens": 1024}
        run(tmp_path / "data", tmp_path / "run", objective="masked", overrides=changes)
        lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
        told = [line["step"] for line in lines if "sample" in line]
        assert sorted({*told}) == [1, 2, 3, 4] and len(told) < 4 * 3  # fewer texts than usual

    def test_tokenizers_without_what_an_objective_needs(self, prepared: Prepared, tmp_path: Path) -> None:
        plain = prepared("bpe", "endoftext")
        assert "mask" in refused(UsageError, plain, tmp_path / "a", objective="masked")
        told = refused(UsageError, plain, tmp_path / "a", "t5-small", overrides={**shrunk("t5-small"), **FAST})
        assert "sentinel" in told and "--style" in told

    def test_shapes_that_an_objective_does_not_train(self, data: Path, tmp_path: Path) -> None:
        assert "decoder" in refused(UsageError, data, tmp_path / "a", objective="causal")

    def test_sequences_longer_than_positions(self, data: Path, tmp_path: Path) -> None:
        told = refused(UsageError, data, tmp_path / "a", overrides={"data.max_length": 128})
        assert re.search(r"128.*64.*data\.max_length", told)

    def test_a_schedule_that_does_not_fit(self, data: Path, tmp_path: Path) -> None:
        told = refused(UsageError, data, tmp_path / "a", overrides={"train.schedule.warmup": 9})
        assert re.search(r"\b4\b.*\b9\b", told)

    def test_documents_of_one_sentence_are_no_pairs(self, data: Path, tmp_path: Path) -> None:
        text = blocks(tmp_path / "a.txt", [f"Story {number} of the old house by the sea" for number in range(80)])
        prepare([text], tokenizer=data / "tokenizer", out=tmp_path / "data", holdout=0.1, workers=0)
        told = refused(DataError, tmp_path / "data", tmp_path / "run", objective="sentence_order")
        assert str(tmp_path / "data") in told


class TestWhatIsWritten:
    def test_metrics(self, data: Path, tmp_path: Path) -> None:
        found = run(data, tmp_path / "a", steps=5)
        lines = read_metrics(tmp_path / "a")
        steps = [line for line in lines if "loss" in line]
        assert [line["step"] for line in steps] == [1, 2, 3, 4, 5]
        for line in steps:
            assert line["loss"] == pytest.approx(line["masked"] + line["pair"]) and line["norm"] > 0
            assert line["skipped"] is False and line["seconds"] >= 0
        assert steps[-1]["tokens"] == found.summary["tokens"] > 5 * 256 * 0.8
        held = [line for line in lines if "held_out" in line]
        assert [line["step"] for line in held] == [0, 1, 2, 3, 4, 5]
        assert held[-1]["held_out"] == found.summary["held_out"]
        assert 0 <= held[-1]["held_out"]["masked_accuracy"] <= 1 and 0 <= held[-1]["held_out"]["pair_accuracy"] <= 1

    def test_evaluation_is_exact(self, data: Path, tmp_path: Path) -> None:
        """The held-out loss is that of the objective over the held-out batches, computed here anew."""
        from pretune.objectives.masked import MaskedLM
        from pretune.runs.training_data import TrainingData
        from tests.runs.configs import build_pretrain_config

        found = run(
            data, tmp_path / "a", objective="masked", overrides={"train.eval_tokens": 10**6, "objective.rate": 0.4}
        )
        settings = build_pretrain_config(config=tmp_path / "a")
        source = TrainingData.open(settings.data, settings.objective, "encoder")
        stream = source.build_stream("valid", length=32, tokens=256, ranks=1, seed=9, has_fixed_slots=False)
        model, total, count, right = pt.load(tmp_path / "a").eval(), 0.0, 0, 0
        with torch.no_grad():
            for step in stream.get_steps(0):
                loss = MaskedLM().loss(model, batch := stream.batch(step))
                total, count = total + float(loss.sum), count + int(loss.count)
                logits = model(batch).logits
                right += int((logits.argmax(1) == batch.targets.labels).sum())
        held = found.summary["held_out"]
        assert held["loss"] == pytest.approx(total / count, rel=1e-5) and held["accuracy"] == right / count
        assert held["perplexity"] == pytest.approx(torch.tensor(held["loss"]).exp().item(), rel=1e-5)

    def test_card_and_cost(self, data: Path, tmp_path: Path) -> None:
        found = run(data, tmp_path / "a")
        cost = json.loads((tmp_path / "a/cost.json").read_text())
        assert cost["flops"] > 0 and cost["energy_label"] and cost["run"]["steps"] == 4
        assert cost["run"]["held_out"] == found.summary["held_out"]
        card = (tmp_path / "a/README.md").read_text()
        assert card.startswith("---\nlibrary_name: pretune\ntags: [bert, next_sentence]\nlanguage: [en]\n---\n# a\n")
        for part in ("stories.txt", "next_sentence", "<$0.01", f"{found.summary['parameters']:,}"):
            assert part in card

    @pytest.mark.slow
    def test_one_time_in_terminal_card_and_report(
        self, data: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
    ) -> None:
        """The time of the loop, which energy and price are of; that of the whole command is another number."""
        begun, real = time.monotonic(), DataPhases.open

        def slow(*given: Any) -> DataPhases:
            time.sleep(1.2)
            return real(*given)

        monkeypatch.setattr(DataPhases, "open", slow)
        options = PretrainOptions(model="bert-tiny", data=data, out=tmp_path / "a", steps=4, overrides=BERT)
        found = run_pretrain(options, started_at=begun)
        cost = json.loads((tmp_path / "a/cost.json").read_text())
        assert found.summary["seconds"] == cost["run"]["seconds"] == cost["seconds"]
        assert cost["run"]["elapsed"] > cost["seconds"] + 1.2
        shown = capsys.readouterr().err
        (terminal,) = [line.split()[-1] for line in shown.splitlines() if line.split()[:-1] == TRAINING_TIME.split()]
        card = (tmp_path / "a/README.md").read_text()
        assert terminal == format_duration(cost["seconds"]) and f"| {TRAINING_TIME} | {terminal} |" in card
        page = report([tmp_path / "a"], tmp_path / "report.html").read_text()
        assert terminal in page and TRAINING_TIME in page
        for text in (shown, card, page):
            assert COST_SPAN in text

    @pytest.mark.parametrize(
        ("name", "kind", "style"),
        [("bert-tiny", "wordpiece", "cls-sep"), ("gpt2", "bpe", "endoftext"), ("t5-small", "unigram", "sentinels")],
    )
    def test_samples_on_request_change_nothing(
        self, name: str, kind: str, style: str, prepared: Prepared, tmp_path: Path, capsys: Capture
    ) -> None:
        changes = {**shrunk(name), **FAST, "data.length_schedule": None}
        run(prepared(kind, style), tmp_path / "a", name, overrides={**changes, "train.samples_every": 0})
        assert " → " not in capsys.readouterr().err
        run(prepared(kind, style), tmp_path / "b", name, overrides={**changes, "train.samples_every": 2})
        lines = [line for line in capsys.readouterr().err.splitlines() if " → " in line]
        assert [line.split(":")[0] for line in lines] == ["step 2", "step 4"]
        told = [line["step"] for line in read_metrics(tmp_path / "b") if " → " in line.get("sample", "")]
        assert told == [2, 2, 2, 4, 4, 4]  # three texts, one of them on the screen
        assert same(tmp_path / "a", tmp_path / "b")
