"""`python -m experiments`: every experiment takes the options that it uses, and no others."""

import pytest

from experiments.__main__ import app

OPTIONS = {
    "head": "shape rounds threads device growth no-growth against output",
    "step": "backbone capsule-dim rounds threads output",
    "estimator": "features only large rounds threads output",
    "overhead": "only rounds folder output",
    "scale": "classes processes rounds threads million no-million memory again folder output",
    "sampled-classes": "seeds threads folder output",
    "table1": "scale seeds only cifar10 cifar100 folder output jobs compile precision accelerator cache",
    "table2": "seeds only folder output jobs compile precision accelerator cache",
    "table3": "scale seeds only cifar10 folder output jobs compile precision accelerator cache",
    "settings": "seeds only folder output jobs compile precision accelerator",
    "end-to-end": "seeds only cifar100 folder output jobs compile precision accelerator cache",
    "longer-schedule": "seeds only cifar100 folder output jobs compile precision accelerator cache",
    "widths": "seeds only cifar100 folder output jobs compile precision accelerator cache",
    "superclasses": "seeds only cifar100 folder output jobs compile precision accelerator cache",
    "transfer": "cifar10 cifar100 folder output jobs cache",
    "tuned-cifar10": "seeds only cifar10 folder output jobs compile precision accelerator cache",
    "label-noise": "seeds only cifar10 folder output jobs compile precision accelerator cache",
    "fine-tuned-heads": "seeds only cifar100 weights folder output jobs compile precision accelerator cache",
    "routing": "cifar10 only seeds steps folder output jobs cache",
    "figure1": "output",
    "figure2": "scale only cifar10 folder output accelerator cache",
    "pictures": "results output",
    "probes": "features only samples rivals again jobs output",
    "fine-tuning": "weights data folder output cache jobs seeds",
    "fixed-features": "data folder output cache",
    "new-classes": "data folder output cache",
    "unknown": "data folder output cache",
    "out-of-scope": "features output",
    "robustness kills": "runs seed output",
    "robustness signals": "runs seed output",
    "robustness tensors": "inputs seed output",
    "robustness models": "flips others seed output",
    "robustness files": "inputs seed output",
}
REQUIRED = {"fine-tuning": ["--weights", "weights.pth"]}
ALL = {option for options in OPTIONS.values() for option in options.split()}


def test_every_experiment_has_a_command():
    assert {name for name in app if not name.startswith("-")} == {name.split()[0] for name in OPTIONS}
    inside = {f"robustness {name}" for name in app["robustness"] if not name.startswith("-")}
    assert inside == {name for name in OPTIONS if name.startswith("robustness")}


@pytest.mark.parametrize("name", OPTIONS)
def test_help_explains_every_option(name, capsys):
    with pytest.raises(SystemExit) as ended:
        app([*name.split(), "--help"])
    assert not ended.value.code
    command = app
    for word in name.split():
        command = command[word]
    arguments = command.assemble_argument_collection(parse_docstring=True).filter_by(parse=True)
    arguments = [argument for argument in arguments if not argument.children]  # not what only groups others
    taken = {option for argument in arguments for option in argument.names}
    assert taken == {f"--{option}" for option in OPTIONS[name].split()}
    assert all(argument.parameter.help for argument in arguments)
    assert "--output" in capsys.readouterr().out


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_another_experiment_is_refused_in_one_line(name, capsys):
    for option in sorted(ALL - set(OPTIONS[name].split())):
        with pytest.raises(SystemExit) as ended:
            app([*name.split(), *REQUIRED.get(name, []), f"--{option}=5"])
        assert ended.value.code
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert f"--{option}" in line
