"""What people type wrongly: one line that says what was found and what to do, its exit code, and nothing left."""

import shutil
from pathlib import Path

import pytest

from pretune.cli import main
from tests.cli import world

Capture = pytest.CaptureFixture[str]
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
        Path("parent/model").mkdir(parents=True, exist_ok=True)
        Path("parent/model/config.json").write_text("{}")
        Path("half/checkpoints").mkdir(parents=True, exist_ok=True)
        if not Path("no tokenizer").exists():
            shutil.copytree(BASE, "no tokenizer")
            Path("no tokenizer/tokenizer.json").unlink()
    return workshop


MEANT = [
    # verbs and options
    (["pretain"], 2, "unknown verb 'pretain'; did you mean 'pretrain'?"),
    (["finetune", "--methd=lora"], 2, "no such option: --methd; did you mean '--method'? (see `pretune finetune"),
    (["--quite", "env"], 2, "no such option: --quite; did you mean '--quiet'?"),
    (["pretrain", "--lr=3"], 2, "no such option: --lr; write --set train.lr=VALUE"),
    (["prepare", "x", "--by=fiel", "--out=o"], 2, "'fiel' is not one of 'auto', 'file', 'block', 'line', 'field'; did"),
    (["index", BASE, "--input=lines.txt", "--out=o", "--method=hnws"], 2, "did you mean 'hnsw'?"),
    (["finetune", BASE, "my table.csv", "--out=o"], 2, "unexpected 'my table.csv'; write --train my table.csv"),
    (["finetune", BASE, "my table.csv", TABLE, "--out=o"], 2, "got unexpected extra argument"),
    (["finetune", BASE, "--budget=5m", "--out=o"], 2, "--budget; its length is --epochs N or --steps N"),
    (["predict", TUNED, "--input=lines.txt", "--out=o"], 2, "write > FILE after the command"),
    (["predict", TUNED, "lines.txt"], 2, "missing option '--input': a table (CSV, TSV, JSONL, CoNLL), or lines"),
    (["pretrain", "bert-tiny", "--train=data", "--out=o"], 2, "the prepared text is --data DATA"),
    ([*LEARN, "--budget=6"], 2, "cannot read the time '6'; write 6m for minutes, 6s for seconds"),
    # names of registries
    (["show", "brt-base"], 2, "unknown model 'brt-base'; did you mean 'bert-base'?"),
    (["show", "bert-bsae"], 2, "bert has no size 'bsae'; did you mean 'base'?"),
    (["show", "bert-hugo"], 2, "bert has no size 'hugo' (sizes: tiny, mini"),
    (["show-batch", "mask"], 2, "unknown objective 'mask'; did you mean 'masked'?"),
    (["show-batch", "masked", "--shape=encodr"], 2, "did you mean 'encoder'?"),
    (["finetune", BASE, TABLE, "--method=lroa", "--out=o"], 2, "did you mean 'lora'?"),
    (["finetune", BASE, TABLE, "--method=", "--out=o"], 2, "unknown method ''"),
    (["finetune", BASE, TABLE, "--baselines=smv", "--out=o"], 2, "did you mean 'svm'?"),
    (["finetune", BASE, "--task=mprc", "--out=o"], 2, "unknown task 'mprc'; did you mean 'mrpc'? (`pretune list"),
    (["finetune", BASE, "--task=embedding:snlii", "--out=o"], 2, "did you mean 'snli'?"),
    (["evaluate", BASE, "--task=blmip"], 2, "did you mean 'blimp'?"),
    (["tokenizer", "my texts", "--kind=wordpeice", "--out=o"], 2, "did you mean 'wordpiece'?"),
    (["tokenizer", "my texts", "--style=cls", "--out=o"], 2, "did you mean 'cls-sep'?"),
    (["prepare", "my texts", "--tokenizer=tok", "--clean=webb", "--out=o"], 2, "did you mean 'web'?"),
    (["prepare", "my texts", "--tokenizer=tok", "--sentences=rule", "--out=o"], 2, "did you mean 'rules'?"),
    (["embed", BASE, "--input=lines.txt", "--pooling=meen", "--out=o.npy"], 2, "did you mean 'mean'?"),
    (["list", "metric"], 2, "did you mean 'metrics'?"),
    # settings
    ([*LEARN, "--set=train.lrr=1"], 2, "did you mean 'lr'?"),
    ([*LEARN, "--set=lr=1"], 2, "unknown setting 'lr'; did you mean 'train.lr'?"),
    ([*LEARN, "--set=train.attention_backend=nave"], 2, "did you mean 'naive'?"),
    (["finetune", BASE, TABLE, "--out=o", "--set=tune.dcay=1"], 2, "did you mean 'decay'?"),
    (["show", "bert-base", "--set=depht=3"], 2, "did you mean 'depth'?"),
    # columns and fields
    (["finetune", BASE, TABLE, "--label=lable", "--out=o"], None, "no column 'lable'; did you mean 'label'?"),
    (["predict", TUNED, "--input=my table.csv", "--text=txet"], None, "no column 'txet'; did you mean 'text'?"),
    (["evaluate", BASE, "--test=my table.csv", "--column=text=txet"], None, "no column 'txet'; did you mean 'text'?"),
    (["embed", BASE, "--input=docs.jsonl", "--field=txt", "--out=o.npy"], 3, "no field 'txt'; did you mean 'text'?"),
    # labels
    (["finetune", BASE, TABLE, "--dev=odd label.csv", "--out=o"], 3, "odd label.csv:3: label 'goood' is not among"),
    (["finetune", BASE, TABLE, "--dev=odd label.csv", "--out=o"], 3, "did you mean 'good'? (bad, good)"),
    # files and folders
    (["search", "my idnex", "sea"], 4, "did you mean 'my index'?"),
    (["tokenizer", "my text", "--out=o"], 3, "my text: no such file or folder; did you mean 'my texts'?"),
    (["fill", "my run/base", "a ___"], 4, "my run/base: no such directory; did you mean 'my runs/base'?"),
    (["fill", "qqq", "a ___"], 4, "qqq: no such directory; give a run, a Hugging Face directory, or hf:OWNER/NAME"),
    (["prepare", "my texts", "--tokenizer=qqq", "--out=o"], 4, "make one with `pretune tokenizer`"),
    (["report", "my runs/tune"], 2, "my runs/tune: no such directory; did you mean 'my runs/tuned'?"),
    (["predict", TUNED, "--input=my tabel.csv"], 3, "no such file; did you mean 'my table.csv'?"),
    (["finetune", BASE, "--train=my tabel.csv", "--out=o"], 3, "no such file; did you mean 'my table.csv'?"),
    (["pretrain", "bert-tiny", "--data=dat", "--out=o"], 3, "dat: no such directory; did you mean 'data'?"),
    (["prepare", "my texts", "--tokenizer=tokk", "--out=o"], 4, "did you mean 'tok'?"),
    (["embed", BASE, "--input=line.txt", "--out=o.npy"], 3, "did you mean 'lines.txt'?"),
    (["report", "my runs/tunde"], 2, "did you mean 'my runs/tuned'?"),
    (["verify", "my runs/bsae"], 4, "did you mean 'my runs/base'?"),
    (["evaluate", BASE, "--task=cloze", "--data=doc.jsonl"], 3, "did you mean 'docs.jsonl'?"),
]  # fmt: skip
"""A command, its exit code, and what its line has."""

