"""Facts about a served model, as plain data: what its inputs are, its card, data card, cost and training curves.

Files of a run are read by the functions of reports, which show the same facts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pretune.adaptation.quantized import count_parameters
from pretune.analysis.attention_inputs import count_heads, list_parts
from pretune.core import io
from pretune.core.errors import CheckpointError, PretuneError
from pretune.core.log import format_number
from pretune.core.run_dir import RunDir
from pretune.models.cost import flops_per_token
from pretune.models.model import LanguageModel
from pretune.reports import facts
from pretune.reports.charts import average_points
from pretune.reports.cost import build_data_rows
from pretune.reports.load import RunRecord, read_run
from pretune.reports.runs import build_learning_curves, format_size, list_properties
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.saved_task import SavedTask
from pretune.server.capabilities import AttentionViewer
from pretune.server.loaded_model import LoadedModel
from pretune.server.served_model import ServedModel
from pretune.tasks.types import get_type

MAX_CARD_BYTES = 2**18
"""Maximum size of a model card that is shown."""
MAX_FLOPS_LENGTH = 512
"""Tokens of the text whose FLOPs are stated, if the model reads as many."""


def describe_inputs(served_model: ServedModel) -> dict[str, Any]:
    """Return what a page needs to know for its inputs: shape, layers and heads, tasks, lengths."""
    model = served_model.loaded_model
    network = model.network
    out: dict[str, Any] = {"shape": "vectors" if network is None else network.shape}
    if network is not None:
        out["max_length"] = network.spec.max_length
    if served_model.can(AttentionViewer):
        out["attention"] = {
            part: {"layers": stack.depth, "heads": count_heads(stack, is_cross=part == "cross")}
            for part, stack in list_parts(model.get_network()).items()
        }
    if model.run is not None:
        out["tasks"] = [_describe_task(task) for task in _list_tasks(model.run)]
    return out


def _list_tasks(run: FinetunedRun) -> list[SavedTask]:
    """Return the task of a run, or each of several with a head of its own."""
    task = run.saved_task
    return [task.select(member.name)[1] for member in task.members] or [task]


def _describe_task(saved_task: SavedTask) -> dict[str, Any]:
    inputs = get_type(saved_task.build_task()).inputs
    needs_pair = inputs.second_text == "required" or saved_task.pair is not None
    return {
        "name": saved_task.name,
        "kind": saved_task.task_kind,
        "labels": list(saved_task.labels),
        "has_pair": needs_pair,
    }


def build_card(model: LoadedModel) -> dict[str, Any]:
    """Return the facts, the model card, the data card, the cost and the training curves of a model.

    What a model does not have is empty. A damaged file is a note; the other parts are still returned.
    """
    out: dict[str, Any] = {"facts": [*_list_facts(model)], "card": "", "data": None}
    out |= {name: [] for name in ("scores", "cost", "curves", "notes")}
    if model.path is None or not model.path.is_dir():
        return out
    run_dir = RunDir(model.path)
    try:
        if run_dir.card.is_file():
            out["card"] = _strip_metadata(io.read_bounded(run_dir.card, CheckpointError, MAX_CARD_BYTES).decode())
    except (PretuneError, UnicodeDecodeError) as error:
        out["notes"].append(f"model card: {error}")
    if run_dir.settings.is_file():
        try:
            out |= _describe_run(read_run(model.path))
        except PretuneError as error:
            out["notes"].append(str(error))
    return out


def _strip_metadata(text: str) -> str:
    """Return a card without the settings for the hub at its top."""
    _, mark, rest = text.removeprefix("---\n").partition("\n---\n")
    return rest.strip() if mark and text.startswith("---\n") else text.strip()


def _describe_run(run: RunRecord) -> dict[str, Any]:
    out: dict[str, Any] = {"run": [*list_properties(run)]}
    if run.scores is not None:
        out["scores"] = facts.build_score_table(run.scores)
    if run.cost is not None:
        out["cost"] = facts.build_cost_rows(run.cost)
    if run.card is not None:
        out["data"] = {
            "splits": [*facts.describe_splits(run.card)],
            "sources": [facts.SOURCE_HEADER, *facts.list_sources(run.card)],
            "facts": build_data_rows(run.card),
        }
    curves = {name: [line for line in series if line.points] for name, series in build_learning_curves([run]).items()}
    out["curves"] = [
        {
            "name": name,
            "lines": [
                {"name": line.name, "points": [*zip(*average_points(line.points), strict=True)]} for line in series
            ],
        }
        for name, series in curves.items()
        if series
    ]
    return out


def _list_facts(model: LoadedModel) -> Iterator[tuple[str, str]]:
    """Yield names and values that every model has."""
    if model.index is not None:
        yield "index", f"{len(model.index):,} texts, {model.index.metadata['method']} search"
    if (vectors := model.word_vectors) is not None:
        yield "word vectors", f"{len(vectors):,} words of width {vectors.width:,}"
    network = model.network
    if network is None:
        return
    spec = network.spec
    yield "family", f"{spec.family} ({network.shape})"
    yield "size", format_size(_get_sizes(network))
    yield "parameters", f"{count_parameters(network):,}"
    if spec.max_length is not None:
        yield "maximum length", f"{spec.max_length:,} tokens"
    length = min(spec.max_length or MAX_FLOPS_LENGTH, MAX_FLOPS_LENGTH)
    flops = flops_per_token(spec, length=length, training=False)
    yield "FLOPs", f"{format_number(flops, billion='G')}FLOP per token of a text of {length} tokens"


def _get_sizes(network: LanguageModel) -> Mapping[str, Any]:
    """Return the sizes of a model as run.json has them."""
    from pretune.core.config import to_dict

    return to_dict(network.spec)
