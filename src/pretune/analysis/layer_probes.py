"""Probes of every layer: what a linear classifier can read from its states, with a control task and a scalar mix.

    probes = pt.analyze_layers("runs/books", tasks=["pos", "length"])
    probes.tasks[0].layers[3].accuracy, probes.tasks[0].layers[3].selectivity, probes.tasks[0].mix.weights

The probe is a logistic regression on standardized states with a fixed penalty (`PENALTY`), the same for the task and
its control task (Hewitt and Liang, 2019: random labels by word type). Selectivity is the difference of both accuracies
on test items: high if the probe reads a property, low if it memorizes words. The scalar mix (Peters et al., 2018) is
trained with a linear classifier over all layers; its weights show which layers the task uses.

The state of a word is the mean over its tokens, that of a sentence the mean over all of its tokens. Layer 0 is the
input of the first layer. An encoder-decoder is represented by its encoder.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from pretune.adaptation.scalar_mix import LayerMix
from pretune.analysis.held_out import ModelSource, open_model, read_held_out
from pretune.analysis.pictures import Analysis
from pretune.analysis.probe_tasks import (
    PROBE_TASKS,
    SOURCES,
    ProbeData,
    ProbeItem,
    build_probe_data,
    draw_control_labels,
    encode_labels,
)
from pretune.analysis.words import find_words
from pretune.core.api import check_arguments
from pretune.core.errors import DataError, UsageError, suggest
from pretune.data.layout import pack_batches
from pretune.data.sequences import Ints
from pretune.evaluation.logistic_regression import fit_probe
from pretune.inference.embed import BATCH_TOKENS, encode_texts
from pretune.inference.pooling import compute_layers
from pretune.inference.text_model import check_outputs, eval_mode, get_tokenizer
from pretune.models.model import LanguageModel
from pretune.tasks import TASKS

MAX_EXAMPLES = 2000
"""Items for training a probe by default; half as many test it."""
MAX_LENGTH = 128
"""Tokens of a text at most."""
PENALTY = 0.1
"""C of the logistic regression, the inverse of its penalty."""
MIX_STEPS, MIX_RATE, MIX_DECAY = 200, 0.02, 0.01
"""Steps, learning rate and weight decay of the scalar mix."""
CHUNK_TEXTS = 512
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerScore:
    """Accuracies of the probes of a layer, means over seeds, with standard deviations (None for one seed)."""

    layer: int
    accuracy: float
    control: float
    selectivity: float
    accuracy_std: float | None
    control_std: float | None
    selectivity_std: float | None


@dataclass(frozen=True, slots=True)
class MixScore:
    """Weights of the layers in the scalar mix, and its accuracy; means over seeds."""

    weights: list[float]
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProbe:
    """Probes of one task."""

    task: str
    source: str
    labels: list[str]
    train: int  # items
    test: int
    majority: float  # accuracy of the most frequent label
    layers: list[LayerScore]
    mix: MixScore | None  # None if layers have different widths


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProbes(Analysis):
    """Probes of all layers of a model, for one or more tasks."""

    tasks: list[TaskProbe]
    seeds: int

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row per task and layer."""
        return [
            {"task": probe.task, **asdict(score), "majority": probe.majority, "mix_weight": weight}
            for probe in self.tasks
            for score, weight in zip(probe.layers, probe.mix.weights if probe.mix else repeat(None), strict=False)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return all probes as plain data."""
        return {
            "kind": "layers",
            "seeds": self.seeds,
            "penalty": PENALTY,
            "tasks": [asdict(probe) for probe in self.tasks],
        }

    def __repr__(self) -> str:
        best = ", ".join(
            f"{probe.task} {max(score.accuracy for score in probe.layers):.3f} at layer "
            f"{max(probe.layers, key=lambda score: score.accuracy).layer}"
            for probe in self.tasks
        )
        return f"LayerProbes({best})"


@check_arguments()
def analyze_layers(
    model: ModelSource,
    tasks: Sequence[str] | None = None,
    *,
    examples: int = MAX_EXAMPLES,
    seeds: int = 1,
    data: str | os.PathLike[str] | None = None,
    texts: Sequence[str] | None = None,
    device: str | None = None,
    on_progress: Callable[[float, str], None] | None = None,
) -> LayerProbes:
    """Train linear probes on the states of every layer, each with a control task, and a scalar mix of the layers.

    Args:
        model: A model, its directory, or hf:OWNER/NAME.
        tasks: Of "pos", "entity", "length" and "sense"; None: all whose data is available.
        examples: Items for training at most; half as many are for testing.
        seeds: Number of samples, and of control tasks; several give standard deviations.
        data: Directory of task data; then $PRETUNE_DATA.
        texts: Sentences of the task "length"; None: those of ud_ewt, or else held-out text.
        device: Device of a model that is loaded; by default a GPU if available.
        on_progress: Called with the finished share and a description.

    Raises:
        UsageError: Unknown task. DataError: data of a task is missing, with its name and place.
    """
    names = _check_tasks(tasks, data)
    if examples < 10 or seeds < 1:
        raise UsageError(f"examples must be >= 10 and seeds >= 1, got {examples} and {seeds}")
    for name in names:  # raises before the model is loaded
        if SOURCES[name] is not None:
            for split in ("train", "dev"):
                TASKS.get(str(SOURCES[name])).find(split, data)
    language_model = open_model(model, device)
    probes = []
    for place, name in enumerate(names):
        sentences = None
        if name == "length":
            sentences = ([*texts], "given texts") if texts is not None else _read_sentences(model, language_model, data)

        def report(share: float, words: str, place: int = place, name: str = name) -> None:
            if on_progress is not None:
                on_progress((place + share) / len(names), f"{name}: {words}")

        probes.append(_probe_task(language_model, name, examples, seeds, data, sentences, report))
    return LayerProbes(tasks=probes, seeds=seeds)


def _check_tasks(tasks: Sequence[str] | None, data: str | os.PathLike[str] | None) -> list[str]:
    if tasks is None:
        return [
            name
            for name, source in SOURCES.items()
            if source is None or {"train", "dev"} <= {*TASKS.get(source).find_available(data)}
        ]
    names = [tasks] if isinstance(tasks, str) else [*dict.fromkeys(tasks)]
    for name in names:
        if name not in PROBE_TASKS:
            options = ", ".join(PROBE_TASKS)
            raise UsageError(f"unknown probe task '{name[:40]}'{suggest(name, PROBE_TASKS)} (allowed: {options})")
    if not names:
        raise UsageError(f"no probe tasks; pass one or more of {', '.join(PROBE_TASKS)}")
    return names


def _read_sentences(
    model: ModelSource, language_model: LanguageModel, data: str | os.PathLike[str] | None
) -> tuple[list[str], str]:
    """Return sentences and their source: the published ones of the part-of-speech task, or else held-out text."""
    try:
        name = str(SOURCES["pos"])
        return [example.text for example in TASKS.get(name).read("train", data)], name
    except DataError:
        held_out = read_held_out(model, language_model, 10 * MAX_EXAMPLES, sentences=True)
        return held_out.texts, held_out.source


def _probe_task(
    model: LanguageModel,
    name: str,
    examples: int,
    seeds: int,
    data: str | os.PathLike[str] | None,
    sentences: tuple[list[str], str] | None,
    report: Callable[[float, str], None],
) -> TaskProbe:
    """Probe every layer for one task; each seed has its own sample and control labels."""
    scores: list[list[tuple[float, float]]] = []  # by seed and layer: accuracy, control
    mixes: list[MixScore] = []
    majorities: list[float] = []
    for seed in range(seeds):
        texts, source = sentences or (None, "")
        probe_data = build_probe_data(name, examples, seed=seed, data=data, texts=texts, source=source)
        report(seed / seeds, "reading")
        features, train, test = extract_features(model, probe_data)
        labels = probe_data.labels
        y, z = encode_labels(train, labels), encode_labels(test, labels)
        types = draw_control_labels([*train, *test], y, seed)
        control_y, control_z = (np.array([types[item.type] for item in items]) for items in (train, test))
        majorities.append(float((z == np.bincount(y).argmax()).mean()))
        rows = []
        for layer, values in enumerate(features):
            report((seed + (layer + 1) / (len(features) + 1)) / seeds, f"layer {layer} of {len(features) - 1}")
            x, w = values[: len(train)], values[len(train) :]
            rows.append((_score(x, y, w, z, seed), _score(x, control_y, w, control_z, seed)))
        scores.append(rows)
        if len({values.shape[1] for values in features}) == 1:
            mixes.append(fit_mix(features, y, z, len(labels), seed))
    table = np.array(scores)  # [seeds, layers, 2]
    return TaskProbe(
        task=name,
        source=probe_data.source,
        labels=labels,
        train=len(train),
        test=len(test),
        majority=float(np.mean(majorities)),
        layers=[_summarize(layer, table[:, layer]) for layer in range(table.shape[1])],
        mix=_average(mixes) if mixes else None,
    )


def _score(x: Floats, y: Ints, w: Floats, z: Ints, seed: int) -> float:
    """Return the accuracy on `w`, `z` of a probe fitted on `x`, `y`."""
    if len(np.unique(y)) < 2:
        return float((z == y[0]).mean())
    classifier = fit_probe(x, y, (PENALTY,), seed=seed, device=torch.device("cpu"))
    return float((classifier.predict(w) == z).mean())


def _summarize(layer: int, values: NDArray[np.float64]) -> LayerScore:
    """Return means and standard deviations over seeds of accuracy and control `[seeds, 2]`."""
    columns = np.column_stack([values, values[:, 0] - values[:, 1]])
    means = columns.mean(0).tolist()
    spread = columns.std(0, ddof=1).tolist() if len(columns) > 1 else [None] * 3
    return LayerScore(layer, *means, *spread)


def _average(mixes: Sequence[MixScore]) -> MixScore:
    weights = np.mean([mix.weights for mix in mixes], axis=0).tolist()
    return MixScore(weights, float(np.mean([mix.accuracy for mix in mixes])))


def fit_mix(features: Sequence[Floats], y: Ints, z: Ints, classes: int, seed: int) -> MixScore:
    """Train a scalar mix of the layers, each standardized, with a linear classifier; test it on the rows after `y`."""
    count = len(y)
    layers = []
    for values in features:
        mean, std = values[:count].mean(0), values[:count].std(0) + 1e-6
        layers.append(torch.from_numpy(((values - mean) / std).astype(np.float32)))
    hidden = torch.stack(layers)  # [L, N, W]
    mix = LayerMix().build(width=hidden.shape[-1], layers=len(hidden))
    head = nn.Linear(hidden.shape[-1], classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    mix_parameters: dict[str, Any] = {"params": [*mix.parameters()], "weight_decay": 0.0}
    parameters = [mix_parameters, {"params": [*head.parameters()]}]
    optimizer = torch.optim.AdamW(parameters, lr=MIX_RATE, weight_decay=MIX_DECAY)
    targets = torch.from_numpy(y)
    with torch.enable_grad():
        for _ in range(MIX_STEPS):
            optimizer.zero_grad()
            loss = F.cross_entropy(head(mix(hidden[:, :count])), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        predictions = head(mix(hidden[:, count:])).argmax(-1).numpy()
        weights = [float(weight) for weight in mix.s.softmax(0)]
    return MixScore(weights, float((predictions == z).mean()))


def extract_features(model: LanguageModel, data: ProbeData) -> tuple[list[Floats], list[ProbeItem], list[ProbeItem]]:
    """Return the features of all items by layer `[N, W]`, training items first, and the items that have all tokens.

    The feature of one span is its mean state; of two, the distance and the product of both, [|u - v|, u v].
    """
    spans: list[list[tuple[int, int]]] = [[] for _ in data.texts]
    places: list[list[tuple[int, int]]] = []
    items = [*data.train, *data.test]
    for item in items:
        places.append([(text, len(spans[text])) for text, _ in item.spans])
        for text, span in item.spans:
            spans[text].append(span)
    starts = np.cumsum([0, *map(len, spans)])
    # NOTE: spans of a text must be in order; those of one item per sentence are, and words come in order.
    states, has_tokens = _extract_states(model, data.texts, spans)
    index = [[int(starts[text]) + place for text, place in pairs] for pairs in places]
    is_complete = [all(has_tokens[i] for i in rows) for rows in index]
    rows_of_items = np.array([rows for rows, complete in zip(index, is_complete, strict=True) if complete])
    if not len(rows_of_items):
        raise DataError(f"probe '{data.name}': no item has tokens of this model; pass other data")
    features = []
    for values in states:
        parts = [values[rows_of_items[:, side]] for side in range(rows_of_items.shape[1])]
        is_pair = len(parts) == 2
        features.append(np.hstack([np.abs(parts[0] - parts[1]), parts[0] * parts[1]]) if is_pair else parts[0])
    train = [item for item, complete in zip(data.train, is_complete, strict=False) if complete]
    test = [item for item, complete in zip(data.test, is_complete[len(data.train) :], strict=True) if complete]
    if not train or not test:
        raise DataError(f"probe '{data.name}': all training or test items are longer than the model's maximum length")
    return features, train, test


def _extract_states(
    model: LanguageModel, texts: Sequence[str], spans: Sequence[Sequence[tuple[int, int]]]
) -> tuple[list[Floats], NDArray[np.bool_]]:
    """Return the mean states of all spans of all texts by layer `[V, W]`, and which spans have tokens `[V]`."""
    tokenizer, device = get_tokenizer(model), model.tokens.weight.device
    limits = [MAX_LENGTH, model.spec.max_length, tokenizer.length]
    length = min(limit for limit in limits if limit is not None)
    total, position = sum(map(len, spans)), 0
    states: list[Floats] = []
    counts = np.zeros(total, dtype=np.int64)
    batch_tokens = BATCH_TOKENS.get(device.type, BATCH_TOKENS["cuda"])
    with eval_mode(model):
        for start in range(0, len(texts), CHUNK_TEXTS):
            part_texts, part_spans = texts[start : start + CHUNK_TEXTS], spans[start : start + CHUNK_TEXTS]
            sequences = encode_texts(tokenizer, part_texts, length).sequences
            owner = find_words(tokenizer, part_texts, sequences.lengths, part_spans).owner
            owner = np.where(owner >= 0, owner + position, -1)
            np.add.at(counts, owner[owner >= 0], 1)
            for part in pack_batches(sequences, tokens=batch_tokens, device=device.type):
                hidden = compute_layers(model, part.batch.to(device))
                owners = np.concatenate([owner[slice(*sequences.offsets[i : i + 2])] for i in part.indices.tolist()])
                inside = torch.from_numpy(part.token_positions[owners >= 0]).to(device)
                states = states or [np.zeros((total, values.shape[1]), dtype=np.float32) for values in hidden]
                for layer, values in enumerate(hidden):
                    rows = values.index_select(0, inside).float().cpu()
                    check_outputs(rows, "states")
                    np.add.at(states[layer], owners[owners >= 0], rows.numpy())
            position += sum(map(len, part_spans))
    sizes = np.maximum(counts, 1).astype(np.float32)[:, None]
    return [values / sizes for values in states], counts > 0
