"""The command line. Heavy imports stand inside the commands, so that `cappronet --help` answers at once."""

import dataclasses
import itertools
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cappronet.display import comparison_table, progress_bar
from cappronet.recipe import Recipe

if TYPE_CHECKING:
    Options = Any

__all__ = ["app", "main"]

app = App(name="cappronet", help="Capsule projection heads: train them, compare them, look inside.")
# A run of many processes speaks with one voice.
FIRST = not any(int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))
console = Console(quiet=not FIRST)


def _options() -> type:
    """A dataclass with every field of a recipe, each None until it is given."""
    hints = get_type_hints(Recipe)
    fields: list[Any] = []
    for field in dataclasses.fields(Recipe):
        text = f"{field.metadata['help']} [default: {field.default if field.default != () else 'none'}]"
        negative = None if hints[field.name] is bool else ()
        parameter = Parameter(help=text, show_default=False, negative=negative)
        fields.append((field.name, Annotated[hints[field.name] | None, parameter], None))
    return dataclasses.make_dataclass("Options", fields, frozen=True, namespace={"__module__": __name__})


if not TYPE_CHECKING:
    Options = Annotated[_options(), Parameter(name="*", group="Recipe")]


def _recipe(file: str | None, options: Options | None) -> Recipe:
    """The recipe of a file, or the default one, with the options that were given in its place."""
    from cappronet.datasets import DATASETS

    base = Recipe.from_toml(_recipe_path(file)) if file else Recipe()
    given = {name: value for name, value in vars(options).items() if value is not None} if options else {}
    chosen = base.changed(**given)
    path = Path(chosen.data).expanduser()
    if chosen.data in DATASETS or not path.exists():
        return chosen
    return chosen.changed(data=str(path.resolve()))  # a run is read from other folders too


@app.command
def train(
    *,
    recipe: str | None = None,
    run: Path | None = None,
    resume: Path | None = None,
    options: Options = None,
    accelerator: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    strategy: Literal["auto", "ddp", "fsdp"] = "auto",
    workers: int = 0,
    cache: Path | None = None,
) -> None:
    """Train a model and write everything about it into one folder.

    With no argument: a small ResNet with a capsule head on scikit-learn's digits, in under a minute.

    Parameters
    ----------
    recipe
        A recipe file, or the name of a shipped one; options override it.
    run
        The folder to write, which must not exist yet. By default runs/DATA-BACKBONE-HEAD-seedN.
    resume
        Continue the run in this folder, exactly where it was interrupted.
    accelerator
        Where to train: auto, cpu, cuda, mps.
    devices
        Processes on each machine, one for each device.
    num_nodes
        Machines.
    strategy
        How processes work together: ddp, or fsdp for models that do not fit on one device.
    workers
        Processes that read image files.
    cache
        Folder of downloaded datasets. By default the environment's CAPPRONET_DATA, else ~/.cache/cappronet.
    """
    from cappronet.runs import Run
    from cappronet.training import Hardware, Interrupted
    from cappronet.training import train as train_run

    if resume is not None:
        if recipe or run or any(value is not None for value in (vars(options) if options else {}).values()):
            raise ValueError("--resume continues a run as it was started; give it no recipe and no other option of one")
        place = Run.open(resume)
        if place.finished:
            raise ValueError(f"{resume} is finished; its result is in {resume / 'summary.json'}")
        chosen = place.recipe
    else:
        chosen = _recipe(recipe, options)
        folder = run or Path("runs") / _folder_name(chosen)
        place = Run.new(folder) if FIRST else Run(folder)
    hardware = Hardware(accelerator, devices, num_nodes, strategy, workers, str(cache) if cache else None)
    with progress_bar(console) as show:
        try:
            summary = train_run(chosen, place, hardware, on_progress=show)
        except Interrupted:
            raise InterruptedError(
                f"stopped and saved; continue with: cappronet train --resume {place.folder}"
            ) from None
    console.print(
        f"{chosen.backbone} with {chosen.head_label} on {summary['data']}, {summary['parameters']:,} parameters"
    )
    measured = "validation" if chosen.validation else "test"
    speed = f"{summary['seconds']:.0f} s, {summary['images_per_second']:,.0f} images/s"
    console.print(f"{measured} error [bold]{summary['error']:.2f} %[/bold] after {speed}")
    console.print(f"Written to {place.folder}")


