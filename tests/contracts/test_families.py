"""The laws that every family keeps, by being listed."""

import copy
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pretune as pt
from pretune.core import config
from pretune.models.catalog import names, resolve
from pretune.models.families import FAMILIES
from pretune.models.model import LanguageModel, build, empty
from pretune.models.spec import Model
from tests.contracts.tiny import CASES, DECODERS, ENCODERS, PAIRS, ROOM, VOCAB, lay, model_of, particular, text
from tests.contracts import laws

every = pytest.mark.parametrize("name", CASES)
