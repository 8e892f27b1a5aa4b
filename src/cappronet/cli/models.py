"""`evaluate` and `predict`: a trained model on images, or on feature vectors."""

import glob
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from cappronet.cli.display import print_csv, print_json, print_table, print_text, progress_bar
from cappronet.cli.shared import console
from cappronet.reporting import Report, Table, silent, tracked

if TYPE_CHECKING:
    from cappronet.models.evaluation import ClassErrors
    from cappronet.models.network import CapProNet
    from cappronet.models.prediction import Prediction

__all__ = ["evaluate", "predict"]

# A table of errors by class shows at most this many; `--json` has all.
SHOWN_CLASSES = 20
SEPARATION_NOTE = "AUROC in %: higher is better; FPR at 95 % TPR in %: lower is better"
# How each measure is called and written.
MEASURES: Mapping[str, tuple[str, str]] = {
    "accuracy": ("accuracy", "{:.2f} %"),
    "error": ("error", "{:.2f} %"),
    "error_top5": ("top-5 error", "{:.2f} %"),
    "loss": ("cross-entropy", "{:.4f} nats"),
    "calibration_error": ("calibration error", "{:.2f} %"),
    "condition": ("condition number of the bases, median", "{:.4g}"),
    "largest_cosine": ("largest cosine between two classes, mean", "{:.4g}"),
}


def evaluate(
    run: Path,
    /,
    *,
    split: Literal["test", "train"] = "test",
    mirror: Annotated[bool, Parameter(negative="")] = False,
    ood: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    workers: int = 0,
    cache: Path | None = None,
) -> None:
    """Measure a trained model: accuracy, errors by class, calibration, its subspaces, out-of-distribution detection.

    Parameters
    ----------
    run
        The folder of a finished run.
    split
        Which images to measure on.
    mirror
        Average the probabilities of each image and of its mirror image: often fewer errors, in twice the time.
        The scores of --ood are those of the images alone.
    ood
        Also measure how well out-of-distribution images are told from these: a dataset by name or path, whose test
        images are scaled to the model's size; noise; gaussian-noise; or held-out, the classes of the same dataset that
        the model was not trained on. Repeat the option for several.
    as_json
        Print all numbers as JSON, and nothing else.
    workers
        Processes that read image files.
    cache
        Folder of downloaded datasets.
    """
    from cappronet.data.batches import Batches
    from cappronet.models.evaluation import Mirrored, class_errors, ood_samples, ood_separations
    from cappronet.models.network import CapProNet
    from cappronet.training.metrics import capsule_statistics, classification_metrics
    from cappronet.training.metrics import predict as predict_batches
    from cappronet.training.run_folder import Run

    selection = Run.open(run).selection
    model = CapProNet.from_pretrained(run)
    measured = Mirrored(model) if mirror else model
    data = selection.load(cache)
    others = {name: ood_samples(name, model, selection, cache) for name in ood}
    samples = data.test if split == "test" else data.train
    batches = Batches(model.as_read(samples), 500, shuffle=False, workers=workers)
    with progress_bar(console) if not as_json else nullcontext(silent) as report:
        shown = tracked(batches.epoch(0), "evaluating", len(batches), report)
        scores, labels = predict_batches(measured, ((model.normalize(x), y) for x, y in shown))
        separations = ood_separations(model, data.train, samples, others, workers=workers, report=report) if ood else {}
    values = {**dict(classification_metrics(scores, labels)), **dict(capsule_statistics(model.head))}
    values = {"accuracy": 100 - values["error"], **values}
    by_class = class_errors(scores, labels, model.config["classes"])
    if as_json:
        described = {"run": str(run), "split": split, "mirror": mirror, "samples": len(labels), **values}
        print_json({**described, "classes": [asdict(row) for row in by_class], "ood": _named(separations)}, console)
        return
    kind = "feature vectors" if model.takes_vectors else "images"
    mirrored = ", each with its mirror image" if mirror else ""
    print_text(f"{run}: {len(labels):,} {split} {kind}{mirrored}", console)
    print_table(_measure_table(values, by_class), console)
    _print_class_errors(by_class)
    if ood:
        sizes = ", ".join(f"{len(part):,} of {name}" for name, part in others.items())
        print_text(f"out-of-distribution {kind}: {sizes}; {SEPARATION_NOTE}", console)
        print_table(_separation_table(separations), console)


def _measure_table(values: Mapping[str, float], by_class: "Sequence[ClassErrors]") -> Table:
    rows = [(MEASURES[name][0], MEASURES[name][1].format(value)) for name, value in values.items()]
    wrong, total = sum(row.errors for row in by_class), sum(row.samples for row in by_class)
    rows = [(name, f"{text} ({wrong:,} of {total:,})" if name == "error" else text) for name, text in rows]
    return Table(("measure", "value"), [*rows])


def _print_class_errors(by_class: "Sequence[ClassErrors]") -> None:
    """The classes with the most errors, and what they are taken for."""
    worst = sorted((row for row in by_class if row.errors), key=lambda row: -row.errors)
    if not worst:
        return
    rows = [
        (row.name, f"{row.errors:,}", f"{row.samples:,}", f"{row.error:.2f}", row.mistaken_for or "")
        for row in worst[:SHOWN_CLASSES]
    ]
    title = (
        "errors by class"
        if len(worst) <= SHOWN_CLASSES
        else f"errors by class: the first {SHOWN_CLASSES} of {len(worst)}"
    )
    headings = ("class", "errors", "samples", "error %", "mistaken for")
    print_table(Table(headings, [*rows], title=title), console)


def _named(separations: Mapping[str, Mapping[str, tuple[float, float]]]) -> dict[str, Any]:
    """Separations for JSON, in percent."""
    return {
        score: {name: {"auroc": 100 * auroc, "fpr95": 100 * fpr} for name, (auroc, fpr) in kinds.items()}
        for score, kinds in separations.items()
    }


