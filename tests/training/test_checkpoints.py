import json
import os
import re
import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pretune.cli import main
from pretune.core.errors import CheckpointError, UsageError
from pretune.core.io import MANIFEST, read_json, write_json, write_manifest
from pretune.core.run_dir import RunLock
from pretune.models import catalog
from pretune.models.hf import checkpoint
from pretune.training.checkpoints import (
    MAX_BYTES,
    format_folder_name,
    list_checkpoints,
    manager,
    open_checkpoint,
    parse_step,
)
from pretune.training.checkpoints.manager import CheckpointManager, verify_checkpoints
from tests.selection import scale_examples

RUN = {"config": "c" * 64, "data": "d" * 64, "tokenizer": "t" * 64}


def make(directory: Path, notes: list[str] | None = None, keep: int = 2) -> CheckpointManager:
    return CheckpointManager(
        directory / "checkpoints", max_checkpoints=keep, on_warning=[].append if notes is None else notes.append
    )


def weights(value: float = 1.0) -> dict[str, dict[str, Tensor]]:
    return {"model": {"weight": torch.full((2, 3), value)}}


def steps(directory: Path) -> list[int]:
    return [open_checkpoint(path).step for path in list_checkpoints(directory / "checkpoints")]


def find_best_step(directory: Path) -> int | None:
    found = [open_checkpoint(path) for path in list_checkpoints(directory / "checkpoints")]
    scores = {result.score: result.step for result in found if result.score is not None}
    return scores[min(scores)] if scores else None


# Round trips


DTYPES = [
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8),
    *(torch.bool, torch.float8_e4m3fn),
]
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
names = names.filter(lambda name: name != "__metadata__")  # the format's own
shapes = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    size = torch.empty(shape, dtype=dtype).nbytes
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype == torch.bool:
        data = bytes(byte & 1 for byte in data)
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if size else torch.empty(0, dtype=dtype)
    made = flat.reshape(shape)
    return made.transpose(0, -1) if draw(st.booleans()) and made.dim() > 1 else made


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


