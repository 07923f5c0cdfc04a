"""The plan of a study: shared steps, stable keys, matched budgets, and errors before anything is computed."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import pretune as pt
from pretune.cli import main
from pretune.core.errors import UsageError
from pretune.models.catalog import resolve
from pretune.reports.study import render_study_page
from pretune.reports.study_text import render_study_text
from pretune.runs.options import PretrainOptions
from pretune.runs.task_options import EmbeddingOptions, FinetuneOptions
from pretune.studies import inputs, list_study_files
from pretune.studies.estimates import Estimator
from pretune.studies.plan import Plan
from pretune.studies.planner import plan_study
from pretune.studies.read import load_study, read_study
from pretune.studies.results import build_results
from pretune.studies.settings import format_setting, merge_settings
from pretune.studies.spec import Setting
from tests.studies.studies import make_study, make_tree, write_corpus, write_study


def count(plan: Plan) -> dict[str, int]:
    return plan.count_actions()


def test_cells_share_what_they_have_in_common(tmp_path: Path) -> None:
    plan = plan_study(make_study(tmp_path))
    assert count(plan) == {"tokenizer": 1, "data": 1, "pretrain": 4, "finetune": 4}
    assert len(plan.cells) == 4
    for place, (key, step) in enumerate(plan.steps.items()):
        assert key == step.key and all([*plan.steps].index(other) < place for other in step.inputs)
    one_model = plan_study(make_study(tmp_path), overrides=(Setting(path="pretrain.seed", value=0),))
    assert count(one_model) == {"tokenizer": 1, "data": 1, "pretrain": 2, "finetune": 4}


@pytest.mark.slow
def test_keys_depend_on_settings_and_files_alone(tmp_path: Path) -> None:
    first, second = plan_study(make_study(tmp_path)), plan_study(make_study(tmp_path, title="Another", seeds=1))
    assert set(second.steps) < set(first.steps)
    changed = plan_study(make_study(tmp_path), overrides=(Setting(path="pretrain.train.lr", value=0.001),))
    shared = {step.action for key, step in changed.steps.items() if key in first.steps}
    assert shared == {"tokenizer", "data"}
    corpus = tmp_path / "corpus.txt"
    study = make_study(tmp_path)
    corpus.write_text(corpus.read_text() + "more text")
    assert not set(plan_study(study).steps) & set(first.steps)


def test_equal_tokens(tmp_path: Path) -> None:
    plan = plan_study(make_study(tmp_path))
    assert {step.estimate.tokens for step in plan.steps.values() if step.action == "pretrain"} == {1024}


def test_equal_flops_include_generator_and_teacher(tmp_path: Path) -> None:
    rows = {
        "masked": {"pretrain.objective": "masked"},
        "replaced": {"model": "electra-small", "pretrain.objective": "replaced_token"},
        "distilled": {"pretrain.teacher": "row:teacher"},
        "deep": {"pretrain.model.depth": 3},
    }
    bases = {"teacher": {"pretrain.model.width": 32, "pretrain.tokens": 1024}}
    budget = {"flops": "1e12"}
    measures = {"loss": {"kind": "validation"}}
    study = make_study(tmp_path, rows=rows, bases=bases, budget=budget, measures=measures, claims=[], seeds=1)
    plan = plan_study(study)
    flops, tokens = {}, {}
    for cell in plan.cells:
        estimate = plan.steps[cell.readings["loss"].step].estimate
        flops[cell.row], tokens[cell.row] = estimate.flops, estimate.tokens
    assert all(value == pytest.approx(1e12, rel=1e-4) for value in flops.values())
    assert tokens["masked"] > tokens["distilled"] > tokens["deep"]
    assert len(plan.steps) == 7  # tokenizer and data of both families, four rows and the teacher share theirs


@pytest.mark.slow
def test_a_share_of_the_budget(tmp_path: Path) -> None:
    measures = {
        "half": {"kind": "validation", "share": 0.5, "curve": "loss", "x": 512},
        "all": {"kind": "validation", "curve": "loss", "x": 1024},
    }
    plan = plan_study(make_study(tmp_path, measures=measures, claims=[]))
    tokens = [step.estimate.tokens for step in plan.steps.values() if step.action == "pretrain"]
    assert sorted(tokens) == [512] * 4 + [1024] * 4


@pytest.mark.slow
def test_unequal_parameters_are_an_error(tmp_path: Path) -> None:
    rows = {"low": {}, "high": {"pretrain.model.width": 64}}
    study = make_study(tmp_path, rows=rows, budget={"tokens": 1024, "parameters": 14000, "tolerance": 0.2})
    with pytest.raises(UsageError, match=r"row 'high'.* parameters, the budget has 14,000 with a tolerance of 20%"):
        plan_study(study)


@pytest.mark.slow
def test_every_cell_tries_as_many_rates(tmp_path: Path) -> None:
    study = make_study(tmp_path, rates={"pretrain": [0.5, 1.0], "finetune": [0.5, 1.0, 2.0]})
    plan = plan_study(study)
    assert plan.is_tuned and not plan_study(make_study(tmp_path)).is_tuned
    # per row: two tries and another seed of pre-training, three tries and another seed of fine-tuning
    assert count(plan) == {"tokenizer": 1, "data": 1, "pretrain": 2 * 3, "choose": 2 * 2, "finetune": 2 * 4}


def test_baselines_that_a_task_lacks_are_no_cells(tmp_path: Path) -> None:
    """There are no averaged vectors of tags; tables and other tasks have them."""
    rows = {"low": {"pretrain.objective.rate": 0.15}, "high": {"baseline": "vectors"}, "most": {"baseline": "majority"}}
    measures = {
        "tags": {"kind": "finetuned", "task": "conll2003"},
        "pairs": {"kind": "finetuned", "task": "mnli"},
        "table": {"kind": "finetuned"},
    }
    plan = plan_study(make_study(tmp_path, rows=rows, measures=measures, claims=[], seeds=1))
    readings = {cell.row: {*cell.readings} for cell in plan.cells}
    assert readings == {"low": {*measures}, "high": {"pairs", "table"}, "most": {*measures}}


@pytest.mark.parametrize("measure", [{"kind": "finetuned"}, {"kind": "finetuned", "task": "conll2003"}])
def test_unknown_baselines_are_refused(tmp_path: Path, measure: dict[str, str]) -> None:
    rows = {"low": {"pretrain.objective.rate": 0.15}, "high": {"baseline": "vector"}}
    with pytest.raises(UsageError, match="unknown baseline 'vector'; did you mean 'vectors'"):
        plan_study(make_study(tmp_path, rows=rows, measures={"score": measure}, claims=[]))


@pytest.mark.slow
def test_scales_choose_rows_levels_and_measures(tmp_path: Path) -> None:
    tree = make_tree(
        tmp_path,
        rows={},
        grid={
            "size": {"tiny": {"pretrain.model.depth": 1}, "mini": {"pretrain.model.depth": 2}},
            "pretrain.objective.rate": [0.15, 0.4],
        },
        claims=[],
        scales={
            "class": {"levels": {"size": ["tiny"]}, "measures": ["loss"], "seeds": 1},
            "gpu": {"settings": {"pretrain.data.max_length": 16}, "budget": {"tokens": "2k"}, "first_seed": 7},
        },
    )
    del tree["rows"]
    study = read_study(tree, "sizes")
    assert [row.name for row in study.list_rows()] == [
        "tiny, rate 0.15", "tiny, rate 0.4", "mini, rate 0.15", "mini, rate 0.4",
    ]  # fmt: skip
    small, large = plan_study(study, "class"), plan_study(study, "gpu")
    assert [row.name for row in small.rows] == ["tiny, rate 0.15", "tiny, rate 0.4"]
    assert count(small) == {"tokenizer": 1, "data": 1, "pretrain": 2}
    assert count(large) == {"tokenizer": 1, "data": 1, "pretrain": 8, "finetune": 8}
    assert small.seeds == (0,) and large.seeds == (7, 8)
    with pytest.raises(UsageError, match="not offered at the scale 'full'"):
        plan_study(study, "full")


def test_a_new_kind_drops_the_fields_of_another() -> None:
    common = (Setting(path="pretrain.objective", value="masked"), Setting(path="pretrain.objective.rate", value="0.4"))
    assert merge_settings(common, (Setting(path="pretrain.objective", value="causal"),)) == {
        "pretrain.objective": "causal"
    }
    assert merge_settings(common, (Setting(path="pretrain.objective", value="masked"),)) == {
        "pretrain.objective": "masked",
        "pretrain.objective.rate": "0.4",
    }


@pytest.mark.parametrize(
    ("value", "text"), [("3e-4", "0.0003"), (1e15, "1000000000000000"), (2.50, "2.5"), (None, "null")]
)
def test_equal_numbers_have_equal_texts(value: object, text: str) -> None:
    assert format_setting(value) == text


BAD = {
    "an unknown key": ({"qestion": "?"}, "did you mean 'question'"),
    "an unknown section": ({"settings": {"pretrian.objective": "masked"}}, "did you mean 'pretrain.objective'"),
    "an unknown option": ({"settings": {"finetune.metod": "full"}}, "did you mean 'finetune.method'"),
    "a word of other libraries": ({"settings": {"embeddings.batch_size": 3}}, "did you mean 'embeddings.batch'"),
    "an unknown measure": ({"measures": {"loss": {"kind": "validaton"}}}, "did you mean 'validation'"),
    "a claim about no row": (
        {"claims": [{"text": "x", "measure": "loss", "better": "lo", "worse": "high"}]},
        "did you mean 'low'",
    ),
    "a claim about no measure": (
        {"claims": [{"text": "x", "measure": "los", "better": "low", "worse": "high"}]},
        "did you mean 'loss'",
    ),
    "two claims with the same words": (
        {"claims": [{"text": "x", "measure": "loss", "better": row, "worse": "high"} for row in ("low", "high")]},
        "two claims named 'x (loss)'",
    ),
    "two budgets": ({"budget": {"tokens": 10, "flops": 1e9}}, "one of tokens, flops and seconds"),
    "no rows": ({"rows": {}}, "expected names with settings"),
    "a scale that does not exist": ({"scales": {"huge": {}}}, "huge"),
    "a table of another width": (
        {"paper": {"citation": "x", "table": {"caption": "", "columns": ["a"], "rows": {"low": [1, 2]}}}},
        "row 'low' has 2 values for 1 columns",
    ),
    "code": ({"measures": {"loss": {"kind": "os.system"}}}, "unknown kind 'os.system'"),
    "no seeds": ({"seeds": 0}, "seeds must be >= 1 and <= 100"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_studies(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    changes, message = BAD[name]
    path = write_study(tmp_path, **changes)
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        load_study(path)
    assert "\n" not in str(caught.value) and path in str(caught.value)


def test_a_key_that_is_set_twice(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text(f"{yaml.safe_dump(make_tree(tmp_path))}title: Another\n")
    with pytest.raises(UsageError, match=r"twice.yaml:\d+: 'title' is set twice; keep one"):
        load_study(str(path))


BAD_PATHS: dict[str, tuple[dict[str, Any], str]] = {
    "row that starts from itself": ({"base": "row:low"}, "in a circle"),
    "of a config": ({"pretrain.train.lrr": 1}, "row 'low'.*did you mean 'lr'|lrr"),
    "of a model": ({"model": "brt-tiny"}, "did you mean"),
    "of a method": ({"finetune.method": "lroa"}, "did you mean 'lora'"),
    "of a row": ({"pretrain.teacher": "row:hihg"}, "did you mean 'high'"),
    "of an objective": ({"pretrain.objective": "maskd"}, "did you mean 'masked'"),
}


BAD_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "a unit of documents": ({"prepare.by": "linne"}, "did you mean 'line'"),
    "a share": ({"prepare.holdout": "most"}, "holdout must be a share"),
    "a number": ({"prepare.near": "all"}, "prepare.near"),
    "a filter": ({"prepare.clean": ["webb"]}, "webb"),
    "two models": ({"vectors.kind": "word2vec"}, "both 'model' and 'vectors' are set"),
    "embeddings": ({"embeddings": {"train": "$CORPUS", "lr": "fast"}}, "embeddings.lr"),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_bad_values_are_refused_before_anything_is_computed(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, message = BAD_VALUES[name]
    tree = make_tree(tmp_path, rows={"low": {}, "high": settings}, seeds=1)
    tree["measures"]["similarity"] = {"kind": "task", "task": "stsb", "model": "embeddings"}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(tree).replace("$CORPUS", str(tmp_path / "corpus.txt")))
    assert main(["compare", str(path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and "row 'high'" in error and "\n" not in error
    assert not (tmp_path / "out").exists()


def test_released_weights_cost_their_fine_tuning(tmp_path: Path) -> None:
    rows = {"small": {"base": "hf:google-bert/bert-base-uncased"}, "large": {"base": "hf:bert-large-cased"}}
    tree = make_tree(tmp_path, rows=rows, seeds=1, claims=[])
    plan = plan_study(read_study(tree, "released"))
    costs = {cell.row: plan.steps[cell.readings["table"].step].estimate for cell in plan.cells}
    assert costs["large"].parameters > 3 * costs["small"].parameters > 3e8
    assert costs["large"].flops > 3 * costs["small"].flops > 0


def test_a_probe_costs_the_features_of_its_examples(tmp_path: Path) -> None:
    """And narrow models are slower than their FLOPs: their time is that of products of their width, on one core."""
    probe = {
        "finetune": {"method": "frozen", "tune.head": "probe", "tune.pooling": {"kind": "pooling", "mode": "mean"}}
    }
    rows = {"few": {**probe, "finetune.train_examples": 10}, "many": {**probe, "finetune.train_examples": 90}}
    plan = plan_study(read_study(make_tree(tmp_path, rows=rows, seeds=1, claims=[]), "probes"))
    few, many = (plan.steps[cell.readings["table"].step].estimate.seconds for cell in plan.cells)
    assert many > few
    estimator = Estimator("cpu")
    narrow, wide = (resolve("bert", {"width": width, "depth": 2, "heads": 2}) for width in (32, 256))
    assert estimator.find_rate(wide) > estimator.find_rate(narrow) > 1e6
    assert Estimator("cuda").find_rate(wide) == Estimator("cuda").device.rate


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD_PATHS)
def test_bad_paths(tmp_path: Path, name: str) -> None:
    settings, message = BAD_PATHS[name]
    rows = {"low": settings, "high": {}}
    with pytest.raises(UsageError, match=message):
        plan_study(make_study(tmp_path, rows=rows))


def test_missing_data_is_named_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRETUNE_DATA", str(tmp_path / "data"))
    tree = make_tree(tmp_path)
    tree["settings"]["corpus"] = ["$PRETUNE_DATA/corpora/books.txt"]
    path = write_study(tmp_path, tree)
    assert main(["compare", path, "--out", str(tmp_path / "out")]) == 3
    error = capsys.readouterr().err
    assert "corpora/books.txt" in error and f"put it at {tmp_path}/data/corpora/books.txt" in error
    assert not (tmp_path / "out").exists()
    assert main(["compare", path, "--dry-run"]) == 0
    out, error = capsys.readouterr()
    assert "missing corpus" in error and "4 cells" in out


def test_tasks_without_data_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_DATA", raising=False)
    names = ("sst2", "conll2012_coref")
    measures = {name: {"kind": "finetuned", "task": name} for name in names}
    measures["mean"] = {"kind": "average", "measures": [*names]}
    study = make_study(tmp_path, measures=measures, claims=[])
    plan = plan_study(study, data=tmp_path)
    assert len(plan.measures) == 3 and len(plan.missing) == 2  # none has data
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "train.tsv").write_text("sentence\tlabel\n" + "fine\t1\nbad\t0\n" * 20)
    plan = plan_study(study, data=tmp_path)
    assert [measure.name for measure in plan.measures] == ["sst2"] and not plan.missing
    assert {*plan.cells[0].readings} == {"sst2"}
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "coref" in line)
    assert "train.english.v4_gold_conll" in line and "conll2012_coref/" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["masking-rat", "--dry-run"], "did you mean 'masking-rate'"),
        (["masking-rate", "--scale", "clas", "--dry-run"], "did you mean 'class'"),
        (["masking-rate", "--dry-run"], "not offered at the scale 'class'; it needs --scale gpu"),
        (["masking-rate", "--set", "pretrain.trian.lr=1", "--dry-run"], "--set: unknown setting"),
        (["masking-rate", "--seeds", "0", "--dry-run"], "from 1 to 100"),
        (["none.yaml", "--dry-run"], "no such file"),
    ],
)
def test_bad_commands(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", list_study_files())
def test_built_in_studies_are_complete(name: str) -> None:
    study = load_study(name)
    assert study.name == name and (study.claims or study.law) and len(study.about) <= 100
    assert "gpu" in {entry.name for entry in study.scales}
    for scale in study.scales:
        assert (scale.scale.seeds or study.seeds) >= 3 or not study.claims


@pytest.mark.parametrize("path", ["base", "tokenizer.path", "pretrain.init_from", "pretrain.teacher"])
def test_other_weights_are_other_steps(tmp_path: Path, path: str) -> None:
    """The name of a directory is the same, its size too: only the weights differ."""
    tokenizer = pt.train_tokenizer("wordpiece", [write_corpus(tmp_path)], vocab=120)
    model = pt.build("bert-tiny", vocab=120, width=16, heads=2, depth=1)
    model.assets.files = tokenizer.build_files()
    folder = tmp_path / "checkpoints" / "model"  # the names of folders above do not matter
    pt.save(model, folder)
    (folder / "checkpoints").mkdir()
    changes: dict[str, Any] = {"rows": {"low": {path: str(folder)}}, "claims": [], "seeds": 1}
    tree = make_tree(tmp_path, **changes)
    if path == "base":
        del tree["settings"]["model"]
        tree["measures"] = {"table": {"kind": "finetuned"}}
    if path == "tokenizer.path":
        del tree["settings"]["tokenizer"]
    if path == "pretrain.teacher":
        tree["settings"]["pretrain"]["objective"] = "distill"
    first = plan_study(read_study(tree, "rates"))
    (folder / "README.md").write_text("a card is no weight")
    (folder / "checkpoints/state.safetensors").write_text("nor is a checkpoint")
    assert [*plan_study(read_study(tree, "rates")).steps] == [*first.steps]
    name = "tokenizer.json" if path == "tokenizer.path" else "model.safetensors"
    content = bytearray((folder / name).read_bytes())
    content[-40] ^= 1
    (folder / name).write_bytes(content)
    again = plan_study(read_study(tree, "rates"))
    shared = {again.steps[key].action for key in first.steps.keys() & again.steps.keys()}
    assert "pretrain" not in shared and "finetune" not in shared
    assert len(again.steps) == len(first.steps)


def test_a_longer_dev_file_is_another_training_of_embeddings(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("anchor,positive\n" + "river stone,stone river\n" * 20)
    (tmp_path / "dev.csv").write_text("sentence1,sentence2,score\n" + "river,stone,0.5\n" * 20)
    tree = make_tree(
        tmp_path, claims=[], measures={"s": {"kind": "task", "task": "scored_pairs", "model": "embeddings"}}
    )
    options = {"train": str(tmp_path / "pairs.csv"), "dev": str(tmp_path / "dev.csv"), "steps": 2, "seed": "$seed"}
    tree["settings"] |= {"embeddings": options, "evaluate.data": str(tmp_path / "pairs.csv")}
    keys = []
    for _ in range(2):
        steps = plan_study(read_study(tree, "rates")).steps.values()
        keys.append({step.key for step in steps if step.action == "embeddings"})
        assert {step.options.seed for step in steps if isinstance(step.options, EmbeddingOptions)} == {0, 1}
        (tmp_path / "dev.csv").write_text("sentence1,sentence2,score\n" + "river,stone,0.5\n" * 21)
    assert len(keys[0]) == len(keys[1]) == 4 and not keys[0] & keys[1]


@pytest.mark.parametrize("name", ["corpus.txt", "table.csv"])
def test_an_edit_of_equal_size_is_another_step(tmp_path: Path, name: str) -> None:
    """A corrected label or letter is new data, a touched file is not."""
    study = make_study(tmp_path, seeds=1)
    first, file = plan_study(study), tmp_path / name
    file.touch()
    assert [*plan_study(study).steps] == [*first.steps]
    file.write_text(file.read_text().replace("river", "rival", 1))
    shared = {first.steps[key].action for key in plan_study(study).steps.keys() & first.steps.keys()}
    assert shared == (set() if name == "corpus.txt" else {"tokenizer", "data", "pretrain"})


def test_large_files_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_WHOLE_BYTES", 1000)
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 100)
    monkeypatch.setattr(inputs, "SAMPLE_BLOCKS", 4)
    path, digests = tmp_path / "large.txt", set()
    for change in (None, 0, 1700, 4999, 450):  # blocks start at 0, 1633, 3266 and 4900; 450 is between them
        content = bytearray(b"a" * 5000)
        if change is not None:
            content[change] = ord("b")
        path.write_bytes(content)
        digests.add(inputs.identify_input(str(path), None))
    assert len(digests) == 4
    assert inputs.identify_input("builtin:reviews", None) is None
    assert inputs.identify_input("$PRETUNE_DATA/x.txt", str(tmp_path)) is None
    assert inputs.identify_input(str(tmp_path / "missing"), None) is None


def test_the_seed_of_a_section(tmp_path: Path) -> None:
    rows = {"low": {"pretrain.seed": "$seed", "finetune.seed": "1$seed"}}
    plan = plan_study(make_study(tmp_path, rows=rows, claims=[]))
    seeds = {
        (step.action, (step.options.overrides or {})["train.seed"])
        for step in plan.steps.values()
        if isinstance(step.options, PretrainOptions | FinetuneOptions)
    }
    assert seeds == {("pretrain", 0), ("pretrain", 1), ("finetune", 10), ("finetune", 11)}
    with pytest.raises(UsageError, match=r"'pretrain.seed'.*'x0'"):
        plan_study(make_study(tmp_path, rows={"low": {"pretrain.seed": "x$seed"}}, claims=[]))


@pytest.mark.parametrize(
    ("address", "is_link"),
    [("https://example.org/a?b=1", True), ("HTTP://example.org", True), ("javascript:alert(1)", False),
     (" javascript:alert(1)", False), ("data:text/html,x", False), ("//example.org", False), (None, False)],
)  # fmt: skip
def test_links_are_web_addresses(address: str | None, is_link: bool, tmp_path: Path) -> None:
    tree = make_tree(tmp_path, seeds=1, paper={"citation": "Somebody <b> (2020)", "url": address})
    page = render_study_page(build_results(plan_study(read_study(tree, "rates")), {}, {}))
    assert ("Somebody &lt;b&gt; (2020)</a>" in page) is is_link and "Somebody &lt;b&gt; (2020)" in page
    assert "javascript:" not in page and "data:text" not in page


def test_texts_of_a_study_are_no_markdown_links(tmp_path: Path) -> None:
    text = "[a](javascript:b)\n\n[a]: javascript:b\n<script>"
    tree = make_tree(tmp_path, seeds=1, title=text, question=text, paper={"citation": text})
    markdown = render_study_text(build_results(plan_study(read_study(tree, "rates")), {}, {}))
    assert markdown.count(r"\[a](javascript:b) \[a]: javascript:b \<script>") == 3
    assert "\n[a]" not in markdown and "\n<" not in markdown


def test_an_own_study_needs_no_paper(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, seeds=1)
    for name in ("about", "question", "paper"):
        del tree[name]
    results = build_results(plan_study(read_study(tree, "rates")), {}, {})
    text, page = render_study_text(results), render_study_page(results)
    assert text.startswith("# Rates\n\n## ") and "Source" not in text
    assert '<p class="lead">' not in page
