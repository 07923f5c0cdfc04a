"""Cost of a run: FLOPs against formulas, gauges against fake counters, totals over resumes."""

import ctypes
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from pretune.core.config import from_dict, to_dict
from pretune.core.log import format_count
from pretune.data.layout import batch
from pretune.models.catalog import resolve
from pretune.models.cost import flops_per_token
from pretune.training import cost
from pretune.training.batch_transfer import BatchStats
from pretune.training.cost import (
    CostMeter,
    CostRates,
    Energy,
    Totals,
    build_flops_counter,
    compute_cost,
    find_device,
    find_peak_flops,
)

CPU = torch.device("cpu")


class TestFlops:
    @pytest.mark.parametrize("name", ["bert-base", "gpt2-small"])
    def test_sequences_of_one_length_are_the_formula(self, name: str) -> None:
        model = resolve(name)
        calls = BatchStats(sequences=10, tokens=10 * 96, squares=10 * 96 * 96, targets=240)
        reference = 960 * flops_per_token(model, length=96, targets=0.25)
        assert build_flops_counter(model)(calls) == pytest.approx(reference, rel=1e-12)

    @pytest.mark.parametrize("name", ["bert-base", "gpt2-small", "t5-small"])
    def test_sequences_of_many_lengths_add_up(self, name: str) -> None:
        """The cost of a batch is the sum over its sequences; padding costs nothing."""
        model = resolve(name)
        lengths = [(3, 5), (64, 7), (20, 20), (1, 64)]
        tokens = [[[1] * number for number in side] for side in zip(*lengths, strict=True)]
        labels = [[1] * (n // 2) + [-100] * (n - n // 2) for _, n in lengths]
        made = (
            batch(source=tokens[0], target=tokens[1])
            if model.is_encoder_decoder
            else batch(tokens[1], labels=labels, row=80)
        )
        calls = BatchStats.from_batches([made])
        share = calls.targets / calls.tokens
        reference = sum(
            (m + n) * flops_per_token(model, length=m, target_length=n, targets=share)
            if model.is_encoder_decoder
            else n * flops_per_token(model, length=n, targets=share)
            for m, n in lengths
        )
        assert build_flops_counter(model)(calls) == pytest.approx(
            reference, rel=1e-12 if model.is_encoder_decoder else 2e-4
        )

    def test_a_second_model_has_no_targets(self) -> None:
        model, calls = resolve("bert-base"), BatchStats(sequences=1, tokens=10, squares=100, targets=5)
        both = build_flops_counter(model, model)(calls)
        assert both == build_flops_counter(model)(calls) + 10 * flops_per_token(model, length=10, targets=0)
        assert build_flops_counter(model)(BatchStats()) == 0


class TestBoards:
    @pytest.mark.parametrize(
        ("name", "device"),
        [
            ("NVIDIA H200", "h200"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA A100-SXM4-80GB", "a100"),
            ("Tesla T4", "t4"),
            ("NVIDIA GeForce RTX 4090", "rtx4090"),
            ("NVIDIA L40S", "l40s"),
            ("NVIDIA H100 PCIe", None),
            ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
            ("NVIDIA A100-PCIE-40GB", None),
            ("Quadro P400", None),
        ],
    )
    def test_names_of_drivers(self, name: str, device: str | None) -> None:
        result = find_device(name)
        assert (result and result.name) == device

    def test_a_board_we_cannot_ask_is_assumed(self) -> None:
        for name, watts in (("NVIDIA H200", "700"), ("Quadro", "300")):
            gauge = cost._assume_board(name)
            assert not gauge.is_measured and "80%" in gauge.method and watts in gauge.method

    def test_no_peak_is_known_of_a_cpu(self) -> None:
        assert find_peak_flops("cpu", None) is None


class FakeNvml:
    """As the library answers: codes, and numbers written where a pointer says."""

    def __init__(self, counter: bool = True, found: bool = True) -> None:
        self.counter, self.found, self.milli = counter, found, 5_000

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        handle._obj.value = 77
        return 0 if self.found and uuid == b"GPU-1" else 6

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: ctypes.c_void_p, value: Any) -> int:  # noqa: N802
        value._obj.value = self.milli
        return 0 if self.counter and handle.value == 77 else 3

    def nvmlDeviceGetPowerUsage(self, handle: ctypes.c_void_p, value: Any) -> int:  # noqa: N802
        value._obj.value = self.milli
        return 0 if handle.value == 77 else 3


class TestNvml:
    def test_an_energy_counter(self) -> None:
        library = FakeNvml()
        board = cost.open_board("b", "GPU-1", library)
        assert board is not None and "NVML" in board.method and board.max_interval is None
        library.milli += 2_500
        assert board.read_joules() == 2.5

    def test_power_is_summed_over_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = iter([10.0, 12.0, 13.0])
        monkeypatch.setattr(cost.time, "monotonic", lambda: next(clock))
        library = FakeNvml(counter=False)
        board = cost.open_board("b", "GPU-1", library)
        assert board is not None and board.max_interval == 1.0
        library.milli = 7_000
        assert board.read_joules() == 12.0  # two seconds between 5 and 7 watts
        assert board.read_joules() == 19.0

    def test_none_where_nobody_answers(self) -> None:
        assert cost.open_board("b", "GPU-1", FakeNvml(found=False)) is None
        assert cost.open_board("b", "GPU-1", object()) is None
        assert cost.open_board("b", "GPU-2", FakeNvml()) is None


def zone(root: Path, number: str, name: str, value: int, full: int = 1000) -> Path:
    path = root / f"intel-rapl:{number}"
    path.mkdir(parents=True)
    for file, content in (("name", name), ("energy_uj", value), ("max_energy_range_uj", full)):
        (path / file).write_text(f"{content}\n")
    return path


class TestRapl:
    def test_packages_and_memory_are_summed_over_the_wrap(self, tmp_path: Path) -> None:
        package, memory = zone(tmp_path, "0", "package-0", 900), zone(tmp_path, "0:1", "dram", 5)
        core, full = zone(tmp_path, "0:0", "core", 100), zone(tmp_path, "1", "psys", 100)
        gauge = cost.open_rapl(tmp_path)
        assert gauge is not None and gauge.read_joules() == 0
        for path in (core, full):  # parts of others, or all of them again
            (path / "energy_uj").write_text("900")
        (package / "energy_uj").write_text("99")  # 900 … 1000, 0 … 99
        (memory / "energy_uj").write_text("25")
        assert gauge.read_joules() == pytest.approx(220e-6)
        (package / "energy_uj").write_text("100")
        assert gauge.read_joules() == pytest.approx(221e-6)

    def test_none_where_there_is_none_or_it_is_hidden(self, tmp_path: Path) -> None:
        assert cost.open_rapl(tmp_path) is None
        (zone(tmp_path, "0", "package-0", 1) / "energy_uj").unlink()
        assert cost.open_rapl(tmp_path) is None


class Steady:
    """A gauge that counts how often it is read."""

    component, method, is_measured = "thing", "by hand", True

    def __init__(self, every: float | None = None) -> None:
        self.max_interval, self.reads = every, 0

    def read_joules(self) -> float:
        self.reads += 1
        return 3600.0


Gauged = Callable[..., None]


@pytest.fixture
def gauged(monkeypatch: pytest.MonkeyPatch) -> Gauged:
    def use(*found: Any) -> None:
        monkeypatch.setattr(cost, "find_gauges", lambda device, *, host: list(found))

    return use


class TestMeter:
    def test_totals_go_on_over_resumes(self, gauged: Gauged) -> None:
        gauged(Steady())
        flops: Callable[[BatchStats], float] = lambda seen: 10.0 * seen.tokens  # noqa: E731
        first = CostMeter(flops, CPU)
        with first:
            first.add(BatchStats(tokens=3))
            time.sleep(0.05)
        remaining = from_dict(Totals, json.loads(json.dumps(to_dict(first.compute_totals()))))  # by way of a checkpoint
        assert remaining == first.compute_totals() and remaining.seconds >= 0.05
        second = CostMeter(flops, CPU, initial_totals=remaining)
        start_time = time.monotonic()
        with second:
            second.add(BatchStats(tokens=4))
            while_running = second.compute_totals()
        longest = time.monotonic() - start_time
        second.add(BatchStats(tokens=100))  # not running: counted when it goes on
        total = second.compute_totals()
        assert while_running.flops == total.flops == 70
        assert remaining.seconds <= while_running.seconds <= total.seconds <= remaining.seconds + longest
        assert total.energy == (Energy(what="thing", how="by hand", measured=True, joules=7200.0),)

    def test_gauges_that_must_be_read_are(self, gauged: Gauged) -> None:
        slow, quick = Steady(), Steady(every=0.01)
        gauged(slow, quick)
        previous = threading.active_count()
        with CostMeter(lambda seen: 0.0, CPU):
            end = time.monotonic() + 60
            while quick.reads <= 3 and time.monotonic() < end:
                time.sleep(0.01)
            assert quick.reads > 3
        assert threading.active_count() == previous

    def test_a_counter_that_fails_ends_nothing(self, gauged: Gauged) -> None:
        class Failing(Steady):
            def read_joules(self) -> float:
                self.reads += 1
                if self.reads > 1:
                    raise OSError("gone")
                return 5.0

        gauged(Failing())
        with CostMeter(lambda seen: 0.0, CPU) as running:
            assert [running.compute_totals().energy[0].joules for _ in range(2)] == [5.0, 5.0]

    def test_a_cpu_without_counters_is_assumed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cost, "open_rapl", lambda: None)
        (gauge,) = cost.find_gauges(CPU)
        threads = torch.get_num_threads()
        assert not gauge.is_measured
        assert gauge.method == f"assumed: 5.6 W for each of {format_count(threads, 'threads')}"
        previous = time.monotonic()
        first = gauge.read_joules()
        time.sleep(0.05)
        watts = (gauge.read_joules() - first) / (time.monotonic() - previous)
        assert 0 < watts <= 5.625 * threads
        assert gauge.read_joules() - first >= 0.05 * 5.625 * threads
        assert cost.find_gauges(CPU, host=False) == []


class TestCost:
    totals = (
        Totals(seconds=3600, flops=5e15, energy=(Energy(what="gpu", how="NVML", measured=True, joules=1.8e6),)),
        Totals(
            seconds=3500,
            flops=7e15,
            energy=(
                Energy(what="gpu", how="NVML", measured=True, joules=1.8e6),
                Energy(what="processor", how="assumed", measured=False, joules=3.6e6),
            ),
        ),
    )

    def test_ranks_add_up(self) -> None:
        result = compute_cost(
            self.totals, CPU, CostRates(grid_g_per_kwh=100, dollars_per_device_hour=2.0, dollars_per_kwh=0.5)
        )
        assert (result["devices"], result["seconds"], result["flops"]) == (2, 3600, 1.2e16)
        assert result["kwh"] == 2.0 and len(result["energy"]) == 2
        assert result["co2e_kg"] == 0.2 and result["dollars"] == 2 * 2.0 + 2.0 * 0.5
        assert (result["energy_label"], result["price_label"]) == ("partly measured", "given")
        assert result["mfu"] is None and result["peak_flops"] is None
        assert json.loads(json.dumps(result, allow_nan=False))["kwh"] == 2.0

    def test_labels_and_what_is_assumed(self) -> None:
        result = compute_cost(self.totals[:1], CPU, CostRates())
        assert result["energy_label"] == "measured"
        measured = replace(self.totals[0], energy=(Energy(what="processor", how="", measured=True, joules=1.0),))
        assert len(result["left_out"]) == len(compute_cost([measured], CPU, CostRates())["left_out"]) + 1
        assert result["grid_g_per_kwh"] == 475
        assert (result["price_label"], result["dollars_per_device_hour"], result["dollars_per_kwh"]) == (
            "assumed",
            0,
            0.3,
        )
        assert compute_cost([Totals()], CPU, CostRates())["energy_label"] == "estimated"

    def test_a_device_we_know(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
        assert find_peak_flops("cuda", torch.bfloat16) == 989e12 and find_peak_flops("cuda", None) == 67e12
        result = compute_cost(self.totals[:1], "cuda", CostRates(), precision=torch.bfloat16)
        assert result["device"] == "NVIDIA H200"
        assert result["mfu"] == pytest.approx(5e15 / (3600 * 989e12))
        assert result["dollars"] == pytest.approx(3.80) and result["dollars_per_kwh"] == 0  # it is in the rent


@pytest.mark.gpu
def test_a_gpu_is_measured() -> None:
    (board, *_) = cost.find_gauges(torch.device("cuda"))
    assert board.is_measured, "no NVML here"
    result = []
    for _ in range(4):
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            torch.randn(4000, 4000, device="cuda") @ torch.randn(4000, 4000, device="cuda")
            torch.cuda.synchronize()
        result.append(board.read_joules())
    assert all(10 < later - sooner < 1000 for sooner, later in pairwise(result))
