"""scikit-learn estimators whose predictions come with their uncertainty.

They standardise inputs and targets themselves, so that any numeric table can be passed to them unscaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from credax.core.checks import one_of
from credax.fit import fit
from credax.inference import METHODS, Method
from credax.model import Model
from credax.model.likelihoods import Categorical, Gaussian, Likelihood
from credax.model.networks.network import AbstractNetwork
from credax.model.priors import Prior
from credax.posterior.predictive import Predictive
from credax.tables.recommended import recommended_method, recommended_network, recommended_prior
from credax.tables.rescaled import Rescaled


class _Bayesian(BaseEstimator):
    """What the regressor and the classifier have in common."""

    def __init__(
        self,
        method: Method | str | None = None,
        *,
        hidden: Sequence[int] = (50,),
        network: AbstractNetwork | None = None,
        prior: Prior | None = None,
        likelihood: Likelihood | None = None,
        random_state: int | None = None,
        progress: bool = False,
    ):
        self.method = method
        self.hidden = hidden
        self.network = network
        self.prior = prior
        self.likelihood = likelihood
        self.random_state = random_state
        self.progress = progress

    def _fit(self, x: np.ndarray, y: np.ndarray, likelihood: Likelihood) -> None:
        self.input_mean_ = x.mean(0)
        scale = x.std(0)
        self.input_scale_ = np.where(scale > 0, scale, 1.0)
        network = recommended_network(self.hidden) if self.network is None else self.network
        prior = recommended_prior() if self.prior is None else self.prior
        model = Model(network, prior, self.likelihood or likelihood)
        self.posterior_ = fit(
            model,
            (self._scaled(x), y),
            self._method(len(x)),
            key=0 if self.random_state is None else _seed(self.random_state),
            progress=self.progress,
        )

    def _method(self, rows: int) -> Method:
        if isinstance(self.method, Method):
            return self.method
        if self.method is None:
            return recommended_method(rows)
        one_of(type(self).__name__, "method", self.method, METHODS)
        return METHODS[self.method]()

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        return (x - self.input_mean_) / self.input_scale_

    def _predictive(self, x: Any) -> Predictive:
        check_is_fitted(self)
        x = validate_data(self, x, reset=False, dtype=np.float64)
        return self.posterior_.predict(self._scaled(x))


class BayesianRegressor(RegressorMixin, _Bayesian):
    """A scikit-learn regressor that fits a Bayesian neural network.

    Args:
      method: how to find the posterior: a credax method, or its name (see ``credax methods``). If ``None``, the
        method that is recommended for this many rows.
      hidden: the widths of the hidden layers.
      network: a network from ``cx.networks``. If ``None``, a multilayer perceptron with layers ``hidden``.
      prior: the prior of the weights. If ``None``, standard normal.
      likelihood: the likelihood of the standardised targets. If ``None``, normal with a learned noise scale.
      random_state: the seed of all random numbers. If ``None``, 0.
      progress: whether to show a progress bar.

    Attributes:
      posterior_: the posterior, given standardised inputs and targets.
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
        self.target_mean_ = y.mean(0)
        scale = y.std(0)
        self.target_scale_ = np.where(scale > 0, scale, 1.0)
        self._fit(x, (y - self.target_mean_) / self.target_scale_, Gaussian(scale=None))
        return self

    def predict_distribution(self, X: Any) -> Rescaled:
        """The predictive distribution: mean, std, epistemic, aleatoric, intervals, densities."""
        return Rescaled(self._predictive(X), self.target_mean_, self.target_scale_)

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
    """A scikit-learn classifier that fits a Bayesian neural network.

    Args:
      method: how to find the posterior: a credax method, or its name (see ``credax methods``). If ``None``, the
        method that is recommended for this many rows.
      hidden: the widths of the hidden layers.
      network: a network from ``cx.networks``. If ``None``, a multilayer perceptron with layers ``hidden``.
      prior: the prior of the weights. If ``None``, standard normal.
      likelihood: the likelihood of the class numbers. If ``None``, categorical.
      random_state: the seed of all random numbers. If ``None``, 0.
      progress: whether to show a progress bar.

    Attributes:
      posterior_: the posterior, given standardised inputs.
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
        self._fit(x, numbers, Categorical(len(self.classes_)))
        return self

    def predict_distribution(self, X: Any) -> Predictive:
        """The predictive distribution: probabilities, entropy, mutual information."""
        return self._predictive(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, of shape ``(rows, classes)``."""
        probs = np.asarray(self._predictive(X).probs, np.float64)
        return probs / probs.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        likeliest = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[likeliest]

    def sample(self, X: Any, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Draws of the class labels, of shape ``(n_samples, rows)``."""
        drawn = self._predictive(X).sample(_seed(random_state), n_samples)
        return self.classes_[np.asarray(drawn, int).reshape(n_samples, -1)]


def _seed(random_state: Any) -> int:
    """An int, drawn from ``random_state`` if that is a NumPy generator."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    return int(random_state)
