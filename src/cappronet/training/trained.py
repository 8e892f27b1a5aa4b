"""`cappronet.train`: a network trained from Python, and what comes of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cappronet.data.files import new_folder
from cappronet.data.given import GivenImages, ImageData, as_pixels, given_images, store
from cappronet.data.samples import Images, Samples, Vectors
from cappronet.extras import require
from cappronet.models.network import CapProNet
from cappronet.models.prediction import features, predict_files
from cappronet.reporting import IS_MAIN_PROCESS, Report, Result, Table, did_you_mean, progress_for
from cappronet.training.figures import draw_history, drawn
from cappronet.training.hardware import Hardware
from cappronet.training.loop import Interrupted
from cappronet.training.loop import train as train_run
from cappronet.training.recipe import Recipe, choose_recipe
from cappronet.training.results import comparison, comparison_table
from cappronet.training.run_folder import IMAGES, Run

__all__ = ["TrainResult", "asked_for", "train", "work_folder"]


class TrainResult(Result):
    """A trained network. `print` shows its error and what it cost.

    Attributes:
        recipe: what was asked for.
        summary: the result, as `summary.json` of a run folder has it.
        folder: the run folder; None if none was asked for.
        given: the images, if they were given as arrays or as a torch `Dataset`.
    """

    def __init__(
        self, recipe: Recipe, summary: dict[str, Any], folder: Path | None, given: GivenImages | None = None
    ) -> None:
        self.recipe, self.summary, self.folder, self.given = recipe, summary, folder, given

    @property
    def error(self) -> float:
        """The error in percent on the test images, or on those that the recipe holds out for validation."""
        return float(self.summary["error"])

    @property
    def table(self) -> Table:
        """The error and the cost."""
        summary = self.summary
        network = f"{summary['backbone']} with {summary['head']}"
        title = f"{network} on {summary['data']}, {summary['parameters']:,} parameters"
        table = comparison_table(comparison([summary]), measured=self.recipe.measured, title=title)
        return table.without("data", "95 %", "n")

    @property
    def notes(self) -> list[str]:
        """How pretrained weights were matched to the network, where names did not tell."""
        origin = self.environment.get("pretrained", {})
        if origin.get("matched", "by name") == "by name":
            return []
        return [f"the weights of {origin['from']} were matched {origin['matched']}"]

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The loss, the learning rate and the errors of each epoch."""
        return self._run.metrics()

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions, device and commit: what the result depends on in addition to the recipe."""
        return self._run.environment

    @cached_property
    def model(self) -> CapProNet:
        """The trained network, on the CPU and in eval mode."""
        return CapProNet.from_pretrained(self._run.folder)

    @property
    def labels(self) -> NDArray[Any]:
        """The label of each class `(L,)`, as `predict` returns it."""
        if self.given is None:
            return np.array(self.model.config["classes"])
        return self.given.labels[list(self.recipe.classes)] if self.recipe.classes else self.given.labels

    @property
    def figure(self) -> Any:
        """The training loss and the error of each epoch, as a matplotlib figure."""
        return drawn(*draw_history(self.history, self.recipe.measured))

    def to_frame(self) -> Any:
        """The history as a pandas `DataFrame`, with a row for each epoch."""
        return require("pandas", "tables").DataFrame(self.history)

    @torch.no_grad()
    def predict(self, images: Any) -> NDArray[Any]:
        """The labels of images.

        Args:
            images: arrays or tensors as `train` takes them, which are scaled if they differ in size from the training
                images; or the paths of image files. For a network on feature vectors: features `(n, d)`.
        """
        if isinstance(images, str | Path):
            images = [images]
        if isinstance(images, Sequence) and images and all(isinstance(path, str | Path) for path in images):
            predictions = predict_files(self.model, [Path(path).expanduser() for path in images])
            numbers = [self.model.config["classes"].index(prediction.label) for prediction in predictions]
            return self.labels[numbers]
        x = features(self.model, _samples(self.model, images))
        return self.labels[self.model.head(x).argmax(-1).numpy()]

    def save(self, folder: str | Path) -> CapProNet:
        """Write the folder that `cappronet train` writes, which must not exist yet, and return the model in it."""
        folder = Path(folder).expanduser()
        Run.new(folder, "folder=...")
        with new_folder(folder) as temporary:
            self.write(temporary, self.store_images(temporary, folder))
        return self.model

    def store_images(self, folder: Path, final: Path) -> str:
        """Write images that were given as arrays into a folder; return the data of a recipe, once it is at `final`."""
        if self.given is None:
            return self.recipe.data
        store(self.given.dataset, folder / IMAGES)
        return str(final.resolve() / IMAGES)

    def write(self, folder: Path, data: str) -> None:
        """Write the files of a run folder; `data` is where its recipe says that the images are."""
        run = Run(folder)
        run.begin(self.recipe.changed(data=data))
        run.write_json("environment.json", self.environment)
        run.write_metrics(self.history)
        self.model.save_pretrained(folder)
        run.write_json("summary.json", self.summary)

    def detach(self) -> None:
        """Read everything from a temporary folder, before it is removed."""
        _ = self.history, self.environment, self.model
        self.folder = None
        if self.given is not None:
            self.recipe = self.recipe.changed(data=IMAGES)

    @property
    def _run(self) -> Run:
        assert self.folder is not None
        return Run(self.folder)


def train(
    data: ImageData | None = None,
    *,
    test: ImageData | None = None,
    backbone: str | None = None,
    head: str | None = None,
    recipe: str | Path | Recipe | None = None,
    folder: str | Path | None = None,
    resume: bool = True,
    accelerator: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    strategy: str = "auto",
    workers: int = 0,
    cache: str | Path | None = None,
    shard_head: bool = False,
    quiet: bool = False,
    report: Report | None = None,
    **options: Any,
) -> TrainResult:
    """Train a network and its head: what `cappronet train` does.

    Args:
        data: a dataset by name (`"digits"`, `"cifar10"`, ...); the path of a folder of images by class or of an .npz
            file; `(x, y)`, images and their labels; or a map-style torch `Dataset` of (image, label), whose items are
            read once, so that augmentation is the recipe's. Images are `(n, H, W)`, `(n, H, W, C)` or `(n, C, H, W)`
            with C = 1 or 3, uint8 or floats from 0 to 1, not normalized; labels are whole numbers or text. By default
            the recipe's data: digits.
        test: for arrays and a `Dataset`: images to measure errors on, in the same forms. Without them a fifth of each
            class, always the same, is held out. Names and paths have test images of their own.
        backbone: `"resnet8"` and others of ours, or any of timm's; by default the recipe's.
        head: `"capsule"`, `"group"`, `"linear"`, `"cosine"`, `"weightnorm"` or `"subcenter"`; by default the recipe's.
        recipe: a recipe file, or a shipped recipe by its name, whose values the arguments override.
        folder: the run folder to write; without one, nothing is kept but the result. If it holds an interrupted run of
            the same recipe, that is resumed; if the run is finished, its result is returned.
        resume: whether a folder may hold such a run; otherwise it must not exist yet.
        accelerator: `"auto"`, `"cpu"`, `"cuda"` or `"mps"`.
        devices: devices on each machine, with one process each; more than one needs a launcher such as torchrun.
        num_nodes: machines.
        strategy: `"auto"`, `"ddp"` or `"fsdp"`.
        workers: processes that read image files.
        cache: folder of downloaded datasets.
        shard_head: whether the classes of a capsule head are spread over all processes.
        quiet: whether to show no progress, which terminals and notebooks show otherwise.
        report: called with the progress instead: a text, the steps done and their number.
        options: every other key of a recipe: `epochs`, `lr`, `capsule_dim`, `pretrained`, `flip`, `seed`, ...

    Raises:
        InterruptedError: after Ctrl-C or SIGTERM; with a folder, the run was saved and can be resumed.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> digits = load_digits()
        >>> result = train((digits.images / 16, digits.target), backbone="pixels", epochs=5, accelerator="cpu")
        >>> result.error < 20
        True
        >>> result.predict(digits.images[:3] / 16)
        array([0, 1, 2])
    """
    chosen, given = asked_for(data, test, recipe, {"backbone": backbone, "head": head, **options})
    if devices * num_nodes > 1 and (folder is None or given is not None):
        raise ValueError(
            f"{devices * num_nodes} processes need one run folder and data that each of them can read: set folder, and "
            "save arrays to an .npz file whose path you pass as data"
        )
    hardware = Hardware(accelerator, devices, num_nodes, strategy, workers, str(cache) if cache else None, shard_head)
    with work_folder(folder) as path, progress_for(report, quiet=quiet) as shown:
        run = Run(path)
        if IS_MAIN_PROCESS and not (resume and run.begun):
            run = Run.new(path, "folder=...")
        if given is not None:
            chosen = chosen.changed(data=str(path.resolve() / IMAGES))
            store(given.dataset, path / IMAGES)
        if run.finished and run.recipe == chosen:
            summary = run.summary
        else:
            summary = _trained(chosen, run, hardware, shown, kept=folder is not None)
        result = TrainResult(chosen, summary, path, given)
        if folder is None:
            result.detach()
        return result


def asked_for(
    data: ImageData | None, test: ImageData | None, recipe: str | Path | Recipe | None, options: Mapping[str, Any]
) -> tuple[Recipe, GivenImages | None]:
    """The recipe that arguments describe, and the images, if these are no name and no path; None leaves a value."""
    names = Recipe.__dataclass_fields__
    for name in options:
        if name not in names:
            raise TypeError(f"there is no option {name!r}: expected a key of a recipe{did_you_mean(name, names)}")
    values = {name: _plain(value) for name, value in options.items() if value is not None}
    if data is not None and not isinstance(data, str | Path):
        return choose_recipe(recipe, values), given_images(data, test)
    if test is not None:
        raise ValueError(
            "test is for images that are arrays or a torch Dataset: a dataset by name or path has test images of its "
            "own, and a folder of images takes them from test/ next to train/"
        )
    return choose_recipe(recipe, values if data is None else {**values, "data": str(data)}), None


def _plain(value: Any) -> Any:
    """As recipes hold it: numbers of NumPy become Python's, and a path text."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value) if isinstance(value, Path) else value


@contextmanager
def work_folder(folder: str | Path | None) -> Iterator[Path]:
    """The folder that was asked for, or a temporary one that is removed with the block."""
    if folder is not None:
        yield Path(folder).expanduser()
        return
    with TemporaryDirectory(prefix="cappronet-") as temporary:
        yield Path(temporary) / "run"


def _trained(recipe: Recipe, run: Run, hardware: Hardware, report: Report, *, kept: bool) -> dict[str, Any]:
    """The summary of a run. The caller's random numbers are not disturbed by those that training draws."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            return train_run(recipe, run, hardware, report=report)
        except Interrupted:
            saved = f"stopped and saved; to resume, call it again with folder={str(run.folder)!r}"
            raise InterruptedError(saved if kept else "stopped; with a folder, a run is saved and resumed") from None


def _samples(model: CapProNet, inputs: Any) -> Samples:
    """Arrays as a model takes them, with labels that do not count."""
    if model.takes_vectors:
        x = torch.as_tensor(inputs, dtype=torch.float32)
        return Vectors(torch.zeros(len(x), dtype=torch.int64), x)
    pixels = as_pixels(inputs)
    return Images(torch.zeros(len(pixels), dtype=torch.int64), pixels)
