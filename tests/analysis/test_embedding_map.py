"""Maps of embeddings: known clusters are apart, and labels come from their column."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretune as pt
from pretune.analysis.embedding_map import EmbeddingMap, analyze_embeddings, compute_agreement, compute_chance, project
from pretune.analysis.pictures import MAX_LABELS, group_points
from pretune.cli import main
from pretune.core.errors import DataError, UsageError
from tests.analysis.models import SHAPES, TEXTS, model_of
from tests.selection import keep_quick

Capture = pytest.CaptureFixture[str]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_clusters_stay_apart(method: str) -> None:
    rng = np.random.default_rng(0)
    centres = 8 * np.eye(3, 16, dtype=np.float32)
    labels = np.arange(60) % 3
    vectors = (centres[labels] + 0.1 * rng.normal(size=(60, 16))).astype(np.float32)
    points, axes = project(vectors, method, 0)
    means = np.stack([points[labels == label].mean(0) for label in range(3)])
    assert (np.linalg.norm(points[:, None] - means, axis=-1).argmin(1) == labels).all()
    assert compute_agreement(vectors, [str(label) for label in labels]) == 1
    assert len(axes) == 2 and np.array_equal(points, project(vectors, method, 0)[0])


def test_chance_is_that_of_random_neighbours() -> None:
    rng = np.random.default_rng(0)
    labels = [str(label) for label in rng.integers(0, 3, 600)]
    vectors = rng.normal(size=(600, 8)).astype(np.float32)
    assert compute_agreement(vectors, labels) == pytest.approx(compute_chance(labels), abs=0.06)


def test_the_order_of_equal_texts_does_not_count() -> None:
    rng = np.random.default_rng(1)
    vectors = np.repeat(rng.normal(size=(3, 8)), 4, axis=0).astype(np.float32)
    labels = ["a", "a", "b", "b"] * 3
    assert compute_agreement(vectors, labels) == pytest.approx(1 / 3)
    for _ in range(3):
        order = rng.permutation(12)
        assert compute_agreement(vectors[order], [labels[i] for i in order]) == pytest.approx(1 / 3)


def test_any_seed_is_one_of_tsne() -> None:
    vectors = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    assert np.array_equal(project(vectors, "tsne", 2**40 + 1)[0], project(vectors, "tsne", 1)[0])


@pytest.mark.parametrize("family", keep_quick(SHAPES, "bert"))
def test_points_are_of_the_embeddings(family: str) -> None:
    model = model_of(family)
    found = analyze_embeddings(model, TEXTS, labels=["a", "b", "a", "b", "a"])
    vectors = pt.embed(model, TEXTS)
    centred = vectors - vectors.mean(0)
    assert (found.points**2).sum() <= (centred**2).sum() * 1.001
    assert found.points.shape == (5, 2) and found.labels == ["a", "b", "a", "b", "a"]
    assert len(found.to_pandas()) == 5 and found.neighbor_agreement is not None


def test_a_sample_keeps_labels_with_their_texts() -> None:
    texts = [f"word {number}" for number in range(40)]
    found = analyze_embeddings(model_of("bert"), texts, labels=texts, max_texts=7)
    assert found.texts == found.labels and len(found.texts) == 7 and found.total_texts == 40


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "umap"}, UsageError, "unknown method"),
        ({"labels": ["a"]}, UsageError, "1 labels for 5 texts"),
        ({"texts": ["a", "a", "b"]}, DataError, "at least 3 different texts"),
        ({"max_texts": 1}, UsageError, "max_texts"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        analyze_embeddings(model_of("bert"), **({"texts": TEXTS} | options))


def test_rare_labels_are_one_group() -> None:
    points = [{"label": f"l{i:02}", "x": 0.0, "y": 0.0} for i in range(30)]
    groups = group_points(points)
    assert len(groups) == MAX_LABELS and sum(map(len, groups.values())) == 30


def test_labels_are_drawn_literally(tmp_path: Path) -> None:
    labels = ["$x$", "$", r"$\frac$", "_hidden", "a^b", r"\alpha", "_"]
    points = np.array([(0, place) for place in range(len(labels))], dtype=np.float32)
    facts = {"total_texts": 7, "width": 2, "neighbor_agreement": None, "chance_agreement": None}
    drawn = EmbeddingMap(method="pca", points=points, texts=labels, labels=labels, axes=("$x", "b"), **facts)
    for suffix in (".svg", ".png"):
        file = drawn.draw(tmp_path / f"map{suffix}")
    texts = re.findall(r"<text[^>]*>([^<]+)<", file.with_suffix(".svg").read_text())
    assert [text for text in texts if text in labels] == sorted(labels)


def test_on_the_command_line(tmp_path: Path, capsys: Capture) -> None:
    pt.save(model_of("bert"), tmp_path / "model")
    rows = "".join(f'"{text}",{"$a<" if number % 2 else "b"}\n' for number, text in enumerate(TEXTS))
    (tmp_path / "texts.csv").write_text("text,tone\n" + rows)
    command = ["--quiet", "analyze", "embeddings", str(tmp_path / "model"), "--input", str(tmp_path / "texts.csv")]
    assert main([*command, "--label", "tone", "--out", str(tmp_path / "map.svg")]) == 0
    assert "by chance" in capsys.readouterr().out and "$a&lt;" in (tmp_path / "map.svg").read_text()
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["points"][0]["label"] is None
    assert main([*command, "--label", "ton"]) == 3
    assert "did you mean 'tone'" in capsys.readouterr().err
    assert main([*command, "--method", "umap"]) == 2
