"""A recipe: everything that decides the outcome of a training run, as a documented dataclass and a TOML file."""

import dataclasses
import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

__all__ = ["CHOICES", "Recipe", "shipped"]


def _option(default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


# Options that take one of a few words.
CHOICES = {
    "head": ("capsule", "group", "linear", "cosine", "weightnorm", "subcenter"),
    "solver": ("cholesky", "hyperpower"),
    "head_start": ("uniform", "orthonormal", "features"),
    "optimizer": ("sgd", "adamw"),
    "schedule": ("onecycle", "cosine", "multistep", "step", "constant"),
    "precision": ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"),
}

AMOUNTS = ("train_size", "validation", "eps", "weight_decay", "warmup", "clip_norm", "padding", "seed")


@dataclass(frozen=True)
class Recipe:
    """What is trained, on what, and how. Every field is an option of `cappronet train` and a key of a recipe file."""

    data: str = _option(
        "digits", "Dataset by name, or a path: a folder of images by class, or an .npz in Keras layout."
    )
    classes: tuple[int, ...] = _option((), "Keep only these classes, by their numbers.")
    train_size: int = _option(0, "Train on this many images, the same share of every class; 0 takes all.")
    validation: int = _option(
        0, "Hold out this many training images and measure errors on them instead of the test set."
    )
    backbone: str = _option("resnet8", "Backbone by name: one of ours (cappronet list backbones), or any of timm's.")
    backbone_dropout: float = _option(0.0, "Dropout inside a WideResNet or DenseNet; 0 leaves it as its name says.")
    head: str = _option("capsule", "Head by name: capsule, group, linear, cosine, weightnorm, subcenter.")
    capsule_dim: int = _option(4, "Dimension c of each class's subspace, or neurons or centres for each class.")
    normalize: bool = _option(False, "Capsule head: project features of length 1.")
    scale: float | str = _option("none", "Capsule head: multiply lengths by a number, or 'learned', or 'none'.")
    scale_start: float = _option(0.0, "Where a learned scale starts; 0: at 16 with unit features, else at 1.")
    solver: str = _option("cholesky", "Capsule head: how the normalization matrix is found: cholesky or hyperpower.")
    eps: float = _option(0.0, "Capsule head: ridge added to W'W; the authors ran 1e-4 and 1e-7.")
    head_start: str = _option(
        "uniform", "Capsule head: first bases: uniform, orthonormal, or by SVD of the first images' features."
    )
    dropout: float = _option(0.0, "Dropout on the features before the head.")
    epochs: int = _option(30, "Passes over the training images.")
    batch_size: int = _option(128, "Images in a step, over all processes.")
    optimizer: str = _option("sgd", "sgd or adamw.")
    lr: float = _option(0.1, "Largest learning rate.")
    head_lr: float = _option(1.0, "The head's learning rate as a multiple of the backbone's.")
    momentum: float = _option(0.9, "SGD: momentum.")
    nesterov: bool = _option(True, "SGD: Nesterov momentum.")
    weight_decay: float = _option(5e-4, "Weight decay.")
    decay_norms: bool = _option(True, "Apply weight decay to biases and normalization layers too.")
    decay_head: bool = _option(True, "Apply weight decay to the head too.")
    schedule: str = _option("onecycle", "How the learning rate goes: onecycle, cosine, multistep, step or constant.")
    milestones: tuple[int, ...] = _option((), "multistep: epochs at which the learning rate is multiplied by gamma.")
    step_epochs: int = _option(30, "step: multiply the learning rate by gamma after every so many epochs.")
    gamma: float = _option(0.1, "multistep and step: the factor.")
    warmup: float = _option(0.0, "Raise the learning rate linearly over this many epochs at the start.")
    warmup_lr: float = _option(0.0, "Keep this learning rate during the warm-up instead of raising it.")
    label_smoothing: float = _option(0.0, "Share of the target spread over all classes.")
    clip_norm: float = _option(0.0, "Clip the gradient to this norm; 0 does not.")
    ema: float = _option(
        0.0, "Decay of an exponential moving average of the weights, which is then evaluated; 0: none."
    )
    flip: bool = _option(False, "Augment: mirror each image at random.")
    padding: int = _option(0, "Augment: shift each image at random by up to this many pixels.")
    channels_last: bool = _option(True, "Keep images channels-last in memory, which is faster for convolutions.")
    precision: str = _option("32-true", "Arithmetic: 32-true, bf16-mixed, 16-mixed, bf16-true or 64-true.")
    compile: bool = _option(False, "Compile the model with torch.compile.")
    evaluate_every: int = _option(1, "Measure errors after every so many epochs, and after the last.")
    seed: int = _option(0, "Decides the starting weights, the order of the images and the augmentation.")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = _converted(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}{_nearest(value, allowed)}")
        if isinstance(self.scale, str) and self.scale not in ("none", "learned"):
            raise ValueError(f"scale must be a number, 'learned' or 'none', got {self.scale!r}")
        for name in ("epochs", "batch_size", "capsule_dim", "step_epochs", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in (*AMOUNTS, "lr", "head_lr", "warmup_lr", "scale_start"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("momentum", "dropout", "backbone_dropout", "label_smoothing", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")

    def changed(self, **values: Any) -> "Recipe":
        """The same recipe with some values replaced."""
        return dataclasses.replace(self, **values)

    def head_options(self) -> dict[str, Any]:
        """The options of the capsule head; other heads have none."""
        if self.head != "capsule":
            return {}
        scale = None if self.scale == "none" else self.scale
        return {"normalize": self.normalize, "scale": scale, "solver": self.solver, "eps": self.eps}

    @property
    def head_label(self) -> str:
        """The head with its size, for tables and folders: `linear`, `capsule c=4`, `unit capsule c=4, scaled`."""
        if self.head not in ("capsule", "group", "subcenter"):
            return self.head
        label = f"{self.head} c={self.capsule_dim}"
        if self.head == "capsule" and self.normalize:
            label = f"unit {label}"
        if self.head == "capsule" and self.scale != "none":
            label += ", scaled" if self.scale == "learned" else f", scale {self.scale:g}"
        return label

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
        """Check names and types, and say where a wrong one stands."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise ValueError(f"{source}: unknown key {name!r}{_nearest(name, names)}")
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
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a TOML file: {error}") from None
        return cls.from_dict(values, str(path))


def shipped(path: str) -> Path:
    """A file or folder of the project that ships with it: in the installed package, or in the checkout it runs from."""
    inside = Path(__file__).parent / path
    return inside if inside.exists() else Path(__file__).parents[2] / path


def _converted(name: str, value: Any) -> Any:
    """The value in its field's type; whole numbers serve as floats and lists as tuples, nothing else is bent."""
    expected = get_type_hints(Recipe)[name]
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
    if type(value) is not expected:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise ValueError(f"{name} must be {words[expected]}, got {value!r}")
    return value


def _nearest(word: str, words: tuple[str, ...] | list[str]) -> str:
    close = difflib.get_close_matches(str(word), words, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
