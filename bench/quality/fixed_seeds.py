"""Fixed-seed runs of all kinds, compared with those of another version of the package.

    python -m bench.quality.fixed_seeds --out after.json [--compare before.json] [--rows pretrain]

Runs every verb that trains or measures on small data with one thread: tokenizers, prepared data, pre-training of each
shape of model and of most objectives, fine-tuning by each method and type of task, embedding training, evaluation, a
study. Each run leaves digests of its weights and the numbers of its files (losses, scores; no times). `--compare`
prints the runs whose numbers or settings differ, and exits with 1 if there are any. The data are generated.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")

EXCLUDED = {"seconds", "time", "started", "version", "versions", "date", "cost", "device", "memory", "elapsed"}
EXCLUDED |= {"evaluating", "saving", "waiting"}
"""Words of fields that change from run to run, or with the version."""
FOLDER = Path(tempfile.gettempdir()) / "pretune-fixed-seeds"
"""Working directory, the same for both versions, since settings hold paths."""
WORDS = shlex.split(
    "the a film story actor plot scene music is was seems looks not very good great fine bad dull weak of and with"
)
MACROS = {
    "SMALL": "--set model.width=32 --set model.depth=2 --set model.heads=2",
    "SHORT": "--steps 12 --paper --set train.batch_tokens=1024 --set train.workers=0 --set data.max_length=32 "
    "--set train.samples_every=0 --set train.eval_every=6 --set train.checkpoint_every=6",
    "BRIEF": "--steps 6 --baselines none --set train.batch=8",
}
TOKENIZERS = """
wordpiece     wordpiece  cls-sep
bpe           bpe        endoftext
bpe-s         bpe        s-mask
unigram       unigram    sentinels
unigram-last  unigram    cls-last
words         words      plain
"""
PRETRAININGS = """
masked      wordpiece     bert SMALL --objective masked
roberta     wordpiece     roberta SMALL --set train.micro_tokens=512
span        wordpiece     spanbert SMALL
next        wordpiece     bert SMALL --objective next_sentence
order       wordpiece     albert SMALL --objective sentence_order
modernbert  wordpiece     modernbert SMALL
deberta     wordpiece     deberta SMALL --objective masked
electra     wordpiece     electra-small SMALL --objective replaced_token
unilm       wordpiece     bert SMALL --objective multitask_masked
early       wordpiece     bert SMALL --stop-early
distill     wordpiece     distilbert SMALL --teacher pretrain-masked
from        wordpiece     bert --from pretrain-masked
causal      bpe           gpt2 SMALL
llama       bpe           llama SMALL --set train.optimizer=muon
olmo2       bpe           olmo2 SMALL
bloom       bpe           bloom SMALL --set train.optimizer=adafactor
prefix      bpe           gpt2 SMALL --objective prefix
gptbert     bpe-s         gpt2 SMALL --objective masked_next
t5          unigram       t5v1.1 SMALL
ul2         unigram       t5v1.1 SMALL --objective mixture
bart        bpe-s         bart SMALL
mass        bpe-s         mass SMALL
xlnet       unigram-last  xlnet SMALL
ulmfit      words         ulmfit-small --set model.width=32 --set train.optimizer=sgd
"""
METHODS = (
    "full frozen gradual adapter prefix prompt lora qlora ia3 bitfit freeze-first last-only extra-layers ulmfit "
    "scalar-mix from-scratch lora+gradual"
)
BASES = "causal llama t5 bart xlnet electra ulmfit deberta"
COMMANDS = """
repeated         pretrain --config pretrain-masked/run.json
fine-pairs       finetune pretrain-masked --train pairs.jsonl BRIEF
fine-scores      finetune pretrain-masked --train scores.jsonl --type regression BRIEF
fine-sets        finetune pretrain-masked --train sets.jsonl --type multi-label BRIEF
fine-spans       finetune pretrain-masked --train spans.jsonl --type span BRIEF
fine-options     finetune pretrain-masked --train options.jsonl --type choice BRIEF
fine-tags        finetune pretrain-masked --train tags.conll BRIEF
fine-answers     finetune pretrain-t5 --train answers.jsonl --type text BRIEF
fine-sweep       finetune pretrain-masked --train classes.jsonl --epochs 1 --lr 1e-4,1e-3 --seeds 2 \
--train-examples 20,all --set train.patience=2
fine-teacher     finetune pretrain-distill --train classes.jsonl --teacher fine-full BRIEF
fine-forgetting  finetune pretrain-masked --train classes.jsonl --forgetting data-wordpiece BRIEF
fine-tune        finetune pretrain-causal --train classes.jsonl --set tune.lm_loss_weight=0.5 \
--set tune.layer_decay=0.8 --set tune.dropout=0.2 BRIEF
fine-repeated    finetune --config fine-lora/run.json
embedding-pairs  finetune pretrain-masked --type embedding --train embedding.jsonl --dev scored.jsonl --steps 6
embedding-score  finetune pretrain-masked --type embedding --train scored.jsonl --dev scored.jsonl --set batch=8
word2vec.txt     vectors corpus.txt --kind word2vec --width 16 --epochs 1
ppmi.txt         vectors corpus.txt --kind ppmi --width 16
vectors.npy      embed pretrain-masked --input corpus.txt
export           export fine-full --to hf
-                verify fine-full
report.html      report fine-full fine-lora
-                evaluate pretrain-masked --text corpus.txt --json
-                evaluate pretrain-causal --text corpus.txt --json
-                evaluate pretrain-t5 --text corpus.txt --json
-                predict fine-full --input classes.jsonl
-                predict fine-lora --input classes.jsonl
-                predict fine-tags --input tags.conll
-                predict fine-spans --input spans.jsonl
-                predict fine-answers --input answers.jsonl
-                predict fine-scores --input scores.jsonl
-                predict fine-sets --input sets.jsonl
-                predict fine-options --input options.jsonl
-                predict fine-pairs --input pairs.jsonl
-                generate pretrain-causal "the film" --seed 1 --json
-                generate pretrain-t5 "the film" --temperature 0 --json
-                fill pretrain-masked "the [MASK] is good" --json
-                analyze attention pretrain-masked --text corpus.txt --json
-                show bert-tiny --json
study            compare masking-rate --jobs 1 --seeds 1 --set 'corpus=["corpus.txt"]' \
--set pretrain.model.depth=1 --json
"""


def make_text(seed: int, words: int = 12) -> str:
    """Return a random sentence."""
    draw = random.Random(seed)
    return " ".join(draw.choices(WORDS, k=words)) + "."


def write_tables(folder: Path) -> None:
    """Write a corpus, and a table of each type of task."""
    documents = [" ".join(make_text(40 * d + s).capitalize() for s in range(8)) for d in range(400)]
    (folder / "corpus.txt").write_text("\n\n".join(documents) + "\n")
    rows: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("classes", "pairs", "scores", "sets", "answers", "spans", "options")
    }
    tagged = []
    for number in range(90):
        text, other = make_text(number), make_text(1000 + number)
        label = "good" if sum(w in text for w in ("good", "great", "fine")) > 1 else "bad"
        rows["classes"].append({"text": text, "label": label})
        rows["pairs"].append({"text": text, "pair": other, "label": ("same", "other")[number % 2]})
        rows["scores"].append({"text": text, "label": text.count("o") / 5})
        rows["sets"].append({"text": text, "label": [w for w in ("film", "plot") if w in text]})
        rows["answers"].append({"text": text, "target": " ".join(text.split()[:3])})
        start = text.split()[2]
        rows["spans"].append(
            {"question": "which", "context": text, "answers": {"text": [start], "answer_start": [text.index(start)]}}
        )
        rows["options"].append({"text": text, "options": [other, make_text(5000 + number)], "label": number % 2})
        tagged.append("\n".join(f"{word} {'B-FILM' if word == 'film' else 'O'}" for word in text.split()))
    for name, table in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    (folder / "tags.conll").write_text("\n\n".join(tagged) + "\n")
    pairs = [{"anchor": make_text(n), "positive": make_text(n, 9)} for n in range(60)]
    (folder / "embedding.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    scored = [{"text": make_text(n), "pair": make_text(n + 7), "score": (n % 6) / 5} for n in range(40)]
    (folder / "scored.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scored))


def list_commands() -> Iterator[tuple[str, str]]:
    """Yield the output ("-" where a command has none) and the text of each command, in order."""
    for name, kind, style in map(str.split, TOKENIZERS.strip().splitlines()):
        yield f"tok-{name}", f"tokenizer corpus.txt --kind {kind} --style {style} --vocab 420"
        yield f"data-{name}", f"prepare corpus.txt --tokenizer tok-{name} --holdout 5% --workers 0"
    for line in PRETRAININGS.strip().splitlines():
        name, tokenizer, arguments = line.split(maxsplit=2)
        yield f"pretrain-{name}", f"pretrain {arguments} SHORT --data data-{tokenizer}"
    for method in METHODS.split():
        yield f"fine-{method}", f"finetune pretrain-masked --train classes.jsonl --method {method} BRIEF"
    for base in BASES.split():
        yield f"fine-base-{base}", f"finetune pretrain-{base} --train classes.jsonl BRIEF"
    for line in COMMANDS.strip().splitlines():
        name, command = line.split(maxsplit=1)
        yield name, command


def list_runs() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the arguments of each run."""
    for output, command in list_commands():
        text = command
        for name, value in MACROS.items():
            text = text.replace(name, value)
        arguments = shlex.split(text)
        yield (command, arguments) if output == "-" else (output, [*arguments, "--out", output])


