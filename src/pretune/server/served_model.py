"""A model that is served, by its name, with what it can do, and facts about it as plain data.

    model = ServedModel.load("reviews", "runs/reviews")
    model.capabilities                               # ['embed', 'predict', …]
    model.get(TextEmbedder).run(["a text", "another"])      # one result per item

Facts are what its inputs are, its card, data card, cost and training curves.
Files of a run are read by the functions of reports, which show the same facts.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from torch import nn

from pretune.adaptation.quantized import count_parameters
from pretune.analysis.attention_inputs import count_heads, list_parts
from pretune.core import config, io
from pretune.core.errors import CheckpointError, PretuneError, UsageError
from pretune.core.log import format_number
from pretune.core.run_dir import RunDir
from pretune.models.cost import flops_per_token
from pretune.reports import facts
from pretune.reports.charts import average_points
from pretune.reports.cost import build_data_rows
from pretune.reports.load import RunRecord, read_run
from pretune.reports.runs import build_learning_curves, format_size, list_properties
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.saved_task import SavedTask
from pretune.server import capabilities
from pretune.server.capabilities import AttentionViewer, Capability, list_texts
from pretune.server.errors import CapabilityError
from pretune.server.loaded_model import LoadedModel
from pretune.tasks.types import get_type

C = TypeVar("C", bound=Capability)
MAX_CARD_BYTES = 2**18
"""Maximum size of a model card that is shown."""
MAX_FLOPS_LENGTH = 512
"""Tokens of the text whose FLOPs are stated, if the model reads as many."""
CAPABILITIES: tuple[type[Capability], ...] = (
    capabilities.Completer,
    capabilities.Chatter,
    capabilities.TextEmbedder,
    capabilities.MaskFiller,
    capabilities.RunPredictor,
    capabilities.Explainer,
    capabilities.TextScorer,
    capabilities.IndexSearcher,
    capabilities.NeighborFinder,
    capabilities.WordComparer,
    capabilities.AttentionViewer,
    capabilities.TextTokenizer,
)


class ServedModel:
    """A loaded model with its name and capabilities."""

    def __init__(self, name: str, loaded_model: LoadedModel) -> None:
        self.name, self.loaded_model = name, loaded_model
        self._capabilities: dict[str, Capability] = {}
        self.reasons: dict[str, str] = {}  # of what it cannot do
        for kind in CAPABILITIES:
            try:
                self._capabilities[kind.name] = kind(loaded_model)
            except PretuneError as error:
                self.reasons[kind.name] = str(error)

    @classmethod
    def load(cls, name: str, source: str | os.PathLike[str] | nn.Module, device: str | None = None) -> "ServedModel":
        """Load a model as `LoadedModel.load` does."""
        return cls(name, LoadedModel.load(source, device))

    @property
    def capabilities(self) -> list[str]:
        """Names of what the model can do."""
        return [*self._capabilities]

    def can(self, kind: type[Capability]) -> bool:
        """Return whether the model has a capability."""
        return kind.name in self._capabilities

    def get(self, kind: type[C]) -> C:
        """Return a capability. Raises a CapabilityError for what the model cannot do; it states what it can do."""
        capability = self._capabilities.get(kind.name)
        if not isinstance(capability, kind):
            raise CapabilityError(
                f"model '{self.name}' cannot {kind.name}: {self.reasons[kind.name]} "
                f"(it can {', '.join(self.capabilities) or 'do nothing that is served'})"
            )
        return capability

    def check_lengths(self, items: Sequence[Any], limit: int) -> None:
        """Raise a UsageError for a text of more tokens than the limit, if the model has no limit of its own."""
        network = self.loaded_model.network
        if network is None or network.tokenizer is None or network.spec.max_length is not None:
            return
        texts = [text for item in items for text in list_texts(item)]
        longest = int(np.diff(network.tokenizer.encode_batch(texts).offsets).max(initial=0))
        if longest > limit:
            raise UsageError(f"a text must have <= {limit} tokens, got {longest}; shorten it")


def describe_inputs(served_model: ServedModel) -> dict[str, object]:
    """Return what a page needs to know for its inputs: shape, layers and heads, tasks, lengths."""
    model = served_model.loaded_model
    network = model.network
    out: dict[str, object] = {"shape": "vectors" if network is None else network.shape}
    if network is not None:
        out["max_length"] = network.spec.max_length
    if served_model.can(AttentionViewer):
        parts = list_parts(model.get_network()).items()
        heads = {part: count_heads(stack, is_cross=part == "cross") for part, stack in parts}
        out["attention"] = {part: {"layers": stack.depth, "heads": heads[part]} for part, stack in parts}
    if model.run is not None:
        out["tasks"] = [_describe_task(task) for task in _list_tasks(model.run)]
    return out


def _list_tasks(run: FinetunedRun) -> list[SavedTask]:
    """Return the task of a run, or each of several with a head of its own."""
    task = run.saved_task
    return [task.select(member.name)[1] for member in task.members] or [task]


def _describe_task(saved_task: SavedTask) -> dict[str, object]:
    inputs = get_type(saved_task.build_task()).inputs
    needs_pair = inputs.second_text == "required" or saved_task.pair is not None
    labels = list(saved_task.labels)
    return {"name": saved_task.name, "kind": saved_task.task_kind, "labels": labels, "has_pair": needs_pair}


def build_card(model: LoadedModel) -> dict[str, object]:
    """Return the facts, the model card, the data card, the cost and the training curves of a model.

    What a model does not have is empty. A damaged file is a note; the other parts are still returned.
    """
    notes: list[str] = []
    out: dict[str, object] = {"facts": [*_list_facts(model)], "card": "", "data": None}
    out |= {"scores": [], "cost": [], "curves": [], "notes": notes}
    if model.path is None or not model.path.is_dir():
        return out
    run_dir = RunDir(model.path)
    try:
        if run_dir.card.is_file():
            out["card"] = _strip_metadata(io.read_bounded(run_dir.card, CheckpointError, MAX_CARD_BYTES).decode())
    except (PretuneError, UnicodeDecodeError) as error:
        notes.append(f"model card: {error}")
    if run_dir.settings.is_file():
        try:
            out |= _describe_run(read_run(model.path))
        except PretuneError as error:
            notes.append(str(error))
    return out


def _strip_metadata(text: str) -> str:
    """Return a card without the settings for the hub at its top."""
    _, mark, rest = text.removeprefix("---\n").partition("\n---\n")
    return rest.strip() if mark and text.startswith("---\n") else text.strip()


def _describe_run(run: RunRecord) -> dict[str, object]:
    out: dict[str, object] = {"run": [*list_properties(run)]}
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
    curves = []
    for name, series in build_learning_curves([run]).items():
        lines = [(line.name, [*zip(*average_points(line.points), strict=True)]) for line in series if line.points]
        if lines:
            curves.append({"name": name, "lines": [{"name": label, "points": points} for label, points in lines]})
    return {**out, "curves": curves}


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
    yield "size", format_size(config.to_dict(spec))
    yield "parameters", f"{count_parameters(network):,}"
    if spec.max_length is not None:
        yield "maximum length", f"{spec.max_length:,} tokens"
    length = min(spec.max_length or MAX_FLOPS_LENGTH, MAX_FLOPS_LENGTH)
    flops = flops_per_token(spec, length=length, training=False)
    yield "FLOPs", f"{format_number(flops, billion='G')}FLOP per token of a text of {length} tokens"
