"""A source of batches that is quick to import, and goes wrong where it is told to."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from pretune.core.errors import DataError
from pretune.core.types import Batch
from pretune.data.layout import batch


@dataclass
class Counting:
    """Batches that hold nothing but their step and part; they grow, and some steps go wrong."""

    slow: float = 0.0
    broken: dict[int, str] | None = None
    log: Path | None = None  # a folder that receives an empty file for every step made

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
        if self.log is not None:
            (self.log / str(step)).touch()
        return batch([[step, part, parts, os.getpid(), torch.get_num_threads()]] * (1 + step % 4))
