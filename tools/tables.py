"""Tables of the pages, written from what the project measured: `python -m tools.tables`.

A table stands between `<!-- name -->` and `<!-- /name -->`; everything around it is written by hand.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cappronet.reporting import Table
from cappronet.training import results
from cappronet.training.recipe import Recipe
from experiments.benchmarks import against, estimator, head, large_fit, overhead, scale_sampling, scale_tables, step
from experiments.probes import tables as probes
from experiments.reproduction import tables
from experiments.reproduction.conditions import conditions_table
from experiments.robustness import outcomes
from experiments.studies import fine_tuning, fixed_features, new_classes, out_of_scope, routing_runs, transfer, unknown
from tools import first_steps

__all__ = ["NOT_RUN", "TABLES", "recipe_keys", "table_in", "with_tables"]

ROOT = Path(__file__).parents[1]
# What stands in the place of a table until its result file exists.
NOT_RUN = "Not run yet."
# The sets of features of which the README shows the errors.
IN_README = ("banking77", "clinc150", "cifar10-lite0", "cifar100-lite0")


def _comparison(content: Mapping[str, Any]) -> str:
    rows = [results.row_from(row) for row in content["rows"]]
    return results.comparison_table(rows).without("seconds").markdown()


def _errors(content: Mapping[str, Any]) -> str:
    return tables.error_table(content["rows"]).markdown()


def _end_to_end(content: Mapping[str, Any]) -> str:
    """The rows that have finished runs, without names that all rows share.

    Heads that are still being tuned have no runs. These are tested so rarely that the best test epoch says nothing.
    """
    rows = [row for row in content["rows"] if row["errors"]]
    if not rows:
        return NOT_RUN
    shared = [name for name in ("data", "backbone") if len({row[name] for row in rows}) == 1]
    return tables.error_table(rows).without("error %, best test epoch", *shared).markdown()


def _transfer(content: Mapping[str, Any], trained_on: str) -> str:
    table = transfer.table(content, trained_on)
    return table.markdown() if table.rows else NOT_RUN


def _rates(content: Mapping[str, Any]) -> str:
    tuned = tables.tuning_table(content["rows"])
    assert tuned is not None
    return tuned.markdown()


def _probes_from_all(content: Mapping[str, Any]) -> str:
    """Four of the sets; the page of the probes has all."""
    table = probes.compared_table(content, "all").without("samples per class", "capsule, tuned")
    table = dataclasses.replace(table, rows=[row for row in table.rows if row[0] in IN_README])
    return table.markdown().replace("capsule, default", "`CapsuleClassifier()`").replace("default against", "against")


def _on_paper(content: Mapping[str, Any]) -> str:
    shown = scale_tables.paper_table(content)
    return f"{shown.markdown()}\n\nAssumed: {scale_tables.assumptions()}." if shown is not None else NOT_RUN


# The name of a table: its page, its result file or files, and what makes the one of the other.
TABLES: Mapping[str, tuple[str, str, Callable[..., str]]] = {
    "comparison": ("when-to-use", "compare_digits", _comparison),
    "benchmark": (
        "benchmarks",
        "benchmark",
        lambda content: head.table(content).without("forward, ms", "backward, ms").markdown(),
    ),
    "head_before_after": ("benchmarks", "head_before_after", lambda content: against.table(content).markdown()),
    "first_steps": ("quickstart", "first_steps", lambda content: first_steps.table(content).markdown()),
    "steps": ("benchmarks", "training_benchmark", lambda content: step.table(content).markdown()),
    "estimator": ("embeddings", "estimator_benchmark", lambda content: estimator.table(content).markdown()),
    "large-fit": ("embeddings", "large_fit", lambda content: large_fit.table(content).markdown()),
    "probes": ("probes", "probes", lambda content: probes.compared_table(content).markdown()),
    "probes-all": ("../README", "probes", _probes_from_all),
    "probes-costs": ("probes", "probes", lambda content: probes.all_table(content).markdown()),
    "probes-rivals": ("probes", "probes", lambda content: probes.rivals_table(content).markdown()),
    "probes-samples": ("probes", "probes", lambda content: probes.samples_table(content).markdown()),
    "fine_tuning": ("timm", "fine_tuning", lambda content: fine_tuning.table(content).markdown()),
    "fixed_features": ("embeddings", "fixed_features", lambda content: fixed_features.table(content).markdown()),
    "new_classes": ("embeddings", "new_classes", lambda content: new_classes.table(content).markdown()),
    "unknown": ("embeddings", "unknown", lambda content: unknown.table(content).markdown()),
    "out-of-scope": ("embeddings", "out_of_scope", lambda content: out_of_scope.table(content).markdown()),
    "overhead": ("reproduction", "overhead", lambda content: overhead.table(content).markdown()),
    "conditions": ("reproduction", "*-cpu", lambda *contents: conditions_table(contents).markdown()),
    "table1-cpu": ("reproduction", "table1-cpu", _errors),
    "table3-cpu": ("reproduction", "table3-cpu", _errors),
    "table3-cpu-rates": ("reproduction", "table3-cpu", _rates),
    "settings-cpu": ("reproduction", "settings-cpu", _errors),
    "end-to-end-cpu": ("reproduction", "end-to-end-cpu", _end_to_end),
    "end-to-end-cpu-rates": ("reproduction", "end-to-end-cpu", _rates),
    "longer-schedule-cpu": ("reproduction", "longer-schedule-cpu", _end_to_end),
    "widths-cpu": ("reproduction", "widths-cpu", _end_to_end),
    "widths-cpu-rates": ("reproduction", "widths-cpu", _rates),
    "superclasses-cpu": ("reproduction", "superclasses-cpu", _end_to_end),
    "superclasses-cpu-rates": ("reproduction", "superclasses-cpu", _rates),
    "transfer": ("reproduction", "transfer", lambda content: _transfer(content, "end-to-end")),
    "transfer-superclasses": ("reproduction", "transfer", lambda content: _transfer(content, "superclasses")),
    "tuned-cifar10-cpu": ("reproduction", "tuned-cifar10-cpu", _end_to_end),
    "tuned-cifar10-cpu-rates": ("reproduction", "tuned-cifar10-cpu", _rates),
    "label-noise-cpu": ("reproduction", "label-noise-cpu", _end_to_end),
    "label-noise-cpu-rates": ("reproduction", "label-noise-cpu", _rates),
    "fine-tuned-heads-cpu": ("reproduction", "fine-tuned-heads-cpu", _end_to_end),
    "fine-tuned-heads-cpu-rates": ("reproduction", "fine-tuned-heads-cpu", _rates),
    "routing": ("reproduction", "routing", lambda content: routing_runs.table(content).markdown()),
    "scale": ("many-classes", "scale", lambda content: scale_tables.table(content).markdown()),
    "scale-exponents": ("many-classes", "scale", lambda content: scale_tables.exponent_table(content).markdown()),
    "scale-gpus": ("many-classes", "scale", _on_paper),
    "sampled-classes": (
        "many-classes",
        "sampled_classes",
        lambda content: scale_sampling.table(content).markdown(),
    ),
    "robustness": ("reproduction", "robustness_*", lambda *attacks: outcomes.summary(attacks).markdown()),
}


def recipe_keys() -> str:
    """The keys of a recipe with their defaults and what they do."""
    rows = [(f"`{f.name}`", f"`{_shown(f.default)}`", f.metadata["help"]) for f in dataclasses.fields(Recipe)]
    return Table(("key", "default", "what it does"), [*rows], names=3).markdown()


def _shown(value: Any) -> str:
    return "none" if value == () else str(value).lower() if isinstance(value, bool) else str(value)


def table_in(text: str, name: str) -> str:
    """The table of that name in the text of a page."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", text, re.DOTALL)
    if found is None:
        raise ValueError(f"no table called {name}: expected <!-- {name} --> and <!-- /{name} --> in lines of their own")
    return found[1]


def with_tables(page: str) -> str:
    """The text of a page of `docs/`, its tables as they would be written now."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for name, (where, file, markdown) in TABLES.items():
        if where == page:
            files = sorted((ROOT / "results").glob(f"{file}.json"))
            contents = [json.loads(path.read_text(encoding="utf-8")) for path in files]
            start, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"  # without which texts alike would be replaced too
            new = markdown(*contents) if contents else NOT_RUN
            text = text.replace(f"{start}{table_in(text, name)}{end}", f"{start}{new}{end}")
    return text.replace(table_in(text, "recipe"), recipe_keys()) if page == "api/recipe" else text


if __name__ == "__main__":
    for page in sorted({page for page, _, _ in TABLES.values()} | {"api/recipe"}):
        (ROOT / "docs" / f"{page}.md").write_text(with_tables(page), encoding="utf-8")
