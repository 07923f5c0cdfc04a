"""What all tests share: no network, one thread per worker, and the data directory."""

import io
import os
import re
from pathlib import Path

import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the GPU tests run where it is not installed
    settings = None

# Set before torch or transformers are imported by any test.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Machines differ in speed and a test must not: no deadlines, and the same examples in every run.
if settings is not None:
    shared = {
        "deadline": None,
        "derandomize": True,
        "suppress_health_check": [HealthCheck.too_slow],
        "print_blob": True,
    }
    settings.register_profile("quick", max_examples=25, **shared)
    settings.register_profile("thorough", max_examples=100, **shared)  # of `make test-slow`
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

ROOT = Path(__file__).parents[1]


class Screen(io.StringIO):
    """What a terminal was sent."""

    def isatty(self) -> bool:
        return True

    def rows(self) -> list[str]:
        """Line by line, with what moves the cursor taken for the end of one."""
        return [row.strip() for row in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "\n", self.getvalue()).split("\n")]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of data sets: $PRETUNE_DATA, or ../shared/data beside the checkout."""
    directory = Path(os.environ.get("PRETUNE_DATA") or ROOT.parent / "shared" / "data")
    if not directory.is_dir():
        pytest.skip(f"no data at {directory}; set PRETUNE_DATA")
    return directory
