"""A recipe: everything that decides the outcome of a training run, as a documented dataclass and a TOML file."""

import dataclasses
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from cappronet.reporting import did_you_mean

if TYPE_CHECKING:
    from cappronet.data.selection import Selection

__all__ = ["CHOICES", "GROUPS", "Recipe", "choose_recipe", "recipe_names", "shipped"]


# The groups of the options in `--help`, in the order in which they are shown.
GROUPS = ("Data", "Backbone", "Head", "Optimizer", "Schedule", "Augmentation", "Hardware")


def _option(group: str, default: Any, text: str) -> Any:
    """A field of the recipe: its group, one of `GROUPS`, the default, and what `--help` and recipe files say of it."""
    return dataclasses.field(default=default, metadata={"group": group, "help": text})


# Options that take one of a few words.
CHOICES = {
    "head": ("capsule", "group", "linear", "cosine", "weightnorm", "subcenter", "mlp"),
    "solver": ("cholesky", "hyperpower"),
    "head_start": ("uniform", "orthonormal", "features"),
    "optimizer": ("sgd", "adamw"),
    "head_optimizer": ("same", "grassmann"),
    "schedule": ("onecycle", "cosine", "multistep", "step", "constant"),
    "interpolation": ("auto", "bilinear", "bicubic"),
    "balance": ("none", "weights", "sampler"),
    "precision": ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"),
}

# The time that a TOML parser takes grows with the square of the parts of a dotted key. A recipe has no dotted keys.
MOST_BYTES, MOST_DOTS = 2**20, 100
AMOUNTS = (
    *("train_size", "validation", "image_size", "eps", "scale_start", "lr", "head_lr", "bias_lr", "weight_decay"),
    *("warmup", "warmup_lr", "clip_norm", "padding", "randaugment", "mixup", "cutmix", "seed"),
)


