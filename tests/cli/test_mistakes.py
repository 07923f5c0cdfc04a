"""What people type wrongly: one line that says what was found and what to do, its exit code, and nothing left."""

import shutil
from pathlib import Path

import pytest

from pretune.cli import VERBS, app, main
from tests.cli import world
from tests.conftest import Capture

TABLE = "--train=my table.csv"
BASE, TUNED = "my runs/base", "my runs/tuned"
LEARN = ["pretrain", "bert-tiny", "--data=data", "--out=o"]


@pytest.fixture(scope="module")
def place(workshop: Path) -> Path:
    """Broken things beside the whole ones."""
    with world.inside(workshop):
        Path("file").write_text("x")
        Path("empty.txt").touch()
        Path("latin.txt").write_bytes(b"caf\xe9\n")
        Path("no folder yet").unlink(missing_ok=True)
        Path("empty folder").mkdir(exist_ok=True)
        Path("same.csv").write_text("text,label\n" + "a lovely sea,x\n" * 20)
        Path("odd label.csv").write_text("text,label\na lovely sea,good\na lovely wind,goood\n")
        Path("pairs.jsonl").write_text('{"question": "how was it?", "context": "a lovely sea"}\n')
        Path("empty.yaml").touch()
        Path("itself.yaml").write_text(world.STUDY.replace("worse: high", "worse: low"))
        Path("parent/model").mkdir(parents=True, exist_ok=True)
        Path("parent/model/config.json").write_text("{}")
        Path("half/checkpoints").mkdir(parents=True, exist_ok=True)
        if not Path("no tokenizer").exists():
            shutil.copytree(BASE, "no tokenizer")
            Path("no tokenizer/tokenizer.json").unlink()
    return workshop


