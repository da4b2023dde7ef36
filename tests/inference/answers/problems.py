"""Small problems whose posteriors are known without credax: closed forms, quadrature, sums, a stored run.

credax appears here only where a problem is stated for ``cx.fit`` (its ``model``). Every answer is computed
in NumPy and SciPy, in double precision, or is read from ``network.json``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize, stats
from scipy.special import expit, log_expit, logsumexp

import credax as cx

PRIOR_LOC, PRIOR_SCALE = 0.25, 0.5
"""The prior of the regressions. It is neither flat nor around zero, so that the data do not hide it."""
NOISE = 1.0
"""The standard deviation of the noise, where it is known."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A model, its data and its posterior.

    Attributes:
      model: what ``cx.fit`` is given.
      data: ``(x, y)``.
      values: parameters with any leading axes to the quantities below, one column each.
      names: the names of the quantities.
      mean: the posterior mean of each quantity.
      sd: the posterior standard deviation of each quantity.
      log_joint: the log joint density of parameters with any leading axes.
      log_evidence: the log evidence and its standard error.
      at: inputs for predictions.
      prediction: the mean and the variance of the target at these inputs.
      errors: the standard errors of ``mean`` and ``sd``, which a stored run has.
      mode: the quantities at the mode of the posterior, where there is one mode.
      likelihood_mode: the quantities at the mode of the likelihood, where there is one mode.
      regression: the conjugate regression behind the problem, for which approximations have closed forms.
      lattice: the states of the weights and their log joints, where the weights are discrete.
    """

    model: cx.Model
    data: tuple[np.ndarray, np.ndarray]
    values: Callable[[Any], np.ndarray]
    names: tuple[str, ...]
    mean: np.ndarray
    sd: np.ndarray
    log_joint: Callable[[Any], np.ndarray]
    log_evidence: tuple[float, float]
    at: np.ndarray
    prediction: tuple[np.ndarray, np.ndarray]
    errors: tuple[Any, Any] = (0.0, 0.0)
    mode: np.ndarray | None = None
    likelihood_mode: np.ndarray | None = None
    regression: Regression | None = None
    lattice: Lattice | None = None


@dataclass(frozen=True, eq=False)
class Lattice:
    """All states of discrete weights.

    Attributes:
      choices: the values of each weight.
      states: ``(state, weight)``, in the order of ``itertools.product``.
      log_joints: the log joint of each state.
    """

    choices: tuple[float, ...]
    states: np.ndarray
    log_joints: np.ndarray


def rows(count: int, features: int, seed: int) -> np.ndarray:
    """Inputs with correlated columns; multiples of 1/64, which every float type has."""
    x = np.random.default_rng(seed).normal(size=(count, features))
    x = x @ (np.eye(features) + 0.5 * (1 - np.eye(features)))
    return np.round(64 * x) / 64


def design(x: np.ndarray) -> np.ndarray:
    """The columns that the weights of a linear model multiply: the features, then a one."""
    return np.column_stack([x, np.ones(len(x))])


def linear_weights(params: Any) -> np.ndarray:
    """Slopes and bias of ``cx.networks.linear()`` with one output."""
    layer = params.get("network", params)["layer_0"]
    slopes, bias = np.asarray(layer["kernel"], float)[..., 0], np.asarray(layer["bias"], float)
    return np.concatenate([slopes, bias], axis=-1)


# -- (a) linear regression with known noise: everything in closed form ---------------------------------


@dataclass(frozen=True, eq=False)
class Regression:
    r"""Conjugate linear regression, :math:`y \sim N(Dw, \sigma^2),\ w \sim N(\mu, s^2)`.

    Attributes:
      columns: D.
      y: the targets.
      noise: sigma.
      loc: mu.
      scale: s.
    """

    columns: np.ndarray
    y: np.ndarray
    noise: float = NOISE
    loc: float = PRIOR_LOC
    scale: float = PRIOR_SCALE

    @property
    def data_precision(self) -> np.ndarray:
        return self.columns.T @ self.columns / self.noise**2

    @property
    def precision(self) -> np.ndarray:
        return self.data_precision + np.eye(self.columns.shape[1]) / self.scale**2

    @property
    def covariance(self) -> np.ndarray:
        return np.linalg.inv(self.precision)

    @property
    def mean(self) -> np.ndarray:
        pull = self.columns.T @ self.y / self.noise**2 + self.loc / self.scale**2
        return self.covariance @ pull

    @property
    def log_evidence(self) -> float:
        marginal = (
            self.noise**2 * np.eye(len(self.y)) + self.scale**2 * self.columns @ self.columns.T
        )
        centre = self.loc * self.columns.sum(1)
        return float(stats.multivariate_normal(centre, marginal).logpdf(self.y))

    def log_joint(self, w: np.ndarray) -> np.ndarray:
        log_prior = stats.norm(self.loc, self.scale).logpdf(w).sum(-1)
        return log_prior + stats.norm(w @ self.columns.T, self.noise).logpdf(self.y).sum(-1)


def _linear_values(at, params):
    weights = linear_weights(params)
    return np.concatenate([weights, weights @ design(at).T], axis=-1)


@cache
def linear(count: int = 32, features: int = 2) -> Problem:
    """Linear regression with known noise. The quantities are the weights and the predictions."""
    x, at = rows(count, features, 0), rows(2, features, 1)
    noise = NOISE * np.random.default_rng(2).normal(size=count)
    y = np.round(64 * (0.5 + x @ np.linspace(1.0, -1.0, features) + noise)) / 64
    regression = Regression(design(x), y)
    project = np.vstack([np.eye(features + 1), design(at)])
    covariance = project @ regression.covariance @ project.T
    mean, sd = project @ regression.mean, np.sqrt(np.diag(covariance))
    return Problem(
        cx.Model(
            cx.networks.linear(),
            cx.priors.Normal(PRIOR_SCALE, PRIOR_LOC),
            cx.likelihoods.Gaussian(NOISE),
        ),
        (x, y),
        lambda params: _linear_values(at, params),
        (*(f"w{i}" for i in range(features)), "b", "f0", "f1"),
        mean,
        sd,
        lambda params: regression.log_joint(linear_weights(params)),
        (regression.log_evidence, 0.0),
        at,
        (mean[-2:], sd[-2:] ** 2 + NOISE**2),
        mode=mean,
        likelihood_mode=project @ np.linalg.lstsq(regression.columns, y)[0],
        regression=regression,
    )


# -- linear regression with a learned scale: closed form given the scale, quadrature over it -----------


@cache
def learned_scale(count: int = 10) -> Problem:
    r"""Linear regression that learns its noise scale, with prior :math:`\log\sigma \sim N(0, 1)`.

    There are few rows, so that the prior counts. Given sigma all is closed form; the integral over log sigma
    is a trapezoidal sum, whose integrand is smooth and vanishes at the ends.
    """
    x, at = rows(count, 1, 3), rows(2, 1, 4)
    y = x[:, 0] + 0.3 * np.random.default_rng(5).normal(size=count)
    y = np.round(64 * y) / 64
    columns = design(x)
    project = np.vstack([np.eye(2), design(at)])
    grid = np.linspace(-5.0, 4.0, 301)
    log_mass, means, variances = [], [], []
    for log_scale in grid:
        given = Regression(columns, y, np.exp(log_scale))
        log_mass.append(given.log_evidence + stats.norm.logpdf(log_scale))
        means.append([*project @ given.mean, log_scale])
        variances.append([*np.diag(project @ given.covariance @ project.T), 0.0])
    log_evidence = logsumexp(log_mass) + np.log(grid[1] - grid[0])
    share = np.exp(np.array(log_mass) - logsumexp(log_mass))
    means, variances = np.array(means), np.array(variances)
    mean = share @ means
    sd = np.sqrt(share @ (variances + (means - mean) ** 2))

    def log_joint(params):
        weights, log_scale = linear_weights(params), _log_scale(params)
        log_prior = stats.norm(PRIOR_LOC, PRIOR_SCALE).logpdf(weights).sum(-1)
        log_prior += stats.norm.logpdf(log_scale)
        noise = stats.norm(weights @ columns.T, np.exp(log_scale)[..., None])
        return log_prior + noise.logpdf(y).sum(-1)

    def values(params):
        return np.concatenate([_linear_values(at, params), _log_scale(params)[..., None]], axis=-1)

    def minus(vector, with_prior):
        weights, log_scale = vector[:2], vector[2]
        log_prior = stats.norm(PRIOR_LOC, PRIOR_SCALE).logpdf(weights).sum()
        log_prior += stats.norm.logpdf(log_scale)
        log_likelihood = stats.norm(columns @ weights, np.exp(log_scale)).logpdf(y).sum()
        return -log_likelihood - with_prior * log_prior

    def mode(with_prior):
        found = optimize.minimize(minus, np.zeros(3), (with_prior,), tol=1e-12)
        return np.append(project @ found.x[:2], found.x[2])

    return Problem(
        cx.Model(
            cx.networks.linear(),
            cx.priors.Normal(PRIOR_SCALE, PRIOR_LOC),
            cx.likelihoods.Gaussian(scale=None),
        ),
        (x, y),
        values,
        ("w", "b", "f0", "f1", "log_scale"),
        mean,
        sd,
        log_joint,
        (float(log_evidence), 0.0),
        at,
        (mean[2:4], sd[2:4] ** 2 + share @ np.exp(2 * grid)),
        mode=mode(1.0),
        likelihood_mode=mode(0.0),
    )


def _log_scale(params: Any) -> np.ndarray:
    return np.asarray(params["likelihood"]["log_scale"], float)[..., 0]


# -- (b) logistic regression with two weights: quadrature ------------------------------------------------


@cache
def logistic(count: int = 20) -> Problem:
    """Slope and bias of a logistic regression, by a trapezoidal sum in two dimensions."""
    x, at = rows(count, 1, 6), rows(2, 1, 7)
    y = (np.random.default_rng(8).uniform(size=count) < expit(-0.5 + 1.5 * x[:, 0])).astype(int)
    sign = 2 * y - 1

    def log_joint_of(w, with_prior=1.0):
        log_prior = stats.norm(PRIOR_LOC, 3 * PRIOR_SCALE).logpdf(w).sum(-1)
        return with_prior * log_prior + log_expit(sign * (w @ design(x).T)).sum(-1)

    def values_of(w):
        return np.concatenate([w, expit(w @ design(at).T)], axis=-1)

    def mode(with_prior):
        found = optimize.minimize(lambda w: -log_joint_of(w, with_prior), np.zeros(2), tol=1e-12)
        return values_of(found.x)

    grid = np.linspace(-9.0, 9.0, 201)
    points = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)
    log_joints = log_joint_of(points)
    share, each = np.exp(log_joints - logsumexp(log_joints)), values_of(points)
    mean = share @ each
    sd = np.sqrt(share @ (each - mean) ** 2)
    evidence = logsumexp(log_joints) + 2 * np.log(grid[1] - grid[0])
    return Problem(
        cx.Model(
            cx.networks.linear(),
            cx.priors.Normal(3 * PRIOR_SCALE, PRIOR_LOC),
            cx.likelihoods.Bernoulli(),
        ),
        (x, y),
        lambda params: values_of(linear_weights(params)),
        ("w", "b", "p0", "p1"),
        mean,
        sd,
        lambda params: log_joint_of(linear_weights(params)),
        (float(evidence), 0.0),
        at,
        (mean[2:], mean[2:] * (1 - mean[2:])),
        mode=mode(1.0),
        likelihood_mode=mode(0.0),
    )


# -- (c) a network with a learned scale: a stored run -----------------------------------------------------


@cache
def network() -> Problem:
    """One input, four tanh units, one output; see ``make_network.py``, which made the answers."""
    stored = json.loads(Path(__file__).with_name("network.json").read_text())
    x, y, at = (np.array(stored[name]) for name in ("x", "y", "at"))
    answers = stored["quantities"]
    names = (*(f"f({value:g})" for value in at), "log_scale", "log_joint")
    column = lambda field: np.array([answers[name][field] for name in names])  # noqa: E731
    mean, sd = column("mean"), column("sd")

    def function(params, inputs):
        hidden, last = (jax_free(params["network"][layer]) for layer in ("layer_0", "layer_1"))
        units = np.tanh(inputs[:, None] @ hidden["kernel"] + hidden["bias"][..., None, :])
        return (units @ last["kernel"] + last["bias"][..., None, :])[..., 0]

    def log_joint(params):
        leaves = [
            jax_free(params["network"][layer])[name]
            for layer in ("layer_0", "layer_1")
            for name in ("kernel", "bias")
        ]
        log_scale = _log_scale(params)
        lead = log_scale.ndim
        log_prior = stats.norm.logpdf(log_scale) + sum(
            stats.norm.logpdf(leaf).sum(tuple(range(lead, leaf.ndim))) for leaf in leaves
        )
        noise = stats.norm(function(params, x), np.exp(log_scale)[..., None])
        return log_prior + noise.logpdf(y).sum(-1)

    def values(params):
        rest = np.stack([_log_scale(params), log_joint(params)], axis=-1)
        return np.concatenate([function(params, at), rest], axis=-1)

    return Problem(
        cx.Model(
            cx.networks.mlp([4], activation="tanh"),
            cx.priors.Normal(1.0),
            cx.likelihoods.Gaussian(scale=None),
        ),
        (x[:, None], y),
        values,
        names,
        mean,
        sd,
        log_joint,
        tuple(stored["log_evidence"]),
        at[:, None],
        (mean[: len(at)], sd[: len(at)] ** 2 + answers["variance"]["mean"]),
        errors=(column("mean_error"), column("sd_error")),
    )


def jax_free(layer: Any) -> dict[str, np.ndarray]:
    """The arrays of a layer in double precision."""
    return {name: np.asarray(leaf, float) for name, leaf in layer.items()}


# -- discrete weights: a sum over all states ----------------------------------------------------------------


@cache
def discrete(count: int = 6, features: int = 2) -> Problem:
    """Linear regression whose weights are -1, 0 or 1, with unequal probabilities."""
    choices, probs = (-1.0, 0.0, 1.0), (0.2, 0.5, 0.3)
    x, at = rows(count, features, 9), rows(2, features, 10)
    y = 0.4 + x @ np.linspace(0.8, -0.3, features)
    y = np.round(64 * (y + NOISE * np.random.default_rng(11).normal(size=count))) / 64

    def log_joint_of(w):
        log_prior = sum(
            np.where(np.isclose(w, value), np.log(prob), 0.0)
            for value, prob in zip(choices, probs, strict=True)
        )
        return log_prior.sum(-1) + stats.norm(w @ design(x).T, NOISE).logpdf(y).sum(-1)

    states = np.array(list(itertools.product(choices, repeat=features + 1)))
    log_joints = log_joint_of(states)
    values_of = lambda w: np.concatenate([w, w @ design(at).T], axis=-1)  # noqa: E731
    share, each = np.exp(log_joints - logsumexp(log_joints)), values_of(states)
    mean = share @ each
    sd = np.sqrt(share @ (each - mean) ** 2)
    return Problem(
        cx.Model(
            cx.networks.linear(),
            cx.priors.Discrete(choices, probs),
            cx.likelihoods.Gaussian(NOISE),
        ),
        (x, y),
        lambda params: values_of(linear_weights(params)),
        (*(f"w{i}" for i in range(features)), "b", "f0", "f1"),
        mean,
        sd,
        lambda params: log_joint_of(linear_weights(params)),
        (float(logsumexp(log_joints)), 0.0),
        at,
        (mean[-2:], sd[-2:] ** 2 + NOISE**2),
        mode=each[np.argmax(log_joints)],
        lattice=Lattice(choices, states, log_joints),
    )


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "linear": linear,
    "learned scale": learned_scale,
    "logistic": logistic,
    "network": network,
    "discrete": discrete,
}
"""Every problem, by its name. Each is made once, so that a second fit to it compiles nothing."""
