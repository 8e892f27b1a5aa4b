"""The real loop on real digits: it learns, it resumes bit for bit, it stops in time."""

import math
import os
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from cappronet.models.network import CapProNet
from cappronet.training import loop as training
from cappronet.training import metrics as evaluation
from cappronet.training.builders import build_model, build_optimizer, learning_rate, load_data
from cappronet.training.loop import Hardware, Interrupted, Interruption, train
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run

CPU = Hardware(accelerator="cpu")
SMALL = Recipe(epochs=2, train_size=300, batch_size=60)  # 5 steps an epoch


def run(folder, recipe=SMALL):
    return Run(folder), train(recipe, Run.new(folder), CPU)


def weights(folder):
    return load_file(Run(folder).folder / "model.safetensors")


def test_it_learns_digits_and_writes_everything(tmp_path):
    recipe = Recipe(epochs=6)
    seen = []
    folder = Run.new(tmp_path / "run")
    summary = train(recipe, folder, CPU, report=lambda *now: seen.append(now))
    assert summary["error"] < 10
    assert summary["parameters"] == 76_912
    names = {path.name for path in folder.folder.iterdir()}
    expected = {
        "recipe.toml",
        "environment.json",
        "metrics.jsonl",
        "config.json",
        "model.safetensors",
        "README.md",
        "summary.json",
    }
    assert names >= expected
    assert len(names - expected) == 1
    assert next(iter(names - expected)).startswith("events.out.tfevents")
    lines = folder.metrics()
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[-1]["train_loss"] < lines[0]["train_loss"]
    assert lines[-1]["error"] == summary["error"] == folder.summary["error"]
    text, done, total = seen[-1]
    assert done == total == 6 * (1437 // 128)
    assert "epoch 6/6" in text
    assert f"error {summary['error']:.2f} %" in text


def test_the_saved_model_has_the_error_of_the_summary(tmp_path):
    from cappronet.data.batches import Batches

    folder, summary = run(tmp_path / "run")
    model = CapProNet.from_pretrained(folder.folder)
    data = load_data(SMALL)
    batches = Batches(data.test, 50, normalize=model.normalization, shuffle=False)
    found = dict(evaluation.classification_metrics(*evaluation.predict(model, batches.epoch(0))))
    assert found["error"] == pytest.approx(summary["error"])


VARIANTS = {
    "sgd": SMALL.changed(flip=True, padding=1),
    "adamw, dropout, ema": SMALL.changed(optimizer="adamw", lr=0.01, dropout=0.3, ema=0.9, clip_norm=1.0),
    "grassmann": SMALL.changed(head_optimizer="grassmann", normalize=True, scale="learned", head_lr=2.0),
    "adamw, grassmann, ema": SMALL.changed(optimizer="adamw", head_optimizer="grassmann", lr=0.01, ema=0.9),
    "hyper-power": SMALL.changed(solver="hyperpower", schedule="cosine", warmup=0.5, label_smoothing=0.1),
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("stop", [3, 5, 8])
def test_an_interrupted_run_ends_with_the_same_weights(tmp_path, monkeypatch, name, stop):
    recipe = VARIANTS[name]
    run(tmp_path / "whole", recipe)
    step = training.Trainer.train_step

    def interrupted(self, x, y):
        step(self, x, y)
        if self.step == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "train_step", interrupted)
        with pytest.raises(Interrupted):
            train(recipe, Run(tmp_path / "parts"), CPU)
    assert Run(tmp_path / "parts").load_checkpoint()["step"] == stop
    train(recipe, Run(tmp_path / "parts"), CPU)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    for key in whole:
        assert whole[key].equal(parts[key]), key
    for a, b in zip(Run(tmp_path / "whole").metrics(), Run(tmp_path / "parts").metrics(), strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_run_with_grassmann_steps_ends_with_orthonormal_bases_that_any_optimizer_can_train(tmp_path):
    recipe = Recipe(epochs=6, head_optimizer="grassmann")
    folder, summary = run(tmp_path / "run", recipe)
    assert summary["error"] < 10
    assert summary["head"] == "capsule c=4, Grassmann step"
    basis = weights(folder.folder)["head.weight"]
    assert (basis @ basis.mT - torch.eye(4)).abs().max() < 1e-6
    assert CapProNet.from_pretrained(folder.folder).head.solver == "cholesky"


def test_the_seed_decides(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(tmp_path / name, SMALL.changed(epochs=1, seed=seed))
    a, b, c = (weights(tmp_path / name)["head.weight"] for name in "abc")
    assert a.equal(b)
    assert not a.equal(c)


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    step = training.Trainer.train_step

    def poisoned(self, x, y):
        if self.step == 7:
            x = x * math.nan
        step(self, x, y)

    monkeypatch.setattr(training.Trainer, "train_step", poisoned)
    with pytest.raises(FloatingPointError, match=r"epoch 2.*the checkpoint of step 5 is kept"):
        run(tmp_path / "run")
    state = Run(tmp_path / "run").load_checkpoint()
    assert state["step"] == 5
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    folder = Run.new(tmp_path / "run")
    folder.begin(SMALL)
    folder.save_checkpoint({"step": 1, "recipe": SMALL.changed(lr=0.7, backbone="pixels").to_dict()})
    with pytest.raises(ValueError, match="another recipe: backbone, lr differ"):
        train(SMALL, folder, CPU)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A run with a checkpoint after its first epoch, and what the checkpoint holds."""
    folder = tmp_path_factory.mktemp("stopped") / "run"

    def stop(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(SMALL, Run.new(folder), CPU, report=stop)
    return Run(folder), Run(folder).load_checkpoint()


ENTRIES = ("recipe", "step", "seconds", "loss_sum", "model", "optimizer", "average", "precision")


@pytest.mark.parametrize("entry", [*ENTRIES, "model/head.weight", "optimizer/state"])
def test_a_checkpoint_that_lacks_an_entry_is_one_line(checkpoint, entry):
    run, state = checkpoint
    outer, _, inner = entry.partition("/")
    lacking = {name: value for name, value in state.items() if name != outer}
    if inner:
        lacking[outer] = {name: value for name, value in state[outer].items() if name != inner}
    run.save_checkpoint(lacking)
    with pytest.raises(ValueError, match=r"checkpoint.*delete it to train from the beginning") as refusal:
        train(SMALL, run, CPU)
    assert "\n" not in str(refusal.value)


def test_schedules():
    def rates(**options):
        recipe = Recipe(epochs=10, lr=1.0, **options)
        return [learning_rate(recipe, step, 100) for step in range(100)]

    assert rates(schedule="constant") == [1.0] * 100
    cosine = rates(schedule="cosine")
    assert cosine[0] == 1.0
    assert cosine[50] == pytest.approx(0.5)
    assert cosine == sorted(cosine, reverse=True)
    steps = rates(schedule="multistep", milestones=(5, 8), gamma=0.2)
    assert steps[49:51] + steps[79:81] == pytest.approx([1.0, 0.2, 0.2, 0.04])
    assert rates(schedule="step", step_epochs=4)[39:41] == pytest.approx([1.0, 0.1])
    cycle = rates(schedule="onecycle")
    assert cycle[0] == pytest.approx(0.04)
    assert max(range(100), key=cycle.__getitem__) == 30
    assert cycle[30] == pytest.approx(1.0)
    assert cycle[99] < 0.001
    warm = rates(schedule="constant", warmup=2.0)
    assert warm[:20] == pytest.approx([(i + 1) / 20 for i in range(20)])
    assert warm[20:] == [1.0] * 80


def test_weight_decay_reaches_what_the_recipe_says():
    data = load_data(SMALL)

    def decayed(**options):
        recipe = SMALL.changed(weight_decay=0.1, **options)
        model = build_model(recipe, data)
        groups = build_optimizer(recipe, model).param_groups
        chosen = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
        return {name for name, parameter in model.named_parameters() if id(parameter) in chosen}

    everything = decayed()
    assert "head.weight" in everything
    assert decayed(decay_head=False) == everything - {"head.weight"}
    norms = everything - decayed(decay_norms=False)
    assert norms
    assert all(name.endswith(("weight", "bias")) and "head" not in name for name in norms)
    assert len(everything) == len(list(build_model(SMALL, data).parameters()))


def test_validation_images_are_held_out_of_training():
    whole, part = load_data(Recipe()), load_data(Recipe(validation=200, train_size=500))
    assert len(part.train) == 500
    assert len(part.test) == 200
    held_out = {image.numpy().tobytes() for image in part.test.pixels}
    assert held_out <= {image.numpy().tobytes() for image in whole.train.pixels}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"compile": True, "backbone": "pixels"}, {"precision": "bf16-mixed"}, {"channels_last": False}]
)
def test_other_arithmetic_trains_too(tmp_path, options):
    _, summary = run(tmp_path / "run", SMALL.changed(epochs=4, **options))
    assert summary["error"] < 60
    assert math.isfinite(summary["loss"])


@pytest.mark.parametrize(
    "variables",
    [{"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"}, {"SLURM_STEP_NUM_TASKS": "2"}],
    ids=["torchrun", "srun"],
)
def test_processes_that_do_not_know_of_each_other_are_refused(variables, monkeypatch, tmp_path):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"2 processes.*--devices.*--num-nodes"):
        train(Recipe(epochs=1), Run.new(tmp_path / "run"), Hardware(accelerator="cpu"))
    assert list(tmp_path.iterdir()) == []
    Hardware(devices=2).check_launcher()


def test_a_signal_that_comes_twice_at_once_is_one_request(monkeypatch):
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert interruption.signal == signal.SIGINT
        later = time.monotonic() + 2
        monkeypatch.setattr(time, "monotonic", lambda: later)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_no_later_signal_interrupts_a_patient_one_or_what_is_inside_it(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    with Interruption(patient=True) as outer:
        with Interruption() as inner:
            signal.raise_signal(signal.SIGTERM)
            later = time.monotonic() + 2
            monkeypatch.setattr(time, "monotonic", lambda: later)
            signal.raise_signal(signal.SIGTERM)
            assert inner.signal == outer.signal == signal.SIGTERM
        with Interruption() as another:
            assert another.signal == signal.SIGTERM  # a run that starts now stops at once
    assert signal.getsignal(signal.SIGTERM) is before
