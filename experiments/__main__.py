"""`python -m experiments NAME ...`."""

from cyclopts import App

from cappronet.cli import run_app, usage_error
from cappronet.cli.errors import ERRORS
from experiments.benchmarks.commands import estimator, head, overhead, sampled_classes, scale, step
from experiments.probes.commands import probes
from experiments.reproduction.commands import (
    end_to_end,
    figure1,
    figure2,
    fine_tuned_heads,
    label_noise,
    longer_schedule,
    pictures,
    settings,
    superclasses,
    table1,
    table2,
    table3,
    tuned_cifar10,
    widths,
)
from experiments.robustness.commands import robustness
from experiments.studies.commands import (
    fine_tuning,
    fixed_features,
    new_classes,
    out_of_scope,
    routing,
    transfer,
    unknown,
)

__all__ = ["app"]

GROUPS = {
    "Benchmarks": (head, step, estimator, overhead, scale, sampled_classes),
    "Reproduction": (table1, table2, table3, settings, figure1, figure2, pictures),
    "End to end": (
        *(end_to_end, longer_schedule, widths, superclasses, transfer),
        *(tuned_cifar10, label_noise, fine_tuned_heads, routing),
    ),
    "Studies": (probes, fine_tuning, fixed_features, new_classes, unknown, out_of_scope),
}


app = App(
    name="python -m experiments",
    help="Benchmarks, the paper's tables and figures, and studies.",
    version_flags=[],
    error_formatter=usage_error,
    error_console=ERRORS,
    suppress_keyboard_interrupt=False,
)
for group, commands in GROUPS.items():
    for command in commands:
        app.command(command, group=group)
app.command(robustness)

if __name__ == "__main__":
    run_app(app)
