"""scikit-learn estimators whose predictions come with their uncertainty.

Their models standardise inputs and targets, and their inputs may have missing values, categories and dates, so
that any table can be passed to them as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from credax.core.checks import must
from credax.core.errors import DataWarning
from credax.core.scaling import has_outliers, outlier_text
from credax.inference import Method
from credax.model.frame import as_rows
from credax.model.likelihoods import Categorical, Gaussian, Likelihood, StudentT
from credax.model.networks.network import AbstractNetwork
from credax.model.priors import Prior
from credax.tables.bayesian import Bayesian, goes_on, seed_of
from credax.tables.counting import class_weights, counted
from credax.tables.recommended import BUDGET


class BayesianRegressor(RegressorMixin, Bayesian):
    """A scikit-learn regressor that fits Bayesian neural networks.

    If none of the first five arguments is given, :func:`credax.recommend` looks at the rows and chooses a few
    models, which are weighted by how well they predict rows that they have not seen.

    X may have missing values: they are replaced by the median or by the most frequent category of the fitted
    rows, and a further column says where they were. In a data frame it may also have categories, texts, dates
    and times. Settings inside an argument have names such as ``method__num_steps`` in ``set_params`` and grid
    searches.

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
      warm_start: whether another ``fit`` begins at the posterior of the one before instead of at random
        weights. The numbers of columns and of hidden units must be the same.

    Attributes:
      posterior_: the posterior of the weights, or a ``StackedPosterior``; it takes rows as
        ``inputs_.encode(X)`` returns them, and predicts numbers in the units of y.
      recommendation_: what was fitted, with reasons, if nothing was chosen.
      inputs_: how the columns of X became numbers, whose names are ``inputs_.features``.
      n_features_in_: the number of columns of X.
      feature_names_in_: the names of the columns of X, if it was a data frame.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> regressor = BayesianRegressor("map").fit(x, 3 * x[:, 0] + 1)
    >>> mean, std = regressor.predict(x[:5], return_std=True)
    >>> mean.shape, std.shape
    ((5,), (5,))
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Find the posterior of the weights given the rows.

        Args:
          X: the rows.
          y: the targets.
          sample_weight: how often each row counts: 2 is the row given twice, and 0 the row left out.
        """
        rows, y = self._checked(X, y, multi_output=True, y_numeric=True)
        rows, y, weights = counted(rows, y, sample_weight)
        self._fit(rows, np.asarray(y, np.float64), "regression", weights)
        return self

    @available_if(goes_on)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from further rows: the posterior given the rows so far is the prior of the next one.

        The first call is a ``fit``. The scales, medians and categories of its rows are kept. The posterior must
        be that of one chosen method, and say how sure it is of the weights.

        Args:
          X: the further rows.
          y: their targets.
          sample_weight: how often each of them counts.
        """
        if not hasattr(self, "posterior_"):
            return self.fit(X, y, sample_weight)
        rows, y = self._further(X, y, multi_output=True, y_numeric=True)
        rows, y, weights = counted(rows, y, sample_weight)
        self._continue(rows, np.asarray(y, np.float64), weights)
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
        return self.predict_distribution(X).sample(seed_of(random_state), n_samples)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class BayesianClassifier(ClassifierMixin, Bayesian):
    """A scikit-learn classifier that fits Bayesian neural networks.

    If none of the first five arguments is given, :func:`credax.recommend` looks at the rows and chooses a few
    models, which are weighted by how well they predict rows that they have not seen.

    X may have missing values: they are replaced by the median or by the most frequent category of the fitted
    rows, and a further column says where they were. In a data frame it may also have categories, texts, dates
    and times. Settings inside an argument have names such as ``method__num_steps`` in ``set_params`` and grid
    searches.

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
      warm_start: whether another ``fit`` begins at the posterior of the one before instead of at random
        weights. The numbers of columns and of hidden units must be the same.
      class_weight: how often a row of each class counts: a dictionary from labels to numbers, in which a class
        that is left out counts once; or ``"balanced"``, so that all classes count as much as each other, and
        all rows together as often as they are. It multiplies ``sample_weight``.

    Attributes:
      posterior_: the posterior of the weights, or a ``StackedPosterior``; it takes rows as
        ``inputs_.encode(X)`` returns them.
      recommendation_: what was fitted, with reasons, if nothing was chosen.
      classes_: the class labels, in the order of the columns of ``predict_proba``.
      inputs_: how the columns of X became numbers, whose names are ``inputs_.features``.
      n_features_in_: the number of columns of X.
      feature_names_in_: the names of the columns of X, if it was a data frame.
    """

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
        warm_start: bool = False,
        class_weight: Mapping[Any, float] | str | None = None,
    ):
        super().__init__(
            method,
            hidden=hidden,
            network=network,
            prior=prior,
            likelihood=likelihood,
            budget=budget,
            random_state=random_state,
            progress=progress,
            warm_start=warm_start,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Find the posterior of the weights given the rows.

        Args:
          X: the rows.
          y: the class of each row.
          sample_weight: how often each row counts: 2 is the row given twice, and 0 the row left out.
        """
        rows, y = self._checked(X, y)
        rows, y, weights = counted(rows, y, sample_weight)
        check_classification_targets(y)
        self._fit_classes(np.unique(y), rows, y, weights)
        return self

    @available_if(goes_on)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn from further rows: the posterior given the rows so far is the prior of the next one.

        The first call is a ``fit``. The scales, medians and categories of its rows are kept. The posterior must
        be that of one chosen method, and say how sure it is of the weights.

        Args:
          X: the further rows.
          y: the class of each of them.
          classes: all classes, which the first call needs, unless there was a ``fit``.
          sample_weight: how often each of them counts.
        """
        first = not hasattr(self, "posterior_")
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        if isinstance(self.class_weight, str):
            allowed = "None or a dictionary for partial_fit, which does not know all rows"
            raise ValueError(must("BayesianClassifier", "class_weight", allowed, self.class_weight))
        rows, y = self._checked(X, y) if first else self._further(X, y)
        rows, y, weights = counted(rows, y, sample_weight)
        check_classification_targets(y)
        known = np.unique(classes) if first else self.classes_
        if not first and classes is not None and not np.array_equal(np.unique(classes), known):
            raise ValueError(f"classes must be those of the first call, {known}; got {classes}.")
        unknown = np.setdiff1d(y, known)
        if len(unknown):
            raise ValueError(f"y must hold the classes {known.tolist()}; got {unknown[0]!r}.")
        if first:
            self._fit_classes(known, rows, y, weights)
            return self
        self._continue(*self._numbered(rows, y, weights))
        return self

    def _fit_classes(
        self, classes: np.ndarray, rows: Any, y: np.ndarray, weights: np.ndarray | None
    ) -> None:
        if len(classes) < 2:
            raise ValueError(
                f"BayesianClassifier needs at least two classes; y has one class only: {classes[0]!r}."
            )
        self.classes_ = classes
        rows, numbers, weights = self._numbered(rows, y, weights)
        self._fit(rows, numbers, "classification", weights)

    def _numbered(
        self, rows: Any, y: np.ndarray, weights: np.ndarray | None
    ) -> tuple[Any, np.ndarray, np.ndarray | None]:
        """The rows that count, the number of the class of each, and how often it counts."""
        numbers = np.searchsorted(self.classes_, y)
        weights = class_weights(self.class_weight, self.classes_, numbers, weights)
        return counted(rows, numbers, weights)

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
        drawn = self.predict_distribution(X).sample(seed_of(random_state), n_samples)
        return self.classes_[np.asarray(drawn, int).reshape(n_samples, -1)]
