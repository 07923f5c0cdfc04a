"""Cores and memory that this process may use: those of the machine, of its container or batch job, or of its share."""

import contextlib
import ctypes
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
"""Limits of a container: files of version 2, and folders of version 1."""
_shares: list[int] = []  # of the cores, set by `share_cores`; the last one holds


def count_cores() -> int:
    """Return the number of cores that this process may use.

    `os.cpu_count` is that of the machine, also in a container with a quota; so many processes or threads would wait for
    each other.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read_quota()
    limits = [cores, *([] if quota is None else [math.ceil(quota)]), *_shares[-1:]]
    return max(1, min(limits))


@contextmanager
def share_cores(count: int) -> Iterator[None]:
    """Use at most so many cores meanwhile, because other processes of the same program have the rest."""
    _shares.append(count)
    try:
        yield
    finally:
        _shares.pop()


def limit_threads() -> None:
    """Make libraries that are loaded later start no more threads than a container's quota has cores.

    NOTE: OpenMP respects the cores a process is bound to, but no quota.
    """
    if _read_quota() is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(count_cores()))


def measure_memory() -> int | None:
    """Return the bytes of memory available to this process: the machine's, or the container's limit if lower."""
    sizes: list[int] = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in (_read_numbers("memory.max"), _read_numbers("memory/memory.limit_in_bytes")):
        sizes += limit[:1]
    return min(sizes, default=None)


def _read_quota() -> float | None:
    """Return the cores' worth of time that a container may use; None: no quota."""
    numbers = _read_numbers("cpu.max") or [
        *_read_numbers("cpu/cpu.cfs_quota_us"),
        *_read_numbers("cpu/cpu.cfs_period_us"),
    ]
    if len(numbers) != 2 or min(numbers) <= 0:  # -1: no quota
        return None
    return numbers[0] / numbers[1]


def _read_numbers(name: str) -> list[int]:
    """Return the numbers in a file of the container's limits; none if it is missing or says "max"."""
    try:
        return [int(word) for word in (CGROUP / name).read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return []


def release_memory() -> None:
    """Return freed memory to the system, where the C library does so on request (glibc)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
