"""Under which conditions the capsule head wins: one line for each setting in which heads were trained end to end."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cappronet.reporting import Table
from cappronet.training.results import Difference, difference, row_from
from experiments.reproduction.tables import error_cell

__all__ = ["conditions_table"]

HEADINGS = (
    *("condition", "capsules against linear", "against one vector for each class"),
    *("the paper's capsules against linear", "error %"),
)
OUTCOMES = WIN, TIE, LOSE, OPEN = "capsules win", "tie", "capsules lose", "one seed"
CAPSULE_DIM = 8  # the paper's choice, which stands for a group whose heads were not tuned
VECTOR_HEADS = ("cosine", "weightnorm")

Rows = Sequence[Mapping[str, Any]]


def conditions_table(contents: Iterable[Mapping[str, Any]]) -> Table:
    """The capsule head against the linear one in every group of the given tables, in the order of outcomes.

    Of several capsule heads, cosine heads or heads with weight normalization, the one with the lowest validation error
    of tuning is shown, since to choose by test error would favour them. Without tuning it is the first one with c = 8.
    Heads with fewer seeds than others are not considered. Capsules with c = 1 have one vector for each class, too.
    The paper's capsules have neither unit features nor a scale.
    """
    rows = [row for content in contents for row in content["rows"] if row["errors"]]
    groups = {row["group"]: [other for other in rows if other["group"] == row["group"]] for row in rows}
    pairs = [(group, _selected(group, "linear"), _selected(group, "capsule")) for group in groups.values()]
    compared = [(group, linear, capsule) for group, linear, capsule in pairs if linear and capsule]
    compared.sort(key=lambda pair: OUTCOMES.index(_outcome(_gap(pair[2], pair[1]))))
    return Table(HEADINGS, [_line(*pair) for pair in compared], names=len(HEADINGS))


def _line(rows: Rows, linear: Mapping[str, Any], capsule: Mapping[str, Any]) -> tuple[str, ...]:
    heads = (*(_selected(rows, head) for head in VECTOR_HEADS), _one_dimensional(rows, capsule))
    vectors = [row for row in heads if row is not None]
    tuned = any(row["tries"] for row in rows) or len({row["recipe"]["lr"] for row in rows}) > 1
    rates = "a learning rate for each head" if tuned else "one learning rate"
    pretrained = "pretrained " if capsule["recipe"].get("pretrained", "none") != "none" else ""
    paper = _selected([row for row in rows if _is_papers(row)], "capsule")
    return (
        f"{capsule['data']}, {pretrained}{capsule['backbone']}, {capsule['recipe']['epochs']} epochs, {rates}",
        _against(capsule, linear),
        "; ".join(f"{vector['head']}: {_against(capsule, vector)}" for vector in vectors),
        f"{paper['head'].removeprefix('capsule ')}: {_against(paper, linear)}" if paper is not None else "",
        "; ".join(f"{row['head']}: {_unbroken(error_cell(row_from(dict(row))))}" for row in (linear, capsule)),
    )


def _one_dimensional(rows: Rows, capsule: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The capsule head of the same form with c = 1, if that is another one."""
    same = [row for row in rows if row["recipe"]["normalize"] == capsule["recipe"]["normalize"]]
    lines = [row for row in same if row["recipe"]["capsule_dim"] == 1]
    return _selected(lines, "capsule") if capsule["recipe"]["capsule_dim"] > 1 else None


def _is_papers(row: Mapping[str, Any]) -> bool:
    return not row["recipe"]["normalize"] and row["recipe"]["scale"] == "none"


def _selected(rows: Rows, head: str) -> Mapping[str, Any] | None:
    """Of its rows with the most seeds the best by validation error, else the first with the paper's c, or at all."""

    def order(row: Mapping[str, Any]) -> tuple[float, ...]:
        return -len(row["errors"]), _validation_error(row), row["recipe"]["capsule_dim"] != CAPSULE_DIM

    return min((row for row in rows if row["recipe"]["head"] == head), key=order, default=None)


def _validation_error(row: Mapping[str, Any]) -> float:
    errors = [trial["validation_errors"] for trial in row["tries"]]
    return min((statistics.mean(of_trial) for of_trial in errors if of_trial), default=math.inf)


def _gap(row: Mapping[str, Any], other: Mapping[str, Any]) -> Difference | None:
    return difference(row_from(dict(row)), row_from(dict(other)))


def _outcome(gap: Difference | None) -> str:
    """Whether the 95 % interval of a paired difference excludes zero, and on which side."""
    if gap is None:
        return OPEN
    return TIE if abs(gap.mean) <= gap.half_width else WIN if gap.mean < 0 else LOSE


def _against(capsule: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The outcome of a comparison with another head, and the difference."""
    gap = _gap(capsule, other)
    numbers = "" if gap is None else f", {gap.mean:+.2f} ± {gap.half_width:.2f}"
    return _unbroken(_outcome(gap) + numbers)


def _unbroken(text: str) -> str:
    """An interval stays in one line where a cell has several."""
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
