"""What a probe leaves behind: its best head as a model in a run folder, which the other commands take."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from cappronet.embedding import rebuilt
from cappronet.evaluation import capsule_statistics
from cappronet.feature_files import FeatureData, holds_features, pack
from cappronet.model import CapProNet
from cappronet.model_card import model_card
from cappronet.probe import MANY, Measured, Plan
from cappronet.probe_heads import Setting, duration, head_options
from cappronet.recipe import Recipe
from cappronet.runs import Run, environment

__all__ = ["measured_on", "save", "validated_on"]


def measured_on(data: FeatureData, rows: list[Measured], plan: Plan) -> str:
    """What the errors of a probe were measured on, in words."""
    count = rows[0].count
    if data.y_test is not None:
        return f"{count:,} test samples"
    return f"{count:,} samples by {validated_on(data, plan)}" if len(data.y_train) <= MANY else validated_on(data, plan)


def validated_on(data: FeatureData, plan: Plan) -> str:
    """What heads were compared on, in words."""
    if len(data.y_train) > MANY:
        return "a fifth of the training samples, held out"
    return f"{plan.folds}-fold cross-validation, which chose the settings too"


def save(folder: Path, data: FeatureData, rows: list[Measured], head: nn.Module, plan: Plan) -> CapProNet:
    """Write a run folder with the model: the backbone that made the features, or none, and the fitted head.

    Beside what a run folder has, `probe.json` holds the numbers of every head, and for arrays that no other file has in
    this form, `features.npz` holds them.
    """
    run = Run.new(folder)
    row = min((row for row in rows if row.setting.head != "knn"), key=lambda row: (row.validated, row.parameters))
    recipe, model = _with_images(data, row.setting) if data.source else _on_features(data, row.setting, folder)
    model.head.load_state_dict(head.state_dict())
    run.begin(recipe)
    if not data.source and not _readable(data):
        parts = ("x_train", "y_train", "x_test", "y_test")
        arrays = {name: getattr(data, name) for name in parts if getattr(data, name) is not None}
        pack(run.folder / "features.npz", {**arrays, "classes": np.array(data.classes)})
    measured = measured_on(data, rows, plan)
    run.write_json("environment.json", environment())
    values = {
        "features": str(data.path.resolve()),
        "measured_on": measured,
        "validated_on": validated_on(data, plan),
        "plan": asdict(plan),
    }
    run.write_json("probe.json", {**values, "best": row.setting.head, "heads": [row.to_dict() for row in rows]})
    summary = {**_summary(recipe, data, row, model, measured), "seed": plan.seed}
    published = recipe.changed(data=summary["data"])  # with no path of this machine
    model.card = model_card(model.config, summary, run.environment, published.to_dict())
    model.save_pretrained(run.folder)
    run.write_json("summary.json", summary)
    return model


def _with_images(data: FeatureData, setting: Setting) -> tuple[Recipe, CapProNet]:
    """The network that made the features, and a recipe that names its images, with the seed that chose them."""
    source: Any = data.source
    recipe = Recipe.from_dict(source["recipe"], str(data.path))
    head = _head(setting)
    model = rebuilt(data.path, source, **head)
    return _described(recipe.changed(backbone=model.config["backbone"]), data, setting), model


def _on_features(data: FeatureData, setting: Setting, folder: Path) -> tuple[Recipe, CapProNet]:
    """A model that takes feature vectors; other commands find them in the file, or in a copy that they can read."""
    place = data.path.resolve() if _readable(data) else folder.resolve() / "features.npz"
    head = _head(setting)
    sizes: dict[str, Any] = {"in_channels": 1, "image_size": data.dim, "classes": data.classes}
    model = CapProNet("features", len(data.classes), **sizes, **head).eval()
    return _described(Recipe(data=str(place), backbone="features"), data, setting), model


def _head(setting: Setting) -> dict[str, Any]:
    return {"head": setting.head, "capsule_dim": setting.capsule_dim, **head_options(setting)}


def _readable(data: FeatureData) -> bool:
    """Whether the file is all that `load_dataset` needs."""
    return data.alone and holds_features(data.path)


def _described(recipe: Recipe, data: FeatureData, setting: Setting) -> Recipe:
    """The recipe with what is known of how the head was fitted."""
    capsule = setting.head == "capsule"
    return recipe.changed(
        head=setting.head,
        capsule_dim=setting.capsule_dim,
        normalize=capsule and setting.features == "unit",
        scale="learned" if capsule else "none",
        head_start="features" if capsule else "uniform",
        optimizer="adamw",
        lr=setting.lr,
        weight_decay=setting.weight_decay,
        schedule="cosine",
        **duration(len(data.y_train)),
    )


def _summary(recipe: Recipe, data: FeatureData, row: Measured, model: CapProNet, measured: str) -> dict[str, Any]:
    """As a training run's, but for what only training has."""
    return {
        "data": Path(recipe.data).stem,
        "backbone": recipe.backbone,
        "head": recipe.head_label,
        **(row.metrics or {"error": row.error}),
        "best_error": row.error,
        "measured_on": measured,
        "parameters": sum(p.numel() for p in model.parameters()),
        "head_parameters": row.parameters,
        **dict(capsule_statistics(model.head)),
        "epochs": recipe.epochs,
        "seconds": round(row.fit_seconds, 3),
        "images_per_second": round(recipe.epochs * len(data.y_train) / max(row.fit_seconds, 1e-9), 1),
    }
