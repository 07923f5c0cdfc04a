"""Steps on their way to a GPU: pinned memory is written again only after what lay in it has been copied."""

import contextlib
from typing import Any

import pytest
import torch

from pretune.training.batch_transfer import BatchStats, DevicePrefetcher, PackedBatches
from tests.training.test_loop import causal_batch


class Clock:
    """Log of the calls of CUDA, in order. Copies are done at once, into separate memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[tuple[str, int]] = []
        self.pinned: list[int] = []
        clock, empty = self, torch.empty

        class Event:
            number = 0

            def __init__(self) -> None:
                Event.number += 1
                self.number = Event.number

            def record(self, stream: object) -> None:
                clock.told.append(("copied", self.number))

            def synchronize(self) -> None:
                clock.told.append(("waited for", self.number))

        def made(*size: int, pin_memory: bool = False, **options: Any) -> torch.Tensor:
            if pin_memory:
                clock.pinned.append(size[0])
            return empty(*size, **options)

        monkeypatch.setattr(torch, "empty", made)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", lambda *args, **options: object())
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())


def test_a_buffer_is_waited_for_before_it_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    carrier: Any = DevicePrefetcher(torch.device("cuda"))
    carrier._device = torch.device("meta")  # NOTE: to the CPU nothing would be copied
    for step, size in enumerate((6, 6, 5, 6, 9, 9), 1):
        packed = PackedBatches.from_batches([causal_batch([list(range(5, 5 + size))] * 3)])

        def write(memory: torch.Tensor, packed: PackedBatches = packed, step: int = step) -> None:
            assert memory.nbytes == packed.layout.size
            packed.write(memory)
            clock.told.append(("written", step))

        load = carrier.send_packed(packed.layout, BatchStats(), write)
        assert load.result.args[1].nbytes == packed.layout.size
    reference: list[tuple[str, int]] = []
    for step in range(1, 7):
        reference += [("waited for", step - 2)] * (step > 2) + [("written", step), ("copied", step)]
    assert clock.told == reference
    assert len(clock.pinned) == 4  # two of the first size, and two more where a step did not fit


def test_on_a_cpu_a_step_has_memory_of_its_own() -> None:
    """Out of memory that somebody else will write again."""
    batch = causal_batch([[5, 6, 7, 8]] * 2)
    packed = PackedBatches.from_batches([batch])
    foreign = torch.empty(packed.layout.size, dtype=torch.uint8)
    packed.write(foreign)
    carrier = DevicePrefetcher(torch.device("cpu"))
    load = carrier.send_packed(packed.layout, BatchStats(), lambda memory: memory.copy_(foreign))
    foreign.zero_()
    (result,) = load.result()
    assert not carrier.is_async and torch.equal(result.tokens, batch.tokens)
