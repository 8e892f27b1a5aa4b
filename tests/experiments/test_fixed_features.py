"""Heads on frozen features."""

import pytest

from experiments.studies import fixed_features


@pytest.mark.slow
def test_subspaces_beat_vectors_on_pixels(monkeypatch, tmp_path):
    names = ("logistic regression", "unit capsule c=4, scaled", "capsule c=16 by SVD")
    chosen = [head for head in fixed_features.CONTESTANTS if head[0] in names]
    monkeypatch.setattr(fixed_features, "CONTESTANTS", chosen)
    told = []
    results = fixed_features.run("digits", tmp_path, lambda *progress: told.append(progress))
    assert [(done, total) for _, done, total in told] == [(done, 15) for done in range(15)]
    errors = {row["head"]: sum(row["errors"]) / 5 for row in results["rows"]}
    assert set(errors) == set(names)
    assert all(len(row["errors"]) == 5 for row in results["rows"])
    # One standard error of 1,797 images at 3 % is 0.4.
    assert errors["capsule c=16 by SVD"] < errors["logistic regression"] - 0.8
    assert errors["unit capsule c=4, scaled"] < errors["logistic regression"] - 0.8
    assert f"| capsule c=16 by SVD | {errors['capsule c=16 by SVD']:.2f} ± " in fixed_features.table(results).markdown()
    assert len(fixed_features.table(results).rows) == 3


def test_settings_are_chosen_without_the_test_features():
    (split, *_) = fixed_features._folds()
    seen = []

    def fit(x, y, classes, value):
        seen.append((len(x), value))
        wrong = {1.0: 5, 2.0: 0, 3.0: 7}[value]  # of the held-out features, taken for another class

        def predict(new):
            if len(new) == len(split.y_test):
                return split.y_test
            guess = held(new)
            guess[:wrong] = (guess[:wrong] + 1) % classes
            return guess

        return predict

    def held(new):
        distances = (new[:, None] - split.x[None]).square().sum(-1)
        return split.y[distances.argmin(-1)].clone()

    assert fixed_features._error(split, fit, (1.0, 2.0, 3.0)) == 0
    assert [value for _, value in seen] == [1.0, 2.0, 3.0, 2.0]
    assert seen[-1][0] == len(split.y)
    assert seen[0][0] == len(split.y) - len(split.y) // 5
