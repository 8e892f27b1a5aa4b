"""Folders that the first layout of the package wrote still load, predict, explore and resume.

`earlier_versions/` has a finished run, the same run interrupted at step 8, and a probe with its features, as they were
written then. The numbers to expect are in their own summaries and weights.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cappronet import CapProNet
from cappronet.data.batches import Batches
from cappronet.explorer import capsule_table
from cappronet.training.loop import Hardware, train
from cappronet.training.metrics import predict
from cappronet.training.run_folder import Run


@pytest.fixture
def folder(tmp_path):
    """A copy; a probe names the file of its features."""
    copy = tmp_path / "earlier"
    shutil.copytree(Path(__file__).parent / "earlier_versions", copy)
    for path in (copy / "probe").glob("*.*"):
        if path.suffix != ".safetensors":
            path.write_text(path.read_text().replace("@FOLDER@", str(copy)))
    return copy


@pytest.mark.parametrize("name", ["finished", "probe"])
def test_a_model_has_the_error_of_its_summary(folder, name):
    run = Run.open(folder / name)
    model = CapProNet.from_pretrained(run.folder)
    test = run.selection.load().test
    normalize = None if model.takes_vectors else model.normalization
    scores, labels = predict(model, Batches(test, 500, normalize=normalize, shuffle=False).epoch(0))
    assert 100 * (scores.argmax(-1) != labels).double().mean().item() == pytest.approx(run.summary["error"])


def test_an_interrupted_run_resumes_to_the_weights_of_one_that_was_not(folder):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as when it was written: another number of threads rounds differently
    try:
        run = Run.open(folder / "interrupted")
        assert run.load_checkpoint()["step"] == 8
        train(run.recipe, run, Hardware(accelerator="cpu"))
    finally:
        torch.set_num_threads(threads)
    ours, theirs = (load_file(folder / name / "model.safetensors") for name in ("interrupted", "finished"))
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        # The same machine gives the same bits; another one may round differently.
        torch.testing.assert_close(weight, theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["finished", "probe"])
def test_the_explorer_reads_it(folder, name):
    table = capsule_table(folder / name, images=50)
    summary = json.loads((folder / name / "summary.json").read_text())
    assert len(table) == 50
    assert np.isfinite(table.lengths).all()
    assert f"c={table.capsule_dim}" in summary["head"]