def _separation_table(separations: Mapping[str, Mapping[str, tuple[float, float]]]) -> Table:
    """A row for each score, and two columns for each kind of images, named by the last part of a path."""
    names = next(iter(separations.values()))
    headings = [f"{Path(name).name} {measure}" for name in names for measure in ("AUROC", "FPR")]
    rows: list[tuple[str, ...]] = []
    for score, kinds in separations.items():
        numbers = [f"{100 * value:.1f}" for pair in kinds.values() for value in pair]
        rows.append(("residual, angle" if score == "residual" else score, *numbers))
    return Table(("score", *headings), rows)


def predict(
    run: Path,
    /,
    *inputs: str,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    as_csv: Annotated[bool, Parameter(name="--csv", negative="")] = False,
    label_column: str | None = None,
) -> None:
    """Classify images or features: class, probability, capsule length, distance of the features from the subspace.

    The angle is the one between the features and the nearest subspace; the residual is the share of the features
    outside it, from 0 to 1. Both are high for images that are unlike those of every class.

    Parameters
    ----------
    run
        The folder of a finished run or probe.
    inputs
        Image files, folders of them, or patterns such as 'new/*.jpg'. Or features as the model's own: a folder of
        cappronet embed, an .npz, .npy, .csv, .tsv or .parquet, one row for each sample; labels in it are left out.
    as_json
        Print the predictions as JSON, and nothing else.
    as_csv
        Print the predictions as CSV, and nothing else.
    label_column
        For a table of features: the column of labels, which is left out. By default the one called label, or the last
        if there is one column more than the model takes.
    """
    from cappronet.models.network import CapProNet

    if not inputs:
        raise ValueError("predict needs at least one image or file of features: cappronet predict RUN FILE ...")
    if as_json and as_csv:
        raise ValueError("--json and --csv are two forms of the same output: choose one")
    model = CapProNet.from_pretrained(run)
    with progress_bar(console) if not (as_json or as_csv) else nullcontext(silent) as report:
        records = _records(model, inputs, label_column, report)
    if as_json:
        print_json([asdict(record) for record in records], console)
    elif as_csv:
        print_csv([field.name for field in fields(records[0])], map(astuple, records), console)
    else:
        _print_records(records)


@dataclass(frozen=True)
class Record:
    """A line of the output: a prediction, and the file and row that it is about."""

    file: str
    row: int | None
    label: str
    probability: float
    score: float
    angle: float | None
    residual: float | None


def _records(model: "CapProNet", inputs: Sequence[str], label_column: str | None, report: Report) -> list[Record]:
    """Predictions for all inputs, features or images."""
    import torch

    from cappronet.data.unlabelled import holds_rows, read_rows
    from cappronet.models.prediction import predict_features, predict_files

    if not model.takes_vectors and not any(holds_rows(Path(text).expanduser()) for text in inputs):
        if label_column is not None:
            raise ValueError("--label-column is for tables of features, but the inputs are images")
        paths = list(_image_files(inputs))
        predictions = predict_files(model, paths, report)
        return [_record(path, None, found) for path, found in zip(paths, predictions, strict=True)]
    records: list[Record] = []
    for path in _paths(inputs):
        x, part = read_rows(path, model.feature_dim, label_column)
        if part and report is not silent:
            print_text(f"{path}: {part}", console)
        predictions = predict_features(model, model.head_inputs(torch.from_numpy(x)))
        records += [_record(path, row, prediction) for row, prediction in enumerate(predictions)]
    return records


def _record(path: Path, row: int | None, prediction: "Prediction") -> Record:
    return Record(str(path), row, **asdict(prediction))


def _paths(inputs: Sequence[str]) -> Iterator[Path]:
    """The paths that are named, or that match a pattern, which not every shell expands."""
    from cappronet.data.files import nearest_sibling

    for text in inputs:
        path = Path(text).expanduser()
        if path.exists():
            yield path
            continue
        # Path.glob takes no absolute patterns.
        matches = sorted(glob.glob(str(path), recursive=True)) if glob.has_magic(text) else []  # noqa: PTH207
        if not matches:
            problem = f"no file matches {text}" if glob.has_magic(text) else f"there is no file or folder {text}"
            raise FileNotFoundError(f"{problem}{nearest_sibling(path)}")
        yield from map(Path, matches)


def _image_files(inputs: Sequence[str]) -> Iterator[Path]:
    """The files that are named, and those with an image's suffix in folders and the folders below them."""
    from cappronet.data.images import SUFFIXES

    for path in _paths(inputs):
        if not path.is_dir():
            yield path
            continue
        images = sorted(
            file
            for file in path.rglob("*")
            if file.suffix.lower() in SUFFIXES and file.is_file() and not file.name.startswith(".")
        )
        if not images:
            raise ValueError(
                f"{path} is a folder without images: expected files that end in {', '.join(sorted(SUFFIXES))}"
            )
        yield from images


def _print_records(records: Sequence[Record]) -> None:
    files = {record.file for record in records}
    unique = len({Path(file).name for file in files}) == len(files)
    rows: list[tuple[str, ...]] = []
    for record in records:
        name = Path(record.file).name if unique else record.file
        angle = "" if record.angle is None else f"{record.angle:.1f}°"
        residual = "" if record.residual is None else f"{record.residual:.3f}"
        numbers = (f"{record.probability:.4f}", f"{record.score:.3f}", angle, residual)
        rows.append((name if record.row is None else f"{name} {record.row}", record.label, *numbers))
    first = "image" if records[0].row is None else "row"
    print_table(Table((first, "class", "probability", "length", "angle", "residual"), rows, names=2), console)
