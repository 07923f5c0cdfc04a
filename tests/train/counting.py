"""A source of batches that is quick to import, and goes wrong where it is told to."""

import os
import time
from dataclasses import dataclass

import torch

from pretune.core.errors import DataError
from pretune.core.types import Batch
from pretune.data.layout import batch


@dataclass
class Counting:
    """Batches that hold nothing but their step and part; they grow, and some steps go wrong."""

    slow: float = 0.0
    broken: dict[int, str] | None = None

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        time.sleep(self.slow * (step % 3))
        match (self.broken or {}).get(step):
            case "unfit":
                raise DataError(f"step {step} is unfit")
            case "bug":
                raise KeyError("x")
            case "memory":
                raise MemoryError
            case "exit":
                os._exit(7)
            case "hang":
                time.sleep(1000)
        return batch([[step, part, parts, os.getpid(), torch.get_num_threads()]] * (1 + step % 4))
