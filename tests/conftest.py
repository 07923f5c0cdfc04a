"""What all tests share: no network, one thread per worker, and the data directory."""

import gc
import io
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import CaptureResult

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the GPU tests run where it is not installed
    settings = None

gc.disable()  # until all tests are collected: modules and tests are not garbage, and each look at them takes seconds

# Set before torch or transformers are imported by any test.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A flush takes milliseconds and matters after a power failure only; processes that tests start do flush.
os.fsync = os.fstat  # type: ignore[assignment]

# Machines differ in speed and a test must not: no deadlines, and the same examples in every run.
if settings is not None:
    shared = {
        "deadline": None,
        "derandomize": True,
        "suppress_health_check": [HealthCheck.too_slow],
        "print_blob": True,
    }
    settings.register_profile("quick", max_examples=15, **shared)
    settings.register_profile("thorough", max_examples=100, **shared)  # of `make test-slow`
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

ROOT = Path(__file__).parents[1]
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

SLOW_CASES = {
    "tests/contracts/test_families.py": (
        "xlm-roberta-base babyberta-base miniberta-base electra-small gpt3-125m llama-7b llama2-7b llama2-70b "
        "llama3-1b olmo-1b olmo-7b gpt3-1.3b t5v1.1-base mass-base electra-small-generator "
        "albert-xxlarge-v1 opt-125m mt5-base t5-table-enc-dec t5-table-enc-dec-shared t5-table-enc-dec-half "
        "t5-table-lm mbart-large made-shared-layers distilbert-base tinybert-4 elmo-original albert-base-v1 "
        "deberta-v3-base spanbert-base bloom-560m xglm-564M xlm-mlm-en-2048 roberta-base electra-base mistral-7b "
        "olmo2-7b gpt-base opt-350m t5-table-prefix-lm qwen2-0.5b qwen3-0.6b"
    ),
    "tests/contracts/test_objectives.py": (
        "bpe characters words masked-words masked-static-40 next_sentence-words sentence_order-spans "
        "replaced_token-words multitask_masked-spread mixture-documents mixture-nested supervised-prefix "
        "distill-layers span_masked-ngram denoising-five mixture-encoder masked_next-falling mixture-hybrid "
        "span_corruption-prefix mixture-tasks"
    ),
    "tests/inference/test_decode.py": (
        "t5v1.1-base mt5-base t5-table-enc-dec-half t5-table-enc-dec t5-table-enc-dec-shared olmo-1b mbart-large "
        "mass-base gpt3-125m llama-7b llama2-7b llama2-70b llama3-1b olmo-7b gpt3-1.3b opt-125m t5-table-lm bloom-560m "
        "xglm-564M qwen2-0.5b qwen3-0.6b gemma3-1b"
    ),
    "tests/adaptation/test_extra_layers.py": (
        "xlm-roberta-base babyberta-base miniberta-base electra-small gpt3-125m llama-7b llama2-7b llama2-70b "
        "llama3-1b olmo-1b olmo-7b gpt3-1.3b t5v1.1-base mass-base electra-small-generator opt-125m mt5-base "
        "t5-table-enc-dec t5-table-enc-dec-half t5-table-lm mbart-large distilbert-base tinybert-4 deberta-v3-base "
        "spanbert-base bloom-560m xglm-564M xlm-mlm-en-2048 roberta-base electra-base olmo2-7b mistral-7b "
        "qwen2-0.5b qwen2-7b qwen3-0.6b smollm3-3b gemma3-1b"
    ),
    "tests/text/test_tokenizer_encode.py": "characters words",
    "tests/parity/test_parity.py": (
        "bert-masked llama-bands mbart olmo-clip electra-generator llama gpt xglm-odd "
        "bert-bare bert-untied roberta-bare xlm-roberta electra-wide electra-generator-untied electra-bare "
        "albert-pretraining albert-unshared albert-untied albert-bare "
        "modernbert modernbert-untied modernbert-bare bloom bloom-bare xglm xglm-bare "
        "xlm-odd xlm-bare "
        "gpt-bare gpt2-inner gpt2-untied gpt2-bare llama-tied llama-linear mistral-full olmo opt opt-plain "
        "pythia-serial mpt-six-heads t5-deep-decoder t5-untied-scaled t5-bare mt5 mt5-tied bart-odd bart-bare "
        "xlnet-odd xlnet-untied xlnet-bare distilbert-sinusoidal distilbert-bare deberta-new-head deberta-separate "
        "deberta-untied deberta-p2c deberta-content deberta-bare qwen2-tied-linear qwen2-all-windows qwen3-wide "
        "smollm3 gemma3 gemma3-bare"
    ),
    "tests/parity/test_heads.py": (
        "DistilBert-TokenClassification DistilBert-QuestionAnswering DistilBert-MultipleChoice "
        "modernbert-SequenceClassification modernbert-QuestionAnswering modernbert-MultipleChoice "
        "Albert-TokenClassification Albert-QuestionAnswering Albert-MultipleChoice "
        "DebertaV2-TokenClassification DebertaV2-QuestionAnswering DebertaV2-MultipleChoice "
        "modernbert-mean-MultipleChoice bloom-TokenClassification bloom-QuestionAnswering "
        "xlm-TokenClassification xlm-QuestionAnswering qwen3-TokenClassification qwen3-QuestionAnswering"
    ),
}
"""Parameters whose cases run in `make test-slow` only: each mechanism keeps one in `make test`."""


