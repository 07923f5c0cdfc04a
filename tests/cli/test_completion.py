"""What a shell is told while a line is typed: the protocol of click, each time in a process of its own."""

import sys
from pathlib import Path

import pytest

from pretune.cli import VERBS, _options, main, prepare
from pretune.core.errors import UsageError
from pretune.runs.recipes import RECIPES
from pretune.text.styles import KINDS
from tests.cli.asked import complete
from tests.conftest import Capture, run_command, run_process
from tests.selection import keep_quick

SCRIPT = (
    "import sys; sys.argv[0] = 'pretune'\nfrom pretune.cli import main\ncode = main()\n"
    "heavy = {'torch', 'sklearn', 'tokenizers', 'matplotlib'} & {*sys.modules}\n"
    "sys.exit(f'imported {heavy}' if heavy else code)"
)


def asked(**variables: str) -> list[str]:
    """The lines that a shell gets; nothing heavy may be imported for them."""
    done = run_process([sys.executable, "-c", SCRIPT], **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if line]


def bash(line: str) -> list[str]:
    words = line.split(" ")
    return asked(_PRETUNE_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))


LINES: list[tuple[str, set[str]]] = [
    ("pretune pre", {"prepare", "pretrain", "predict"}),
    ("pretune --quiet sh", {"show", "show-batch"}),
    ("pretune finetune --me", {"--method"}),
    ("pretune pretrain bert-m", {"bert-mini", "bert-medium", "bert-multilingual"}),
    ("pretune pretrain t5v1.1-x", {"t5v1.1-xl", "t5v1.1-xxl"}),
    ("pretune pretrain x --objective span", {"span_masked", "span_corruption"}),
    ("pretune finetune m --method lora+gr", {"lora+gradual"}),
    ("pretune finetune m --task sst2,mrp", {"sst2,mrpc"}),
    ("pretune evaluate m --task bl", {"blimp"}),
    ("pretune tokenizer c --kind ", {*KINDS}),
    ("pretune pretrain x --set train.w", {"train.workers="}),
    ("pretune list me", {"methods", "metrics"}),
    ("pretune fill some/fol", set()),  # the shell's own completion of files takes over
    ("pretune no-such-verb --x", set()),
]


@pytest.mark.parametrize(("line", "found"), keep_quick(LINES, *LINES[::3]))
def test_bash(line: str, found: set[str]) -> None:
    assert {*bash(line)} == found


def test_all_verbs_are_offered() -> None:
    assert bash("pretune ") == VERBS.list_names()


@pytest.mark.slow
def test_zsh_and_fish() -> None:
    (line,) = asked(_PRETUNE_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="pretune finetune m --method qlo")
    assert line == """_arguments '*: :(("qlora"))'"""
    variables = {"_PRETUNE_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert asked(**variables, _TYPER_COMPLETE_ARGS="pretune show-batch perm") == ["permuted"]
    (line,) = asked(**variables, _TYPER_COMPLETE_ARGS="pretune embe")
    assert line.startswith("embed\t")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = run_command(capsys, ["--show-completion", shell]).out
    assert f"_PRETUNE_COMPLETE=complete_{shell}" in script
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert run_command(capsys, ["--show-completion"]).out == script
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--install-completion"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.is_relative_to(tmp_path) and path.read_text().strip() == script.strip()


def test_an_unknown_shell(capsys: Capture) -> None:
    error = run_command(capsys, ["--show-completion", "bsh"], code=2).err
    assert "'bsh'" in error and "'bash'" in error and "fish" in error


def test_a_home_that_cannot_be_written(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert "--show-completion bash" in run_command(capsys, ["--install-completion", "bash"], code=6).err


def test_names_are_those_that_verbs_take() -> None:
    """What is written down, so that nothing is imported for it, is what importing it gives."""
    from pretune.inference.pooling import POOLINGS
    from pretune.models.families import FAMILIES, find_style_family, list_sizes
    from pretune.objectives.base import MODEL_SHAPES
    from pretune.runs.evaluate import FILE_TASKS
    from pretune.runs.finetune.defaults import METHOD_PRESETS

    assert all(list_sizes(family) == tuple(FAMILIES.get(family).sizes) for family in FAMILIES)
    training = {family: FAMILIES.get(family).training for family in [*FAMILIES][::-1]}
    families = {defaults.tokenizer[1]: family for family, defaults in training.items() if defaults}
    assert {style: find_style_family(style) for style in families} == families
    assert (_options.SHAPES, _options.POOLINGS) == (MODEL_SHAPES, POOLINGS)
    assert {*METHOD_PRESETS} <= {*complete("finetune", "method")}
    assert {*FILE_TASKS} <= {*complete("evaluate", "task")}


def test_a_style_for_the_tokens_there_are() -> None:
    styles = ("cls-sep", "s-mask", "endoftext", "sentinels", "cls-last")
    assert all(prepare.find_style(_special(style)) == style for style in styles)
    assert prepare.find_style(set()) == "cls-sep" == prepare.find_style(_special("plain"), has_words=False)


def test_a_recipe_for_the_tokens_that_it_reads() -> None:
    assert {RECIPES.get(name).tokenizer[1]: name for name in RECIPES} == prepare.STYLE_RECIPES


def _special(style: str) -> set[str]:
    from pretune.text.styles import STYLES

    return {*STYLES[style].special_tokens}


def test_paths_are_settings() -> None:
    """Each path is in the tree of the verb that takes it."""
    from pretune.adaptation.peft.lora import LoRA
    from pretune.core.config import list_paths
    from pretune.models.catalog import list_settings
    from pretune.models.families import FAMILIES
    from pretune.runs.config import DataConfig, PretrainTrainConfig
    from pretune.runs.finetune.config import AdaptationConfig, FinetuneTrainConfig, SequenceConfig

    knobs = {*list_settings(FAMILIES.get("bert"))}
    trees = {
        "pretrain": {
            "model": knobs,
            "train": {*list_paths(PretrainTrainConfig(lr=1.0))},
            "data": {*list_paths(DataConfig(path="x"))},
        },
        "finetune": {
            "train": {*list_paths(FinetuneTrainConfig(lr=1.0))},
            "tune": {*list_paths(AdaptationConfig())},
            "data": {*list_paths(SequenceConfig())},
            "method": {*list_paths(LoRA())},
        },
    }
    for verb, tree in trees.items():
        for path in _options.list_setting_paths(verb):
            section, _, rest = path.partition(".")
            assert rest in tree[section], path
    assert {*_options.SPEC_PATHS} <= knobs


def test_completion_never_fails_loudly() -> None:
    with pytest.raises(UsageError):
        VERBS.get("no-such-verb")
    assert bash("pretune pretrain x --objective 'un") == []