MEANT = [
    # verbs and options
    (["pretain"], 2, ["'pretain'", "'pretrain'"]),
    (["finetune", "--methd=lora"], 2, ["--methd", "'--method'", "`pretune finetune"]),
    (["--quite", "env"], 2, ["--quite", "'--quiet'"]),
    (["pretrain", "--lr=3"], 2, ["--lr", "--set train.lr=VALUE"]),
    (["prepare", "x", "--by=fiel", "--out=o"], 2, ["'fiel'", "'auto', 'file', 'block', 'line', 'field'"]),
    (["index", BASE, "--input=lines.txt", "--out=o", "--method=hnws"], 2, ["'hnws'", "'hnsw'"]),
    (["finetune", BASE, "my table.csv", "--out=o"], 2, ["'my table.csv'", "--train my table.csv"]),
    (["finetune", BASE, "my table.csv", TABLE, "--out=o"], 2, ["my table.csv"]),
    (["finetune", BASE, "--budget=5m", "--out=o"], 2, ["--budget", "--epochs N", "--steps N"]),
    (["predict", TUNED, "--input=lines.txt", "--out=o"], 2, ["--out", "> FILE"]),
    (["predict", TUNED, "lines.txt"], 2, ["'--input'", "CSV, TSV, JSONL, CoNLL"]),
    (["pretrain", "bert-tiny", "--train=data", "--out=o"], 2, ["--train", "--data DATA"]),
    ([*LEARN, "--budget=6"], 2, ["'6'", "6m", "6s"]),
    # names of registries
    (["show", "brt-base"], 2, ["'brt-base'", "'bert-base'"]),
    (["show", "bert-bsae"], 2, ["'bsae'", "'base'"]),
    (["show", "bert-hugo"], 2, ["'hugo'", "tiny, mini"]),
    (["show-batch", "mask"], 2, ["'mask'", "'masked'"]),
    (["show-batch", "masked", "--shape=encodr"], 2, ["'encodr'", "'encoder'"]),
    (["finetune", BASE, TABLE, "--method=lroa", "--out=o"], 2, ["'lroa'", "'lora'"]),
    (["finetune", BASE, TABLE, "--method=", "--out=o"], 2, ["method ''", "lora"]),
    (["finetune", BASE, TABLE, "--baselines=smv", "--out=o"], 2, ["'smv'", "'svm'"]),
    (["finetune", BASE, "--task=mprc", "--out=o"], 2, ["'mprc'", "'mrpc'", "`pretune list tasks`"]),
    (["finetune", BASE, "--task=embedding:snlii", "--out=o"], 2, ["'snlii'", "'snli'"]),
    (["evaluate", BASE, "--task=blmip"], 2, ["'blmip'", "'blimp'"]),
    (["tokenizer", "my texts", "--kind=wordpeice", "--out=o"], 2, ["'wordpeice'", "'wordpiece'"]),
    (["tokenizer", "my texts", "--style=cls", "--out=o"], 2, ["'cls'", "'cls-sep'"]),
    (["prepare", "my texts", "--tokenizer=tok", "--clean=webb", "--out=o"], 2, ["'webb'", "'web'"]),
    (["prepare", "my texts", "--tokenizer=tok", "--sentences=rule", "--out=o"], 2, ["'rule'", "'rules'"]),
    (["embed", BASE, "--input=lines.txt", "--pooling=meen", "--out=o.npy"], 2, ["'meen'", "'mean'"]),
    (["list", "metric"], 2, ["'metric'", "'metrics'"]),
    # settings
    ([*LEARN, "--set=train.lrr=1"], 2, ["lrr", "'lr'"]),
    ([*LEARN, "--set=lr=1"], 2, ["'lr'", "'train.lr'"]),
    ([*LEARN, "--set=train.attention_backend=egar"], 2, ["'egar'", "'eager'"]),
    ([*LEARN, "--set=train.attention_backend=plain"], 2, ["'plain'", "'sdpa'"]),
    (["finetune", BASE, TABLE, "--out=o", "--set=tune.layer_dcay=1"], 2, ["dcay", "'layer_decay'"]),
    (["show", "bert-base", "--set=depht=3"], 2, ["'depht'", "'depth'"]),
    # columns and fields
    (["finetune", BASE, TABLE, "--label=lable", "--out=o"], None, ["'lable'", "'label'"]),
    (["predict", TUNED, "--input=my table.csv", "--text=txet"], None, ["'txet'", "'text'"]),
    (["evaluate", BASE, "--test=my table.csv", "--column=text=txet"], None, ["'txet'", "'text'"]),
    (["embed", BASE, "--input=docs.jsonl", "--field=txt", "--out=o.npy"], 3, ["'txt'", "'text'"]),
    # labels
    (["finetune", BASE, TABLE, "--dev=odd label.csv", "--out=o"], 3, ["odd label.csv:3", "'goood'", "'good'", "bad"]),
    # files and folders
    (["search", "my idnex", "sea"], 4, ["my idnex", "'my index'"]),
    (["tokenizer", "my text", "--out=o"], 3, ["my text:", "'my texts'"]),
    (["fill", "my run/base", "a ___"], 4, ["my run/base:", "'my runs/base'"]),
    (["fill", "qqq", "a ___"], 4, ["qqq:", "Hugging Face", "hf:OWNER/NAME"]),
    (["prepare", "my texts", "--tokenizer=qqq", "--out=o"], 4, ["qqq", "`pretune tokenizer`"]),
    (["report", "my runs/tune"], 2, ["my runs/tune:", "'my runs/tuned'"]),
    (["predict", TUNED, "--input=my tabel.csv"], 3, ["my tabel.csv", "'my table.csv'"]),
    (["finetune", BASE, "--train=my tabel.csv", "--out=o"], 3, ["my tabel.csv", "'my table.csv'"]),
    (["pretrain", "bert-tiny", "--data=dat", "--out=o"], 3, ["dat:", "'data'"]),
    (["prepare", "my texts", "--tokenizer=tokk", "--out=o"], 4, ["tokk", "'tok'"]),
    (["embed", BASE, "--input=line.txt", "--out=o.npy"], 3, ["line.txt", "'lines.txt'"]),
    (["report", "my runs/tunde"], 2, ["my runs/tunde", "'my runs/tuned'"]),
    (["verify", "my runs/bsae"], 4, ["my runs/bsae", "'my runs/base'"]),
    (["evaluate", BASE, "--task=cloze", "--data=doc.jsonl"], 3, ["doc.jsonl", "'docs.jsonl'"]),
]  # fmt: skip
"""A command, its exit code, and the parts of its line that a user needs: the value, the allowed values, the fix."""

