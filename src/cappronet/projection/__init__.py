"""The geometry of capsule subspaces on plain tensors. Needs torch only.

Shapes are written the same way everywhere: `B` batch, `L` classes, `d` features, `c` capsule dimension;
`x (..., d)`, `weight (L, c, d)`. The paper's basis `W_l (d, c)` of class l is `weight[l].T`.

With `G = W'W` and its Cholesky factor `G = R R'`, the capsule is `v = P x = W G^-1 W'x`. Let `u = W'x` and
`y = R^-1 u`. Then `|v|^2 = x'W G^-1 W'x = |y|^2` (the paper's Eq. 2), and a sum of squares cannot turn negative as the
quadratic form can. Everything after `u` is of size `(L, c, B)` or `(L, c, c)`: no tensor of size `B x L x d` exists
unless capsules are asked for.
"""

from cappronet.projection.directions import contrasted_directions, leading_directions, leading_eigenvectors
from cappronet.projection.gram import check_arguments, hyper_power_step, normalization_matrix, regularized_gram
from cappronet.projection.grassmann import geodesic, tangent
from cappronet.projection.lengths import capsule_lengths, lengths_and_gradient
from cappronet.projection.subspaces import (
    bases,
    capsules,
    coordinate_bases,
    coordinates,
    principal_angles,
    projections,
    relative_residuals,
    residuals,
)

__all__ = [
    "bases",
    "capsule_lengths",
    "capsules",
    "check_arguments",
    "contrasted_directions",
    "coordinate_bases",
    "coordinates",
    "geodesic",
    "hyper_power_step",
    "leading_directions",
    "leading_eigenvectors",
    "lengths_and_gradient",
    "normalization_matrix",
    "principal_angles",
    "projections",
    "regularized_gram",
    "relative_residuals",
    "residuals",
    "tangent",
]
