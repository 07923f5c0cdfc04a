"""Launch files of clusters: their commands are those of the command line, and start two ranks here."""

import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.docs.commands import check
from tests.faults.runs import SETTINGS, made_data

FOLDER = ROOT / "examples/clusters"
SLURM, KUBERNETES, RAY = (FOLDER / name for name in ("slurm.sbatch", "pytorchjob.yaml", "ray_train.py"))
PAGE = (ROOT / "docs/distributed.md").read_text(encoding="utf-8")
STUBS = {
    "scontrol": 'if [ "$1" = show ]; then echo localhost; echo other; else echo "$@" > requeued; fi\n',
    "srun": '"$@" & first=$!; "$@" & second=$!; wait $first && wait $second\n',
}
"""Commands of Slurm for two nodes that are both this machine."""


def read_job() -> dict[str, Any]:
    job = yaml.safe_load(KUBERNETES.read_text(encoding="utf-8"))
    assert isinstance(job, dict)
    return job


def read_script() -> str:
    """Return the script of a container of the Kubernetes job."""
    (container,) = read_job()["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    shell, option, script = container["command"]
    assert (shell, option) == ("sh", "-c")
    return str(script)


@pytest.mark.parametrize("text", [SLURM.read_text(), read_script()], ids=["slurm", "kubernetes"])
def test_commands(text: str) -> None:
    """Both a new run and a resumed one; the shell accepts the script."""
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    runs = [run.replace("$OUT", "out") for run in re.findall(r'RUN="([^"]+)"', text)]
    assert len(runs) == 2
    for run in runs:
        assert check(f"pretune pretrain {run}", whole=True)
    (line,) = re.findall(r"torchrun .*-m pretune pretrain \$RUN", text.replace("\\\n", " "))
    parse_launcher(line)


def parse_launcher(line: str) -> None:
    """Read the options of a line with torchrun by its own parser, which ends a test that it cannot read."""
    from torch.distributed.run import get_args_parser

    words = [re.sub(r"\$\w+", "1", word) for word in shlex.split(line)[1:]]
    assert get_args_parser().parse_args(words).training_script == "pretune"


def test_kubernetes_job() -> None:
    job = read_job()
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas.keys() == {"Master", "Worker"} and replicas["Master"]["replicas"] == 1
    for replica in replicas.values():
        pod = replica["template"]["spec"]
        (container,) = pod["containers"]
        assert container["name"] == "pytorch"  # the name that the operator looks for
        assert str(container["resources"]["limits"]["nvidia.com/gpu"]) == job["spec"]["nprocPerNode"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("path", [SLURM, KUBERNETES, RAY], ids=lambda path: path.name)
def test_the_page_has_the_files(path: Path) -> None:
    if path == RAY:  # linked: it has its own help
        assert f"../examples/clusters/{path.name}" in PAGE
    else:
        assert path.read_text(encoding="utf-8") in PAGE


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_data(tmp_path_factory.mktemp("data"))


def shrink(text: str, data: Path, out: Path) -> str:
    """Return a script with a small model, one process per node and another place."""
    settings = " ".join(f"--set {path}={value}" for path, value in SETTINGS.items())
    text = text.replace("/shared/runs/books", str(out)).replace("--nproc-per-node 8", "--nproc-per-node 1")
    return text.replace(
        "bert-large --data /shared/books --steps 100000", f"bert-tiny --data {data} --steps 3 {settings}"
    )


def build_variables(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    path = f"{ROOT / 'src'}:{ROOT}"
    return {**kept, "PYTHONPATH": path, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **more}


def check_run(out: Path) -> None:
    """The run is finished, and two ranks have trained it."""
    assert (out / "model.safetensors").is_file()
    assert json.loads((out / "cost.json").read_text())["devices"] == 2


def find_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


@pytest.mark.slow
def test_slurm(data: Path, tmp_path: Path) -> None:
    """The script under commands that stand for Slurm's; its second start finds the finished run and changes nothing."""
    for name, text in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    script = shrink(SLURM.read_text(), data, tmp_path / "run").replace(":29500", f":{find_port()}")
    variables = build_variables(SLURM_NNODES="2", SLURM_JOB_ID="7", SLURM_JOB_NODELIST="here")
    variables["PATH"] = f"{tmp_path}:{variables['PATH']}"
    result = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (tmp_path / "run/model.safetensors").is_file(), result.stderr[-3000:]
    assert not (tmp_path / "requeued").exists()
    check_run(tmp_path / "run")


@pytest.mark.slow
def test_kubernetes(data: Path, tmp_path: Path) -> None:
    """The script of the containers, with the variables that the operator sets."""
    script, port = shrink(read_script(), data, tmp_path / "run"), find_port()
    operator = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": port}
    pods = [
        subprocess.Popen(["sh", "-c", script], env=build_variables(**operator, PET_NODE_RANK=rank))
        for rank in ("0", "1")
    ]
    assert [pod.wait() for pod in pods] == [0, 0]
    check_run(tmp_path / "run")


@pytest.mark.slow
def test_ray(data: Path, tmp_path: Path) -> None:
    """Two workers of Ray on this machine; $PRETUNE_RAY is a folder of packages, or pip fills one."""
    folder = os.environ.get("PRETUNE_RAY") or str(tmp_path / "packages")
    if importlib.util.find_spec("ray") is None and not Path(folder).exists():
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
        packages = "ray jsonschema jsonschema-specifications referencing rpds-py attrs msgpack"
        if subprocess.run([*install, *packages.split()], capture_output=True).returncode:
            pytest.skip("ray cannot be installed here")
    settings = [word for path, value in SETTINGS.items() for word in ("--set", f"{path}={value}")]
    command = [sys.executable, str(RAY), "--cpu", "--nodes=2", f"--port={find_port()}", "--failures=0"]
    command += [f"--out={tmp_path / 'run'}", "--", "bert-tiny", "--data", str(data), "--steps", "3", *settings]
    variables = build_variables(RAY_USAGE_STATS_ENABLED="0", RAY_TRAIN_V2_ENABLED="1")
    variables["PYTHONPATH"] += f":{folder}"
    result = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    check_run(tmp_path / "run")
