"""`embed` and `probe`: features of a frozen network, and heads compared on them."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cappronet.cli.display import print_table, print_text, progress_bar
from cappronet.cli.shared import console, slug

__all__ = ["embed", "probe"]


def embed(
    source: str,
    /,
    *,
    data: str = "digits",
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    classes: Annotated[tuple[int, ...], Parameter(negative="", consume_multiple=True)] = (),
    train_size: int = 0,
    pretrained: str = "timm",
    image_size: int = 0,
    pool: int = 1,
    batch_size: int = 500,
    workers: int = 0,
    cache: Path | None = None,
) -> None:
    """Write the features that a frozen network makes of a dataset to a folder, for `cappronet probe`.

    Called again after an interruption, the same command continues where it stopped. Features are written as they are
    computed and may be larger than memory.

    Parameters
    ----------
    source
        What makes the features: the folder of a finished run, the name of a timm model with pretrained weights, or
        pixels.
    data
        Dataset by name, or a path: a folder of images by class, or an .npz in Keras layout.
    output
        The folder to write, which must not exist yet. By default features-DATA-SOURCE.
    classes
        Keep only these classes, by their numbers.
    train_size
        Take this many training images, the same share of every class; 0 takes all.
    pretrained
        The weights of a network that is given by its name: timm for timm's own, or a file or folder of weights.
    image_size
        Scale images to this side. By default to the size that the network was trained at.
    pool
        Average the last feature map over this many parts, across and down: 2 gives four times the features. For the
        backbones of cappronet.
    batch_size
        Images at a time.
    workers
        Processes that read image files.
    cache
        Folder of downloaded datasets.
    """
    from cappronet.data.datasets import DATASETS
    from cappronet.data.selection import Selection
    from cappronet.probing import embedding

    if batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {batch_size}")
    name = Path(source).resolve().name if Path(source).is_dir() else slug(source)
    path = output or Path(f"features-{slug(data)}-{name}")
    images = Path(data).expanduser()
    known = data in DATASETS or not images.exists()
    selection = Selection(data if known else str(images.resolve()), classes, train_size)
    try:
        with progress_bar(console) as report:
            n, tests, d = embedding.embed(
                source,
                selection,
                path,
                pool=pool,
                pretrained=pretrained,
                image_size=image_size,
                batch_size=batch_size,
                workers=workers,
                cache=cache,
                report=report,
            )
    except KeyboardInterrupt:
        raise InterruptedError("stopped; the same command continues from here") from None
    size = sum(file.stat().st_size for file in path.iterdir())
    print_text(f"{n:,} training and {tests:,} test features of {d:,} numbers, {size / 1e6:,.1f} MB", console)
    print_text(f"Written to {path}", console)


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
    """Compare capsules with logistic regression, an MLP and other heads on features, and save the best as a model.

    Each head has the same tuning budget: a number of settings, judged by cross-validation on training samples. From
    1,000 samples on, half of the settings are dropped after each fold. The best head is fitted to all samples and
    measured on the test samples. With more than 6,000 training samples, settings are chosen on some of them and heads
    are compared on a fifth that is held out. Without test samples the error is that of the comparison.

    Parameters
    ----------
    features
        A folder of cappronet embed, or your own arrays: an .npz with x_train, y_train (and x_test, y_test), or features
        and labels, or X and y; an .npy; a table as .csv, .tsv or .parquet. Labels may be text.
    folder
        Where the model and all numbers are written, which must not exist yet. By default runs/probe-FEATURES.
    heads
        Heads to compare; can be given several times: linear, logistic, mlp, knn, group, capsule. By default all six.
    labels
        For an .npy of features: the .npy of labels.
    label_column
        For a table: the column of labels. By default the one called label, else the last.
    test
        A second file of the same kind, with the test samples.
    test_labels
        The .npy of labels for --test.
    folds
        Folds of the cross-validation; no more than the largest class has samples.
    tries
        Settings tried for each head.
    seed
        Decides the folds and the order of samples.
    jobs
        Fits at the same time, with one thread each. By default one for each core, or one if there is little to do.
    """
    import numpy as np

    from cappronet.data.features import read_features, with_test
    from cappronet.probing.comparison import probe as compare_heads
    from cappronet.probing.result import ProbeResult
    from cappronet.probing.settings import PROBE_HEADS, ProbeOptions

    run_dir = folder or Path("runs") / f"probe-{slug(features.name if features.is_dir() else features.stem)}"
    if run_dir.exists():
        raise FileExistsError(f"{run_dir} exists and is left as it is: choose another --folder")
    options = ProbeOptions(tuple(heads or PROBE_HEADS), folds, tries, seed, jobs)
    if test is None and test_labels is not None:
        raise ValueError("--test-labels holds the labels of an .npy of test features: name that with --test")
    with progress_bar(console) as report:
        data = read_features(features, labels, label_column)
        if test is not None:
            data = with_test(data, read_features(test, test_labels, label_column))
        result = ProbeResult(data, options, *compare_heads(data, options, report), np.array(data.classes))
    if data.label_column is not None and label_column is None:
        print_text(f"Labels: column {data.label_column!r}; --label-column names another", console)
    print_table(result.table, console)
    for line in result.notes:
        print_text(line, console)
    if result.head is not None:
        result.save(run_dir)
        print_text(f"The best head on held-out samples is saved as a model in {run_dir}", console)