@app.command
def compare(
    *,
    recipe: str | None = None,
    folder: Path | None = None,
    backbones: Annotated[list[str] | None, Parameter(negative="")] = None,
    heads: Annotated[list[str] | None, Parameter(negative="")] = None,
    seeds: int = 3,
    jobs: int | None = None,
    options: Options = None,
    cache: Path | None = None,
) -> None:
    """Train the same recipe with several heads and seeds, and print their errors side by side.

    With no argument: digits, on bare pixels and with a small ResNet, in under three minutes. Called again with the same
    folder, it keeps what is finished and goes on with the rest.

    Parameters
    ----------
    recipe
        A recipe file, or the name of a shipped one; options override it.
    folder
        Where the runs are written. By default runs/compare-DATA.
    backbones
        Backbones to compare on; can be given several times. By default pixels and resnet8, or the recipe's.
    heads
        Heads to compare; can be given several times: linear, cosine, weightnorm, subcenter, group, capsule (as in the
        paper), capsule-unit (unit features and a learned scale). By default linear, group, capsule and capsule-unit.
    seeds
        Runs of each, with seeds 0, 1, ...
    jobs
        Runs at the same time, with one thread each. By default one for each core.
    cache
        Folder of downloaded datasets.
    """
    from cappronet import comparison
    from cappronet.figures import comparison_figure
    from cappronet.results import write_rows

    base = _recipe(recipe, options)
    given = recipe is not None or (options is not None and options.backbone is not None)
    chosen = backbones or ([base.backbone] if given else ["pixels", "resnet8"])
    place = folder or Path("runs") / f"compare-{_slug(base.data)}"
    plan = comparison.plan(base, chosen, heads or list(comparison.DEFAULT), seeds, place)
    with progress_bar(console) as show:
        rows = comparison.execute(plan, jobs or os.cpu_count() or 1, str(cache) if cache else None, show)
    console.print(comparison_table(rows, base))
    write_rows(rows, base, place / "comparison.json")
    console.print(f"Written to {place}")
    try:
        comparison_figure(rows, place / "comparison.png", "validation" if base.validation else "test")
        console.print(f"The picture is {place / 'comparison.png'}")
    except ModuleNotFoundError as missing:
        console.print(f"No picture: {escape(str(missing))}")


@app.command
def evaluate(run: Path, /, *, split: Literal["test", "train"] = "test", cache: Path | None = None) -> None:
    """Measure a trained model: errors, calibration, and the shape of its capsule subspaces.

    Parameters
    ----------
    run
        The folder of a finished run.
    split
        Which images to measure on.
    cache
        Folder of downloaded datasets.
    """
    import torch

    from cappronet import evaluation
    from cappronet.batches import Batches
    from cappronet.ingredients import prepare
    from cappronet.model import CapProNet
    from cappronet.runs import Run

    place = Run.open(run)
    data = prepare(place.recipe, str(cache) if cache else None)
    model = CapProNet.from_pretrained(place.folder)
    images = data.test if split == "test" else data.train
    mean, std = torch.tensor(model.config["mean"]), torch.tensor(model.config["std"])
    batches = Batches(images, 500, mean=mean, std=std, shuffle=False)
    with progress_bar(console) as show:
        scores, labels = evaluation.predict(model, show.track(batches.epoch(0), len(batches)))
    console.print(f"{run}: {len(labels):,} {split} images", soft_wrap=True)
    table = Table()
    table.add_column("measure")
    table.add_column("value", justify="right")
    values = [*evaluation.classification_metrics(scores, labels), *evaluation.capsule_statistics(model.head)]
    for name, value in values:
        table.add_row(name.replace("_", " "), f"{value:.4g}")
    console.print(table)


@app.command
def predict(run: Path, /, *images: Path) -> None:
    """Classify image files: class, probability, capsule length, and the angle between features and subspace.

    Parameters
    ----------
    run
        The folder of a finished run.
    images
        Image files.
    """
    from cappronet import prediction
    from cappronet.model import CapProNet

    if not images:
        raise ValueError("give at least one image file")
    model = CapProNet.from_pretrained(run)
    table = Table()
    for heading in ("image", "class", "probability", "length", "angle"):
        table.add_column(heading, justify="left" if heading in ("image", "class") else "right")
    for path in images:
        found = prediction.predict_file(model, path)
        angle = f"{found.angle:.1f}°" if found.angle is not None else ""
        table.add_row(str(path), found.label, f"{found.probability:.4f}", f"{found.score:.3f}", angle)
    console.print(table)


@app.command(name="list")
def list_(what: Literal["backbones", "datasets", "heads", "recipes"] | None = None, /) -> None:
    """Name the backbones, datasets, heads and recipes that the other commands take.

    Parameters
    ----------
    what
        Only these; by default all four.
    """
    for kind in (what,) if what else ("backbones", "datasets", "heads", "recipes"):
        console.print(f"[bold]{kind}[/bold]")
        for name in _names(kind):
            console.print(f"  {name}", highlight=False)