@settings(max_examples=scale_examples(30))
@given(
    groups=st.dictionaries(
        st.sampled_from(["model", "optimizer", "average"]), st.dictionaries(names, tensors(), max_size=4), max_size=3
    ),
    facts=st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.lists(st.floats(0, 1))),
    step=st.integers(0, 10**12),
)
def test_everything_comes_back(
    groups: dict[str, dict[str, Tensor]],
    facts: dict[str, object],
    step: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("store")
    saved = make(directory)
    saved.save(step, groups, facts)
    saved.wait()
    result = make(directory).find_latest({})
    assert result is not None
    assert (result.step, result.facts, set(result.groups), result.score) == (step, facts, set(groups), None)
    for group, reference in groups.items():
        loaded = result.load_tensors(group)
        assert loaded.keys() == reference.keys()
        for name, tensor in reference.items():
            assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
            assert bits(loaded[name]) == bits(tensor)


def test_tied_weights_are_stored_once_and_tied_again(tmp_path: Path) -> None:
    table = torch.randn(64, 64)
    saved = make(tmp_path)
    saved.save(1, {"model": {"input": table, "output": table, "turned": table.t(), "part": table[1:]}}, {}, wait=True)
    result = saved.find_latest({})
    assert result is not None and result.tied_names == {"model": {"output": "input"}}
    assert (result.folder / "model.safetensors").stat().st_size < 3 * table.nbytes + 1000
    loaded = result.load_tensors("model")
    assert loaded["output"] is loaded["input"]
    assert torch.equal(loaded["turned"], table.t()) and torch.equal(loaded["part"], table[1:])


def test_the_layout(tmp_path: Path) -> None:
    saved = make(tmp_path)
    saved.save(1000, weights(), {**RUN, "position": 7}, score=2.5, wait=True)
    folder = tmp_path / "checkpoints" / "step-00001000"
    assert sorted(file.name for file in folder.iterdir()) == [MANIFEST, "model.safetensors", "state.json"]
    manifest = read_json(folder / MANIFEST, CheckpointError)
    assert (manifest["step"], manifest["run"]) == (1000, RUN)
    assert sorted(manifest["files"]) == ["model.safetensors", "state.json"]


@pytest.mark.parametrize(
    "name", ["step-1000", "step-000001000", "step-00001000.old.old", "step-x", ".tmp-step-00001000"]
)
def test_names_that_are_not_ours(name: str, tmp_path: Path) -> None:
    assert parse_step(Path(name)) is None
    (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert make(tmp_path).find_latest({}) is None
    assert parse_step(Path(format_folder_name(1000))) == parse_step(Path(format_folder_name(1000) + ".old")) == 1000


def test_a_checkpoint_under_the_name_of_another_step(tmp_path: Path) -> None:
    make(tmp_path).save(1, weights(), {}, wait=True)
    (tmp_path / "checkpoints/step-00000001").rename(tmp_path / "checkpoints/step-00000002")
    with pytest.raises(CheckpointError, match="step-00000001"):
        make(tmp_path).find_latest({})


def test_a_manifest_that_forgets_a_file(tmp_path: Path) -> None:
    make(tmp_path).save(1, {**weights(), "optimizer": {}}, {}, wait=True)
    folder = tmp_path / "checkpoints/step-00000001"
    for names in (["model.safetensors", "state.json"], ["model.safetensors", "optimizer.safetensors"]):
        write_manifest(folder, names, {"step": 1, "run": {}})
        with pytest.raises(CheckpointError, match=rf"{MANIFEST}.*state\.json"):
            open_checkpoint(folder)


@pytest.mark.parametrize(
    "change",
    [{"step": "1"}, {"groups": ["../x"]}, {"groups": "model"}, {"facts": []}, {"tied": {"model": 1}}, {"score": "low"}],
)
def test_a_state_that_is_none(change: dict[str, object], tmp_path: Path) -> None:
    make(tmp_path).save(1, weights(), {}, wait=True)
    folder = tmp_path / "checkpoints/step-00000001"
    write_json(folder / "state.json", {**read_json(folder / "state.json", CheckpointError), **change})
    write_manifest(folder, ["model.safetensors", "state.json"], {"step": 1, "run": {}})
    with pytest.raises(CheckpointError, match=r"state\.json: "):
        open_checkpoint(folder)


# Belonging


def test_nothing_is_there(tmp_path: Path) -> None:
    assert make(tmp_path).find_latest(RUN) is None


@pytest.mark.parametrize("name", RUN)
def test_the_first_difference_is_named(name: str, tmp_path: Path) -> None:
    saved = make(tmp_path)
    saved.save(1, weights(), RUN, wait=True)
    with pytest.raises(CheckpointError, match=f"step-00000001.*{name}.*'{name[0]}{{64}}'.*'other'"):
        saved.find_latest({**RUN, name: "other"})
    with pytest.raises(CheckpointError, match=r"\bcode\b.*'x'"):
        saved.find_latest({**RUN, "code": "x"})


def test_a_group_that_is_not_there(tmp_path: Path) -> None:
    saved = make(tmp_path)
    saved.save(1, weights(), {}, wait=True)
    result = saved.find_latest({})
    assert result is not None
    with pytest.raises(CheckpointError, match=r"'optimizer'.*model"):
        result.load_tensors("optimizer")


# What stays


def test_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    saved = make(tmp_path)
    calls = []
    for step, score in enumerate([3.0, 1.0, 2.0, None, 4.0, 0.5, 9.0, 9.0, float("nan")]):
        saved.save(step, weights(step), {}, score=score, wait=True)
        calls.append((steps(tmp_path), find_best_step(tmp_path)))
    assert calls == [
        ([0], 0),
        ([1, 0], 1),
        ([2, 1], 1),
        ([3, 2, 1], 1),
        ([4, 3, 1], 1),
        ([5, 4], 5),
        ([6, 5], 5),
        ([7, 6, 5], 5),
        ([8, 7, 5], 5),
    ]


def test_a_damaged_one_does_not_count(tmp_path: Path) -> None:
    saved = make(tmp_path)
    for step in (1, 2):
        saved.save(step, weights(step), {}, wait=True)
    (tmp_path / "checkpoints/step-00000002/model.safetensors").unlink()
    saved.save(3, weights(3), {}, wait=True)
    names = [path.name for path in list_checkpoints(tmp_path / "checkpoints")]
    assert names == ["step-00000003", "step-00000002", "step-00000001"]
    saved.save(4, weights(4), {}, wait=True)
    assert steps(tmp_path) == [4, 3]


def test_a_damaged_best_makes_room_for_the_next_best(tmp_path: Path) -> None:
    saved = make(tmp_path, keep=2)
    for step, score in [(1, 1.0), (2, 2.0), (3, 3.0)]:
        saved.save(step, weights(step), {}, score=score, wait=True)
    assert steps(tmp_path) == [3, 2, 1]
    (tmp_path / "checkpoints/step-00000001/model.safetensors").write_bytes(b"")
    saved.save(4, weights(4), {}, score=4.0, wait=True)
    assert steps(tmp_path) == [4, 3, 2]
    assert find_best_step(tmp_path) == 2


def test_what_was_just_saved_stays_whatever_is_there(tmp_path: Path) -> None:
    saved = make(tmp_path)
    for step in (10, 20, 5):
        saved.save(step, weights(step), {}, wait=True)
    assert steps(tmp_path) == [20, 10, 5]
    saved.save(6, weights(6), {}, wait=True)
    assert steps(tmp_path) == [20, 10, 6]


def test_fewer_than_two_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\b2\b.*\b1\b"):
        make(tmp_path, keep=1)


def test_a_step_saved_again_is_replaced(tmp_path: Path) -> None:
    saved = make(tmp_path)
    saved.save(5, weights(1), {"try": 1}, score=1.0)
    saved.save(5, weights(2), {"try": 2})
    saved.wait()
    result = saved.find_latest({})
    assert result is not None and (result.facts, result.score) == ({"try": 2}, None)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000005"]


# In the background


def test_a_write_that_failed_is_heeded_and_one_at_work_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def full(*arguments: object) -> None:
        gate.wait(10)
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(manager, "write_checkpoint", full)
    item = make(tmp_path)
    item.raise_pending_error()
    item.save(1, weights(), RUN)
    item.raise_pending_error()  # it is still at work
    gate.set()
    with pytest.raises(OSError, match="no space left"):
        for _ in range(1000):
            item.raise_pending_error()
            time.sleep(0.01)
    item.raise_pending_error()  # told once


def test_the_tensors_are_those_of_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    real = manager.write_checkpoint
    monkeypatch.setattr(manager, "write_checkpoint", lambda *arguments: (gate.wait(10), real(*arguments)))
    saved = make(tmp_path)
    tensors, facts = weights(1.0), {"history": [1]}
    stalled = saved.save(1, tensors, facts)
    tensors["model"]["weight"].fill_(2.0)
    facts["history"].append(2)
    assert stalled < 5 and saved.find_latest({}) is None  # not yet written
    threading.Timer(0.3, gate.set).start()
    stalled = saved.save(2, tensors, facts)  # waits for the first
    assert 0.2 < stalled < 5
    saved.wait()
    first, second = (open_checkpoint(path) for path in reversed(list_checkpoints(tmp_path / "checkpoints")))
    assert torch.equal(first.load_tensors("model")["weight"], torch.full((2, 3), 1.0))
    assert torch.equal(second.load_tensors("model")["weight"], torch.full((2, 3), 2.0))
    assert (first.facts, second.facts) == ({"history": [1]}, {"history": [1, 2]})


def test_memory_is_used_again(tmp_path: Path) -> None:
    saved = make(tmp_path)
    saved.save(1, weights(1.0), {})
    previous = {key: buffer.data_ptr() for key, buffer in saved._snapshot._buffers.items()}
    saved.save(2, weights(2.0), {})
    assert {key: buffer.data_ptr() for key, buffer in saved._snapshot._buffers.items()} == previous
    saved.save(3, {"model": {"weight": torch.zeros(7)}}, {}, wait=True)
    assert [list(buffer.shape) for buffer in saved._snapshot._buffers.values()] == [[7]]


@pytest.mark.parametrize(
    ("groups", "facts", "message"),
    [
        ({"../model": {}}, {}, r"\.\./model"),
        ({"model": {}}, {"loss": float("nan")}, "JSON"),
        ({"model": {}}, {"text": "x" * MAX_BYTES}, f"{MAX_BYTES:,}"),
    ],
)
def test_what_cannot_be_saved_is_refused_at_once(
    groups: dict[str, dict[str, Tensor]], facts: dict[str, object], message: str, tmp_path: Path
) -> None:
    saved = make(tmp_path)
    with pytest.raises(ValueError, match=message):
        saved.save(1, groups, facts)
    saved.save(1, weights(), {}, wait=True)
    assert steps(tmp_path) == [1]


def test_all_is_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    real_sync, real_rename = os.fsync, os.rename

    def sync(descriptor: int) -> None:
        events.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        real_sync(descriptor)

    def rename(source: Path, target: Path) -> None:
        events.append(("rename", str(target)))
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    make(tmp_path / "run").save(1, weights(), {}, wait=True)
    folder = tmp_path / "run" / "checkpoints"
    index = events.index(("rename", str(folder / "step-00000001")))
    synced = {Path(path).name for kind, path in events[:index] if Path(path).parent.parent == folder}
    assert synced >= {MANIFEST, "model.safetensors", "state.json"}
    assert any(Path(path).name.startswith(".tmp-") and Path(path).parent == folder for _, path in events[:index])
    assert {path for _, path in events[index + 1 :]} >= {str(folder), str(folder.parent), str(tmp_path)}


# Leftovers


def test_leftovers_go_when_the_lock_is_held(tmp_path: Path) -> None:
    notes: list[str] = []
    saved = make(tmp_path, notes)
    saved.save(1, weights(), {}, wait=True)
    (tmp_path / "checkpoints" / ".tmp-00000000dead" / "deep").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".tmp-00000000f11e").write_text("half")
    lock = RunLock(tmp_path, on_warning=notes.append)
    with pytest.raises(ValueError, match="checkpoints"):
        saved.remove_unfinished(lock)
    with lock:
        saved.remove_unfinished(lock)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    assert len(notes) == 1 and " 2 " in notes[0]
    with RunLock(tmp_path / "other", on_warning=print) as other, pytest.raises(ValueError, match="checkpoints"):
        saved.remove_unfinished(other)


# pretune verify


def test_verify_says_a_line_of_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = make(tmp_path)
    for step, score in [(1, 1.5), (2, 2.5), (3, None)]:
        saved.save(step, weights(), {}, score=score, wait=True)
    lines = verify_checkpoints(tmp_path)
    assert [line.partition(": ")[0] for line in lines] == [f"checkpoints/step-0000000{step}" for step in (3, 2, 1)]
    assert [re.findall(r"\d\.\d{4}", line) for line in lines] == [[], ["2.5000"], ["1.5000"]]
    assert all(": 2 files" in line for line in lines) and len(lines[2]) > len(lines[1]), "the best is marked"
    assert main(["verify", str(tmp_path)]) == 0  # a run that has not ended
    assert capsys.readouterr().out.splitlines() == [f"ok  {line}" for line in lines]
    assert main(["verify", str(tmp_path / "checkpoints" / "step-00000003")]) == 0
    assert capsys.readouterr().out.splitlines() == [f"ok  {lines[0]}"]
    spec = catalog.build("bert-tiny", width=16, depth=1, heads=2, vocab=30, positions=16)
    checkpoint.save(spec, tmp_path, overwrite=True)
    assert main(["verify", str(tmp_path), "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)["checked"]
    assert checked[0].startswith("MANIFEST.json: 2 ") and checked[-3:] == lines
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert main(["verify", str(tmp_path)]) == 4
    assert "model.safetensors" in capsys.readouterr().err


# A device


@pytest.mark.gpu
def test_from_a_device(tmp_path: Path) -> None:
    """The values of the moment, though the device goes on; the host hardly waits."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    values = torch.arange(1 << 26, device="cuda", dtype=torch.float32)  # 256 MiB
    groups = {
        "model": {"a": values, "tied": values, "b": values[: 1 << 20].bfloat16()},
        "optimizer": {"n": torch.ones(())},
    }
    saved = make(tmp_path)
    saved.save(1, groups, RUN, wait=True)  # the pinned memory is made here
    start_time = time.perf_counter()
    saved.save(1, groups, RUN, wait=True)
    written = time.perf_counter() - start_time
    for step in (2, 3):
        torch.cuda.synchronize()
        saved.wait()
        start_time = time.perf_counter()
        stalled = saved.save(step, groups, RUN)
        values.mul_(2)
        assert time.perf_counter() - start_time < written / 2 and stalled < written / 2
    saved.wait()
    reference = torch.arange(1 << 26, dtype=torch.float32)
    for path, factor in zip(reversed(list_checkpoints(tmp_path / "checkpoints")), (1, 2), strict=True):
        result = open_checkpoint(path)
        loaded = result.load_tensors("model")
        assert torch.equal(loaded["a"], reference * factor) and loaded["tied"] is loaded["a"]
