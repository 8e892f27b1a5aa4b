"""Options that several experiments take, and the files that they name."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

__all__ = ["Cache", "Cifar10", "Cifar100", "dataset_files"]

Cifar10 = Annotated[
    Path | None, Parameter(help="CIFAR-10 as an .npz with x_train, y_train, x_test, y_test; by default downloaded.")
]
Cifar100 = Annotated[
    Path | None, Parameter(help="CIFAR-100 as an .npz with x_train, y_train, x_test, y_test; by default downloaded.")
]
Cache = Annotated[Path | None, Parameter(help="Folder of downloaded datasets.")]


def dataset_files(**paths: Path | None) -> dict[str, str]:
    """The files that datasets are read from, by the name of the dataset."""
    files = {name: path for name, path in paths.items() if path is not None}
    for name, path in files.items():
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no file {path}; --{name} takes an .npz with x_train, y_train, x_test, y_test"
            )
    return {name: str(path.resolve()) for name, path in files.items()}
