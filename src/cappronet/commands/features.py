"""`embed` and `probe`: features of a frozen network, and heads on them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table

from cappronet.commands.shared import console, slug
from cappronet.display import progress_bar

if TYPE_CHECKING:
    from cappronet.probe import Measured

__all__ = ["embed", "probe"]


def embed(
    source: str,
    /,
    *,
    data: str = "digits",
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    classes: Annotated[tuple[int, ...], Parameter(negative="", consume_multiple=True)] = (),
    train_size: int = 0,
    pool: int = 1,
    batch_size: int = 500,
    workers: int = 0,
    cache: Path | None = None,
) -> None:
    """Write the features that a frozen network makes of a dataset to one file, for `cappronet probe`.

    Called again after an interruption, it goes on where it was. Features are written as they come, so they may be
    larger than memory; the disk needs room for twice their size.

    Parameters
    ----------
    source
        What makes the features: the folder of a finished run, the name of a timm model, which comes with its trained
        weights, or pixels.
    data
        Dataset by name, or a path: a folder of images by class, or an .npz in Keras layout.
    output
        The .npz file to write, which must not exist yet. By default features-DATA-SOURCE.npz.
    classes
        Keep only these classes, by their numbers.
    train_size
        Take this many training images, the same share of every class; 0 takes all.
    pool
        Average the last feature map over so many parts, across and down: 2 gives four times the features. For
        networks of ours.
    batch_size
        Images at a time.
    workers
        Processes that read image files.
    cache
        Folder of downloaded datasets.
    """
    from cappronet import embedding
    from cappronet.datasets import DATASETS
    from cappronet.recipe import Recipe

    if batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {batch_size}")
    name = Path(source).resolve().name if Path(source).is_dir() else slug(source)
    path = output or Path(f"features-{slug(data)}-{name}.npz")
    place = Path(data).expanduser()
    found = data if data in DATASETS or not place.exists() else str(place.resolve())
    recipe = Recipe(data=found, classes=classes, train_size=train_size)
    try:
        with progress_bar(console) as show:
            n, tests, d = embedding.embed(
                source,
                recipe,
                path,
                pool=pool,
                batch_size=batch_size,
                workers=workers,
                cache=str(cache) if cache else None,
                on_batch=lambda part, done, total: show.count(f"{part} features", done, total),
            )
    except KeyboardInterrupt:
        raise InterruptedError("stopped; the same command goes on from here") from None
    console.print(f"{n:,} training and {tests:,} test features of {d:,} numbers, {path.stat().st_size / 1e6:,.1f} MB")
    console.print(f"Written to {path}")


def probe(
    features: Path,
    /,
    *,
    folder: Path | None = None,
    heads: Annotated[list[str] | None, Parameter(negative="")] = None,
    labels: Path | None = None,
    label_column: str | None = None,
    test: Path | None = None,
    test_labels: Path | None = None,
    folds: int = 5,
    tries: int = 6,
    seed: int = 0,
    jobs: int | None = None,
) -> None:
    """Fit linear, nearest-neighbour, grouped and capsule heads to features, and keep the best as a model.

    Each head has the same number of tries, judged by cross-validation on training samples. The best is fitted to all of
    them and measured on the test samples. Of more than 6,000 training samples some serve to choose settings, and heads
    are compared on a fifth that is held out. Without test samples the error is that of the comparison.

    Parameters
    ----------
    features
        The file of cappronet embed, or your own arrays: an .npz with x_train, y_train (and x_test, y_test), or features
        and labels, or X and y; an .npy; a table as .csv, .tsv or .parquet. Labels may be text.
    folder
        Where the model and all numbers are written, which must not exist yet. By default runs/probe-FEATURES.
    heads
        Heads to compare; can be given several times: linear, knn, group, capsule. By default all four.
    labels
        For an .npy of features: the .npy of labels.
    label_column
        For a table: the column of labels. By default the one called label, else the last.
    test
        A second file of the same kind, with the test samples.
    test_labels
        The .npy of labels for --test.
    folds
        Parts that cross-validation holds out in turn.
    tries
        Settings to try for each head.
    seed
        Decides the folds and the order of samples.
    jobs
        Fits at the same time, with one thread each. By default one for each core, or one if there is little to do.
    """
    from cappronet.feature_files import read_features, with_test
    from cappronet.probe import Plan
    from cappronet.probe import probe as compare_heads
    from cappronet.probe_folder import measured_on, save, validated_on
    from cappronet.probe_heads import HEADS
    from cappronet.runs import Run

    place = folder or Path("runs") / f"probe-{slug(str(features.with_suffix('').name))}"
    if Run(place).folder.exists():
        raise FileExistsError(f"{place} exists and is left as it is: choose another --folder")
    plan = Plan(tuple(heads or HEADS), folds, tries, seed, jobs)
    if test is None and test_labels is not None:
        raise ValueError("--test-labels belongs to an .npy that --test names")
    with progress_bar(console) as show:
        data = read_features(features, labels, label_column)
        if test is not None:
            data = with_test(data, read_features(test, test_labels, label_column))
        rows, head = compare_heads(data, plan, lambda done, total: show.count("fitting", done, total))
    title = f"{len(data.y_train):,} features of {data.dim:,} numbers, {len(data.classes)} classes"
    console.print(_probe_table(rows, title))
    console.print(f"Error: {measured_on(data, rows, plan)}, with Wilson's 95 % interval.")
    console.print(f"Valid: the error by {validated_on(data, plan)}.")
    console.print("Fit s: on one core. ms: for one sample.")
    if min(rows, key=lambda row: (row.validated, row.parameters)).setting.head == "knn":
        console.print(
            "Nearest neighbours have the lowest error on what was held out, but they keep samples, not a model."
        )
    if head is not None:
        save(place, data, rows, head, plan)
        console.print(f"The model of the best head by what was held out is written to {place}")


def _probe_table(rows: "list[Measured]", title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("head", min_width=12)
    for heading in ("valid %", "error %", "95 %", "parameters", "fit s", "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        low, high = row.interval()
        errors = (f"{row.validated:.2f}", f"{row.error:.2f}", f"{low:.2f}-{high:.2f}")
        costs = (
            f"{row.parameters:,}",
            f"{row.fit_seconds:.1f}",
            f"{row.sample_ms:.2g}" if row.sample_ms < 100 else f"{row.sample_ms:.0f}",
        )
        table.add_row(f"{row.setting.head} {row.setting.label}", *errors, *costs)
    return table
