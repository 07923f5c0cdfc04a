"""Logistic regression on dense features: the solution and the choice are those of scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from pretune.evaluation.baselines.texts import fit_best_c
from pretune.evaluation.logistic_regression import Floats, Ints, LinearClassifier, fit_logistic_regression

CHOICES = (0.001, 0.01, 0.1, 1.0)


def examples(count: int, width: int, classes: int, seed: int = 0) -> tuple[Floats, Ints]:
    """Features that go together, as those of a network do, and labels that they tell with some noise."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.standard_normal((width, width)))[0]
    scales = np.exp(-np.linspace(0, 6, width))
    x = rng.standard_normal((count, width)) * scales @ axes.T
    scores = x @ axes @ (rng.standard_normal((width, classes)) / np.maximum(scales[:, None], 0.3))
    y = (scores + 2 * rng.gumbel(size=(count, classes))).argmax(1)
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32), y


@pytest.mark.parametrize(("count", "width", "classes"), [(200, 32, 2), (60, 100, 2), (200, 16, 4)])
def test_it_is_the_solution_and_the_choice_of_scikit_learn(count: int, width: int, classes: int) -> None:
    x, y = examples(count, width, classes)
    found = fit_logistic_regression(x, y, CHOICES, seed=3)
    assert found.c == fit_best_c(LogisticRegression(max_iter=5000), x, y, CHOICES, 3, 3).C
    other = LogisticRegression(C=found.c, max_iter=5000, tol=1e-7).fit(x.astype(np.float64), y)
    assert found.weight.shape == other.coef_.shape
    np.testing.assert_allclose(found.weight, other.coef_, atol=2e-3 * np.abs(other.coef_).max())
    np.testing.assert_allclose(found.bias, other.intercept_, atol=5e-3)
    assert (found.predict(x) == other.predict(x)).mean() > 0.99


def test_labels_may_be_any_numbers_and_one_alone_leaves_nothing_to_hold_out() -> None:
    x, y = examples(50, 8, 2)
    named = fit_logistic_regression(x, 10 * y + 7, CHOICES)
    assert set(named.predict(x)) == {7, 17} and named.c == fit_logistic_regression(x, y, CHOICES).c
    alone = np.zeros(50, dtype=int)
    alone[4] = 1
    assert fit_logistic_regression(x, alone, CHOICES).c == 0.1  # the choice in the middle


def test_of_two_classes_the_sign_tells() -> None:
    two = LinearClassifier(np.array([3, 5]), np.array([[1.0]], dtype=np.float32), np.zeros(1, dtype=np.float32), 1.0)
    assert two.predict(np.array([[-1.0], [1.0]], dtype=np.float32)).tolist() == [3, 5]
