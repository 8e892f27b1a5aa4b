"""CapProNet: a backbone and a head, saved as safetensors with a JSON file that says how to build it again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cappronet.data.files import one_line
from cappronet.data.normalization import Normalization
from cappronet.data.samples import FileCrop, Images, Samples
from cappronet.heads import CapsuleProjection, Centering, create_head
from cappronet.models import hub as pretrained
from cappronet.models.backbones import create_backbone, timm_name
from cappronet.models.backbones.pixels import sides
from cappronet.models.card import model_card
from cappronet.models.configuration import check_numbers
from cappronet.models.weight_files import MAX_SHARD_SIZE, load_weights, read_header

__all__ = ["CapProNet"]


class CapProNet(nn.Module):
    """A backbone with a capsule projection, or one of the control heads, instead of its last layer.

    Args:
        backbone: a name that `create_backbone` knows: ours or timm's.
        num_classes: L.
        capsule_dim: c, the dimension of each class's subspace.
        head: `"capsule"`, or a control: `"group"`, `"linear"`, `"cosine"`, `"weightnorm"`, `"subcenter"`,
            `"mlp"`.
        in_channels: channels of the images.
        image_size: the side of square images, or height and width; for `features`, how many there are. Only `pixels`
            and `features` depend on it.
        files: whether images were files of any size, whose middle is cut out, or had this size from the start.
        resize: scale images to this size, given like `image_size`, before the backbone; 0 leaves them as they are.
        interpolation: how images are scaled: `"bilinear"` or `"bicubic"`.
        crop: the share of the shorter side that is cut out of the middle of files.
        pool: parts, across and down, that the backbone's last feature map is averaged over.
        centered: whether a mean is subtracted from the features and a constant appended before the head, as
            `CapsuleClassifier` does; both are loaded with the weights.
        dropout: dropout on the features before the head.
        backbone_dropout: dropout inside a WideResNet or DenseNet; 0 leaves it as the backbone's name says.
        classes: the names of the classes.
        mean: what was subtracted from each channel, for pixels between 0 and 1.
        std: what each channel was then divided by.
        head_options: for the head: `normalize`, `scale`, `solver`, `eps`; of an MLP `width` and `hidden_dropout`.

    Example:
        >>> model = CapProNet("resnet8", num_classes=10, capsule_dim=8)
        >>> model(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        backbone: str,
        num_classes: int,
        capsule_dim: int = 8,
        *,
        head: str = "capsule",
        in_channels: int = 3,
        image_size: int | Sequence[int] = 32,
        files: bool = False,
        resize: int | Sequence[int] = 0,
        interpolation: str = "bilinear",
        crop: float = 0.875,
        pool: int = 1,
        centered: bool = False,
        dropout: float = 0.0,
        backbone_dropout: float = 0.0,
        classes: Sequence[str] = (),
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        **head_options: Any,
    ) -> None:
        super().__init__()
        head_options.pop("sha256", None)  # in a config.json, which describes a model completely without it
        self.config: dict[str, Any] = {
            "backbone": backbone,
            "num_classes": num_classes,
            "capsule_dim": capsule_dim,
            "head": head,
            "in_channels": in_channels,
            "image_size": _plain(image_size),
            "files": files,
            "resize": _plain(resize),
            "pool": pool,
            "dropout": dropout,
            "backbone_dropout": backbone_dropout,
            "classes": list(classes) or [str(i) for i in range(num_classes)],
            "mean": list(mean) or [0.0] * in_channels,
            "std": list(std) or [1.0] * in_channels,
            **head_options,
        }
        # Only what differs, so that other models have the configuration that earlier versions wrote and read.
        preparation = {"interpolation": interpolation, "crop": crop, "centered": centered}
        usual = {"interpolation": "bilinear", "crop": FileCrop().share, "centered": False}
        self.config |= {name: value for name, value in preparation.items() if value != usual[name]}
        check_numbers(self.config)
        options: dict[str, Any] = {"dropout": backbone_dropout} if backbone_dropout else {}
        self.backbone = create_backbone(backbone, in_channels, resize or image_size, pool=pool, **options)
        self.config["backbone"] = timm_name(backbone, self.backbone, in_channels)
        self.card = ""  # what a model card says of it, once there is one
        self.resize = sides(resize) if resize else None
        self.frozen = False
        self.weights_origin: dict[str, str] = {}  # of pretrained weights, for the record of a run
        self.normalization = Normalization.of(self.config["mean"], self.config["std"])
        if not (self.normalization.factor.isfinite().all() and self.normalization.summand.isfinite().all()):
            raise ValueError("mean and std must be numbers that float32 can normalize images with; std is too small")
        self.dropout = nn.Dropout(dropout)
        self.centering = Centering(self.feature_dim) if centered else None
        self.head = create_head(head, self.feature_dim + centered, num_classes, capsule_dim, **head_options)

    @property
    def feature_dim(self) -> int:
        """d, the width of the backbone's feature vector."""
        return int(self.backbone.feature_dim)  # type: ignore[arg-type]

    @property
    def takes_vectors(self) -> bool:
        """Whether the inputs are feature vectors, not images."""
        return self.config["backbone"] == "features"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: `(C, H, W)` of an image, or `(d,)` where the backbone is `features`."""
        size = self.config["image_size"]
        return (size,) if self.takes_vectors else (self.config["in_channels"], *sides(size))

    @property
    def file_crop(self) -> FileCrop:
        """What is cut out of image files for a model of `files`."""
        side, usual = sides(self.config["image_size"])[0], FileCrop()
        share = self.config.get("crop", usual.share)
        return FileCrop(side, share, self.config.get("interpolation", usual.interpolation))

    def normalize(self, inputs: Tensor) -> Tensor:
        """Pixels `(B, C, H, W)` from 0 to 255, of any type, as the backbone takes them; feature vectors stay."""
        return inputs.float() if self.takes_vectors else self.normalization(inputs)

    def forward(self, images: Tensor) -> Tensor:
        """Images `(B, C, H, W)`, normalized, to the score of each class `(B, L)`."""
        return self.head(self.dropout(self.features(images)))

    def features(self, images: Tensor) -> Tensor:
        """Images `(B, C, H, W)` to feature vectors `(B, d)` as the head takes them; `(B, d + 1)` if `centered`."""
        if self.resize and tuple(images.shape[2:]) != self.resize:  # a random crop may have scaled them already
            mode = self.config.get("interpolation", "bilinear")
            images = F.interpolate(images, self.resize, mode=mode, antialias=True)
        return self.head_inputs(self.backbone(images))

    def head_inputs(self, features: Tensor) -> Tensor:
        """The backbone's feature vectors `(B, d)` as the head takes them: centred, if the model is `centered`."""
        return features if self.centering is None else self.centering(features)

    def freeze_backbone(self) -> None:
        """Leave only the head to train. The backbone stays in eval mode: its statistics are no longer updated."""
        self.frozen = True
        self.backbone.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all parts; a frozen backbone stays in eval mode."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def as_read(self, samples: Samples) -> Samples:
        """The samples with image files cropped as this model takes them; samples in memory stay as they are."""
        if not isinstance(samples, Images) or samples.paths is None or not self.config["files"]:
            return samples
        return replace(samples, crop=self.file_crop)

    def add_class(self, features: Tensor, name: str, **options: Any) -> int:
        """Add a class to a capsule head under a name, without training: see `CapsuleProjection.add_class`."""
        number = self._capsules().add_class(features, **options)
        self.config |= {"num_classes": number + 1, "classes": [*self.config["classes"], name]}
        return number

    def remove_class(self, index: int, **options: Any) -> None:
        """Remove a class of a capsule head: see `CapsuleProjection.remove_class`."""
        self._capsules().remove_class(index, **options)
        names = [name for number, name in enumerate(self.config["classes"]) if number != index]
        self.config |= {"num_classes": len(names), "classes": names}

    def _capsules(self) -> CapsuleProjection:
        if not isinstance(self.head, CapsuleProjection):
            raise TypeError(f"only capsule heads can change their classes, this one is {self.config['head']}")
        return self.head

    def save_pretrained(self, folder: str | Path, *, max_shard_size: int | str = MAX_SHARD_SIZE) -> None:
        """Write `config.json`, `model.safetensors` and, unless there is one, a model card into a folder.

        The configuration gets an entry `sha256` with the digests of all files, which `from_pretrained` checks.

        Args:
            folder: made if there is none.
            max_shard_size: bytes, or such as `"500MB"`. A larger model is written as several files of at most this size
                with an index, `model.safetensors.index.json`; each tensor stays whole.
        """
        card = self.card or model_card(self.config)
        pretrained.write(Path(folder), self.config, self.state_dict(), card, max_shard_size)

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> "CapProNet":
        """Build a saved model, in eval mode. Nothing that is loaded is executed, and nothing else is read.

        Args:
            name: a folder, or a name on the Hugging Face Hub such as `"someone/a-model"`.
            options: for a name on the hub: `revision`, `token`, `cache_dir`, `local_files_only`, as
                `huggingface_hub.snapshot_download` takes them.

        Raises:
            FileNotFoundError: the folder has no model.
            ValueError: a file in it is damaged, the files do not belong together, or the configuration asks for
                something else than a known backbone with sizes that the weights have.
        """
        folder = pretrained.located(name, **options)
        stored = read_header(folder)
        config, digests = pretrained.read_config(folder, stored)
        try:
            with torch.device("meta"):  # no memory before the shapes are known to be right
                model = cls(**config)
        except (TypeError, ValueError, RuntimeError, AssertionError, OverflowError) as error:
            raise ValueError(
                f"{folder / pretrained.CONFIG} does not describe a model: {one_line(error):.300}"
            ) from None
        pretrained.check_weights(folder, stored, model.state_dict())
        pretrained.check_digests(folder, config, digests)
        if _holds_more_than_its_state(model):
            with torch.random.fork_rng(devices=[]):
                model = cls(**config)
        else:
            model.to_empty(device="cpu")
        load_weights(folder, model)
        model.card = pretrained.read_card(folder)
        return model.eval()

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        message: str = "A model of cappronet",
        max_shard_size: int | str = MAX_SHARD_SIZE,
    ) -> str:
        """Save the model on the Hugging Face Hub, with its card; return the address of the commit.

        Args:
            name: such as `"someone/a-model"`; the repository is made if there is none.
            private: whether a new repository is private; by default as your account says.
            token: of your account; by default the one of `hf auth login`.
            message: of the commit.
            max_shard_size: as `save_pretrained` takes it.
        """
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, max_shard_size=max_shard_size)
            return pretrained.upload(Path(folder), name, private=private, token=token, message=message)


def _holds_more_than_its_state(model: nn.Module) -> bool:
    """Whether modules compute tensors when they are built that no file holds, as position indices of a transformer."""
    state = model.state_dict()
    buffers = any(name not in state for name, _ in model.named_buffers())
    attributes = (value for module in model.modules() for value in vars(module).values())
    return buffers or any(isinstance(value, Tensor) and value.is_meta for value in attributes)


def _plain(size: int | Sequence[int]) -> int | list[int]:
    """As JSON holds it."""
    return size if isinstance(size, int) else list(size)
