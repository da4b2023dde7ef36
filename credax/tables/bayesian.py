"""What the scikit-learn estimators have in common: parameters, checks of the rows, fits and predictions."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_X_y
from sklearn.utils.validation import check_is_fitted, validate_data

from credax.core.checks import integer, must, one_of
from credax.core.settings import flag
from credax.fit import fit
from credax.inference import METHODS, Method
from credax.model import Model
from credax.model.likelihoods import Likelihood
from credax.model.networks.network import AbstractNetwork
from credax.model.priors import Prior
from credax.posterior import StackedPosterior
from credax.posterior.predictive import Predictive
from credax.tables.inputs import Encoded, as_pandas, has_other_columns, learn_inputs
from credax.tables.parameters import nested, with_nested
from credax.tables.recommended import (
    BUDGET,
    fit_recommended,
    recommend,
    recommended_method,
    recommended_network,
    recommended_prior,
)

NESTED = ("method", "network", "prior", "likelihood")
"""The arguments whose settings have names such as ``method__num_steps``."""


def goes_on(estimator: Bayesian) -> bool:
    """Whether an estimator has a ``partial_fit``: not if its method finds a point, which forgets the rows."""
    method = estimator.method
    _refuse_points(
        type(estimator).__name__, METHODS.get(method) if isinstance(method, str) else method
    )
    return True


def _refuse_points(name: str, method: Any) -> None:
    if getattr(method, "kind", None) == "point":
        found = method.__name__ if isinstance(method, type) else type(method).__name__
        raise ValueError(
            f"{name}.partial_fit needs a method that says how sure it is of the weights, such as "
            f"{name}('laplace'); got {found}, a point."
        )


class Bayesian(BaseEstimator, abc.ABC):
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
        warm_start: bool = False,
    ):
        self.method = method
        self.hidden = hidden
        self.network = network
        self.prior = prior
        self.likelihood = likelihood
        self.budget = budget
        self.random_state = random_state
        self.progress = progress
        self.warm_start = warm_start

    # -- parameters ---------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments by name; and if ``deep``, the settings inside them, such as ``method__num_steps``."""
        found = super().get_params(deep=False)
        if deep:
            for name in NESTED:
                found |= nested(name, found[name])
        return found

    def set_params(self, **params: Any) -> Self:
        """Change arguments, or settings inside them, such as ``method__num_steps=500``."""
        inside: dict[str, dict[str, Any]] = {}
        plain = {}
        for path, value in params.items():
            name, separator, rest = path.partition("__")
            if separator and name in NESTED:
                inside.setdefault(name, {})[rest] = value
            else:
                plain[path] = value
        super().set_params(**plain)
        for name, settings in inside.items():
            value = getattr(self, name)
            if name == "method" and isinstance(value, str):
                value = self._named_method(value)
            setattr(self, name, with_nested(name, value, settings))
        return self

    # -- fitting ------------------------------------------------------------------------------------

    def _checked(self, X: Any, y: Any, **options: Any) -> tuple[Any, np.ndarray]:
        """The rows, as an array of numbers or a pandas data frame, and the targets, which must be complete."""
        if options.get("y_numeric"):
            self._refuse_texts(y)
        if not has_other_columns(X):
            options |= {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
            return validate_data(self, X, y, **options)
        table = as_pandas(X)
        validate_data(self, table, skip_check_array=True)
        y = check_X_y(np.zeros((len(table), 1)), y, **options)[1]
        return table, y

    def _refuse_texts(self, y: Any) -> None:
        found = np.asarray(y, object).ravel()
        texts = [each for each in found if isinstance(each, str)]
        if texts:
            raise ValueError(
                f"{type(self).__name__}.fit(y=...) must be numbers; got {texts[0]!r}. Classes are for "
                "BayesianClassifier."
            )

    def _further(self, X: Any, y: Any, **options: Any) -> tuple[Any, np.ndarray]:
        """Rows beside those of the fit, and their targets."""
        rows = self._checked_rows(X)
        return rows, check_X_y(np.zeros((len(rows), 1)), y, **options)[1]

    def _fit(self, rows: Any, y: np.ndarray, task: str, weights: np.ndarray | None) -> None:
        """Fit what the user chose; if nothing was chosen, what is recommended for these rows."""
        key = 0 if self.random_state is None else seed_of(self.random_state)
        warm = flag(type(self).__name__, "warm_start", self.warm_start)
        chosen = (self.method, self.hidden, self.network, self.prior, self.likelihood)
        recommended = all(each is None for each in chosen)
        if warm and recommended:
            allowed = "False if nothing is chosen, since a recommendation is fitted anew"
            raise ValueError(must(type(self).__name__, "warm_start", allowed, warm))
        start = getattr(self, "posterior_", None) if warm else None
        self.inputs_ = learn_inputs(rows, self._column_names(), weights)
        x = self.inputs_.encode(rows)
        if recommended:
            self.recommendation_ = recommend(x, y, budget=self.budget, task=task)
            self.posterior_: Any = fit_recommended(
                self.recommendation_, (x, y), key=key, progress=self.progress, weights=weights
            )
            return
        self.posterior_ = fit(
            self._model(self._likelihood(y)),
            (x, y),
            self._method(len(x)),
            key=key,
            progress=self.progress,
            start=start,
            weights=weights,
            pad_rows=True,
        )

    def _model(self, likelihood: Likelihood) -> Model:
        network = recommended_network(self.hidden) if self.network is None else self.network
        prior = recommended_prior() if self.prior is None else self.prior
        return Model(network, prior, likelihood, standardise=True)

    def _continue(self, rows: Any, y: np.ndarray, weights: np.ndarray | None) -> None:
        """Fit to further rows, with the posterior so far as the prior."""
        name = type(self).__name__
        if isinstance(self.posterior_, StackedPosterior):
            raise ValueError(
                f"{name}.partial_fit needs the posterior of one model: choose a method, such as "
                f"{name}('laplace'). A recommendation is fitted to all rows at once."
            )
        _refuse_points(name, self.posterior_.method)
        x = self.inputs_.encode(rows)
        self.posterior_ = fit(
            self._model(self.posterior_.model.likelihood),
            (x, y),
            self._method(len(x)),
            key=0 if self.random_state is None else seed_of(self.random_state),
            progress=self.progress,
            weights=weights,
            prior=self.posterior_.as_prior(),
        )

    @abc.abstractmethod
    def _likelihood(self, y: np.ndarray) -> Likelihood:
        """The likelihood that was chosen, or the one that suits these targets."""

    def _column_names(self) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        if names is not None:
            return [str(name) for name in names]
        return [f"x{i}" for i in range(self.n_features_in_)]

    def _method(self, rows: int) -> Method:
        if isinstance(self.method, Method):
            return self.method
        if self.method is None:
            return recommended_method(rows)
        if not isinstance(self.method, str):
            allowed = "a method such as cx.MAP(), its name such as 'map', or None"
            raise TypeError(must(type(self).__name__, "method", allowed, self.method))
        return self._named_method(self.method)

    def _named_method(self, name: str) -> Method:
        one_of(type(self).__name__, "method", name, METHODS)
        return METHODS[name]()

    # -- predictions --------------------------------------------------------------------------------

    def predict_distribution(self, X: Any) -> Predictive:
        """The predictive distribution of each row, in the units of y or for its classes."""
        check_is_fitted(self)
        return self.posterior_.predict(self.inputs_.encode(self._checked_rows(X)))

    def _checked_rows(self, X: Any) -> Any:
        """New rows, in the form in which the fit had them."""
        if isinstance(self.inputs_, Encoded):
            table = as_pandas(X) if hasattr(X, "columns") else X
            return validate_data(self, table, reset=False, skip_check_array=True)
        options = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        return validate_data(self, X, reset=False, **options)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def seed_of(random_state: Any) -> int:
    """An int, drawn from ``random_state`` if that is a NumPy generator."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    return integer(
        "BayesianRegressor and BayesianClassifier", "random_state", random_state, minimum=0
    )
