"""Compiled block by block: one graph for all layers, whatever a batch is made of."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

import pretune as pt
from tests.selection import keep_quick


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def mixed(seed: int, rows: int, length: int, vocab: int) -> pt.Batch:
    """Sequences of changing lengths and number that fill the same rows, labels everywhere."""
    rng = np.random.default_rng(seed)
    cuts = [np.sort(rng.choice(np.arange(4, length - 4), 5, replace=False)) for _ in range(rows)]
    ends = [np.diff([0, *cut, length]) for cut in cuts]
    sequences = [rng.integers(5, vocab, n).tolist() for row in ends for n in row]
    return pt.batch(sequences, row=length, labels=sequences)


def step(model: torch.nn.Module, batch: pt.Batch) -> torch.Tensor:
    model.zero_grad()
    loss = model.loss(model.states(batch), batch).mean()
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("name", keep_quick(["bert-tiny", "gpt2-small", "llama-7b", "mistral-7b"], "bert-tiny"))
def test_one_graph_for_changing_batches(name: str) -> None:
    """The graphs are counted with a backend that compiles nothing: way in, block, way out, loss, head."""
    model = pt.build(name, width=64, depth=3, heads=8, vocab=70).eval()
    plain = step(model, mixed(0, 2, 32, 70))
    model.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(step(model, mixed(0, 2, 32, 70)), plain)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs <= 6
    for seed in range(1, 5):
        step(model, mixed(seed, 2, 32, 70))
    assert counters["stats"]["unique_graphs"] == graphs, "a batch of another composition was compiled again"
    assert not counters["graph_break"]


@torch._dynamo.config.patch(recompile_limit=2)  # fewer than the shapes
@pytest.mark.slow
def test_every_shape_of_a_process_is_compiled() -> None:
    """A fourth model or length is compiled like the first, and one that was seen before is not compiled again."""
    graphs = []
    for length in (*range(20, 24), 20):
        model = pt.build("bert-tiny", width=64, depth=2, heads=8, vocab=70)
        model.compile(backend="eager", dynamic=False)
        step(model, mixed(0, 2, length, 70))
        graphs.append(counters["stats"]["unique_graphs"])
    new_graphs = np.diff(graphs)
    assert (new_graphs[:-1] == new_graphs[0]).all() and new_graphs[0] > 0 and new_graphs[-1] == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("rows", "length", "backend"), [(32, 128, "tiles"), (4, 1024, "varlen")])
def test_bert_base_compiles_once(rows: int, length: int, backend: str) -> None:
    """On the device: BERT-base in bf16, real compilation, batches of changing composition."""
    model = pt.build("bert-base", device="cuda", positions=1024, dropout=0.0).train()
    batches = [mixed(seed, rows, length, 30000).to("cuda") for seed in range(6)]
    with torch.autocast("cuda", torch.bfloat16):
        eager = step(model, batches[0])
        model.compile()
        compiled = step(model, batches[0])
        torch.testing.assert_close(compiled, eager, rtol=5e-3, atol=5e-3)
        graphs = counters["stats"]["unique_graphs"]
        for batch in batches:
            step(model, batch)
    scopes = model.encoder.build_contexts(batches[0], torch.bfloat16, pretune_ask())
    assert {scope.backend for scope in scopes.values()} == {backend}
    print(f"\n{backend}: {graphs} graphs, {counters['stats']['unique_graphs'] - graphs} more for 5 other batches")
    assert counters["stats"]["unique_graphs"] == graphs


def pretune_ask() -> object:
    from pretune.nn.stack import OutputFlags

    return OutputFlags()
