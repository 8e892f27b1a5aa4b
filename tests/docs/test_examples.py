"""The examples run as they are, from anywhere, and leave nothing behind."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file
from sklearn.feature_extraction.text import HashingVectorizer

from cappronet.cli import app
from cappronet.training.recipe import shipped

EXAMPLES = Path(__file__).parents[2] / "examples"
CLUSTER = EXAMPLES / "cluster"
# What the launchers train, in float64: the processes must not differ by more than rounding.
RUN = ["--accelerator", "cpu", "--backbone", "pixels", "--precision", "64-true"]


def environment(**more):
    """Of a shell in which the package's environment is active, on a wide terminal."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120", **more}


def finished(*command, cwd, code=0, **more):
    """A command that ended as it should."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(**more),
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr[-2000:]
    return done


def shown(name, tmp_path, *options):
    """What an example prints, and the rows of its tables as lists of cells."""
    text = finished(sys.executable, EXAMPLES / name, *options, cwd=tmp_path).stdout
    assert list(tmp_path.iterdir()) == []
    return text, {row[0]: row[1:] for row in re.findall(r"^│ (.*) │$", text, re.MULTILINE) for row in [cells(row)]}


def cells(line):
    return [cell.strip() for cell in line.split("│")]


def percentages(row):
    values = [float(cell) for cell in row]
    assert all(0 < value < 100 for value in values)
    return values


@pytest.mark.slow
def test_own_loop(tmp_path):
    _, rows = shown("own_loop.py", tmp_path)
    errors = {head: percentages(row[1:2])[0] for head, row in rows.items()}
    assert [row[0] for row in rows.values()] == ["650", "2,600", "2,560"]
    # Five splits, with standard errors of about 0.4: this is what the README says of fixed features.
    assert errors["CapsuleProjection(64, 10, 4)"] < errors["nn.Linear(64, 10)"] - 1


@pytest.mark.slow
def test_many_classes(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [EXAMPLES / "many_classes.py", "--classes", "101", "--steps", "60"]
    text = finished(*launcher, *script, cwd=tmp_path).stdout
    assert "101 classes, 51 of them in the first of 2" in text
    assert float(re.search(r"error (\S+) %", text)[1]) < 5  # 99 by chance


@pytest.mark.slow
def test_finetune_timm(tmp_path):
    text, rows = shown("finetune_timm.py", tmp_path, "--seeds", "2", "--epochs", "1", "--images", "8")
    assert "CapsuleProjection(256, 5, capsule_dim=4, normalize=True, scale=25.0)" in text
    heads = {head: row[0] for head, row in rows.items()}
    assert heads == {"nn.Linear": "1,285", "capsule c=4": "5,120", "unit capsule c=4, scale 25": "5,120"}
    errors = {head: percentages(row[1:2])[0] for head, row in rows.items()}
    for head in list(rows)[1:]:
        assert float(rows[head][2]) == pytest.approx(errors[head] - errors["nn.Linear"], abs=0.011)
        assert float(rows[head][3]) >= 0


def test_finetune_timm_without_timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setattr(sys, "argv", ["finetune_timm.py"])
    with pytest.raises(SystemExit, match=r"^error: this needs timm, .* pip install 'cappronet\[vision\]'$"):
        runpy.run_path(str(EXAMPLES / "finetune_timm.py"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("transformers_trainer.py", ("transformers", "accelerate")),
        ("lightning_trainer.py", ("pytorch_lightning",)),
    ],
)
def test_trainers_of_other_libraries(name, packages, tmp_path):
    for package in packages:
        pytest.importorskip(package)
    text, _ = shown(name, tmp_path, "--epochs", "3", "--capsule-dim", "2")
    assert re.search(r"^CapsuleProjection\(\d+, 10, capsule_dim=2, normalize=True", text, re.MULTILINE)
    trained, loaded = re.findall(r"^test error .*: ([\d.]+) %$", text, re.MULTILINE)
    assert loaded == trained
    assert 0 < float(trained) < 40  # ten classes: 90 % is guessing


@pytest.mark.parametrize(
    ("name", "package"), [("transformers_trainer.py", "accelerate"), ("lightning_trainer.py", "pytorch_lightning")]
)
def test_trainers_of_other_libraries_without_them(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit, match=rf"^error: .*{package}.*: run pip install '"):
        runpy.run_path(str(EXAMPLES / name))


class Encoder:
    """A sentence encoder of words, with what the example needs of a SentenceTransformer."""

    def __init__(self, model_name_or_path):
        self.name = model_name_or_path

    def encode(self, sentences, **options):
        assert all(isinstance(sentence, str) for sentence in sentences)
        return HashingVectorizer(n_features=128, stop_words="english").transform(sentences).toarray()


class SetFitModel:
    """Of SetFit's model: a head that is no torch module is fitted to embeddings, and asked for its predictions."""

    def __init__(self, model_body=None, model_head=None):
        self.model_body, self.model_head = model_body, model_head

    def fit(self, x_train, y_train, num_epochs):
        self.model_head.fit(self.model_body.encode(list(x_train), normalize_embeddings=False), list(y_train))

    def predict(self, inputs):
        return self.model_head.predict(self.model_body.encode(inputs, convert_to_tensor=False))