WRONG = [
    # what is there, but not what was expected
    (["finetune", BASE, "--train=my texts", "--out=o"], 3, ["my texts:", "folder"]),
    (["predict", "file", "--input=lines.txt"], 4, ["file:", "directory"]),
    (["predict", BASE, "--input=lines.txt"], 4, [BASE, "`pretune finetune`"]),
    (["fill", TUNED, "a ___."], 2, ["`pretune predict 'my runs/tuned' --input FILE`"]),
    (["generate", TUNED, "the sea"], 2, ["`pretune predict 'my runs/tuned' --input FILE`"]),
    (["generate", BASE, "the sea"], 2, ["`pretune fill`"]),
    (["fill", "writer", "the ___ sea."], 2, ["`pretune generate`"]),
    (["evaluate", TUNED, "--task=my table.csv"], 2, ["my table.csv", "--test FILE"]),
    (["predict", TUNED, "--input=a lovely sea"], 3, ["echo 'a lovely sea' | pretune predict RUN --input -"]),
    (["fill", "bert", "a ___."], 4, ["`pretune pretrain bert`"]),
    (["finetune", "bert-mini", TABLE, "--out=o"], 4, ["`pretune pretrain bert-mini`"]),
    (["fill", "bert-base-uncased", "a ___."], 4, ["hf:google-bert/bert-base-uncased"]),
    (["generate", "gpt2", "a"], 4, ["hf:openai-community/gpt2"]),
    (["embed", "all-MiniLM-L6-v2", "--input=lines.txt", "--out=v.npy"], 4,
     ["hf:sentence-transformers/all-MiniLM-L6-v2"]),
    (["finetune", "google/electra-small-discriminator", TABLE, "--out=o"], 4,
     ["hf:google/electra-small-discriminator"]),
    (["finetune", "file", TABLE, "--out=o"], 4, ["file:", "directory"]),
    (["show", "./file"], 2, ["./file"]),
    (["verify", "empty folder"], 4, ["empty folder", "config.json", "`pretune pretrain`"]),
    (["verify", "parent"], 4, ["'parent/model'"]),
    (["verify", "half"], 4, ["half", "--resume"]),
    (["pretrain", "bert-tiny", "--data=my texts", "--out=o"], 3, ["my texts", "prepare"]),
    ([*LEARN, "--objective=causal"], 2, ["decoder", "'encoder'", "`pretune list objectives`"]),
    (["tokenizer", "latin.txt", "--out=o"], 3, ["latin.txt", "`pretune prepare --errors replace`"]),
    (["finetune", BASE, "--train=same.csv", "--out=o"], 3, ["same.csv", "classes"]),
    # what cannot be written is an error before the work
    (["pretrain", "bert-tiny", "--data=data", "--steps=1", "--out=file"], 2, ["'file'", "directory"]),
    (["finetune", BASE, TABLE, "--steps=1", "--out=file"], 2, ["'file'", "directory"]),
    ([*LEARN[:3], "--steps=1", "--out=my texts"], 2, ["my texts:", "a.txt"]),
    (["finetune", BASE, TABLE, "--steps=1", "--out=data"], 2, ["data:"]),
    (["finetune", BASE, "--task=embedding", TABLE, "--out=tok"], 2, ["tok:"]),
    (["embed", BASE, "--input=lines.txt", "--out=absent/o.npy"], 2, ["'absent'"]),
    (["embed", BASE, "--input=lines.txt", "--out=file/o.npy"], 2, ["'file'", "directory"]),
    (["index", BASE, "--input=lines.txt", "--out=file/x"], 2, ["'file'", "directory"]),
    (["tokenizer", "my texts", "--out=tok"], 2, ["'tok'"]),
    # numbers
    (["search", "my index", "sea", "--hits=x"], 2, ["--hits", "'x'", "integer"]),
    (["show", "bert-base", "--targets=x"], 2, ["--targets", "'x'"]),
    (["generate", "writer", "a", "--batch=0"], 2, ["--batch 0", "at least 1"]),
    (["generate", "writer", "a", "--num=0"], 2, ["num", ">= 1", "got 0"]),
    (["generate", "writer", "a", "--beams=2", "--length-penalty=nan"], 2, ["length_penalty", "finite", "got nan"]),
    (["fill", BASE, "a ___", "--top=0"], 2, [">= 1", "got 0"]),
    (["neighbors", BASE, "sea", "--in=the sea.", "--corpus=lines.txt", "--layer=99"], 2, ["layer", "99"]),
    ([*LEARN, "--steps=1", "--set=train.seed=-1"], 2, ["seed", "-1", ">= 0"]),
    (["finetune", BASE, TABLE, "--seeds=100000000", "--out=o"], 2, ["seeds", "1,000"]),
    (["search", "my index", "sea", "--max-new-tokens=-5", "--answer", "--reader=writer"], 2, ["max-new-tokens", "-5"]),
    (["search", "my index", "sea", "--max-new-tokens=5"], 2, ["--max-new-tokens", "--answer"]),
    (["tokenizer", "my texts", "--seed=-1", "--out=o"], 2, ["seed", "-1"]),
    ([*LEARN, "--set=train.patience=-1"], 2, ["train.patience", "-1"]),
    ([*LEARN, "--set=train.clip=-1"], 2, ["train.clip", "-1"]),
    (["finetune", BASE, TABLE, "--out=o", "--set=data.stride=-5"], 2, ["data.stride", "-5"]),
    (["finetune", BASE, TABLE, "--out=o", "--set=data.max_new_tokens=-5"], 2, ["data.max_new_tokens", "-5"]),
    (["finetune", BASE, TABLE, "--out=o", "--set=tune.lm_loss_weight=-1"], 2, ["tune.lm_loss_weight", "-1"]),
    (["finetune", BASE, TABLE, "--out=o", "--set=train.cost_rates.dollars_per_kwh=-1"], 2, ["dollars_per_kwh", "-1"]),
    # what goes wrong after the run has begun leaves nothing of it
    (["finetune", BASE, TABLE, "--train-examples=100000", "--out=o"], 3, ["100000"]),
    (["finetune", BASE, TABLE, "--set=data.max_length=99999", "--out=o"], 2, ["99999", "512"]),
    (["finetune", BASE, TABLE, "--forgetting=absent", "--out=o"], 3, ["absent:"]),
    (["finetune", "no tokenizer", TABLE, "--out=o"], 4, ["no tokenizer:"]),
    # contradictions, and what is left out
    (["finetune", BASE, TABLE, "--text=label", "--label=label", "--out=o"], 2, ["'label'"]),
    (["finetune", BASE, "--task=embedding", "--out=o"], 2, ["embedding"]),
    (["finetune", BASE, "--task=sst2", "--out=o"], 3, ["sst2", "--data", "PRETUNE_DATA"]),
    (["evaluate", BASE, "--test=my table.csv", "--split=tset"], 2, ["'tset'", "train"]),
    (["predict", TUNED, "--input="], 2, ["--input"]),
    (["predict", TUNED, "--input=lines.txt", "--text=body"], 3, ["lines.txt:1", "'body'"]),
    (["predict", TUNED, "--input=docs.jsonl", "--text=txt"], 3, ["docs.jsonl:1", "'txt'", "'text'"]),
    (["predict", TUNED, "--input=my table.csv", "--pair=label"], 2, ["--pair", "'label'", "single texts"]),
    (["finetune", BASE, TABLE, "--data=data", "--out=o"], 2, ["--data", "--task", "--train"]),
    *((["evaluate", BASE, "--text=lines.txt", option], 2, [f"{option.partition('=')[0]} needs a task", "--task"])
      for option in ("--shots=0", "--split=dev", "--limit=2", "--seed=1", "--data=data", "--prompt={text}{answer}",
                     "--calibrate", "--length=token", "--text-to-text", "--order=bad-first", "--pooling=mean",
                     "--show-prompt")),
    *((["evaluate", BASE, "--test=my table.csv", option], 2, [f"{option.partition('=')[0]} needs a text", "--text"])
      for option in ("--window=8", "--stride=4")),
    *((["evaluate", TUNED, "--test=my table.csv", option], 2, [option.partition("=")[0], "--shots 0"])
      for option in ("--prompt={text}{answer}", "--calibrate", "--length=token", "--text-to-text", "--show-prompt")),
    (["generate", "writer", "a", "--temperature=-1"], 2, ["--temperature", "at least 0", "-1"]),
    (["generate", "writer", "a", "--stream", "--json"], 2, ["--stream", "--json"]),
    (["generate", "writer", "a", "b", "--stream"], 2, ["streaming", "one prompt"]),
    (["generate", "writer", "a", "--top-p=2"], 2, ["--top-p must", "2.0"]),
    (["generate", "writer", "a", "--max-new-tokens=0"], 2, ["--max-new-tokens must", "0"]),
    (["evaluate", TUNED, "--test=my table.csv", "--limit=0"], 2, ["--limit", "0"]),
    (["predict", TUNED, "--input=pairs.jsonl"], 3, ["pairs.jsonl:1", "'text'", "question, context"]),
    (["compare", "empty.yaml", "--dry-run"], 2, ["empty.yaml", "nothing"]),
    (["compare", "itself.yaml", "--dry-run"], 2, ["'low'", "itself"]),
    # machines
    (["search", "my index", "sea", "--bm25", "--device=tpu"], 2, ["'tpu'", "cuda:N"]),
    (["predict", TUNED, "--input=lines.txt", "--device=cuda"], 6, ["GPU", "--device cpu"]),
    (["evaluate", BASE, "--text=lines.txt", "--device=cuda"], 6, ["GPU", "--device cpu"]),
    ([*LEARN, "--device=cuda"], 6, ["GPU", "--device cpu"]),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "parts"), [*MEANT, *WRONG], ids=lambda value: str(value)[:60])
