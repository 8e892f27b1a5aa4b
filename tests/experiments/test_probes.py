"""The probes: samples are drawn as said, every rival is tuned by the same rule, and an interrupted run resumes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.svm import LinearSVC

from experiments.probes import measuring, rivals, running
from experiments.probes.commands import probes
from experiments.probes.comparing import compare, results, verdict, wilson
from experiments.probes.heads import HeadClassifier, mlp
from experiments.probes.machines import KernelSVM, LinearSVM
from experiments.probes.measuring import Unit, choose, measure, packed, unpacked, validation
from experiments.probes.pictures import draw_probes, relative_errors
from experiments.probes.record import Record
from experiments.probes.rivals import CAPSULE, LOGISTIC, MLP, RIVALS, Rival, parameters
from experiments.probes.running import Plan, run
from experiments.probes.sets import available, draws, load, rows_of_draw
from experiments.probes.tables import all_table, compared_table, rivals_table, samples_table

ROOT = Path(__file__).parents[2]
QUICK = [LOGISTIC, "LDA", "k-NN"]


@pytest.fixture
def folder(tmp_path):
    """Features of three overlapping classes, under the name of a real set."""
    chance = np.random.default_rng(0)
    y, y_test = np.arange(150) % 3, np.arange(90) % 3
    means = 1.2 * chance.standard_normal((3, 6))
    x, x_test = (means[labels] + chance.standard_normal((len(labels), 6)) for labels in (y, y_test))
    path = tmp_path / "features"
    path.mkdir()
    np.savez(path / "banking77.npz", x_train=x.astype(np.float32), y_train=y, x_test=x_test, y_test=y_test)
    load.cache_clear()
    return path


def test_draws_have_the_samples_that_they_should():
    y = np.repeat(np.arange(20), 120)
    few = rows_of_draw(y, "5", 0)
    assert np.bincount(y[few]).tolist() == [5] * 20
    assert len(set(few)) == 100
    assert set(few) <= set(rows_of_draw(y, "20", 0))
    assert set(few) != set(rows_of_draw(y, "5", 1))
    assert np.array_equal(rows_of_draw(y, "all", 0), np.arange(2400))
    sizes = np.bincount(y[rows_of_draw(y, "imbalanced", 0)])
    assert (sizes.min(), sizes.max()) == (2, 100)
    assert sizes.tolist() != np.bincount(y[rows_of_draw(y, "imbalanced", 1)]).tolist()
    assert np.allclose(np.diff(np.log(np.sort(sizes)[5:])), np.log(50) / 19, atol=0.1)
    assert [draws(y, samples) for samples in ("1", "100", "120", "all")] == [5, 3, 0, 1]


def test_sets_that_are_missing_are_named(folder):
    present, missing = available(folder)
    assert present == ["digits", "banking77"]
    assert "clinc150" in missing
    assert available(None)[0] == ["digits"]
    with pytest.raises(ValueError, match=r"flowers.*choose from digits"):
        available(folder, ["flowers"])


def test_held_out_samples_are_apart_and_every_class_is_fitted_to():
    y = np.repeat(np.arange(10), [2, *[30] * 9])
    folds = validation(y)
    assert len(folds) == measuring.FOLDS
    assert sorted(np.concatenate([held for _, held in folds])) == list(range(len(y)))
    for fitted, held in folds:
        assert not set(fitted) & set(held)
        assert set(y[fitted]) == set(range(10))
    assert len(validation(np.repeat(np.arange(4), 2))) == 2
    assert validation(np.arange(5)) == []
    for n in (20_000, 10_003):
        ((fitted, held),) = validation(np.arange(n) % 7)
        assert (len(fitted), len(held)) == (pytest.approx(8000, abs=7), pytest.approx(2000, abs=7))
        assert not set(fitted) & set(held)
        assert np.bincount(held % 7).tolist() == pytest.approx([2000 / 7] * 7, abs=1)
    uneven = np.repeat(np.arange(3), [2, 100, 3000])
    ((fitted, held),) = validation(uneven)
    assert np.bincount(uneven[fitted]).min() >= 1
    assert np.bincount(uneven[held]).tolist() == pytest.approx([0.4, 20, 600], abs=0.5)


def test_every_rival_has_the_same_budget():
    counts = {name: len(rival.settings(n)) for name, rival in RIVALS.items() for n in (100, 50_000)}
    assert counts.pop(CAPSULE) == 1
    assert set(counts.values()) == {6}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIVALS)
def test_every_rival_can_be_fitted_and_measured(name, folder, monkeypatch):
    monkeypatch.setattr(rivals, "EXACT_KERNEL", 100)  # so that all samples take Nystroem's way
    for samples in ("5", "all"):
        unit = Unit("banking77", samples, name, folder)
        setting = unit.candidates()[0]
        assert json.loads(json.dumps(setting)) == setting
        row = measure(unit, 0, setting)
        assert row["error"] < 50
        assert row["parameters"] > 0
        assert (row["calibration_error"] is None) == (name in ("linear SVM", "ridge", "RBF"))
    data = load("banking77", folder)
    wrong = measuring._fit(name, setting, data.x, data.y).predict(data.x_test) != data.y_test
    assert np.array_equal(unpacked(row["wrong"], 90), wrong)
    assert row["error"] == pytest.approx(100 * wrong.mean())


def test_parameters_are_those_of_the_model(folder):
    x, y, _, _ = load("banking77", folder)
    made = {name: rival.make(**rival.settings(len(y))[0]).fit(x, y) for name, rival in RIVALS.items()}
    assert parameters(made[LOGISTIC]) == parameters(made["linear SVM"]) == 3 * 7
    assert parameters(made["k-NN"]) == 150 * 6
    assert parameters(made[MLP]) == 6 * 512 + 512 + 512 * 3 + 3
    assert parameters(made["grouped neurons"]) == 3 * 8 * 7
    assert parameters(made[CAPSULE]) == int(made[CAPSULE].capsule_dims_.sum()) * made[CAPSULE].bases_.shape[2] + 1


def test_the_linear_svm_has_the_objective_of_scikit_learn(folder):
    x, y, _, _ = load("banking77", folder)
    ours = LinearSVM(0.1).fit(x, y)
    theirs = LinearSVC(C=0.1, intercept_scaling=100, dual=False, tol=1e-8).fit(x, y)  # b is hardly penalized
    assert np.allclose(ours.coef_, theirs.coef_, atol=2e-3)
    assert np.allclose(ours.intercept_, theirs.intercept_, atol=2e-3)


def test_the_kernel_svm_is_that_of_scikit_learn(folder):
    from sklearn.svm import SVC

    x, y, x_test, _ = load("banking77", folder)
    ours, theirs = KernelSVM(3.0, 2.0).fit(x, y), SVC(C=3.0, gamma=2.0 / 6).fit(x, y)
    assert np.array_equal(ours.predict(x_test), theirs.predict(x_test))
    assert ours.parameters == theirs.support_vectors_.size + theirs.dual_coef_.size + theirs.intercept_.size


def test_an_mlp_learns_what_no_line_separates():
    x = np.random.default_rng(0).uniform(-1, 1, (600, 2)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    model = HeadClassifier(mlp(64, 0.0), lr=0.03).fit(x[:400], y[:400])
    assert (model.predict(x[400:]) == y[400:]).mean() > 0.9
    assert np.allclose(model.predict_proba(x).sum(1), 1, atol=1e-5)
    again = HeadClassifier(mlp(64, 0.0), lr=0.03).fit(x[:400], y[:400])
    assert np.array_equal(again.predict_proba(x), model.predict_proba(x))


def test_the_setting_with_the_lowest_validation_error_is_chosen(folder, monkeypatch):
    good = RIVALS["k-NN"].make
    settings = [{"k": 60, "standardized": False}, {"k": 5, "standardized": False}, {"k": 1000, "standardized": True}]
    monkeypatch.setitem(rivals.RIVALS, "k-NN", Rival(good, lambda _n: settings))
    row = choose(Unit("banking77", "all", "k-NN", folder))
    assert row["errors"][0] > row["errors"][1]
    assert row["errors"][2] is None  # more neighbours than samples are refused
    assert row["best"] == settings[1]
    assert choose(Unit("banking77", "1", "k-NN", folder)) | {"seconds": 0} == {
        **Unit("banking77", "1", "k-NN", folder).key,
        "settings": settings,
        "errors": [],
        "best": settings[0],
        "seconds": 0,
    }


def test_a_refusal_is_a_row_without_results(folder, tmp_path):
    plan = Plan(["banking77"], folder, ["1"], ["LDA", LOGISTIC])
    content = run(plan, tmp_path / "probes.json")
    refused = {row["rival"]: "refused" in row for row in content["fits"]}
    assert refused == {"LDA": True, LOGISTIC: False}
    assert {key[2] for key in results(content)} == {LOGISTIC}


def counted(monkeypatch):
    """The measurements of a run, as they are made."""
    made = []
    for name in ("choose", "measure"):
        real = getattr(running, name)

        def record(*arguments, real=real, name=name):
            made.append((name, arguments[0].rival))
            return real(*arguments)

        monkeypatch.setattr(running, name, record)
    return made


def test_what_is_finished_is_not_measured_again(folder, tmp_path, monkeypatch):
    made, path = counted(monkeypatch), tmp_path / "out" / "probes.json"
    plan = Plan(["banking77"], folder, ["5", "all"], QUICK)
    first = run(plan, path)
    assert len(made) == 2 * 3 + 6 * 3
    assert first["sets"]["banking77"]["n"] == 150
    assert len(first["sets"]["banking77"]["labels"]) == 64
    made.clear()
    assert run(plan, path)["fits"] == first["fits"]
    assert made == []
    told = []
    content = json.loads(path.read_text())
    content["fits"] = content["fits"][1:]
    path.write_text(json.dumps(content))
    run(plan, path, report=lambda *progress: told.append(progress))
    assert [name for name, _ in made] == ["measure"]
    assert told[-1] == ("banking77", 24, 24)


def test_changed_settings_and_those_named_again_are_measured_again(folder, tmp_path, monkeypatch):
    made, path = counted(monkeypatch), tmp_path / "probes.json"
    plan = Plan(["banking77"], folder, ["all"], QUICK)
    before = run(plan, path)
    made.clear()
    changed = [{"shrinkage": 0.5}, {"shrinkage": 0.6}]
    monkeypatch.setitem(rivals.RIVALS, "LDA", Rival(RIVALS["LDA"].make, lambda _n: changed))
    content = run(plan, path)
    assert made == [("choose", "LDA"), ("measure", "LDA")]
    assert len(content["fits"]) == len(before["fits"]) == 3
    made.clear()
    run(Plan(["banking77"], folder, ["all"], QUICK, again=["k-N"]), path)
    assert made == [("choose", "k-NN"), ("measure", "k-NN")]


def test_only_what_is_planned_is_measured_again(folder, tmp_path):
    path = tmp_path / "probes.json"
    run(Plan(["banking77"], folder, ["5", "all"], ["LDA", "k-NN"]), path)
    content = run(Plan(["banking77"], folder, ["5"], ["LDA"], again=["LDA", "k-NN"]), path)
    assert [(r["samples"], r["rival"]) for r in content["tuning"]].count(("all", "LDA")) == 1
    assert {(r["samples"], r["rival"]) for r in content["fits"]} == {
        (samples, rival) for samples in ("5", "all") for rival in ("LDA", "k-NN")
    }


def test_features_that_have_changed_by_more_than_rounding_are_refused(folder, tmp_path):
    plan, path = Plan(["banking77"], folder, ["all"], ["LDA"]), tmp_path / "probes.json"
    first = run(plan, path)
    arrays = dict(np.load(folder / "banking77.npz"))
    x, y = arrays["x_train"], arrays["y_train"]
    np.savez(folder / "banking77.npz", **arrays | {"x_train": np.nextafter(x, np.float32(9))})
    load.cache_clear()
    assert run(plan, path) == first
    for change in ({"x_train": x + np.float32(0.1)}, {"x_train": x[:-1], "y_train": y[:-1]}, {"y_train": y[::-1]}):
        np.savez(folder / "banking77.npz", **arrays | change)
        load.cache_clear()
        with pytest.raises(ValueError, match=r"banking77.*--output"):
            run(plan, path)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_errors(folder, tmp_path):
    plan = Plan(["banking77"], folder, ["5", "all"], QUICK)
    whole = run(plan, tmp_path / "whole.json")
    words = ["probes", "--features", folder, "--only", "banking77", "--samples", "5", "all"]
    words += ["--rivals", *QUICK, "--jobs", "2", "--output", tmp_path]
    path = tmp_path / "probes.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while process.poll() is None and not (path.exists() and json.loads(path.read_text())["tuning"]):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = json.loads(path.read_text())["tuning"]
    assert finished
    resumed = run(plan, path)
    assert [row for row in finished if row not in resumed["tuning"]] == []
    errors = [{key: result.row.errors for key, result in results(content).items()} for content in (whole, resumed)]
    assert errors[0] == errors[1]
    assert not list(tmp_path.glob(".probes.json*"))


def row(rival, draw, error, *, samples="5", wrong=None, **more):
    numbers = {"calibration_error": 1.0, "fit_seconds": 2.0, "sample_seconds": 0.001, "parameters": 10}
    key = {"set": "digits", "samples": samples, "rival": rival}
    return {**key, "draw": draw, "error": error, "wrong": wrong, **numbers, **more}


def made_content():
    """Capsules that are always a point better than logistic regression from 5 samples, and equal from all."""
    rows = [row(LOGISTIC, i, 10.0 + i) for i in range(5)]
    rows += [row(CAPSULE, i, 9.0 + i + 0.01 * (-1) ** i) for i in range(5)]
    rows += [row(MLP, i, 9.0 + 5 * (i % 2)) for i in range(5)]
    theirs, ours = np.arange(100) < 20, (np.arange(100) < 12) | (np.arange(100) >= 99)
    both = {LOGISTIC: theirs, CAPSULE: ours, MLP: ours}
    rows += [row(r, 0, 100.0 * w.mean(), samples="all", wrong=packed(w), fit_seconds=0.5) for r, w in both.items()]
    tuning = [{"set": "digits", "samples": s, "rival": r, "seconds": 3.0} for s in ("5", "all") for r in both]
    sets = {"digits": {"n": 1000, "d": 64, "classes": 10, "tested": 100}}
    return {"environments": [], "sets": sets, "tuning": tuning, "fits": rows}


def test_paired_tests_over_draws_and_on_one_test_set():
    measured = results(made_content())
    few = {rival: measured["digits", "5", rival] for rival in (LOGISTIC, CAPSULE, MLP)}
    gap = compare(few[CAPSULE], few[LOGISTIC])
    assert gap.mean == pytest.approx(-1, abs=0.01)
    assert verdict(gap) == "fewer errors"
    assert verdict(compare(few[LOGISTIC], few[CAPSULE])) == "more errors"
    assert verdict(compare(few[CAPSULE], few[MLP])) == "no clear difference"
    every = compare(measured["digits", "all", CAPSULE], measured["digits", "all", LOGISTIC])
    assert every.mean == pytest.approx(-7)
    assert every.p == pytest.approx(binomtest(1, 9).pvalue)
    assert verdict(every) == "fewer errors"
    same = compare(measured["digits", "all", CAPSULE], measured["digits", "all", MLP])
    assert (same.mean, same.p, verdict(same)) == (0, 1, "no clear difference")


def test_intervals_and_cells():
    low, high = wilson(0.1, 100)
    assert (low, high) == (pytest.approx(0.0552, abs=1e-4), pytest.approx(0.1744, abs=1e-4))
    assert wilson(0.0, 50)[0] == pytest.approx(0, abs=1e-12)
    measured = results(made_content())
    assert measured["digits", "5", LOGISTIC].cell == "12.00 ± 1.96"
    assert measured["digits", "all", LOGISTIC].cell == "20.00 (13.34 to 28.88)"


def test_tables_say_what_was_measured():
    content = made_content()
    compared = compared_table(content)
    assert [cells[:2] for cells in compared.rows] == [("digits", "5"), ("digits", "all")]
    assert compared.rows[0][-2].endswith(": fewer errors")
    assert compared_table(content, "all").rows == compared.rows[1:]
    assert [cells[1] for cells in samples_table(content).rows] == [LOGISTIC, MLP, CAPSULE]
    assert samples_table(content).headings[2:] == ("5", "all")
    assert rivals_table(content).rows == [(LOGISTIC, "1 / 0 / 0", "1 / 0 / 0"), (MLP, "0 / 1 / 0", "0 / 1 / 0")]
    every = {cells[1]: cells for cells in all_table(content).rows}
    assert every[LOGISTIC][3] == ""
    assert every[CAPSULE][3].startswith("-7.00 ± ")
    assert every[CAPSULE][5:] == ("0.5", "3", "10", "1", "1.0")


def test_wrong_samples_survive_packing():
    wrong = np.random.default_rng(0).random(1003) < 0.1
    assert np.array_equal(unpacked(packed(wrong), 1003), wrong)


def test_the_picture_is_drawn_in_two_themes(tmp_path):
    content = made_content()
    assert draw_probes(content, tmp_path / "probes.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["probes-dark.png", "probes.png"]
    assert relative_errors(results(content), CAPSULE, "all") == [pytest.approx(13 / 20)]
    measured = results(content)
    measured["banking77", "all", LOGISTIC] = measured["digits", "all", LOGISTIC]
    assert relative_errors(measured, CAPSULE, "all") == []  # a mean over some of the sets is none
    without = {**content, "fits": [r for r in content["fits"] if r["rival"] != LOGISTIC]}
    assert not draw_probes(without, tmp_path / "none.png")


def test_the_command_skips_and_writes(folder, tmp_path, capsys):
    probes(features=folder, only=["banking", "clinc"], samples=["5"], rivals=QUICK, output=tmp_path / "results")
    shown = " ".join(capsys.readouterr().out.split())
    assert "no file of them: clinc150" in shown
    content = Record(tmp_path / "results" / "probes.json").read()
    assert {r["rival"] for r in content["fits"]} == set(QUICK)
    assert [r["run"] for r in content["fits"]] == [0] * 15
    assert "versions" in content["environments"][0]


def test_the_command_refuses_what_it_does_not_know(folder, tmp_path):
    for arguments, words in [
        ({"features": tmp_path / "none"}, "--features.*none"),
        ({"samples": ["0"]}, "--samples.*'0'"),
        ({"rivals": ["forest"]}, "forest.*logistic regression"),
        ({"jobs": 0}, "--jobs.*0"),
    ]:
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            probes(**{"features": folder, "output": tmp_path, **arguments})
    (tmp_path / "probes.json").write_text("{")
    with pytest.raises(ValueError, match=r"probes\.json.*fix or delete it"):
        probes(features=folder, only=["digits"], output=tmp_path)