class SetFitTrainer:
    def __init__(self, model, args, train_dataset):
        self.model, self.args, self.data = model, args, train_dataset

    def train(self):
        self.model.fit(self.data["text"], self.data["label"], num_epochs=self.args["num_epochs"])


STAND_INS = {
    "sentence_transformers": {"SentenceTransformer": Encoder},
    "datasets": {"Dataset": SimpleNamespace(from_dict=dict)},
    "setfit": {
        "SetFitModel": SetFitModel,
        "Trainer": SetFitTrainer,
        "TrainingArguments": dict,
    },
}


def test_sentences(monkeypatch, capsys):
    """With stand-ins for the encoder and for SetFit."""
    for name, content in STAND_INS.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**content))
    monkeypatch.setattr(sys, "argv", ["sentences.py", "--setfit", "--model", "small"])
    names = runpy.run_path(str(EXAMPLES / "sentences.py"))
    text = capsys.readouterr().out
    assert names["encoder"].name == "small"
    expected = list(zip(["parcel", "password", "refund"], names["NEW"], strict=True))
    assert re.findall(r"^(\w+) +\d+%  (.*)$", text, re.MULTILINE) == expected
    assert re.findall(r"^SetFit: (\w+) +(.*)$", text, re.MULTILINE) == expected
    new, unrelated = (float(score) for score in re.findall(r"outlier score of .*: (-?[\d.]+)", text))
    assert new < unrelated


@pytest.mark.parametrize(
    ("options", "missing", "package"),
    [([], "sentence_transformers", "sentence-transformers"), (["--setfit"], "setfit", "setfit")],
)
def test_sentences_without_the_libraries(options, missing, package, monkeypatch):
    for name, content in STAND_INS.items():
        monkeypatch.setitem(sys.modules, name, None if name == missing else SimpleNamespace(**content))
    monkeypatch.setattr(sys, "argv", ["sentences.py", *options])
    with pytest.raises(SystemExit, match=rf"^error: .*{missing}.*: run pip install {package}$"):
        runpy.run_path(str(EXAMPLES / "sentences.py"))


@pytest.mark.slow
def test_embeddings(tmp_path):
    text, rows = shown("embeddings.py", tmp_path, "--epochs", "2", "--folds", "2", "--draws", "1")
    assert "896 embeddings of 5 to 9, d = 64" in text
    assert sum(name.startswith("CapsuleClassifier(") for name in rows) == 3
    for name, (error, folds) in list(rows.items())[:5]:
        low, high = map(float, folds.split(" to "))
        assert 0 < low - 0.051 < float(error) < high + 0.051 < 50, name  # five classes: 80 % is guessing
    by_dimension = dict(re.findall(r"(\d+): ([\d.]+)", re.search(r"svd, c and error %: (.*)", text)[1]))
    assert list(by_dimension) == ["1", "2", "4", "8", "16", "32"]
    assert float(by_dimension["8"]) < float(by_dimension["1"])  # a subspace, not a direction
    assert percentages(rows["80"])[0] < percentages(rows["8"])[0]  # more images of the new class
    for score in list(rows)[-3:]:
        assert min(percentages(rows[score])) > 50, score


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights of one process."""
    folder = tmp_path_factory.mktemp("alone")
    app(["train", *RUN, "--epochs", "10", "--run", str(folder / "run")], result_action="return_value")
    return load_file(folder / "run" / "model.safetensors")


def assert_two_trained_as_one(run, alone):
    """A finished run of two processes, with the weights of one."""
    assert json.loads((run / "environment.json").read_text())["processes"] == 2
    assert 0 < json.loads((run / "summary.json").read_text())["error"] < 20
    assert not (run / "checkpoint.pt").exists()
    weights = load_file(run / "model.safetensors")
    assert weights.keys() == alone.keys()
    for name, weight in weights.items():
        assert (weight - alone[name]).abs().max() <= 1e-7, name  # they are saved in float32


@pytest.mark.slow
def test_torchrun(tmp_path, alone):
    command = ["sh", CLUSTER / "torchrun.sh", "2", *RUN, "--epochs", "10"]
    done = finished(*command, "--run", "run", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert done.stdout.count("Written to run") == 1
    assert_two_trained_as_one(tmp_path / "run", alone)


def test_torchrun_wants_a_number(tmp_path):
    done = finished("sh", CLUSTER / "torchrun.sh", "--epochs", "1", cwd=tmp_path, code=1)
    assert done.stderr == "error: the number of processes comes first: sh torchrun.sh 2 --epochs 1\n"


# Two tasks on two machines that are both this one, with the variables that Fabric reads. Where there is a file called
# `interrupt`, they get SIGTERM as soon as the run has begun. Like srun's, the exit code is the highest of the tasks'.
SRUN = """#!{python}
import os, pathlib, signal, subprocess, sys, time