def _names(kind: str) -> list[str]:
    if kind == "backbones":
        from cappronet.backbones import BACKBONES

        return [*BACKBONES, "every other name is timm's"]
    if kind == "datasets":
        from cappronet.datasets import DATASETS, VALIDATION

        notes = {
            name: f" (the paper validates on {size:,} of its training images)" for name, size in VALIDATION.items()
        }
        sources = ["a folder of images by class", "an .npz file with x_train, y_train, x_test, y_test"]
        return [*(f"{name}{notes.get(name, '')}" for name in DATASETS), *sources]
    if kind == "heads":
        from cappronet.heads import HEADS

        return list(HEADS)
    root = _recipes()
    return [str(path.relative_to(root).with_suffix("")) for path in sorted(root.rglob("*.toml"))]


@app.command
def benchmark(
    what: Literal["head", "training"] = "head",
    /,
    *,
    shape: Annotated[list[str] | None, Parameter(negative="")] = None,
    rounds: int = 15,
    threads: int | None = None,
    device: str = "cpu",
    growth: bool = True,
    output: Path | None = None,
) -> None:
    """Time the capsule head, or a whole training step with it, against its rivals.

    head: against a linear layer of its size, the plain inverse and a loop over classes, and how cost grows with each
    size. training: a ResNet-20 step with a capsule head against one with a linear head, what the loop adds to the bare
    step, and what augmentation takes. Rivals run interleaved; ratios are taken within each round. All numbers go to a
    JSON file.

    Parameters
    ----------
    what
        head or training.
    shape
        head: a shape B,d,L,c: batch, features, classes, capsule dimension. Can be given several times. By default
        ImageNet's 256,2048,1000,8, CIFAR-10's 128,64,10,8 and 128,160,100,8.
    rounds
        How often each rival is measured.
    threads
        How many CPU threads PyTorch may use; by default all.
    device
        Where to run: cpu, cuda, cuda:1.
    growth
        head: also measure how cost grows when B, d, L or c doubles.
    output
        The JSON file to write; it must not exist yet. By default benchmark-TIME.json in this folder.
    """
    import torch

    from cappronet import benchmark as bench
    from cappronet import step_benchmark

    if rounds < 1:
        raise ValueError(f"--rounds must be at least 1, got {rounds}")
    if threads is not None:
        torch.set_num_threads(threads)
    path = output or Path(f"benchmark-{datetime.now():%Y%m%d-%H%M%S}.json")
    if path.exists():
        raise FileExistsError(f"{path} exists and is left as it is; choose another --output")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} of --output does not exist; make it first")
    if what == "training":
        with progress_bar(console) as show:
            costs = step_benchmark.run(rounds=rounds, on_round=lambda n: show.count("measuring", n, rounds))
        console.print(step_benchmark.table(costs))
        bench.write(costs, path)
        console.print(f"Written to {path}")
        return
    shapes = [bench.Shape.parse(text) for text in shape] if shape else bench.SHAPES
    steps = len(shapes) + (5 if growth else 0)
    base = bench.GROWTH if growth else None
    with progress_bar(console) as show:
        begun = itertools.count()
        results = bench.run(
            shapes,
            growth=base,
            rounds=rounds,
            device=device,
            progress=lambda text: show.count(text, next(begun), steps),
        )
    for name, found in results["shapes"].items():
        bench.table(console, name, found)
    if growth:
        bench.growth_table(console, results["growth"])
    bench.write(results, path)
    console.print(f"Written to {path}")


def _slug(text: str) -> str:
    stem = Path(text).stem if "/" in text or text.endswith(".npz") else text
    return "".join(letter if letter.isalnum() else "-" for letter in stem).strip("-")


def _folder_name(recipe: Recipe) -> str:
    head = recipe.head_label.replace(" c=", "").replace(", ", "-").replace(" ", "-")
    return f"{_slug(recipe.data)}-{recipe.backbone}-{head}-seed{recipe.seed}"


def _recipes() -> Path:
    """The shipped recipes: in the installed package, or in the checkout it runs from."""
    inside = Path(__file__).parent / "recipes"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "recipes"


def _recipe_path(name: str) -> Path:
    shipped = _recipes() / f"{name}.toml"
    return shipped if shipped.is_file() else Path(name)


def main() -> None:
    """Run the command line; a user's mistake ends in one line and a non-zero exit code."""
    try:
        app()
    except (OSError, ValueError, ArithmeticError, ImportError) as error:
        message = str(error).strip().partition("\n")[0] or type(error).__name__
        Console(stderr=True).print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True)
        raise SystemExit(130 if isinstance(error, InterruptedError) else 1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