@dataclass(frozen=True)
class Recipe:
    """What is trained, on what, and how. Every field is an option of `cappronet train` and a key of a recipe file."""

    data: str = _option(
        "Data", "digits", "Dataset by name, or a path: a folder of images by class, or an .npz in Keras layout."
    )
    classes: tuple[int, ...] = _option("Data", (), "Keep only these classes, by their numbers.")
    train_size: int = _option("Data", 0, "Train on this many images, the same share of every class; 0 takes all.")
    validation: int = _option(
        "Data", 0, "Hold out this many training images and measure errors on them instead of the test set."
    )
    backbone: str = _option(
        "Backbone", "resnet8", "Backbone by name: one of ours (cappronet list backbones), or any of timm's."
    )
    pretrained: str = _option(
        "Backbone",
        "none",
        "Start from pretrained weights: timm for timm's own, or a file or folder of weights. none: random weights.",
    )
    freeze: bool = _option("Backbone", False, "Train the head alone; the pretrained backbone stays as it is.")
    image_size: int = _option(
        "Data", 0, "Scale images to this side; 0: the size of the pretrained network, or images as they are."
    )
    interpolation: str = _option(
        "Data", "auto", "How images are scaled: bilinear or bicubic; auto: as for the pretrained network, or bilinear."
    )
    mean: tuple[float, ...] = _option(
        "Data", (), "Mean of each channel, from 0 to 1; by default that of the pretrained network, or of the data."
    )
    std: tuple[float, ...] = _option("Data", (), "Standard deviation of each channel; together with the mean.")
    backbone_dropout: float = _option(
        "Backbone", 0.0, "Dropout inside a WideResNet or DenseNet; 0 keeps the backbone's own."
    )
    head: str = _option("Head", "capsule", "Head by name: capsule, group, linear, cosine, weightnorm, subcenter, mlp.")
    capsule_dim: int = _option("Head", 4, "Dimension c of each class's subspace, or neurons or centres for each class.")
    normalize: bool = _option("Head", False, "Capsule head: project features of length 1.")
    scale: float | str = _option(
        "Head",
        "none",
        "Capsule head: multiply lengths by a number, or 'learned', or 'none'. Cosine heads: a number fixes it.",
    )
    scale_start: float = _option("Head", 0.0, "Where a learned scale starts; 0: at 16 with unit features, else at 1.")
    solver: str = _option(
        "Head", "cholesky", "Capsule head: how the normalization matrix is computed: cholesky or hyperpower."
    )
    eps: float = _option("Head", 0.0, "Capsule head: ridge added to W'W; the authors ran 1e-4 and 1e-7.")
    head_start: str = _option(
        "Head", "uniform", "Capsule head: first bases: uniform, orthonormal, or by SVD of the first images' features."
    )
    dropout: float = _option("Head", 0.0, "Dropout on the features before the head.")
    epochs: int = _option("Schedule", 30, "Passes over the training images.")
    batch_size: int = _option("Optimizer", 128, "Images in a step, over all processes.")
    optimizer: str = _option("Optimizer", "sgd", "sgd or adamw.")
    head_optimizer: str = _option(
        "Optimizer",
        "same",
        "Capsule head: 'grassmann' trains its subspaces by geodesic SGD, which keeps their bases orthonormal.",
    )
    lr: float = _option("Optimizer", 0.1, "Largest learning rate.")
    head_lr: float = _option("Optimizer", 1.0, "The head's learning rate as a multiple of the backbone's.")
    bias_lr: float = _option(
        "Optimizer", 1.0, "The learning rate of the backbone's biases as a multiple of that of its weights."
    )
    layer_decay: float = _option(
        "Optimizer",
        1.0,
        "Multiply the learning rate of the backbone's last layer by this, of the one before by its square, ...",
    )
    momentum: float = _option("Optimizer", 0.9, "SGD: momentum.")
    nesterov: bool = _option("Optimizer", True, "SGD: Nesterov momentum.")
    weight_decay: float = _option("Optimizer", 5e-4, "Weight decay.")
    decay_norms: bool = _option("Optimizer", True, "Apply weight decay to biases and normalization layers too.")
    decay_head: bool = _option("Optimizer", True, "Apply weight decay to the head too.")
    schedule: str = _option(
        "Schedule", "onecycle", "Learning-rate schedule: onecycle, cosine, multistep, step or constant."
    )
    milestones: tuple[int, ...] = _option(
        "Schedule", (), "multistep: epochs at which the learning rate is multiplied by gamma."
    )
    step_epochs: int = _option("Schedule", 30, "step: multiply the learning rate by gamma every this many epochs.")
    gamma: float = _option("Schedule", 0.1, "multistep and step: the factor.")
    warmup: float = _option("Schedule", 0.0, "Raise the learning rate linearly over this many epochs at the start.")
    warmup_lr: float = _option("Schedule", 0.0, "Keep this learning rate during the warm-up instead of raising it.")
    label_smoothing: float = _option("Optimizer", 0.0, "Share of the target that is spread over all classes.")
    clip_norm: float = _option("Optimizer", 0.0, "Clip the gradient to this norm; 0 disables clipping.")
    ema: float = _option(
        "Optimizer", 0.0, "Decay of an exponential moving average of the weights, which is then evaluated; 0: none."
    )
    flip: bool = _option("Augmentation", False, "Augment: mirror each image at random.")
    padding: int = _option("Augmentation", 0, "Augment: shift each image at random by up to this many pixels.")
    resized_crop: float = _option(
        "Augmentation",
        0.0,
        "Augment: scale a random part of each image, of at least this share of its area, to full size; 0: none.",
    )
    color_jitter: float = _option(
        "Augmentation", 0.0, "Augment: change brightness, contrast and saturation at random by up to this share."
    )
    randaugment: int = _option(
        "Augmentation", 0, "Augment: strength of RandAugment's random operations, 1 to 30; 0: none."
    )
    mixup: float = _option(
        "Augmentation", 0.0, "Augment: mix pairs of images, with shares of Beta(a, a) for this a; 0: none."
    )
    cutmix: float = _option(
        "Augmentation", 0.0, "Augment: paste a part of another image, with shares of Beta(a, a); 0: none."
    )
    balance: str = _option(
        "Data",
        "none",
        "Rare classes: none, weights (they count more in the loss) or sampler (drawn as often as others).",
    )
    channels_last: bool = _option(
        "Hardware", True, "Keep images channels-last in memory, which is faster for convolutions."
    )
    precision: str = _option("Hardware", "32-true", "Arithmetic: 32-true, bf16-mixed, 16-mixed, bf16-true or 64-true.")
    compile: bool = _option("Hardware", False, "Compile the model with torch.compile.")
    evaluate_every: int = _option("Schedule", 1, "Measure errors every this many epochs, and after the last.")
    seed: int = _option("Schedule", 0, "Decides the initial weights, the order of the images and the augmentation.")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = _converted(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(
                    f"{name} must be one of {', '.join(allowed)}, got {value!r}{did_you_mean(value, allowed)}"
                )
        if isinstance(self.scale, str) and self.scale not in ("none", "learned"):
            raise ValueError(f"scale must be a number, 'learned' or 'none', got {self.scale!r}")
        if self.moves_subspaces and (self.solver != "cholesky" or self.eps):
            raise ValueError(
                "head_optimizer 'grassmann' keeps bases orthonormal, which need no solver and no ridge: leave out "
                f"solver = {self.solver!r} and eps = {self.eps:g}"
            )
        for name in ("epochs", "batch_size", "capsule_dim", "step_epochs", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in AMOUNTS:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("momentum", "dropout", "backbone_dropout", "label_smoothing", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")
        self._check_fine_tuning()

    def _check_fine_tuning(self) -> None:
        for name in ("resized_crop", "color_jitter"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay must be above 0 and at most 1, got {self.layer_decay}")
        if self.freeze and self.pretrained == "none":
            raise ValueError("freeze keeps the backbone as it is and needs pretrained weights: set pretrained too")
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise ValueError(
                f"mean and std belong together, one number for each channel, std above 0; "
                f"got {list(self.mean)} and {list(self.std)}"
            )

    def changed(self, **values: Any) -> "Recipe":
        """The same recipe with some values replaced."""
        return dataclasses.replace(self, **values)

    @property
    def selection(self) -> "Selection":
        """The samples that the recipe trains on and measures errors on."""
        from cappronet.data.selection import Selection

        return Selection.from_dict(self.to_dict())

    @property
    def moves_subspaces(self) -> bool:
        """Whether the bases are trained by steps on the Grassmann manifold, which other heads do not have."""
        return self.head == "capsule" and self.head_optimizer == "grassmann"

    def head_options(self) -> dict[str, Any]:
        """Keyword arguments of the head's constructor: the capsule's options, the scale of cosine heads."""
        scale = None if self.scale == "none" else self.scale
        if self.head in ("cosine", "subcenter"):
            return {} if scale is None else {"scale": scale}
        if self.head != "capsule":
            return {}
        solver = "orthonormal" if self.moves_subspaces else self.solver
        return {"normalize": self.normalize, "scale": scale, "solver": solver, "eps": self.eps}

    @property
    def measured(self) -> str:
        """Which images errors are measured on: `test` or `validation`."""
        return "validation" if self.validation else "test"

    @property
    def head_label(self) -> str:
        """The head with its size, for tables and folders: `linear`, `capsule c=4`, `unit capsule c=4, scaled`."""
        label = f"{self.head} c={self.capsule_dim}" if self.head in ("capsule", "group", "subcenter") else self.head
        if self.head == "capsule" and self.normalize:
            label = f"unit {label}"
        if self.head in ("capsule", "cosine", "subcenter") and self.scale != "none":
            label += ", scaled" if self.scale == "learned" else f", scale {self.scale:g}"
        return f"{label}, Grassmann step" if self.moves_subspaces else label

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as TOML and JSON hold them."""
        values = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def to_toml(self) -> str:
        """The recipe as a file, each key under its explanation."""
        import tomli_w

        values = self.to_dict()
        lines = [f"# {f.metadata['help']}\n{tomli_w.dumps({f.name: values[f.name]})}" for f in dataclasses.fields(self)]
        return "\n".join(lines)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str) -> "Recipe":
        """Check names and types; `source` says in errors where they were read."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise ValueError(f"{source}: unknown key {name!r}{did_you_mean(name, names)}")
        try:
            return cls(**values)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None

    @classmethod
    def from_toml(cls, path: Path) -> "Recipe":
        """Read a recipe file; keys it lacks keep their defaults."""
        if not path.is_file():
            raise FileNotFoundError(f"there is no recipe {path}; shipped ones are listed by: cappronet list recipes")
        try:
            values = tomllib.loads(_short_text(path))
        except (ValueError, RecursionError) as error:  # also of numbers that are too long, and of deep nesting
            raise ValueError(f"{path} is not a TOML file: {error}") from None
        return cls.from_dict(values, str(path))


def shipped(path: str) -> Path:
    """A file or folder of the project that ships with it: in the installed package, or in the checkout it runs from."""
    inside = Path(__file__).parents[1] / path
    return inside if inside.exists() else Path(__file__).parents[3] / path


def recipe_names() -> list[str]:
    """The shipped recipes, as `--recipe` takes them."""
    root = shipped("recipes")
    return [path.relative_to(root).with_suffix("").as_posix() for path in sorted(root.glob("*/*.toml"))]


def choose_recipe(base: "str | Path | Recipe | None", options: Mapping[str, Any]) -> Recipe:
    """A recipe, or that of a file, by its path or as a shipped one by its name, with options in place of its values.

    Paths become absolute: a run may be read from another working directory.
    """
    from cappronet.data.datasets import DATASETS

    if not isinstance(base, Recipe):
        base = Recipe() if base is None else Recipe.from_toml(_recipe_path(str(base)))
    chosen = base.changed(**options)
    weights = Path(chosen.pretrained).expanduser()
    if chosen.pretrained not in ("none", "timm") and weights.exists():
        chosen = chosen.changed(pretrained=str(weights.resolve()))
    path = Path(chosen.data).expanduser()
    if chosen.data in DATASETS or not path.exists():
        return chosen
    return chosen.changed(data=str(path.resolve()))


def _recipe_path(name: str) -> Path:
    path = shipped(f"recipes/{name}.toml")
    if path.is_file() or Path(name).exists():
        return path if path.is_file() else Path(name)
    hint = did_you_mean(name, recipe_names())
    raise FileNotFoundError(
        f"there is no recipe {name}: give a file, or a name that cappronet list recipes shows{hint}"
    )


def _short_text(path: Path) -> str:
    """The text of a recipe file, unless it is one that only a hostile writer makes."""
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"it has {path.stat().st_size:,} bytes, and a recipe has at most {MOST_BYTES:,}")
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > MOST_DOTS:
            raise ValueError(f"line {number} has {line.count('.'):,} dots, expected key = value")
    return text


@functools.cache  # resolving them takes longer than all the rest of making a recipe
def _field_types() -> dict[str, Any]:
    return get_type_hints(Recipe)


def _converted(name: str, value: Any) -> Any:
    """The value in its field's type; whole numbers become floats and lists tuples; anything else is refused."""
    expected = _field_types()[name]
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if expected == float | str:
        fits = isinstance(value, str | int | float) and not isinstance(value, bool)
        try:
            return float(value) if fits else value
        except ValueError:
            return value
    if expected == tuple[int, ...]:
        if isinstance(value, list | tuple) and all(type(item) is int for item in value):
            return tuple(value)
        raise ValueError(f"{name} must be a list of whole numbers, got {value!r}")
    if expected == tuple[float, ...]:
        if isinstance(value, list | tuple) and all(type(item) in (int, float) for item in value):
            return tuple(float(item) for item in value)
        raise ValueError(f"{name} must be a list of numbers, got {value!r}")
    if type(value) is not expected:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise ValueError(f"{name} must be {words[expected]}, got {value!r}")
    return value
