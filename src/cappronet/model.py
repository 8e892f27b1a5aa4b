"""CapProNet: a backbone and a head, saved as safetensors with a JSON file that says how to build it again."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cappronet import pretrained
from cappronet.backbones import create_backbone
from cappronet.backbones.pixels import sides
from cappronet.heads import CapsuleProjection, create_head
from cappronet.model_card import model_card

__all__ = ["CapProNet"]


class CapProNet(nn.Module):
    """A backbone with a capsule projection, or one of the control heads, in place of its last layer.

    Args:
        backbone: a name that `create_backbone` knows: ours or timm's.
        num_classes: L.
        capsule_dim: c, the dimension of each class's subspace.
        head: `"capsule"`, or a control: `"group"`, `"linear"`, `"cosine"`, `"weightnorm"`, `"subcenter"`.
        in_channels: channels of the images.
        image_size: the side of square images, or height and width; for `features`, how many there are. Only `pixels`
            and `features` depend on it.
        files: whether images were files of any size, whose middle is cut out, or had this size from the start.
        resize: scale images to this size, given like `image_size`, before the backbone; 0 leaves them as they are.
        pool: parts, across and down, that the backbone's last feature map is averaged over.
        dropout: dropout on the features before the head.
        backbone_dropout: dropout inside a WideResNet or DenseNet; 0 leaves it as the backbone's name says.
        classes: the names of the classes.
        mean: what was subtracted from each channel, for pixels between 0 and 1.
        std: what each channel was then divided by.
        head_options: for the head: `normalize`, `scale`, `solver`, `eps`.

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
        pool: int = 1,
        dropout: float = 0.0,
        backbone_dropout: float = 0.0,
        classes: Sequence[str] = (),
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        **head_options: Any,
    ) -> None:
        super().__init__()
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
        options: dict[str, Any] = {"dropout": backbone_dropout} if backbone_dropout else {}
        self.backbone = create_backbone(backbone, in_channels, image_size, pool=pool, **options)
        self.card = ""  # what a model card says of it, once there is one
        self.resize = sides(resize) if resize else None
        self.dropout = nn.Dropout(dropout)
        self.head = create_head(head, self.feature_dim, num_classes, capsule_dim, **head_options)

    @property
    def feature_dim(self) -> int:
        """d, the width of the feature vector."""
        return int(self.backbone.feature_dim)  # type: ignore[arg-type]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: `(C, H, W)` of an image, or `(d,)` where the backbone is `features`."""
        size = self.config["image_size"]
        return (size,) if self.config["backbone"] == "features" else (self.config["in_channels"], *sides(size))

    def forward(self, images: Tensor) -> Tensor:
        """Images `(B, C, H, W)`, normalized, to the score of each class `(B, L)`."""
        return self.head(self.dropout(self.features(images)))

    def features(self, images: Tensor) -> Tensor:
        """Images `(B, C, H, W)` to feature vectors `(B, d)`."""
        if self.resize:
            images = F.interpolate(images, self.resize, mode="bilinear", antialias=True)
        return self.backbone(images)

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

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `config.json`, `model.safetensors` and, unless there is one, a model card into a folder."""
        pretrained.write(Path(folder), self.config, self.state_dict(), self.card or model_card(self.config))

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> "CapProNet":
        """Build a saved model, in eval mode. Nothing that is loaded is executed.

        Args:
            name: a folder, or a name on the Hugging Face Hub such as `"someone/a-model"`.
            options: for a name on the hub: `revision`, `token`, `cache_dir`, `local_files_only`, as
                `huggingface_hub.snapshot_download` takes them.

        Raises:
            FileNotFoundError: the folder has no model.
            ValueError: a file in it is damaged, or the two do not belong together.
        """
        folder = pretrained.located(name, **options)
        config = pretrained.read_config(folder)
        try:
            with torch.device("meta"):  # no memory before the shapes are known to be right
                model = cls(**config)
        except (TypeError, ValueError, RuntimeError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"{folder / pretrained.CONFIG} does not describe a model: {reason}") from None
        weights = pretrained.read_weights(folder, model.state_dict())
        model.to_empty(device="cpu")  # and copy: kernels round differently on the file's unaligned memory
        model.load_state_dict(weights)
        model.card = pretrained.read_card(folder)
        return model.eval()

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        message: str = "A model of cappronet",
    ) -> str:
        """Save the model on the Hugging Face Hub, with its card; return the address of the commit.

        Args:
            name: such as `"someone/a-model"`; the repository is made if there is none.
            private: whether a new repository is private; by default as your account says.
            token: of your account; by default the one of `hf auth login`.
            message: of the commit.
        """
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return pretrained.upload(Path(folder), name, private=private, token=token, message=message)


def _plain(size: int | Sequence[int]) -> int | list[int]:
    """As JSON holds it."""
    return size if isinstance(size, int) else list(size)
