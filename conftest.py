"""Shared by the tests and the docstrings' examples."""

import os

# Some virtual machines announce AMX, which bfloat16 products would use, without having it; processes then die.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import pytest
import torch
from torch import nn

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # one worker for each core


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _names(doctest_namespace):
    doctest_namespace.update(torch=torch, nn=nn)