MANY_CASES = 10
"""Of a test with as many cases and more, every second one runs in `make test-slow` only."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases of `SLOW_CASES`, and every second one of many; published parameter counts are checked for all.

    With `-k` no case of many is slow: who names a case wants it, and docs/extending.md does.
    """
    slow = {file: set(names.split()) for file, names in SLOW_CASES.items()}
    _mark_slow_cases(items, slow)
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None and not item.name.startswith("test_params["):
            cases[item.nodeid.partition("[")[0]].append(item)
    for group in cases.values():
        for item in group[1::2] if len(group) >= MANY_CASES and not config.option.keyword else ():
            item.add_marker(pytest.mark.slow)


def _mark_slow_cases(items: list[pytest.Item], slow: dict[str, set[str]]) -> None:
    for item in items:
        names = slow.get(item.nodeid.partition("::")[0], set())
        parameters = getattr(item, "callspec", None)
        if not names or parameters is None or item.name.startswith("test_params["):
            continue
        if any(str(getattr(value, "name", value)) in names for value in parameters.params.values()):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Exempt what collection has made from the garbage collector, and start it."""
    gc.freeze()
    gc.enable()


class Screen(io.StringIO):
    """What a terminal was sent."""

    def isatty(self) -> bool:
        return True

    def rows(self) -> list[str]:
        """Line by line, with what moves the cursor taken for the end of one."""
        return [row.strip() for row in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "\n", self.getvalue()).split("\n")]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of data sets: $PRETUNE_DATA, or ../shared/data beside the checkout."""
    directory = Path(os.environ.get("PRETUNE_DATA") or ROOT.parent / "shared" / "data")
    if not directory.is_dir():
        pytest.skip(f"no data at {directory}; set PRETUNE_DATA")
    return directory


def run_process(
    command: Sequence[str],
    *,
    paths: Sequence[Path] = (ROOT / "src",),
    cwd: Path | None = None,
    stdout: Any = subprocess.PIPE,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command with these import paths and variables of the environment; its outputs are captured."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **variables}
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=cwd, env=environment, timeout=300, check=False
    )


def run_command(capsys: pytest.CaptureFixture[str], words: Sequence[str], code: int = 0) -> CaptureResult[str]:
    """What a command prints, whose exit code is checked."""
    from pretune.cli import main

    assert main(words) == code
    return capsys.readouterr()
