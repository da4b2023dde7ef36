"""The checks of a method's answers, as plain functions that raise ``AssertionError``.

``check(method, problem)`` fits the method to a problem and applies every check that concerns it. None of them
looks at the method's name. What a method promises is its ``kind``:

- ``"exact"``: right in the limit of many draws. Every mean and standard deviation must agree with the answer
  to within ``LIMIT`` Monte Carlo standard errors, and so must the log evidence, where there is one.
- ``"approximate"``: the answer of the approximation itself, where it has a closed form (``expected``), to
  within a stated tolerance; elsewhere the posterior, to within a stated band (``BANDS``).
- ``"point"``: the mode, to within a stated fraction of a posterior standard deviation.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from arviz_stats.base import array_stats
from problems import Lattice, Problem, Regression, design
from scipy.special import logsumexp

import credax as cx
from credax.inference import Method
from credax.posterior.approximations import Draws

LIMIT = 4.5
"""Standard errors. One correct number in 150,000 is further off, and a run of the checks has some hundreds."""
VISIBLE = 0.3
"""Posterior standard deviations. An error of a mean beyond this must exceed ``LIMIT`` standard errors."""
ROUNDING = 2e-3
"""Posterior standard deviations. What single precision and numerical integration may contribute."""
SAMPLES = 4_000
"""Draws from an approximation that makes them on demand."""


# -- what a posterior says ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimates:
    """Mean and standard deviation of each quantity, and their Monte Carlo standard errors."""

    mean: np.ndarray
    sd: np.ndarray
    mean_error: np.ndarray
    sd_error: np.ndarray


def draws_of(posterior: cx.Posterior, problem: Problem) -> np.ndarray:
    """The quantities of the draws, ``(replica, draw, quantity)``."""
    if isinstance(posterior.approximation, Draws):
        return problem.values(posterior.draws)
    return problem.values(posterior.sample(0, SAMPLES))[None]


def estimates(posterior: cx.Posterior, problem: Problem) -> Estimates:
    """What a posterior says of the quantities of a problem."""
    values = draws_of(posterior, problem)
    kept = isinstance(posterior.approximation, Draws)
    log_weights = posterior.log_weights if kept else None
    if log_weights is not None:
        counted = posterior.info.get("counted")
        complete = counted is not None and counted == posterior.info.get("states")
        return _weighted(values, log_weights, 0.0 if complete else 1.0)
    mean, sd = values.mean((0, 1)), values.std((0, 1))
    squares = (values - mean) ** 2
    # Draws that were made on demand, and the members of an ensemble, are independent.
    chains = kept and values.shape[1] >= 4
    ess = {kind: _ess(values, kind) if chains else values[..., 0].size for kind in ("mean", "sd")}
    with np.errstate(invalid="ignore", divide="ignore"):
        sd_error = np.nan_to_num(squares.std((0, 1)) / (2 * sd * np.sqrt(ess["sd"])))
    return Estimates(mean, sd, sd / np.sqrt(ess["mean"]), sd_error)


def _ess(values: np.ndarray, kind: str) -> np.ndarray:
    return array_stats.ess(values, chain_axis=0, draw_axis=1, method=kind)


def _weighted(values: np.ndarray, log_weights: np.ndarray, random: float) -> Estimates:
    """By the delta method for self-normalised weights; ``random=0`` for a sum over all states."""
    values = values.reshape(-1, values.shape[-1])
    log_weights = np.asarray(log_weights, float).reshape(-1, 1)
    share = np.exp(log_weights - logsumexp(log_weights))
    mean = (share * values).sum(0)
    squares = (values - mean) ** 2
    variance = (share * squares).sum(0)
    sd = np.sqrt(variance)
    mean_error = np.sqrt((share**2 * squares).sum(0))
    spread = np.sqrt((share**2 * (squares - variance) ** 2).sum(0))
    sd_error = np.divide(spread, 2 * sd, out=np.zeros_like(sd), where=sd > 0)
    return Estimates(mean, sd, random * mean_error, random * sd_error)


def z_scores(posterior: cx.Posterior, problem: Problem) -> dict[str, np.ndarray]:
    """How many standard errors each mean and each standard deviation is off, and the log evidence."""
    got = estimates(posterior, problem)
    slack = ROUNDING * problem.sd
    mean_error = np.sqrt(got.mean_error**2 + np.square(problem.errors[0]) + slack**2)
    sd_error = np.sqrt(got.sd_error**2 + np.square(problem.errors[1]) + slack**2)
    scores = {
        "mean": (got.mean - problem.mean) / mean_error,
        "sd": (got.sd - problem.sd) / sd_error,
    }
    if posterior.log_evidence is not None:
        value, error = posterior.log_evidence[:2]
        wanted, own = problem.log_evidence
        scores["log_evidence"] = np.array([(value - wanted) / np.hypot(np.hypot(error, own), 1e-3)])
    return scores


# -- exact methods ---------------------------------------------------------------------------------------


def unseen(posterior: cx.Posterior, problem: Problem) -> float:
    """The largest error of a mean that could pass, in posterior standard deviations."""
    return float(np.max(LIMIT * estimates(posterior, problem).mean_error / problem.sd))


def check_exact(posterior: cx.Posterior, problem: Problem) -> None:
    """All moments and the evidence agree, and an error worth noticing would have been noticed."""
    names = {"mean": problem.names, "sd": problem.names, "log_evidence": ("",)}
    for moment, z in z_scores(posterior, problem).items():
        worst = int(np.argmax(np.abs(z)))
        assert abs(z[worst]) < LIMIT, f"{moment} {names[moment][worst]}: z = {z[worst]:.1f}"
    largest = unseen(posterior, problem)
    assert largest < VISIBLE, f"too few effective draws: {largest:.2f} sd could be off unseen"


# -- points ------------------------------------------------------------------------------------------------

POINT = 0.1
"""Posterior standard deviations from the mode, for a point that was found with all rows at every step."""
NOISY_POINT = 0.3
"""The same with minibatches, whose noise the last steps do not average out completely."""


def check_point(posterior: cx.Posterior, problem: Problem) -> None:
    """All mass is on one point, and that is at the maximum of what the run shows as its objective."""
    wanted = problem.likelihood_mode if "log_likelihood" in posterior.info else problem.mode
    assert wanted is not None, "the problem has no unique mode"
    got = estimates(posterior, problem)
    assert np.all(got.sd < 1e-6 * problem.sd), "a point has no spread"
    tolerance = POINT if _batch_size(posterior) is None else NOISY_POINT
    away = (got.mean - wanted) / problem.sd
    worst = int(np.argmax(np.abs(away)))
    assert abs(away[worst]) < tolerance, (
        f"{problem.names[worst]}: {away[worst]:.2f} sd from the mode"
    )


def _batch_size(posterior: cx.Posterior) -> int | None:
    return getattr(posterior.method, "batch_size", None)


# -- approximations --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """What an approximation should say.

    Attributes:
      mean: of each quantity.
      sd: of each quantity.
      shift: how far a mean may be off, in units of ``sd``.
      lowest: the smallest share of ``sd`` that a standard deviation may be.
      highest: the largest.
      elbo: the evidence lower bound; ``None`` if it is not known.
      log_evidence: the estimate of the log evidence; ``None`` if it is not known.
    """

    mean: np.ndarray
    sd: np.ndarray
    shift: float
    lowest: float
    highest: float
    elbo: float | None = None
    log_evidence: float | None = None


@dataclass(frozen=True)
class Band:
    """How far an approximation may be from the posterior; the fields are those of ``Expected``."""

    shift: float
    lowest: float
    highest: float
    reason: str


BANDS = {
    "chain": Band(0.3, 0.8, 1.25, "a bias that vanishes with the step size, and gradient noise"),
    "points": Band(
        0.7, 0.0, 0.7, "members at the modes: their spread leaves out that around a mode"
    ),
    "particles": Band(0.5, 0.5, 1.2, "repulsion stands in for the spread, which few understate"),
    "MeanField": Band(0.5, 0.4, 1.1, "no correlations, so standard deviations are too small"),
    "LowRank": Band(0.5, 0.6, 1.2, "a normal distribution of the wrong shape, at most"),
    "FullRank": Band(0.5, 0.6, 1.2, "a normal distribution of the wrong shape, at most"),
    "KroneckerNormal": Band(0.8, 0.3, 1.5, "the mode instead of the mean; correlations left out"),
    "FullNormal": Band(0.8, 0.5, 1.5, "the mode instead of the mean, and its curvature"),
    "last layer": Band(0.8, 0.2, 1.5, "the layers below are taken to be known"),
    "LowRankNormal": Band(0.8, 0.5, 1.5, "as FullNormal, if no direction of weight is left out"),
    "RankOne": Band(1.0, 0.0, 1.2, "members that share their weights, up to a factor"),
    "GaussianMixture": Band(0.8, 0.2, 2.0, "the noise of SGD, which only resembles the posterior"),
    "Masked": Band(1.5, 0.0, 3.0, "the spread is that of the masks, in proportion to the weights"),
    "Categorical": Band(1.0, 0.3, 1.1, "no correlations"),
}
"""How far approximations may be from a posterior with one mode, by what they consist of."""
MANY_MODES = {
    "particles": Band(
        0.7, 0.0, 1.2, "few particles in many dimensions gather where the density is high"
    ),
    "MeanField": Band(
        3.0, 0.25, 3.0, "independent weights underfit a network, and take it for noise"
    ),
    "Masked": Band(3.0, 0.0, 4.0, "four units of which some are missing are not the same network"),
}
"""The same where it differs for a posterior with many modes."""

CHAIN = (0.2, 0.85, 1.18)
"""Shift, lowest and highest of a chain whose dynamics have a bias, on a normal posterior."""
OPTIMISED = (0.15, 0.9, 1.1)
"""The same for the optimum of a bound, which the optimiser reaches nearly."""
SGD = (0.3, 0.4, 2.0)
"""The same for SGD's iterates: their covariance matches the posterior's only on average over directions."""


def what(posterior: cx.Posterior) -> str:
    """What an approximation consists of: the key of ``BANDS``."""
    if isinstance(posterior.approximation, Draws):
        if len(posterior.info["kept"]):
            return "chain"
        return "points" if posterior.approximation.shape[1] == 1 else "particles"
    if isinstance(posterior.approximation, cx.approximations.FullNormal):
        network, _ = posterior.model.split(posterior.approximation.mean)
        if len(posterior.approximation.root) < sum(leaf.size for leaf in jax.tree.leaves(network)):
            return "last layer"
    return type(posterior.approximation).__name__


def expected(posterior: cx.Posterior, problem: Problem) -> Expected | None:
    """The answer of the approximation itself; ``None`` where it is not known."""
    form = what(posterior)
    if problem.regression is not None and form in CLOSED_FORMS:
        return CLOSED_FORMS[form](posterior, problem)
    if problem.lattice is not None and form == "Categorical":
        return _factorised(problem, problem.lattice)
    return None


def check_approximate(posterior: cx.Posterior, problem: Problem) -> None:
    """Means, standard deviations and bounds are those that the approximation should have.

    Where these are not known, its predictions are near those of the posterior.
    """
    if posterior.elbo is not None:
        value, error = posterior.elbo
        evidence, spread = problem.log_evidence
        # A bound may be the evidence itself, up to the rounding of inputs in single precision.
        most = evidence + LIMIT * np.hypot(error, spread) + 1e-6 * abs(evidence)
        assert value <= most, (
            f"the lower bound {value:.6f} is above the log evidence {evidence:.6f}"
        )
    wanted = expected(posterior, problem)
    if wanted is not None:
        _check_band(estimates(posterior, problem), wanted, problem.names)
        _check_bounds(posterior, wanted)
        return
    form = what(posterior)
    assert form in BANDS, f"state in BANDS how far a {form} may be from the posterior"
    assert getattr(posterior.method, "temperature", 1.0) == 1.0, "known for regressions only"
    band = BANDS[form] if problem.mode is not None else MANY_MODES.get(form, BANDS[form])
    place = predicted(problem)
    near = Expected(problem.mean[place], problem.sd[place], band.shift, band.lowest, band.highest)
    names = tuple(problem.names[i] for i in place)
    got = predictions(posterior, problem)
    if (
        form == "particles"
    ):  # they repel one another, so their mean is not as random as that of draws
        got = dataclasses.replace(got, mean_error=np.zeros_like(got.mean_error))
    _check_band(got, near, names)


def _check_band(got: Estimates, wanted: Expected, names: tuple[str, ...]) -> None:
    unit = np.where(wanted.sd > 0, wanted.sd, 1.0)
    away = np.abs(got.mean - wanted.mean) / unit
    allowed = wanted.shift + LIMIT * got.mean_error / unit
    worst = int(np.argmax(away - allowed))
    assert away[worst] < allowed[worst], (
        f"mean {names[worst]}: {away[worst]:.2f} sd off, {allowed[worst]:.2f} allowed"
    )
    slack = LIMIT * got.sd_error + ROUNDING * unit
    low, high = wanted.lowest * wanted.sd - slack, wanted.highest * wanted.sd + slack
    for name, value, least, most in zip(names, got.sd, low, high, strict=True):
        assert least <= value <= most, f"sd {name}: {value:.3g} not in [{least:.3g}, {most:.3g}]"


def _check_bounds(posterior: cx.Posterior, wanted: Expected) -> None:
    for field in ("elbo", "log_evidence"):
        value, wants = getattr(posterior, field), getattr(wanted, field)
        if value is not None and wants is not None:
            off = abs(value[0] - wants)
            assert off < 0.15 + LIMIT * value[1], f"{field}: {value[0]:.2f} instead of {wants:.2f}"


def predicted(problem: Problem) -> list[int]:
    """Which quantities are the function, or the probability, at the inputs of the predictions."""
    return [i for i, name in enumerate(problem.names) if name[0] in "fp"]


def predictions(posterior: cx.Posterior, problem: Problem) -> Estimates:
    """The predictive mean and the epistemic standard deviation, with their Monte Carlo errors."""
    predictive, place = posterior.predict(problem.at), predicted(problem)
    mean = np.asarray(predictive.mean, float)
    sd = np.sqrt(np.asarray(predictive.epistemic, float))
    if isinstance(posterior.approximation, Draws):
        got = estimates(posterior, problem)
        return Estimates(mean, sd, got.mean_error[place], got.sd_error[place])
    # A hundred draws, unless there is a closed form.
    return Estimates(mean, sd, sd / 10, sd / np.sqrt(200))


# -- approximations of a conjugate regression, in closed form ----------------------------------------------


def _project(problem: Problem, mean: np.ndarray, covariance: np.ndarray) -> tuple[Any, Any]:
    """Moments of the weights to those of all quantities, which are weights and predictions."""
    matrix = np.vstack([np.eye(len(mean)), design(problem.at)])
    return matrix @ mean, np.sqrt(np.einsum("ij,jk,ik->i", matrix, covariance, matrix))


def _tempered(posterior: cx.Posterior, problem: Problem) -> tuple[Regression, float]:
    """The regression with the likelihood to the power 1/T, which is what a KL times T asks for; and T."""
    regression: Any = problem.regression
    temperature = getattr(posterior.method, "temperature", 1.0)
    return dataclasses.replace(regression, noise=regression.noise * temperature**0.5), temperature


def _gaussian(posterior, problem, precision, tolerance) -> Expected:
    """A normal approximation around the right mean, of another precision."""
    regression, temperature = _tempered(posterior, problem)
    covariance = np.linalg.inv(precision)
    mean, sd = _project(problem, regression.mean, covariance)
    size = len(precision)
    log_joint = float(regression.log_joint(regression.mean))
    half_volume = 0.5 * (size * np.log(2 * np.pi) - np.linalg.slogdet(precision)[1])
    log_evidence = log_joint + half_volume
    # E_q log p(w, D) loses half the trace, the entropy has half the size more than the volume.
    elbo = log_evidence - 0.5 * np.trace(regression.precision @ covariance) + 0.5 * size
    known = temperature == 1.0
    return Expected(mean, sd, *tolerance, elbo if known else None, log_evidence if known else None)


def _chain(posterior, problem):
    """Draws of the posterior to the power 1/T."""
    regression, temperature = problem.regression, getattr(posterior.method, "temperature", 1.0)
    moments = _project(problem, regression.mean, temperature * regression.covariance)
    return Expected(*moments, *CHAIN)


def _points(posterior, problem):
    """All members at the mode, or draws of the posterior where each has its own prior and targets."""
    regression, method = problem.regression, posterior.method
    perturbed = getattr(method, "noisy_targets", False) and getattr(method, "random_prior", False)
    band = (0.1, 0.95, 1.05) if perturbed else (0.3, 0.0, 0.3)
    return Expected(*_project(problem, regression.mean, regression.covariance), *band)


def _mean_field(posterior, problem):
    """The optimum has the precisions of the weights given all others."""
    precision = _tempered(posterior, problem)[0].precision
    return _gaussian(posterior, problem, np.diag(np.diag(precision)), OPTIMISED)


def _full(posterior, problem):
    return _gaussian(posterior, problem, _tempered(posterior, problem)[0].precision, OPTIMISED)


def _kronecker(posterior, problem):
    """Kernel and bias are independent; within the kernel of one output nothing is lost."""
    precision = np.array(problem.regression.precision)
    if posterior.method.structure == "diagonal":
        precision = np.diag(np.diag(precision))
    precision[-1, :-1] = precision[:-1, -1] = 0
    return _gaussian(posterior, problem, precision, OPTIMISED)


def _sgd(posterior, problem):
    regression = problem.regression
    return Expected(*_project(problem, regression.mean, regression.covariance), *SGD)


def _masked(posterior, problem):
    r"""Dropout of the inputs of a linear model, :math:`w = z M / (1 - p)`, is a ridge regression.

    The masks add :math:`\frac{p}{1-p} M_i^2` to the second moment of each masked weight, both in the
    likelihood, where the inputs multiply it, and in the prior.
    """
    regression = problem.regression
    size = regression.columns.shape[1]
    rate = np.zeros(size)
    rate[:-1] = next(iter(posterior.info["rates"].values()))
    odds = rate / (1 - rate)
    extra = odds * np.diag(regression.precision)
    pull = regression.columns.T @ regression.y / regression.noise**2
    pull += regression.loc / regression.scale**2
    centre = np.linalg.solve(regression.precision + np.diag(extra), pull)
    mean, sd = _project(problem, centre, np.diag(odds * centre**2))
    return Expected(mean, sd, *OPTIMISED)


CLOSED_FORMS = {
    "chain": _chain,
    "points": _points,
    "MeanField": _mean_field,
    "LowRank": _full,
    "FullRank": _full,
    "FullNormal": _full,
    "LowRankNormal": _full,
    "KroneckerNormal": _kronecker,
    "GaussianMixture": _sgd,
    "Masked": _masked,
}
"""What each approximation says of a conjugate linear regression."""


def _factorised(problem: Problem, lattice: Lattice) -> Expected:
    """The best independent weights, by coordinate ascent over the table of all states."""
    choices, size = np.array(lattice.choices), lattice.states.shape[1]
    table = lattice.log_joints.reshape((len(choices),) * size)
    shares = [np.full(len(choices), 1 / len(choices)) for _ in range(size)]
    for _ in range(200):
        for weight in range(size):
            others = np.moveaxis(table, weight, 0)
            for share in [s for i, s in enumerate(shares) if i != weight][::-1]:
                others = others @ share
            shares[weight] = np.exp(others - logsumexp(others))
    joint = np.ones(())
    for share in shares:
        joint = np.multiply.outer(joint, share)
    joint = joint.reshape(-1)
    values = np.concatenate([lattice.states, lattice.states @ design(problem.at).T], axis=1)
    mean = joint @ values
    sd = np.sqrt(joint @ (values - mean) ** 2)
    elbo = float(joint @ (lattice.log_joints - np.log(joint)))
    return Expected(mean, sd, 0.15, 0.85, 1.15, elbo)


# -- how a run must look, whatever its kind ------------------------------------------------------------------


def check_step_size(posterior: cx.Posterior, problem: Problem) -> None:
    """After warm-up the step size stays: draws of a chain that still adapts have another distribution.

    Draws that are weighted are the exception: their step sizes follow a schedule, and are their weights.
    """
    sizes, warmup = posterior.info.get("step_size"), posterior.method.num_warmup
    scheduled = what(posterior) == "chain" and posterior.log_weights is not None
    if sizes is None or warmup == 0 or scheduled:
        return
    after = np.asarray(sizes)[:, warmup:]
    assert np.all(after == after[:, :1]), "the step size changes after warm-up"


def check_draws(posterior: cx.Posterior, problem: Problem) -> None:
    """The draws are the states after every ``thin``-th step since warm-up, and no others."""
    method, info = posterior.method, posterior.info
    if what(posterior) != "chain":
        return
    kept, draws = np.asarray(info["kept"]), draws_of(posterior, problem)
    wanted = method.num_warmup + method.thin * np.arange(1, method.num_draws + 1) - 1
    if posterior.log_weights is None:
        assert info["steps"] == method.num_warmup + method.thin * method.num_draws
        np.testing.assert_array_equal(kept, wanted)
    assert len(kept) == draws.shape[1]
    # With the last layer integrated out, the figure is the density of the other weights.
    collapsed = getattr(method, "collapse", False) is not False
    if method.kind == "exact" and "log_joint" in info and not collapsed:
        shown = np.asarray(info["log_joint"])[:, kept]
        by_hand = problem.log_joint(posterior.draws)
        np.testing.assert_allclose(
            shown, by_hand, rtol=1e-3, atol=1e-2, err_msg="draws are not of the steps they say"
        )


def check_replicas(posterior: cx.Posterior, problem: Problem) -> None:
    """Replicas are independent: they show different figures, and their draws are not correlated."""
    figures = [np.asarray(v) for v in posterior.info.values() if np.ndim(v) == 2 and len(v) > 1]
    if not figures:
        return
    together = np.concatenate([figure.astype(float) for figure in figures], axis=1)
    for one in range(len(together)):
        for other in range(one):
            assert np.any(together[one] != together[other]), "two replicas are the same run"
    values = draws_of(posterior, problem)
    if what(posterior) != "chain" or values.shape[1] < 50:
        return
    ess = np.stack([_ess(chain[None], "mean") for chain in values])
    standard = (values - values.mean(1, keepdims=True)) / values.std(1, keepdims=True)
    for one in range(len(values)):
        for other in range(one):
            correlation = (standard[one] * standard[other]).mean(0)
            # Antithetic chains have more effective draws than draws.
            count = np.minimum(np.sqrt(ess[one] * ess[other]), values.shape[1])
            z = np.abs(correlation) * np.sqrt(count)
            assert z.max() < LIMIT, f"replicas {other} and {one} are correlated: z = {z.max():.1f}"


# -- the predictions ------------------------------------------------------------------------------------


def check_predictions(posterior: cx.Posterior, problem: Problem) -> None:
    """The predictive mean and variance are those of the problem, to the accuracy of the draws."""
    got, place = predictions(posterior, problem), predicted(problem)
    own = np.broadcast_to(problem.errors[0], problem.mean.shape)[place]
    error = np.hypot(np.hypot(got.mean_error, own), ROUNDING * problem.sd[place])
    mean, variance = problem.prediction
    z = (got.mean - mean) / error
    assert np.abs(z).max() < LIMIT, f"predictive mean: z = {z}"
    # The noise of the targets is part of it, so that the error of the draws is a small share.
    ratio = np.asarray(posterior.predict(problem.at).variance, float) / variance
    assert np.all(np.abs(ratio - 1) < 0.15), f"predictive variance: ratio {ratio}"


# -- everything ------------------------------------------------------------------------------------------

CHECKS = {"exact": check_exact, "approximate": check_approximate, "point": check_point}


def refused(method: Method, problem: Problem) -> str | None:
    """Why a method does not take a problem; ``None`` if it does."""
    try:
        method.check(*problem.model.prepare(problem.data))
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def check_posterior(posterior: cx.Posterior, problem: Problem) -> None:
    """Everything that can be said of the posterior of a method on a problem."""
    kind = posterior.method.kind
    for one in (check_step_size, check_draws, check_replicas, CHECKS[kind]):
        one(posterior, problem)
    if kind == "exact":
        check_predictions(posterior, problem)


def fit(method: Method, problem: Problem, key: int = 0) -> cx.Posterior:
    """The posterior of a problem; a run that diverges has no answer, which is wrong too."""
    try:
        return cx.fit(problem.model, problem.data, method, key=key, progress=False)
    except cx.DivergedError as error:
        raise AssertionError(f"the run diverged: {error}") from error


def check(method: Method, problem: Problem, key: int = 0) -> cx.Posterior:
    """Fit, and check the answer."""
    posterior = fit(method, problem, key)
    check_posterior(posterior, problem)
    return posterior
