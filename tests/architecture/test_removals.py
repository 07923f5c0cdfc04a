"""Files are removed and renamed in few places, and never by a path that was read from a file.

`io.remove` takes a directory and a name of its writer's own pattern. Every other call is listed here with its reason.
"""

import ast
from collections import Counter
from pathlib import Path

from tests.architecture.source import files, name_of, parse, walk

METHODS = {"unlink", "rmdir", "rename", "removedirs", "renames", "rmtree", "move"}
FUNCTIONS = {"os.remove", "os.replace", "os.truncate", "io.remove", "remove_file", "shutil.copytree"}

ALLOWED = {
    "pretune/core/io/files.py": {"os.replace": 1, "unlink": 1},  # the file that this process is writing
    "pretune/core/io/directories.py": {
        "rmtree": 5, "rmdir": 2, "unlink": 2, "rename": 4, "os.replace": 2,
    },  # own temporary names, staged files, and what an owner's pattern matches
    "pretune/core/run_dir.py": {"io.remove": 3, "unlink": 1},  # names of a run; its own lock
    "pretune/data/prepare/run.py": {"remove": 1},  # the stage inside a temporary directory
    "pretune/data/prepare/stage.py": {"remove_file": 1},  # numbered files of the same stage
    "pretune/inference/index_files.py": {"io.remove": 2},  # numbered files that the manifest does not list
    "pretune/runs/finetune/entry.py": {"rmdir": 1},  # an empty directory that this process created
    "pretune/runs/finetune/language_model.py": {"io.remove": 1},  # a name of a run
    "pretune/exporters/onnx/export.py": {"unlink": 1},  # in a temporary directory
    "pretune/studies/study_dir.py": {"io.remove": 1},  # action and hash of a step
    "pretune/training/checkpoints/manager.py": {"io.remove": 1, "rename": 1},  # step-NNNNNNNN
}  # fmt: skip


def list_removals(file: Path) -> Counter[str]:
    """Count the calls in a file that remove or rename something."""
    calls: Counter[str] = Counter()
    for node in walk(parse(file.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            method = name.rpartition(".")[2]
            if name in FUNCTIONS or (name == "remove" and len(node.args) > 1):
                calls[name] += 1
            elif method in METHODS:
                calls[method] += 1
    return calls


def test_every_removal_is_listed() -> None:
    assert {name_of(file): dict(calls) for file in files() if (calls := list_removals(file))} == ALLOWED


def test_patterns_are_written_in_the_code() -> None:
    """The pattern of a removal holds no value of a file: a literal, or a constant or attribute of the code."""
    for file in files():
        for node in walk(parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("io.remove", "remove_file", "remove"):
                names = {name.id for arg in node.args[2:3] for name in ast.walk(arg) if isinstance(name, ast.Name)}
                assert all(name.isupper() or name in ("self", "re", "folder") for name in names), name_of(file)
