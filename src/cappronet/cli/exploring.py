"""`explore`: a run's capsule subspaces as a page for the browser."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from cappronet.cli.display import print_text, progress_bar
from cappronet.cli.shared import console

__all__ = ["explore"]


def explore(
    run: Path,
    /,
    *,
    split: Literal["test", "train"] | None = None,
    images: int = 2000,
    output: Annotated[Path, Parameter(alias="-o")] = Path("report.html"),
    csv: Path | None = None,
    cache: Path | None = None,
) -> None:
    """Write one HTML file that shows what each class subspace has learned, image by image. It works offline.

    For a probe of features, the page shows the texts they were made of, if the feature file has them.

    Parameters
    ----------
    run
        The folder of a finished run with a capsule head.
    split
        Which images to show. By default the test images; of features without a test part, the training samples.
    images
        How many of them; every class keeps its proportion.
    output
        The HTML file to write; it must not exist yet.
    csv
        Also write every image's lengths and coordinates to this CSV file; it must not exist yet.
    cache
        Folder of downloaded datasets.
    """
    _check_outputs(output, csv)

    from cappronet import explorer
    from cappronet.extras import require

    for module in ("jinja2", "PIL.Image"):  # missing packages are reported before the work, not after it
        require(module, "explore")
    with progress_bar(console) as report:
        table = explorer.capsule_table(run, split, images, cache, report)
        if csv is not None:
            explorer.write_csv(table, csv, report)
        report("writing the page", 0, 1)
        explorer.write_page(table, run, output)
    errors = int((table.predictions != table.labels).sum())
    size = output.stat().st_size / 1e6
    noun = "images" if table.thumbnails is not None else "samples"
    print_text(f"{len(table):,} of {table.total:,} {table.split} {noun}, {errors:,} misclassified", console)
    print_text(f"Written to {output}, {size:.1f} MB: open it in a browser", console)
    if csv is not None:
        print_text(f"Written to {csv}", console)


def _check_outputs(output: Path, csv: Path | None) -> None:
    """Refuse files that can't be written before any work is done."""
    if csv is not None and csv.absolute() == output.absolute():
        raise ValueError(f"the page and the CSV file can't both be {csv}; choose another file with -o")
    for path, option in ((output, "-o"), (csv, "--csv")):
        if path is not None and path.exists():
            raise FileExistsError(f"{path} exists; choose another file with {option}")
        if path is not None and not path.parent.is_dir():
            raise FileNotFoundError(f"the folder {path.parent} for {path.name} does not exist; create it first")
