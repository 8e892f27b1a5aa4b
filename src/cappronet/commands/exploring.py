"""`explore`: a look inside the capsules, in a browser."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from cappronet.commands.shared import console
from cappronet.display import progress_bar

__all__ = ["explore"]


def explore(
    run: Path,
    /,
    *,
    split: Literal["test", "train"] = "test",
    images: int = 2000,
    output: Annotated[Path, Parameter(alias="-o")] = Path("report.html"),
    csv: Path | None = None,
    cache: Path | None = None,
) -> None:
    """Write one HTML file that shows what each class subspace has learned, image by image. It needs no network.

    Parameters
    ----------
    run
        The folder of a finished run with a capsule head.
    split
        Which images to show.
    images
        How many of them, every class in its proportion.
    output
        The HTML file to write; it must not exist yet.
    csv
        Also write every image's lengths and coordinates to this CSV file; it must not exist yet.
    cache
        Folder of downloaded datasets.
    """
    if csv is not None and csv.absolute() == output.absolute():
        raise ValueError(f"the page and the CSV file can't both be {csv}; choose another file with -o")
    for path in (output, csv):
        if path is not None and path.exists():
            raise FileExistsError(f"{path} exists; choose another file with {'-o' if path == output else '--csv'}")
        if path is not None and not path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into; make it first")

    from cappronet import explorer
    from cappronet.extras import require

    for module in ("jinja2", "PIL.Image"):  # before the work, not after it
        require(module, "explore")
    with progress_bar(console) as show:
        table = explorer.capsule_table(run, split, images, cache, show.count)
        if csv is not None:
            explorer.write_csv(table, csv, show.count)
        show.count("writing the page", 0, 1)
        explorer.write_page(table, run, output)
    errors = int((table.predictions != table.labels).sum())
    size = output.stat().st_size / 1e6
    console.print(
        f"{len(table):,} of {table.total:,} {split} images, {errors:,} of them taken for another class",
        soft_wrap=True,
    )
    console.print(f"Written to {output}, {size:.1f} MB: open it in a browser", soft_wrap=True, markup=False)
    if csv is not None:
        console.print(f"Written to {csv}", soft_wrap=True, markup=False)
