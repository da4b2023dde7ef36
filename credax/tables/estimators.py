"""scikit-learn estimators whose predictions come with their uncertainty.

Their models standardise inputs and targets, so that any numeric table can be passed to them unscaled.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from credax.core.checks import integer, must, one_of
from credax.core.errors import DataWarning
from credax.core.scaling import has_outliers, outlier_text
from credax.fit import fit
from credax.inference import METHODS, Method
from credax.model import Model
from credax.model.frame import as_rows
from credax.model.likelihoods import Categorical, Gaussian, Likelihood, StudentT
from credax.model.networks.network import AbstractNetwork
from credax.model.priors import Prior
from credax.posterior.predictive import Predictive
from credax.tables.recommended import (
    BUDGET,
    fit_recommended,
    recommend,
    recommended_method,
    recommended_network,
    recommended_prior,
)


class _Bayesian(BaseEstimator):
    """What the regressor and the classifier have in common."""

    def __init__(
        self,
        method: Method | str | None = None,
        *,
        hidden: Sequence[int] | None = None,
        network: AbstractNetwork | None = None,
        prior: Prior | None = None,
        likelihood: Likelihood | None = None,
        budget: float = BUDGET,
        random_state: int | None = None,
        progress: bool = False,
    ):
        self.method = method
        self.hidden = hidden
        self.network = network
        self.prior = prior
        self.likelihood = likelihood
        self.budget = budget
        self.random_state = random_state
        self.progress = progress

    def _fit(self, x: np.ndarray, y: np.ndarray, task: str) -> None:
        """Fit what the user chose; if nothing was chosen, what is recommended for these rows."""
        key = 0 if self.random_state is None else _seed(self.random_state)
        chosen = (self.method, self.hidden, self.network, self.prior, self.likelihood)
        if all(each is None for each in chosen):
            self.recommendation_ = recommend(x, y, budget=self.budget, task=task)
            self.posterior_: Any = fit_recommended(
                self.recommendation_, (x, y), key=key, progress=self.progress
            )
            return
        self._fit_chosen(x, y, self._likelihood(y), key)

    def _likelihood(self, y: np.ndarray) -> Likelihood:
        """The likelihood that was chosen, or the one that suits these targets."""
        raise NotImplementedError

    def _fit_chosen(self, x: np.ndarray, y: np.ndarray, likelihood: Likelihood, key: Any) -> None:
        network = recommended_network(self.hidden) if self.network is None else self.network
        prior = recommended_prior() if self.prior is None else self.prior
        self.posterior_ = fit(
            Model(network, prior, likelihood, standardise=True),
            (x, y),
            self._method(len(x)),
            key=key,
            progress=self.progress,
        )

    def _method(self, rows: int) -> Method:
        if isinstance(self.method, Method):
            return self.method
        if self.method is None:
            return recommended_method(rows)
        if not isinstance(self.method, str):
            allowed = "a method such as cx.MAP(), its name such as 'map', or None"
            raise TypeError(must(type(self).__name__, "method", allowed, self.method))
        one_of(type(self).__name__, "method", self.method, METHODS)
        return METHODS[self.method]()

    def predict_distribution(self, X: Any) -> Predictive:
        """The predictive distribution of each row, in the units of y or for its classes."""
        check_is_fitted(self)
        return self.posterior_.predict(validate_data(self, X, reset=False, dtype=np.float64))


class BayesianRegressor(RegressorMixin, _Bayesian):
    """A scikit-learn regressor that fits Bayesian neural networks.

    If none of the first five arguments is given, :func:`credax.recommend` looks at the rows and chooses a few
    models, which are weighted by how well they predict rows that they have not seen.

    Args:
      method: how to find the posterior: a credax method, or its name (see ``credax methods``). If ``None``, a
        method that suits the number of rows.
      hidden: the widths of the hidden layers of a multilayer perceptron. If ``None``, one layer of 50 units.
      network: a network from ``cx.networks``, instead of a multilayer perceptron.
      prior: the prior of the weights. If ``None``, standard normal.
      likelihood: the likelihood of the standardised targets. If ``None``, normal with a learned noise scale; or
        Student's t, with a warning that names the rows, if y has gross outliers.
      budget: the time in seconds that fitting may take if nothing is chosen.
      random_state: the seed of all random numbers. If ``None``, 0.
      progress: whether to show a progress bar.

    Attributes:
      posterior_: the posterior of the weights, or a ``StackedPosterior``; it takes and predicts numbers in the
        units of X and y.
      recommendation_: what was fitted, with reasons, if nothing was chosen.
      n_features_in_: the number of columns of X.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> regressor = BayesianRegressor("map").fit(x, 3 * x[:, 0] + 1)
    >>> mean, std = regressor.predict(x[:5], return_std=True)
    >>> mean.shape, std.shape
    ((5,), (5,))
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Find the posterior of the weights given the rows."""
        x, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        y = np.asarray(y, np.float64)
        self._fit(x, y, "regression")
        return self

    def _likelihood(self, y: np.ndarray) -> Likelihood:
        """The likelihood for these targets: normal, unless a few of them decide their standard deviation."""
        if self.likelihood is not None:
            return self.likelihood
        columns = as_rows(y)
        outlying = columns[:, has_outliers(columns)]
        if not outlying.size:
            return Gaussian(scale=None)
        warnings.warn(
            f"y has {outlier_text(outlying[:, 0])}. The noise is taken to have Student's t distribution "
            "instead of a normal one. Correct or remove these rows, or pass likelihood=.",
            DataWarning,
            stacklevel=4,
        )
        return StudentT(scale=None)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The predictive mean of each row's target, and its standard deviation if ``return_std``."""
        predictive = self.predict_distribution(X)
        mean = np.asarray(predictive.mean, np.float64)
        return (mean, np.asarray(predictive.std, np.float64)) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The lower and upper ends of the interval that holds each target with probability ``level``."""
        return self.predict_distribution(X).interval(level)

    def sample(self, X: Any, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Draws of the targets, of shape ``(n_samples, rows)``."""
        return self.predict_distribution(X).sample(_seed(random_state), n_samples)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class BayesianClassifier(ClassifierMixin, _Bayesian):
    """A scikit-learn classifier that fits Bayesian neural networks.

    If none of the first five arguments is given, :func:`credax.recommend` looks at the rows and chooses a few
    models, which are weighted by how well they predict rows that they have not seen.

    Args:
      method: how to find the posterior: a credax method, or its name (see ``credax methods``). If ``None``, a
        method that suits the number of rows.
      hidden: the widths of the hidden layers of a multilayer perceptron. If ``None``, one layer of 50 units.
      network: a network from ``cx.networks``, instead of a multilayer perceptron.
      prior: the prior of the weights. If ``None``, standard normal.
      likelihood: the likelihood of the class numbers. If ``None``, categorical.
      budget: the time in seconds that fitting may take if nothing is chosen.
      random_state: the seed of all random numbers. If ``None``, 0.
      progress: whether to show a progress bar.

    Attributes:
      posterior_: the posterior of the weights, or a ``StackedPosterior``; it takes rows in the units of X.
      recommendation_: what was fitted, with reasons, if nothing was chosen.
      classes_: the class labels, in the order of the columns of ``predict_proba``.
      n_features_in_: the number of columns of X.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Find the posterior of the weights given the rows."""
        x, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"BayesianClassifier needs at least two classes; y has one class only: {self.classes_[0]!r}."
            )
        self._fit(x, numbers, "classification")
        return self

    def _likelihood(self, y: np.ndarray) -> Likelihood:
        return self.likelihood or Categorical(len(self.classes_))

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, of shape ``(rows, classes)``."""
        probs = np.asarray(self.predict_distribution(X).probs, np.float64)
        return probs / probs.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        likeliest = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[likeliest]

    def sample(self, X: Any, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Draws of the class labels, of shape ``(n_samples, rows)``."""
        drawn = self.predict_distribution(X).sample(_seed(random_state), n_samples)
        return self.classes_[np.asarray(drawn, int).reshape(n_samples, -1)]


def _seed(random_state: Any) -> int:
    """An int, drawn from ``random_state`` if that is a NumPy generator."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    return integer(
        "BayesianRegressor and BayesianClassifier", "random_state", random_state, minimum=0
    )
