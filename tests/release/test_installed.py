"""The release in an empty environment, outside the checkout: wheel, source distribution, lines of the Dockerfile."""

import json
import re
import shlex
import shutil
import socket
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from tests.conftest import ROOT
from tests.docs.commands import check
from tests.release.distribution import build, copy_sources
from tests.release.environments import create_environment, post, run_shell, save_decoder, serve

DOCKERFILE = ROOT / "Dockerfile"
PAGE = [path for path in (ROOT / "src/pretune/server").rglob("*.html") if "__pycache__" not in path.parts]


def read_instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def find_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def check_server(address: str) -> None:
    """Complete a text, embed one, and read the page if there is one."""
    assert post(f"{address}/v1/completions", {"prompt": "the cat", "max_tokens": 3})["choices"][0]["text"]
    assert len(post(f"{address}/v1/embeddings", {"input": "the cat"})["data"][0]["embedding"]) == 16
    if PAGE:
        assert b"<html" in urlopen(address, timeout=30).read()


def test_dockerfile_and_compose_file() -> None:
    """Every file that is copied exists and is not ignored; commands are those of the command line; no root."""
    instructions = read_instructions()
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for word, rest in instructions if word == "COPY" for name in rest.split()[:-1]}
    assert copied == kept and all((ROOT / name).exists() for name in copied)
    words = [word for word, _ in instructions]
    assert words.index("USER") < words.index("ENTRYPOINT")
    defaults = dict(instructions)
    entry = json.loads(defaults["ENTRYPOINT"])
    compose: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["pretune"]
    for arguments in (json.loads(defaults["CMD"]), compose["command"]):
        assert check(
            shlex.join([*entry, *(word.replace("${MODEL:-model}", "model") for word in arguments)]), whole=True
        )
        assert arguments[arguments.index("--port") + 1] == defaults["EXPOSE"]
    assert [port.rsplit(":", 1)[1] for port in compose["ports"]] == [defaults["EXPOSE"]]
    assert all(port.startswith("127.0.0.1:") for port in compose["ports"])


@pytest.mark.slow
def test_lines_of_the_dockerfile(tmp_path: Path) -> None:
    """Its copies, its installations and its start, in an empty environment instead of the image.

    `TORCH_INDEX` is the package index here. The user of the image is not created.
    """
    folder, models = tmp_path / "opt", tmp_path / "models"
    folder.mkdir()
    save_decoder(models / "model")
    variables = create_environment(tmp_path / "environment")
    left_out = []
    command: list[str] = []
    for word, rest in read_instructions():
        if word == "ARG":
            name, _, value = rest.partition("=")
            variables[name] = "https://pypi.org/simple" if name == "TORCH_INDEX" else value
        elif word == "COPY":
            *sources, target = rest.split()
            for name in sources:
                path = ROOT / name
                if path.is_dir():
                    shutil.copytree(path, folder / target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
                else:
                    shutil.copy(path, folder / target)
        elif word == "RUN" and rest.startswith("pip "):
            run_shell(rest, folder, variables)
        elif word == "RUN":
            left_out.append(rest.split()[0])
        elif word in ("ENTRYPOINT", "CMD"):
            command += json.loads(rest)
    assert left_out == ["useradd"]
    shutil.rmtree(folder)  # nothing of it is needed any more
    port = find_port()
    command = [part.replace("/models/model", str(models / "model")) for part in command]
    command[command.index("--port") + 1] = str(port)
    command[0] = str(tmp_path / "environment/bin" / command[0])
    with serve(command, tmp_path, variables, port) as address:
        check_server(address)


@pytest.mark.slow
def test_wheel_and_source_distribution(tmp_path: Path) -> None:
    """The wheel with its extras runs the quick start and the server; then the source distribution is installed."""
    sources = copy_sources(tmp_path / "sources")
    wheel, sdist = build(sources)
    constraints = shlex.quote(str(sources / "constraints.txt"))
    variables = create_environment(tmp_path / "environment")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    run_shell(f"pip install -q -c {constraints} torch", folder, variables)
    run_shell(f"pip install -q -c {constraints} '{wheel}[serve,quickstart]'", folder, variables)
    results = json.loads(run_shell("pretune --quiet quickstart --budget 30s --out start --json", folder, variables))
    rows = {(row["method"], row["labels"]) for row in results["rows"]}
    assert {("full fine-tuning", 1000), ("pre-trained here", 1000), ("TF-IDF + SVM", 200)} <= rows
    assert (folder / "start/report.html").stat().st_size > 10_000
    run_shell("pretune compare labels --dry-run --out study && pretune list studies", folder, variables)
    if (ROOT / "src/pretune/pretrained").is_dir():
        run_shell("pretune verify small-encoder && pretune fill small-encoder 'a [MASK] man'", folder, variables)
        assert run_shell("pretune generate small-decoder 'The king' --max-new-tokens 5", folder, variables)
    save_decoder(folder / "model")
    port = find_port()
    program = str(tmp_path / "environment/bin/pretune")
    with serve([program, "serve", "model", "--port", str(port)], folder, variables, port) as address:
        check_server(address)
    run_shell(f"pip install -q --force-reinstall --no-deps {shlex.quote(str(sdist))}", folder, variables)
    assert run_shell("pretune list families --json", folder, variables)
    location = run_shell("python -c 'import pretune; print(pretune.__file__)'", folder, variables)
    assert location.startswith(str(tmp_path / "environment"))
