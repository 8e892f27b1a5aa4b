"""Dynamic routing between capsules (Sabour, Frosst and Hinton, 2017), which the paper compares itself with.

Written from the formulas of that paper. With the output u_i of a lower capsule and a matrix W_ij for each pair,

    votes        u_j|i = W_ij u_i
    coupling     c_ij = exp(b_ij) / sum_k exp(b_ik), where b_ij starts at 0
    capsule      v_j = squash(s_j), s_j = sum_i c_ij u_j|i, squash(s) = |s|^2 / (1 + |s|^2) * s / |s|
    agreement    b_ij grows by u_j|i . v_j, and the coupling is computed again

The length of v_j is the score of class j. The network for reconstruction, a regularizer in that paper, is left out.
"""

import torch
from torch import Tensor, nn

__all__ = ["CapsuleNetwork", "PrimaryCapsules", "RoutedCapsules", "RoutedFeatures", "coupling", "margin_loss", "squash"]

# The paper's sizes: dimensions of primary and class capsules, and routing iterations.
PRIMARY_DIM, CLASS_DIM, ITERATIONS = 8, 16, 3
# Of the margin loss: m+, m-, lambda.
PRESENT, ABSENT, DOWN_WEIGHT = 0.9, 0.1, 0.5
START_STD = 0.1


def squash(s: Tensor) -> Tensor:
    """Eq. (1): vectors `(..., D)` with the same directions and lengths |s|^2 / (1 + |s|^2), 0 for 0."""
    square = s.square().sum(-1, keepdim=True)
    return s * torch.sqrt(square + 1e-12) / (1 + square)


def coupling(logits: Tensor, none: bool = False) -> Tensor:
    """Eq. (3): how each lower capsule is shared out among the classes, `(B, I, L) -> (B, I, L)`.

    Args:
        logits: b.
        none: add a category "none of the above", whose logit is 0 and whose share goes nowhere.
    """
    if not none:
        return logits.softmax(-1)
    extended = torch.cat([logits, torch.zeros_like(logits[..., :1])], -1)
    return extended.softmax(-1)[..., :-1]


def route(votes: Tensor, iterations: int = ITERATIONS, none: bool = False) -> Tensor:
    """Procedure 1: class capsules `v (B, L, D)` from votes `(B, I, L, D)` of I lower capsules."""
    logits = votes.new_zeros(votes.shape[:-1])
    for iteration in range(iterations):
        v = squash(torch.einsum("bil,bild->bld", coupling(logits, none), votes))
        if iteration < iterations - 1:
            logits = logits + torch.einsum("bild,bld->bil", votes, v)
    return v


def margin_loss(lengths: Tensor, y: Tensor) -> Tensor:
    """Eq. (4), summed over classes and averaged over images: `lengths (B, L)`, `y (B,)`."""
    target = nn.functional.one_hot(y, lengths.shape[1])
    present = (PRESENT - lengths).relu().square()
    absent = (lengths - ABSENT).relu().square()
    return (target * present + DOWN_WEIGHT * (1 - target) * absent).sum(-1).mean()


class PrimaryCapsules(nn.Module):
    """A convolution whose channels are grouped into capsules: `(B, C, H, W) -> (B, I, 8)`.

    I is the number of types times the positions of the output.
    """

    def __init__(self, in_channels: int, types: int, kernel: int, stride: int = 2) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(in_channels, types * PRIMARY_DIM, kernel, stride)

    def forward(self, x: Tensor) -> Tensor:
        return squash(_as_capsules(self.convolution(x)))


class RoutedCapsules(nn.Module):
    """Class capsules by routing, `(B, I, P) -> (B, L)`: their lengths.

    Args:
        primaries: I.
        num_classes: L.
        none: route with a category "none of the above".
    """

    def __init__(self, primaries: int, num_classes: int, none: bool = False) -> None:
        super().__init__()
        self.none = none
        self.weight = nn.Parameter(START_STD * torch.randn(primaries, num_classes, CLASS_DIM, PRIMARY_DIM))

    def forward(self, u: Tensor) -> Tensor:
        votes = torch.einsum("bip,ildp->bild", u, self.weight)
        return torch.linalg.vector_norm(route(votes, none=self.none), dim=-1)


class CapsuleNetwork(nn.Module):
    """The network of that paper, `(B, C, H, W) -> (B, L)`: a convolution, primary capsules, class capsules.

    Args:
        in_channels: C.
        image_size: the side of the images.
        num_classes: L.
        kernel: of both convolutions, 9 in the paper.
        types: of primary capsules: 32 for MNIST, 64 for CIFAR-10.
        none: route with a category "none of the above", as for CIFAR-10.
        crop: take random parts of this side in training and the middle in evaluation, as for CIFAR-10; 0: whole images.
    """

    def __init__(
        self,
        in_channels: int,
        image_size: int,
        num_classes: int,
        *,
        kernel: int = 9,
        types: int = 32,
        none: bool = False,
        crop: int = 0,
    ) -> None:
        super().__init__()
        self.crop = crop
        self.convolution = nn.Sequential(nn.Conv2d(in_channels, 256, kernel), nn.ReLU(inplace=True))
        self.primary = PrimaryCapsules(256, types, kernel)
        side = ((crop or image_size) - 2 * (kernel - 1) - 1) // 2 + 1
        self.classes = RoutedCapsules(types * side**2, num_classes, none)

    def forward(self, x: Tensor) -> Tensor:
        if self.crop:
            x = _cropped(x, self.crop, at_random=self.training)
        return self.classes(self.primary(self.convolution(x)))


class RoutedFeatures(nn.Module):
    """Routing as the head of a backbone whose channels are grouped into capsules: `(B, C, H, W) -> (B, L)`.

    Args:
        backbone: a `ResNet`, or another sequence of stages that ends in its pooling.
        feature_map: the capsules are those of every position of the last feature map; else those of its mean.
        image: one image `(1, C, H, W)`, which decides the number of capsules.
        num_classes: L.
    """

    def __init__(self, backbone: nn.Sequential, image: Tensor, num_classes: int, *, feature_map: bool) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*list(backbone.children())[: -1 if feature_map else None])
        with torch.no_grad():
            primaries = self.backbone(image).numel() // PRIMARY_DIM
        self.head = RoutedCapsules(primaries, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = self.backbone(x)
        return self.head(squash(_as_capsules(features if features.ndim == 4 else features[..., None, None])))


def _as_capsules(x: Tensor) -> Tensor:
    """Channels in groups of eight, at each position: `(B, types * 8, H, W) -> (B, types * H * W, 8)`."""
    B, channels, height, width = x.shape
    grouped = x.reshape(B, channels // PRIMARY_DIM, PRIMARY_DIM, height * width)
    return grouped.transpose(2, 3).reshape(B, -1, PRIMARY_DIM)


def _cropped(x: Tensor, side: int, *, at_random: bool) -> Tensor:
    """A part of each image, at a position of its own or in the middle."""
    room = x.shape[-1] - side
    if not at_random:
        return x[..., room // 2 : room // 2 + side, room // 2 : room // 2 + side]
    top, left = torch.randint(room + 1, (2, len(x)))
    return x.unfold(2, side, 1).unfold(3, side, 1)[torch.arange(len(x)), :, top, left]