WRONG = [
    # what is there, but not what was expected
    (["finetune", BASE, "--train=my texts", "--out=o"], 3, "my texts: it is a folder, not a file"),
    (["predict", "file", "--input=lines.txt"], 4, "file: it is a file, not a directory"),
    (["predict", BASE, "--input=lines.txt"], 4, "not a fine-tuned run; make one with `pretune finetune`"),
    (["fill", TUNED, "a ___."], 2, "a fine-tuned run; ask it with `pretune predict 'my runs/tuned' --input FILE`"),
    (["generate", TUNED, "the sea"], 2, "a fine-tuned run; ask it with `pretune predict 'my runs/tuned' --input FILE`"),
    (["generate", BASE, "the sea"], 2, "fill its blanks with `pretune fill`"),
    (["fill", "writer", "the ___ sea."], 2, "let it go on with `pretune generate`"),
    (["evaluate", TUNED, "--task=my table.csv"], 2, "a table of your own: --test FILE"),
    (["predict", TUNED, "--input=a lovely sea"], 3, "echo 'a lovely sea' | pretune predict RUN --input -"),
    (["fill", "bert", "a ___."], 4, "it names a family: train one with `pretune pretrain bert`"),
    (["finetune", "bert-mini", TABLE, "--out=o"], 4, "it names a family: train one with `pretune pretrain bert-mini`"),
    (["fill", "bert-base-uncased", "a ___."], 4, "hf:google-bert/bert-base-uncased"),
    (["generate", "gpt2", "a"], 4, "hf:openai-community/gpt2"),
    (["embed", "all-MiniLM-L6-v2", "--input=lines.txt", "--out=v.npy"], 4, "hf:sentence-transformers/all-MiniLM-L6-v2"),
    (["finetune", "google/electra-small-discriminator", TABLE, "--out=o"], 4, "hf:google/electra-small-discriminator"),
    (["finetune", "file", TABLE, "--out=o"], 4, "file: not a directory; give the one that holds it, a run or a model"),
    (["show", "./file"], 2, "it is a file"),
    (["verify", "empty folder"], 4, "no config.json in it, so it is no model; give a run of `pretune pretrain`"),
    (["verify", "parent"], 4, "such as 'parent/model'"),
    (["verify", "half"], 4, "a run that has not ended: go on with --resume"),
    (["pretrain", "bert-tiny", "--data=my texts", "--out=o"], 3, "so it is no prepared data"),
    ([*LEARN, "--objective=causal"], 2, "trains models of the shape decoder"),
    (["tokenizer", "latin.txt", "--out=o"], 3, "`pretune prepare --errors replace`"),
    (["finetune", BASE, "--train=same.csv", "--out=o"], 3, "two classes are needed"),
    # what cannot be written is told before the work
    (["pretrain", "bert-tiny", "--data=data", "--steps=1", "--out=file"], 2, "'file': it is a file, not a directory"),
    (["finetune", BASE, TABLE, "--steps=1", "--out=file"], 2, "'file': it is a file, not a directory"),
    ([*LEARN[:3], "--steps=1", "--out=my texts"], 2, "my texts: holds something else already (a.txt); choose another"),
    (["finetune", BASE, TABLE, "--steps=1", "--out=data"], 2, "data: holds something else already ("),
    (["finetune", BASE, "--task=embedding", TABLE, "--out=tok"], 2, "tok: holds something else already"),
    (["embed", BASE, "--input=lines.txt", "--out=absent/o.npy"], 2, "there is no directory 'absent'; make it first"),
    (["embed", BASE, "--input=lines.txt", "--out=file/o.npy"], 2, "'file' is a file, not a directory"),
    (["index", BASE, "--input=lines.txt", "--out=file/x"], 2, "'file' is a file, not a directory"),
    (["tokenizer", "my texts", "--out=tok"], 2, "it exists and is not empty"),
    # numbers
    (["search", "my index", "sea", "--hits=x"], 2, "'x' is not a valid integer"),
    (["show", "bert-base", "--targets=x"], 2, "'x' is not a valid"),
    (["generate", "writer", "a", "--batch=0"], 2, "--batch 0 must be at least 1"),
    (["generate", "writer", "a", "--num=0"], 2, "num 0 must be at least 1"),
    (["generate", "writer", "a", "--beams=2", "--length-penalty=nan"], 2, "length_penalty nan must be a finite number"),
    (["fill", BASE, "a ___", "--top=0"], 2, "at least 1 has to be asked for"),
    (["neighbors", BASE, "sea", "--in=the sea.", "--corpus=lines.txt", "--layer=99"], 2, "layer 99 is not among"),
    ([*LEARN, "--steps=1", "--set=train.seed=-1"], 2, "must be from 0 to"),
    (["finetune", BASE, TABLE, "--seeds=100000000", "--out=o"], 2, "at most 1,000"),
    # what goes wrong after the run has begun leaves nothing of it
    (["finetune", BASE, TABLE, "--labels=100000", "--out=o"], 3, "100000 labels were asked for"),
    (["finetune", BASE, TABLE, "--set=data.max_length=99999", "--out=o"], 2, "positions end at 512"),
    (["finetune", BASE, TABLE, "--forgetting=absent", "--out=o"], 3, "absent: no such directory"),
    (["finetune", "no tokenizer", TABLE, "--out=o"], 4, "has no tokenizer"),
    # contradictions, and what is left out
    (["finetune", BASE, TABLE, "--text=label", "--label=label", "--out=o"], 2, "one column has one role"),
    (["finetune", BASE, "--task=embedding", "--out=o"], 2, "give one of the two"),
    (["finetune", BASE, "--task=sst2", "--out=o"], 3, "with --data, or set PRETUNE_DATA"),
    (["evaluate", BASE, "--test=my table.csv", "--split=tset"], 2, "a table of your own has train"),
    (["predict", TUNED, "--input="], 2, "--input is empty"),
    # machines
    (["predict", TUNED, "--input=lines.txt", "--device=cuda"], 6, "torch finds no GPU here; use --device cpu"),
    (["evaluate", BASE, "--text=lines.txt", "--device=cuda"], 6, "torch finds no GPU here; use --device cpu"),
    ([*LEARN, "--device=cuda"], 6, "torch finds no GPU here; use --device cpu"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "told"), [*MEANT, *WRONG], ids=lambda value: str(value)[:60])
def test_one_line_that_helps(
    words: list[str], code: int | None, told: str, place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_DATA", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with world.inside(place):
        before = {*Path().rglob("*")}
        found = main(["--quiet", *words])
        said = capsys.readouterr()
        assert said.err.startswith("pretune: error: ") and told in said.err
        assert said.err.count("\n") == 1 and said.out == ""
        assert found in ((2, 3) if code is None else (code,))
        assert {*Path().rglob("*")} == before