def test_one_line_that_helps(
    words: list[str], code: int | None, parts: list[str], place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_DATA", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with world.inside(place):
        before = {*Path().rglob("*")}
        exit_code = main(["--quiet", *words])
        out, err = capsys.readouterr()
        assert err.startswith("pretune: error: ") and err.count("\n") == 1 and out == ""
        assert [part for part in parts if part not in err] == [], err
        assert exit_code in ((2, 3) if code is None else (code,))
        assert {*Path().rglob("*")} == before


DEVICES = {"meta": 2, "mps": 2, "tpu": 2, "": 2, "cpu:3": 2, "cuda:-1": 2, "cuda:99": 6}
"""All are given to one verb; the others get one of each exit code."""


@pytest.mark.parametrize("verb", [*VERBS])
def test_devices_that_are_not_there_are_refused_by_every_verb(
    verb: str, place: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyses = {name: [name, BASE] for name in app.ANALYSES} | {
        "embeddings": ["embeddings", BASE, "--input=lines.txt"],
        "forgetting": ["forgetting", TUNED],
    }
    commands = {
        "serve": [[BASE, "--port=0"]],
        "chat": [["writer"]],
        "quickstart": [["--out=OUT"]],
        "analyze": [*analyses.values()],
    }
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with world.inside(place):
        for words in commands.get(verb) or [world.COMMANDS[verb]]:
            command = app.build_command(*((words[0], app.ANALYSES) if verb == "analyze" else (verb,)))
            if not any("--device" in parameter.opts for parameter in command.params):
                continue
            line = [word.replace("OUT", str(tmp_path / "out")) for word in words]
            for device, code in DEVICES.items() if verb == "fill" else [("tpu", 2), ("cuda:99", 6)]:
                assert main(["--quiet", verb, *line, "--device", device]) == code, (line, device)
                out, err = capsys.readouterr()
                assert err.startswith("pretune: error: ") and err.count("\n") == 1 and out == ""
                assert f"'{device}'" in err and [*tmp_path.iterdir()] == []
