"""Empty environments, and programs of a release in them, away from the checkout."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from pretune.models import catalog
from pretune.models.hf import checkpoint
from pretune.text.tokenizer.training import train
from tests.contracts.tiny import rough

STARTUP_SECONDS = 180


def create_environment(folder: Path) -> dict[str, str]:
    """Create an environment without packages; return the variables of a program in it.

    Nothing of the checkout is on its path. The settings of pip stay: they say where packages come from.
    """
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PRETUNE", "VIRTUAL"))}
    return {**kept, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(folder)}


def run_shell(line: str, folder: Path, variables: dict[str, str]) -> str:
    """Return what a line of a shell prints; skip the test where packages cannot be installed here."""
    result = subprocess.run(["sh", "-c", line], cwd=folder, env=variables, capture_output=True, text=True)
    if result.returncode and "pip install" in line and "No matching distribution" in result.stderr:
        pytest.skip(f"not installable here: {result.stderr.strip().splitlines()[-1]}")
    assert result.returncode == 0, f"{line}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
    return result.stdout


def save_decoder(folder: Path) -> None:
    """Save a small random decoder with its tokenizer."""
    tokenizer = train("bpe", ["the cat sat on the mat", "a dog lay on the sofa"] * 4, vocab=300)
    model = rough(catalog.build("gpt2-small", width=16, depth=1, heads=2, vocab=tokenizer.vocab))
    model.assets.files = tokenizer.build_files()
    checkpoint.save(model, folder)


@contextmanager
def serve(command: Sequence[str], folder: Path, variables: dict[str, str], port: int) -> Iterator[str]:
    """Start a server; yield its address when `/health` answers; end it by SIGTERM, to which it exits with 0."""
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=output, stderr=output)
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + STARTUP_SECONDS
    try:
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            try:
                if urlopen(f"{address}/health", timeout=5).status == 200:
                    break
            except URLError:
                time.sleep(0.5)
        yield address
        process.terminate()
        assert process.wait(timeout=60) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()


def post(address: str, body: dict[str, Any]) -> Any:
    """Return the answer to a JSON request."""
    request = Request(address, json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())