def select_numbers(value: Any) -> Any:
    """Return a tree without the fields that hold times, costs, versions and machines."""
    if isinstance(value, dict):
        return {
            k: select_numbers(v) for k, v in sorted(value.items()) if not EXCLUDED & set(k.replace("-", "_").split("_"))
        }
    if isinstance(value, list):
        return [select_numbers(item) for item in value]
    return value


def digest_file(file: Path) -> Any:
    """Return the numbers of a file of a run: a tree for JSON, a digest for others; None for those that change."""
    name = file.name
    if (
        name in ("cost.json", "MANIFEST.json", "README.md", "report.html", "card.md", "log.txt")
        or "checkpoints" in file.parts
    ):
        return None
    if name == "metrics.jsonl":
        keep = ("step", "loss", "lr", "grad_norm", "tokens")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        return [{k: v for k, v in row.items() if k in keep or "eval" in k or "held" in k} for row in rows]
    if file.suffix == ".json" and not name.startswith("tokenizer"):
        return select_numbers(json.loads(file.read_text()))
    if file.suffix in (".safetensors", ".bin", ".txt", ".npy", ".jsonl", ".idx") or name.startswith("tokenizer"):
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return None


def run(arguments: list[str]) -> dict[str, Any]:
    """Run a command in this process, and return its exit code, its output and the numbers of what it wrote."""
    from pretune.cli import main

    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = main(["--quiet", *arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        except Exception:
            code, _ = -1, traceback.print_exc()
    record: dict[str, Any] = {"code": code}
    if code:
        record["error"] = errors.getvalue()[-600:]
    if "--json" in arguments or arguments[0] == "predict":
        lines = [line for line in output.getvalue().splitlines() if line.strip()]
        with contextlib.suppress(ValueError):
            record["output"] = [select_numbers(json.loads(line)) for line in lines]
        if "output" not in record:
            with contextlib.suppress(ValueError):
                record["output"] = select_numbers(json.loads(output.getvalue()))
    if "--out" in arguments:
        out = Path(arguments[arguments.index("--out") + 1])
        files = (
            sorted(path for path in out.rglob("*") if path.is_file())
            if out.is_dir()
            else [out]
            if out.is_file()
            else []
        )
        if arguments[0] != "compare":
            digests = {str(file): digest_file(file) for file in files}
            record["files"] = {name: value for name, value in digests.items() if value is not None}
    return record


def diff(name: str, before: Any, after: Any) -> Iterator[str]:
    """Yield the places at which two trees differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from diff(f"{name} {key}", before.get(key), after.get(key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from diff(f"{name}[{number}]", *pair)
    elif before != after:
        yield f"{name}: {str(before)[:200]} -> {str(after)[:200]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--rows", default="", help="text that the names of the runs to compare contain")
    options = parser.parse_args()
    out = options.out.resolve()
    before = json.loads(options.compare.read_text()) if options.compare else None
    records: dict[str, Any] = {}
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    os.chdir(FOLDER)
    write_tables(FOLDER)
    for name, arguments in list_runs():
        records[name] = run(arguments)
        print(records[name]["code"], name, records[name].get("error", "").strip()[-200:], file=sys.stderr, flush=True)
        out.write_text(json.dumps(records, indent=1))
    if before is None:
        return 0
    rows = [row for name in before for row in diff(name, before[name], records.get(name)) if options.rows in name]
    print("\n".join(rows) or f"{len(before)} runs are equal")
    return 1 if rows else 0


if __name__ == "__main__":
    raise SystemExit(main())
