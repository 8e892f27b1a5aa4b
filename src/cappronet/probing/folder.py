"""The folder of a probe: its best head as a model, which the other commands take, and the numbers of every head.

probe.json         the data, the settings and errors of every head, which is the best, and what errors were measured on
environment.json   versions, device and commit
config.json, model.safetensors, README.md    the model and its card
summary.json       the result of the best head
features.npz       the features, if no other single file holds them in a form that the other commands read
"""

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from cappronet.data.features import FeatureData, holds_features
from cappronet.data.files import new_folder
from cappronet.data.selection import Selection
from cappronet.models.card import model_card
from cappronet.models.network import CapProNet
from cappronet.probing.candidates import MOST_ITERATIONS, epochs_and_batch, model_options
from cappronet.probing.comparison import ProbeRow, best_row
from cappronet.probing.embedding import embedded_selection, rebuild_network
from cappronet.probing.settings import ProbeOptions, Setting
from cappronet.probing.splitting import HALVING_SAMPLES, TUNING_SAMPLES, number_of_folds
from cappronet.probing.subspaces import default_schedule
from cappronet.training.metrics import capsule_statistics
from cappronet.training.run_folder import Run, environment

__all__ = ["fitted_model", "measured_on", "save", "validated_on"]


def measured_on(data: FeatureData, rows: list[ProbeRow], options: ProbeOptions) -> str:
    """What the errors of a probe were measured on, in words."""
    count = rows[0].count
    if data.y_test is not None:
        return f"{count:,} test samples"
    how = validated_on(data, options)
    return how if len(data.y_train) > TUNING_SAMPLES else f"{count:,} samples by {how}"


def validated_on(data: FeatureData, options: ProbeOptions) -> str:
    """What the heads were compared on, in words."""
    if len(data.y_train) > TUNING_SAMPLES:
        return "a fifth of the training samples, held out"
    halving = ", by successive halving" if len(data.y_train) >= HALVING_SAMPLES else ""
    return f"{_cross_validation(data, options)}, which also chose the settings{halving}"


def _cross_validation(data: FeatureData, options: ProbeOptions) -> str:
    return f"{number_of_folds(data.y_train, options.folds)}-fold cross-validation"


def save(folder: Path, data: FeatureData, rows: list[ProbeRow], head: nn.Module, options: ProbeOptions) -> CapProNet:
    """Write the folder of a probe, with a model: the backbone that made the features, if known, and the fitted head."""
    Run.new(folder)
    best = best_row(rows)
    if best is None:
        raise ValueError("nearest neighbours have no weights to save: probe with another head too")
    selection, model = _selection(data, folder), fitted_model(data, best.setting, head)
    with new_folder(folder) as temporary:
        _write(Run(temporary), selection, data, rows, best, model, options)
    return model


def _write(
    run: Run,
    selection: Selection,
    data: FeatureData,
    rows: list[ProbeRow],
    best: ProbeRow,
    model: CapProNet,
    options: ProbeOptions,
) -> None:
    if not data.source and not _loadable(data):
        parts = ("x_train", "y_train", "x_test", "y_test", "text_train", "text_test")
        arrays: dict[str, Any] = {
            name: np.asarray(getattr(data, name)) for name in parts if getattr(data, name) is not None
        }
        np.savez(run.folder / "features.npz", **arrays, classes=np.array(data.classes))
    run.write_json("environment.json", environment())
    described = {
        "data": selection.to_dict(),
        "features": str(data.path.resolve()),
        "measured_on": measured_on(data, rows, options),
        "validated_on": validated_on(data, options),
        "plan": options.to_dict(),
        "best": best.setting.head,
        "heads": [row.to_dict() for row in rows],
    }
    run.write_json("probe.json", described)
    fitting = _fitting(data, best.setting, options)
    summary = {
        "data": Path(selection.data).stem,
        "backbone": model.config["backbone"],
        "head": _head_label(best.setting),
        **(best.metrics or {"error": best.error}),
        "best_error": best.error,
        "measured_on": described["measured_on"],
        "parameters": sum(p.numel() for p in model.parameters()),
        "head_parameters": best.parameters,
        **dict(capsule_statistics(model.head)),
        "seconds": round(best.fit_seconds, 3),
        **_speed(fitting, best),
        "seed": options.seed,
    }
    model.card = model_card(model.config, summary, run.environment, fitting, heading="How the head was fitted")
    model.save_pretrained(run.folder)
    run.write_json("summary.json", summary)


