"""Studies: rows of models, measured at a matched budget over seeds, with a verdict per claim.

The built-in studies are the YAML files in `library`; listing them imports neither torch nor numpy.
"""

import importlib.resources
from pathlib import Path

from pretune.core.config.read import read_yaml

LIBRARY = "library"


def list_study_files() -> dict[str, Path]:
    """Return the files of the built-in studies, by name."""
    folder = Path(str(importlib.resources.files("pretune.studies") / LIBRARY))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def list_studies() -> list[str]:
    """Return the names of the built-in studies that `compare` knows."""
    return [*list_study_files()]


def describe_studies() -> dict[str, dict[str, str]]:
    """Return the built-in studies with one line about each, and its source."""
    trees = {name: read_yaml(path) for name, path in list_study_files().items()}
    return {name: {"about": tree["about"], "source": tree["paper"]["citation"]} for name, tree in trees.items()}
