"""All pictures that are drawn from result files alone, without training."""

import json
from pathlib import Path

from cappronet.reporting import Report, silent, tracked
from cappronet.training.figures import comparison_figure
from cappronet.training.results import read_rows as read_comparison
from experiments.probes.pictures import draw_probes
from experiments.reproduction.figures import draw_all
from experiments.reproduction.geometry import draw_gradient_step
from experiments.reproduction.outcomes import read_rows

__all__ = ["draw_pictures"]

TABLES = ("table1", "table2", "table3", "settings", "end-to-end", "longer-schedule", "label-noise")


def draw_pictures(results: Path, output: Path, report: Report = silent) -> list[Path]:
    """Draw Figure 1, the comparison on digits, the probes and the curves of every table.

    Returns:
        The files of the light versions.
    """
    tables = [path for name in TABLES for path in sorted(results.glob(f"{name}-*.json"))]
    comparison = results / "compare_digits.json"
    draw_gradient_step(output / "figure1.png")
    drawn = [output / "figure1.png"]
    if comparison.exists():
        drawn.append(output / "compare_digits.png")
        comparison_figure(read_comparison(comparison), drawn[-1])
    probes = results / "probes.json"
    if probes.exists() and draw_probes(json.loads(probes.read_text(encoding="utf-8")), output / "probes.png"):
        drawn.append(output / "probes.png")
    for path in tracked(tables, "drawing", len(tables), report):
        drawn += draw_all(read_rows(path), output / path.stem)
    return drawn