def _selection(data: FeatureData, folder: Path) -> Selection:
    """Where the other commands find the inputs of the model: images, the feature file, or a copy that they can read."""
    if data.source:
        return embedded_selection(data.source)
    return Selection(str(data.path.resolve() if _loadable(data) else folder.resolve() / "features.npz"))


def fitted_model(data: FeatureData, setting: Setting, fitted: nn.Module) -> CapProNet:
    """The network that made the features, or one that takes feature vectors, with a fitted head."""
    head = model_options(setting)
    if data.source:
        model = rebuild_network(data.path, data.source, data.dim, **head)
    else:
        sizes: dict[str, Any] = {"in_channels": 1, "image_size": data.dim, "classes": data.classes}
        model = CapProNet("features", len(data.classes), **sizes, **head).eval()
    if model.centering is None:
        model.head.load_state_dict(fitted.state_dict())
    else:
        assert isinstance(fitted, nn.Sequential)
        for module, part in zip((model.centering, model.head), fitted, strict=True):
            module.load_state_dict(part.state_dict())
    return model


def _loadable(data: FeatureData) -> bool:
    """Whether `load_dataset` can read everything from the path of the features."""
    return data.self_contained and holds_features(data.path)


def _fitting(data: FeatureData, setting: Setting, options: ProbeOptions) -> dict[str, Any]:
    """How the best head was fitted, for the model card."""
    features = {
        "standard": "standardized",
        "plain": "as they are",
        "centred": "centred, with a constant appended, of length 1",
    }
    return {
        "samples": len(data.y_train),
        "features": features[setting.features],
        **_optimization(setting, data),
        "seed": options.seed,
        "settings_compared": options.settings,
        "chosen_by": _cross_validation(data, options),
    }


def _optimization(setting: Setting, data: FeatureData) -> dict[str, Any]:
    n, d = data.x_train.shape
    if setting.head == "logistic":
        return {"optimizer": "lbfgs", "C": setting.C, "most_iterations": MOST_ITERATIONS}
    start, (epochs, batch_size) = "random", epochs_and_batch(n)
    if setting.head == "capsule":
        start = "means of the classes and random directions"
        epochs, batch_size, _ = default_schedule(n, d, n, len(data.classes))
    return {
        "start": start,
        "optimizer": "adamw",
        "lr": setting.lr,
        "weight_decay": setting.weight_decay,
        "dropout": setting.dropout if setting.head == "mlp" else None,
        "schedule": "warm-up, then cosine",
        "epochs": epochs,
        "batch_size": batch_size,
    }


def _speed(fitting: dict[str, Any], best: ProbeRow) -> dict[str, Any]:
    """The passes over the samples, and how many samples a second that was, where the number of passes is known."""
    if "epochs" not in fitting:
        return {}
    visits = fitting["epochs"] * fitting["samples"]
    return {"epochs": fitting["epochs"], "images_per_second": round(visits / max(best.fit_seconds, 1e-9), 1)}


def _head_label(setting: Setting) -> str:
    """The head as tables of runs name it: `linear`, `mlp`, `group c=8`, `unit capsule c=8, scale 25`."""
    if setting.head not in ("group", "capsule"):
        return setting.head
    label = f"{setting.head} c={setting.capsule_dim}"
    return label if setting.head == "group" else f"unit {label}, scale {setting.scale:g}"