command = sys.argv[next(i for i, word in enumerate(sys.argv) if i and not word.startswith("-")):]
tasks = []
for rank in ("0", "1"):
    given = {{"SLURM_NTASKS": "2", "SLURM_NODELIST": "localhost", "SLURM_PROCID": rank, "SLURM_LOCALID": "0"}}
    tasks.append(subprocess.Popen(command, env={{**os.environ, **given, "SLURM_NODEID": rank}}))
if os.path.exists("interrupt"):
    os.remove("interrupt")
    while not os.path.exists("runs/one/recipe.toml") and tasks[0].poll() is None:
        time.sleep(0.01)
    for task in tasks:
        task.send_signal(signal.SIGTERM)
sys.exit(max(task.wait() for task in tasks))
"""


@pytest.mark.slow
def test_sbatch(tmp_path, alone):
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    (stand_ins / "srun").write_text(SRUN.format(python=sys.executable))
    (stand_ins / "scontrol").write_text("#!/bin/sh\necho $* >> requeued\n")
    for path in stand_ins.iterdir():
        path.chmod(0o755)
    given = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", (CLUSTER / "train.sbatch").read_text(), re.MULTILINE))
    job = f"4{os.getpid() % 10_000:04}"  # the last four digits are the port's
    slurm = {"SLURM_JOB_NAME": given["job-name"], "SLURM_JOB_ID": job, "SLURM_NNODES": "2"}
    slurm |= {"SLURM_NTASKS_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "1"}
    slurm["PATH"] = f"{stand_ins}{os.pathsep}{environment()['PATH']}"
    command = ["bash", CLUSTER / "train.sbatch", "runs/one", "--backbone", "pixels", "--precision", "64-true"]
    command += ["--epochs", "10"]

    (tmp_path / "interrupt").touch()
    done = finished(*command, cwd=tmp_path, code=130, **slurm)
    assert "stopped and saved" in done.stderr
    assert (tmp_path / "requeued").read_text() == f"requeue {job}\n"
    assert not (tmp_path / "runs" / "one" / "summary.json").exists()

    done = finished(*command, cwd=tmp_path, **slurm)
    assert done.stdout.count("Written to runs/one") == 1
    assert_two_trained_as_one(tmp_path / "runs" / "one", alone)

    assert finished(*command, cwd=tmp_path, **slurm).stdout == "runs/one is finished\n"
    assert (tmp_path / "requeued").read_text() == f"requeue {job}\n"


def test_sbatch_wants_a_folder(tmp_path):
    done = finished("bash", CLUSTER / "train.sbatch", "--epochs", "1", cwd=tmp_path, code=1)
    assert done.stderr.startswith("error: the run folder comes first")


@pytest.mark.parametrize("path", sorted(CLUSTER.iterdir()), ids=lambda path: path.name)
def test_a_launch_is_a_shell_script_of_recipes_that_ship(path, tmp_path):
    finished("bash" if path.suffix == ".sbatch" else "sh", "-n", path, cwd=tmp_path)
    recipes = re.findall(r"--recipe ([\w/-]+)", path.read_text())
    assert recipes
    for name in recipes:
        assert shipped(f"recipes/{name}.toml").is_file(), name
