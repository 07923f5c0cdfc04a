"""`pretune finetune`: a pre-trained model learns a task."""

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._csv import AsCsv, check_format, print_csv
from pretune.cli._embedding import embedding_of, is_embedding, teach
from pretune.cli._hints import free, hint, other, quoted
from pretune.cli._names import DEVICES, among, methods, tasks
from pretune.cli._names import baselines as known_baselines
from pretune.cli._names import settings as paths
from pretune.cli._signals import ending_well
from pretune.core import log
from pretune.core.counted import counted
from pretune.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pretune.runs.finetune.config import Tuning
    from pretune.runs.finetune.finetuned_run import FineTuned
    from pretune.runs.finetune.sweep_plan import Plan


class TaskType(StrEnum):
    """The type of a task: what its labels are."""

    CLASSIFICATION = "classification"
    REGRESSION = "regression"
    TAGGING = "tagging"
    SPAN = "span"
    CHOICE = "choice"
    TEXT = "text"
    EMBEDDING = "embedding"


def finetune(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A run, a Hugging Face directory, or hf:OWNER/NAME.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task", metavar="NAME", autocompletion=tasks, help="A task of `pretune list tasks`, or several: a,b …"
        ),
    ] = None,
    task_type: Annotated[
        TaskType | None,
        typer.Option("--type", metavar="TYPE", help=f"{', '.join(TaskType)}; of --train FILE, found by default."),
    ] = None,
    train: Annotated[
        Path | None, typer.Option("--train", metavar="FILE", help="… or a table of one's own: CSV, TSV, JSONL, CoNLL.")
    ] = None,
    dev: Annotated[Path | None, typer.Option("--dev", metavar="FILE", help="What choices are made on.")] = None,
    test: Annotated[Path | None, typer.Option("--test", metavar="FILE", help="What the result is measured on.")] = None,
    text: Annotated[str | None, typer.Option("--text", metavar="COL", help="The column of the text.")] = None,
    pair: Annotated[str | None, typer.Option("--pair", metavar="COL", help="That of a second text.")] = None,
    label: Annotated[str | None, typer.Option("--label", metavar="COL", help="That of the label or score.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="RUN", help="Where the run goes.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="NAME",
            autocompletion=methods,
            help="full, frozen, first, last, extra, gradual, ulmfit, mix, random, adapter, prefix, prompt, lora, "
            "qlora, ia3, bitfit; together with +: lora+gradual.",
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", metavar="N", help="So many runs: mean and interval.")] = None,
    labels: Annotated[
        str, typer.Option("--labels", metavar="N,...", help="Numbers of training examples, for a curve: 50,200,all.")
    ] = "",
    lr: Annotated[
        str | None, typer.Option("--lr", metavar="RATE,...", help="Learning rates; the best on dev is taken.")
    ] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", metavar="N", help="Passes over the examples …")] = None,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help="… or steps.")] = None,
    baselines: Annotated[
        str | None,
        typer.Option(
            "--baselines",
            metavar="WHICH",
            autocompletion=known_baselines,
            help="default, all, none, or names with commas.",
        ),
    ] = None,
    forgetting: Annotated[
        Path | None,
        typer.Option("--forgetting", metavar="DATA", help="Prepared text: its pre-training loss before and after."),
    ] = None,
    vectors: Annotated[
        Path | None,
        typer.Option("--vectors", metavar="FILE", help="Word vectors of the baseline `vectors` (`pretune vectors`)."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Where tasks lie; else $PRETUNE_DATA.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Train on fewer than 5 examples, or without any of a class.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in --out.")] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Settings: the run.json of a fine-tuned run, or YAML."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            autocompletion=paths("finetune"),
            help="method.rank=16, tune.decay=0.9, data.max_length=256. Repeatable.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="NAME", autocompletion=among(*DEVICES), help="cpu or cuda; found by default."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the settings, the labels, lengths and the cost; touch nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: AsCsv = False,
) -> None:
    """Adapt a model to a task, and score it beside baselines.

    Choices (learning rate, when to stop) are made on dev; the result is that of test where there is one.

    Example: pretune finetune runs/books --task sst2 --method lora --seeds 3 --out runs/sst2
    """
    check_format(as_json, as_csv)
    if as_csv and dry_run:
        raise UsageError("--csv with --dry-run: settings are no table; use --json")
    from pretune.core.config import parse_assignments

    with ending_well():  # importing takes a while
        from pretune.runs.build_config import device_of
        from pretune.runs.finetune.build_config import choose, label_counts, numbers, read_tree
        from pretune.runs.finetune.sweep import finetune as work
        from pretune.runs.finetune.sweep import plan_of
    if out is None and not dry_run:
        raise UsageError("missing option '--out': where the run goes")
    if task is not None and is_embedding(task) and task_type not in (None, TaskType.EMBEDDING):
        raise UsageError(f"--type {task_type} with --task {task}: the task is of the type embedding; keep one")
    if task_type is TaskType.EMBEDDING:
        task = embedding_of(task)
    if task is not None and is_embedding(task):
        assert out is not None or dry_run
        teach(
            model, task, out or Path(), as_json=as_json, train=train, dev=dev, data=data, resume=resume, device=device,
            epochs=epochs, steps=steps, lr=numbers(lr, "--lr")[0] if lr else None,
            unused={"--test": test, "--text": text, "--pair": pair, "--label": label, "--method": method,
                    "--seeds": seeds, "--labels": labels, "--config": config, "--dry-run": dry_run,
                    "--forgetting": forgetting, "--csv": as_csv, "--vectors": vectors, "--force": force},
            changes=parse_assignments(settings or []),
        )  # fmt: skip
        return
    wishes: dict[str, Any] = {
        "task": task, "type": None if task_type is None else str(task_type), "train": train,
        "dev": dev, "test": test, "text": text, "pair": pair, "label": label,
        "data": data, "method": method, "epochs": epochs, "steps": steps, "settings": config,
        "force": force or None, "changes": parse_assignments(settings or []),
    }  # fmt: skip
    rates = numbers(lr, "--lr") if lr else ()
    counts = label_counts(labels) if labels else ()
    plan: dict[str, Any] = {"seeds": seeds, "labels": counts, "baselines": baselines}
    plan |= {"forgetting": forgetting, "vectors": vectors}
    if dry_run:
        here = device_of(device)  # which the run would refuse too
        tuning = choose(model, lr=rates[0] if rates else None, **wishes)
        _show(tuning, plan_of(tuning, rates, **plan, before=read_tree(config).get("plan")), as_json, here)
        return
    assert out is not None
    run = work(model, out=out, resume=resume, lr=rates, device=device, **plan, **wishes)
    if os.environ.get("RANK", "0") != "0":  # the first of several processes tells it
        return
    if as_csv:
        print_csv(("name", "metric", "split", "score", "low", "high", "run_better_by", "p"), _records(run.scores))
        return
    log.print_result(
        json.dumps(run.scores, indent=2, ensure_ascii=False, allow_nan=False) if as_json else "\n".join(_result(run))
    )
    if not as_json:
        _follow(run, test)


def _follow(run: "FineTuned", test: Path | None) -> None:
    """What comes next: texts that the run has not seen, where we know how they are written."""
    kept, page = run.kept, free("report.html")
    new = f"a table with the column '{kept.text or 'text'}'"
    if test is not None:
        hint("predict", run, "--input", test)
        other(f"report {quoted(run)} --out {quoted(page)}")
    elif kept.pair is None and kept.kind_of in ("classification", "regression", "tagging") and not kept.members:
        hint("predict", run, "--input", "-", piped="A text of your own.")
        other(f"predict {quoted(run)} --input NEW.csv  ({new}, or lines of text)")
    else:
        hint("report", run, "--out", page)
        other(f"predict {quoted(run)} --input NEW.csv")


def _records(scores: "Mapping[str, Any]") -> "Iterator[tuple[object, ...]]":
    """The run, then its baselines."""
    metric, result = scores["metric"], scores["result"]
    split = result["split"]
    yield "run", metric, split, result["score"], result["low"], result["high"], None, None
    for one in scores["baselines"]:
        yield one["name"], metric, split, one["score"], None, None, one["against"]["difference"], one["against"]["p"]


def _result(run: "FineTuned") -> "Iterator[str]":
    from pretune.core.format import columns
    from pretune.runs.finetune.model_card import HEADER, rows, told

    yield f"{run}"
    yield from columns([("", *HEADER), *rows(run.scores)])
    yield from told(run.scores)


def _show(tuning: "Tuning", plan: "Plan", as_json: bool, device: str) -> None:
    """The tree, which `--config` reads, and below it what the run reads and takes, as comments of YAML."""
    from pretune.core.config import to_dict
    from pretune.runs.finetune.estimate import forecast

    tree, found = {**tuning.plain(), "plan": to_dict(plan)}, forecast(tuning, plan, device)
    if as_json:
        log.print_json({**tree, "forecast": found})
        return
    import yaml

    log.print_result(
        yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True), end=""
    )
    log.print_result("\n".join(f"# {line}".rstrip() for line in _foreseen(found)))


def _foreseen(found: dict[str, Any]) -> "Iterator[str]":
    from pretune.core.counted import join_names
    from pretune.core.format import amount, clock, columns, dollars, energy, weight
    from pretune.reports.facts import used_examples

    yield from found["notes"]
    kind = found["kind"] if found["type"] in (None, found["kind"]) else f"{found['type']}, {found['kind']}"
    yield f"{found['task']} ({kind}), scored by {', '.join(found['metrics'])} on {found['headline']}"
    yield f"examples: {used_examples(found['examples'], found['pool'])}"
    for name, labels in found["balance"].items():
        shown = join_names([f"{label} {_number(count)}" for label, count in labels.items()])
        if shown:
            yield f"labels{f' of {name}' if len(found['balance']) > 1 else ''}: {shown}"
    counts, most = found["counts"], " or ".join(map(str, found["max_length"]))
    yield (
        f"lengths: mean {found['length']:.1f}, longest {counts['longest']} tokens; {found['cut']:.1%} of the examples "
        f"are cut at {most} ({counts['lost']:,} tokens), {counts['empty']:,} are empty"
    )
    if found["rate"] is not None:
        yield found["rate"]
    share = found["trained"] / found["parameters"]
    yield f"{found['trained']:,} of {found['parameters']:,} parameters are trained ({share:.2%})"
    flops = f"{amount(found['flops'], billion='G')}FLOP"
    trials = counted(found["trials"], "trials")
    yield (
        f"{trials}, {counted(found['steps'], 'steps')}, "
        f"{counted(found['tokens'], 'tokens')}, {flops}; with one device, estimated, without "
        "evaluation and baselines:"
    )
    rows = [
        (name, clock(one["seconds"]), energy(one["kwh"]), weight(one["co2e_kg"]), dollars(one["dollars"]))
        for name, one in found["devices"].items()
    ]
    yield from columns([("device", "time", "energy", "CO2e", "price"), *rows])


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
