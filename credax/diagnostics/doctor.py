"""The doctor: problems of a posterior, each as a sentence with the number behind it and advice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from credax.diagnostics.convergence import (
    MIN_DRAWS,
    Figures,
    after_warmup,
    bfmi,
    checked_inputs,
    is_chains,
    joined,
    log_joint_figures,
    parameter_figures,
    prediction_figures,
)
from credax.model import LogDensity
from credax.posterior import services
from credax.posterior.approximations import Draws

if TYPE_CHECKING:
    from credax.posterior import Posterior

R_HAT = 1.01
"""Above this value, the chains disagree (Vehtari et al., 2021)."""
ESS_PER_CHAIN, ESS = 100, 400
"""Below this effective sample size, R-hat and the standard errors themselves are unreliable (Vehtari et al.,
2021): 100 per chain, but no more than 400 in total."""
BFMI = 0.3
"""Below this value, the energy changes too slowly to explore the tails (Betancourt, 2016)."""
PARETO_K = 0.7
"""Above this value, no practical number of draws makes weighted means converge (Vehtari et al., 2024)."""
WEIGHTED_ESS = 100
"""Weighted draws are independent: with this effective sample size, the standard error of a mean is a tenth of
the standard deviation."""
ACCEPTANCE, NO_ACCEPTANCE, FULL_ACCEPTANCE = 0.1, 0.01, 0.99
"""Acceptance rates. Below the first a chain hardly moves; below the second it cannot be trusted; above the
third its steps are shorter than necessary. The optimal rate is 0.23 for a random walk in many dimensions and
higher for all other samplers."""
DIVERGENT, DIVERGENT_STEPS = 0.01, 10
"""Divergences are grave if they exceed this fraction of the steps and there are at least this many of them. A
few may be accidents of the adaptation."""
OFF_MODE, FAR_OFF_MODE = 0.1, 1.0
"""The squared distance of a point from the mode, in posterior standard deviations, averaged over the weights.
At the first value (a third of a standard deviation) the error is visible; at the second (a whole one) the
result is a different posterior."""
NOISE_UNDERSTATED, NOISE_FAR_UNDERSTATED = 1.25, 2.0
"""The ratio of the noise scale of largest marginal likelihood to that at the joint mode. At the first value,
intervals of 90 % cover 81 %; at the second, 59 %."""
NOTHING_LEARNED = 0.1
"""KL divergence in nats between posterior and prior, summed over all weights, below which the data have not
even halved the range of a single weight."""
NO_GAIN = 3.0
"""Nats by which a network must explain all targets better than a constant (odds of twenty to one)."""
COLLAPSED = 1e-8
"""Variance of the weights, as a fraction of their mean square, that hardly shows in float32 predictions."""
SAME_PREDICTION = 1e-4
"""Fraction of the predictive variance below which the disagreement between ensemble members is negligible."""
COVERAGE, OFF_COVERAGE, STANDARD_ERRORS = 0.9, 0.05, 4.0
"""The level of the intervals that are judged, and by how much their coverage may differ from it: by less than
the second value, or by fewer standard errors than the third."""
CLIMBING = 0.2
"""Nats per weight by which the best log joint may still rise in the last tenth of an annealing run. A typical
posterior draw lies half a nat per weight below the mode."""
STILL = 100
"""Number of steps for which a chain with acceptance rate 0.1 stands still with probability 1 in 40,000."""


@dataclass(frozen=True)
class Finding:
    """One problem of a posterior.

    Attributes:
      what: a sentence that states the problem.
      value: the number behind it.
      advice: what to try.
      grave: whether the posterior should not be used without a remedy. ``fit`` warns of grave findings.
    """

    what: str
    value: float
    advice: str
    grave: bool = False

    def __str__(self) -> str:
        return f"{self.what} {self.advice}"


class Diagnosis(tuple[Finding, ...]):
    """A tuple of findings, empty if no problem was found. It prints as a list of sentences."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(f"- {finding}" for finding in self) if self else "No problem found."

    def _repr_html_(self) -> str:
        if not self:
            return f"<p>{self}</p>"
        items = (f"<li><b>{escape(each.what)}</b> {escape(each.advice)}</li>" for each in self)
        return f"<ul>{''.join(items)}</ul>"


def diagnose(posterior: Posterior, x: Any = None, y: Any = None) -> Diagnosis:
    """All findings about a posterior of any method. See :meth:`credax.Posterior.diagnose`."""
    if y is not None and x is None:
        raise ValueError("diagnose(x=...) must be given if y is given; got None.")
    checks = (*_OF_ANY_RUN, *_ALARMING, _few_weights, _stood_still, _slow_energy)
    found = [finding for check in checks for finding in check(posterior)]
    found += _not_mixed(posterior, x)
    if x is not None:
        found += _members_predict_alike(posterior, x)
    if y is not None:
        found += _not_calibrated(posterior, x, y)
    return Diagnosis(found)


def alarms(posterior: Posterior) -> Diagnosis:
    """The grave findings, of which ``fit`` warns; only checks that take little time are run."""
    found = (finding for check in _ALARMING for finding in check(posterior))
    return Diagnosis(finding for finding in found if finding.grave)


# -- any run ---------------------------------------------------------------------------------------


def _unfinished(posterior: Posterior) -> Iterator[Finding]:
    if posterior.info.get("ended") == "interrupt":
        steps = int(posterior.info["steps"])
        yield Finding(
            f"The run was interrupted after {steps} steps.",
            steps,
            "Run it to the end; with checkpoint=, it continues from where it stopped.",
        )


def _unscaled(posterior: Posterior) -> Iterator[Finding]:
    """What ``fit`` warned of when it looked at the data."""
    text = str(posterior.info.get("data_warnings", ""))
    if text:
        what, _, advice = text.partition(". ")
        yield Finding(f"{what}.", 1.0, advice)


def _not_settled(posterior: Posterior) -> Iterator[Finding]:
    """Compare the means over the last two tenths of the steps, in standard errors of their difference."""
    if len(posterior.info.get("kept", ())) or _tempering(posterior) is not None:
        return  # a chain is meant to keep moving, and the log joint rises with the temperature
    if any(_still_climbing(posterior)):
        return  # that finding says the same in more detail
    for name in ("log_joint", "log_likelihood", "elbo"):
        history = posterior.info.get(name)
        if history is not None and np.ndim(history) == 2 and history.shape[1] >= 100:
            break
    else:
        return
    tenth = history.shape[1] // 10
    before, last = history[:, -2 * tenth : -tenth], history[:, -tenth:]
    gain = last.mean(1) - before.mean(1)
    error = np.sqrt((last.var(1) + before.var(1)) / tenth)
    scale = np.abs(last.mean(1)) + 1.0
    moving = (gain > 4 * error) & (gain > 0.01 * scale)
    if moving.any():
        worst = float(np.max(gain / scale))
        label = name.replace("_", " ")
        yield Finding(
            f"The {label} still rose by {100 * worst:.1f} % over the last tenth of the steps"
            f" in {int(moving.sum())} of {len(moving)} replicas.",
            worst,
            "Raise num_steps.",
        )


def _members_agree(posterior: Posterior) -> Iterator[Finding]:
    """Ensemble members that ended at the same weights are worth one member."""
    count, share = _members(posterior), _spread_of_members(posterior)
    if share <= 1e-6:
        yield Finding(
            f"The {count} members ended at the same weights (their variance is {share:.1e} of "
            "their mean square), so their spread says nothing about uncertainty.",
            share,
            "A convex problem has a single optimum; use a method that samples around it.",
        )


def _members(posterior: Posterior) -> int:
    """The number of ensemble members: equally weighted points of separate runs. 0 for any other posterior."""
    draws: Any = posterior.approximation
    if not isinstance(draws, Draws) or draws.log_weights is not None:
        return 0
    return draws.shape[0] if draws.shape[0] > 1 and draws.shape[1] == 1 else 0


def _spread_of_members(posterior: Posterior) -> float:
    draws: Any = posterior.approximation
    return _spread(draws.params) if _members(posterior) else np.inf


def _spread(params: Any) -> float:
    """The variance of stacked weights over their leading axis, as a fraction of their mean square."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params)]
    between = sum(float(leaf.var(0).sum()) for leaf in leaves)
    size = sum(float((leaf**2).mean(0).sum()) for leaf in leaves)
    return between / max(size, 1e-300)


# -- distributions over the weights ----------------------------------------------------------------


def _nothing_learned(posterior: Posterior) -> Iterator[Finding]:
    """Applies to variational runs, which record the KL divergence between q and the prior."""
    history = posterior.info.get("kl")
    if history is None or np.ndim(history) != 2 or isinstance(posterior.model, LogDensity):
        return
    kl = float(np.asarray(history)[:, -1].mean())
    if kl < NOTHING_LEARNED:
        of = f", {abs(kl / posterior.elbo[0]):.1g} times the ELBO" if posterior.elbo else ""
        yield Finding(
            "The posterior has fallen back to the prior: the KL divergence between them is "
            f"{kl:.2g} nats{of}.",
            kl,
            "Use a narrower prior, a smaller network or a smaller noise scale, or increase the weight of the "
            "KL gradually (kl_annealing).",
        )


def _switched_off(posterior: Posterior) -> Iterator[Finding]:
    """Applies to variational runs, in which the prior may cost more than the data give back."""
    gain = posterior.info.get("gain")
    if gain is not None and gain < NO_GAIN:
        yield Finding(
            "The network explains the targets no better than a constant: the expected log likelihood of all "
            f"rows is {gain:+.2g} nats relative to equal outputs for every row.",
            float(gain),
            "Let the bound learn the scales of the prior (prior=cx.priors.LearnedNormal(), with "
            "BayesByBackprop), or use a smaller network or a sampler. If cx.MAP explains no more, x says "
            "nothing about y.",
        )


def _collapsed(posterior: Posterior) -> Iterator[Finding]:
    """Applies to parametric distributions; draws are judged as ensemble members or as chains."""
    if isinstance(posterior.approximation, Draws):
        return
    share = _spread(posterior.sample(0, 8))
    if share <= COLLAPSED:
        yield Finding(
            "The posterior has collapsed to a point: the standard deviation of the weights is "
            f"{share**0.5:.1g} times their root mean square.",
            share,
            "Check that the noise scale is not too small, raise temperature to 1, or use a method of a "
            "different kind.",
        )


# -- predictions at given rows ---------------------------------------------------------------------


def _members_predict_alike(posterior: Posterior, x: Any) -> Iterator[Finding]:
    count = _members(posterior)
    if not count or _spread_of_members(posterior) <= 1e-6:
        return  # members at the same weights have a finding of their own
    predictive = posterior.predict(x)
    share = float(np.mean(predictive.epistemic) / max(float(np.mean(predictive.variance)), 1e-300))
    if share < SAME_PREDICTION:
        yield Finding(
            f"The {count} members make the same predictions: their disagreement is {share:.1e} of the "
            "predictive variance.",
            share,
            "Make them differ: use other starting points, a wider distribution of starting points, fewer steps "
            "or more hidden units. Rows far from the training data show whether they do.",
        )


def _not_calibrated(posterior: Posterior, x: Any, y: Any) -> Iterator[Finding]:
    """Judge the coverage or the confidence, in standard errors that hold if the posterior is calibrated."""
    scores = posterior.evaluate(x, y)
    if scores.coverage is not None:
        off = scores.coverage - COVERAGE
        error = (COVERAGE * (1 - COVERAGE) / scores.rows) ** 0.5
        # An interval of counts cannot cover exactly 90 %, so only coverage that is too low is reported.
        whole = posterior.model.likelihood.task == "count"  # pyright: ignore[reportAttributeAccessIssue]
        if abs(off) < max(OFF_COVERAGE, STANDARD_ERRORS * error) or (off > 0 and whole):
            return
        inside = f"{100 * scores.coverage:.3g} % of the {scores.rows} targets lie inside"
        only, too = ("Only ", "too narrow") if off < 0 else ("", "too wide")
        yield Finding(
            f"{only}{inside} their 90 % intervals: the intervals are {too}.",
            float(scores.coverage),
            "Learn the noise scale (scale=None), or recalibrate the intervals on held-out rows: "
            "posterior.calibrate(x, y).",
        )
    if scores.accuracy is not None and scores.sharpness is not None:
        off = scores.sharpness - scores.accuracy
        error = (scores.sharpness * (1 - scores.sharpness) / scores.rows) ** 0.5
        if abs(off) < max(OFF_COVERAGE, STANDARD_ERRORS * error):
            return
        confidence = "overconfident" if off > 0 else "underconfident"
        yield Finding(
            f"The class probabilities are {confidence}: the most probable class has probability "
            f"{scores.sharpness:.3g} on average, but is correct with frequency {scores.accuracy:.3g} over "
            f"{scores.rows} rows.",
            float(off),
            "Recalibrate them on held-out rows: posterior.calibrate(x, y).",
        )


# -- chains ----------------------------------------------------------------------------------------


def _never_moved(posterior: Posterior) -> Iterator[Finding]:
    moved = _moved(posterior)
    if moved is None or moved.all():
        return
    if posterior.model.discrete and not moved.any() and _same_state(posterior):
        return  # the chains agree, and this may be the only state with any probability
    steps = int(posterior.info["kept"][-1] - posterior.info["kept"][0])
    who = f"{_which(~moved)} never" if moved.any() else "No chain"
    yield Finding(
        f"{who} moved in {steps} steps.",
        float(np.sum(~moved)),
        "Use a smaller step size, run a longer warm-up, or start from an optimum: fit(..., start=posterior).",
        grave=steps >= STILL,
    )


def _stood_still(posterior: Posterior) -> Iterator[Finding]:
    moved = _moved(posterior)
    if moved is None or not moved.any() or posterior.model.discrete:
        return
    draws: Any = posterior.approximation
    stays = np.where(moved, _longest_stay(draws), 0)
    still = stays >= max(STILL, draws.shape[1] / 10)
    if still.any():
        yield Finding(
            f"{_which(still)} stood still for up to {stays.max()} consecutive draws of {draws.shape[1]}.",
            float(stays.max()),
            "Use a smaller step size: in some regions nearly all proposals are rejected.",
        )


def _hardly_accepted(posterior: Posterior) -> Iterator[Finding]:
    """Applies to chains that moved. Discrete weights are exempt: they may have no other probable state."""
    rates = after_warmup(posterior, "acceptance_rate")
    if rates is None or posterior.model.discrete:
        return
    mean, moved = rates.mean(1, dtype=np.float64), _moved(posterior)
    low = (mean < ACCEPTANCE) & (True if moved is None else moved)
    if low.any():
        worst = float(mean[low].min())
        yield Finding(
            f"{_which(low)} accepted hardly any proposals after warm-up (as few as {100 * worst:.2g} %).",
            worst,
            "Use a smaller step size, run a longer warm-up, or start from an optimum: "
            "fit(..., start=posterior).",
            grave=worst < NO_ACCEPTANCE and rates.shape[1] >= STILL,
        )


def _diverged(posterior: Posterior) -> Iterator[Finding]:
    diverging = after_warmup(posterior, "diverging")
    if diverging is None or not np.any(diverging > 0):
        return
    count, share = int(np.sum(diverging > 0)), float(np.mean(diverging > 0))
    yield Finding(
        f"{count} of {diverging.size} steps after warm-up diverged ({100 * share:.2g} %), so the draws miss "
        "regions of high curvature.",
        share,
        "Raise the target acceptance rate, which makes the steps smaller, run a longer warm-up, or use a "
        "tighter prior.",
        grave=share > DIVERGENT and count >= DIVERGENT_STEPS,
    )


def _slow_energy(posterior: Posterior) -> Iterator[Finding]:
    found = bfmi(posterior)
    if found is not None and found.min() < BFMI:
        yield Finding(
            f"The energy of {_which(found < BFMI, 'chain')} mixes slowly (BFMI {found.min():.2g}, below "
            f"{BFMI}), so the tails are explored too rarely.",
            float(found.min()),
            "Raise num_draws, or use a prior with lighter tails.",
        )


def _not_mixed(posterior: Posterior, x: Any) -> Iterator[Finding]:
    for name, figures in _judged(posterior, x).items():
        draws: Any = posterior.approximation
        chains, count = draws.shape
        worst, least, size = figures.worst_r_hat, figures.least_ess, figures.r_hat.size
        if worst > R_HAT:
            reaches = "is" if size == 1 else "reaches"
            above = "" if size == 1 else f" for {np.sum(figures.r_hat > R_HAT)} of {size}"
            who = "the chains disagree" if chains > 1 else "the two halves of the chain disagree"
            if posterior.info.get("modes"):
                who = "the two halves of each member's chain disagree"
            yield Finding(
                f"R-hat of the {name} {reaches} {worst:.4g} (above {R_HAT}{above}): {who}.",
                _finite(worst),
                "Run longer chains (num_warmup, num_draws). Chains that stay apart are in different modes; "
                "more chains then cover more of them.",
            )
        if least < min(ESS_PER_CHAIN * chains, ESS):
            many = "" if size == 1 else "smallest "
            yield Finding(
                f"The {many}effective sample size of the {name} is {least:.0f} for {chains * count} draws "
                f"(below {min(ESS_PER_CHAIN * chains, ESS)}).",
                least,
                f"Raise num_draws.{_short_steps(posterior)}",
            )


def _judged(posterior: Posterior, x: Any) -> dict[str, Figures]:
    """The figures of the quantities about which chains should agree.

    The weights of a network are not among them: they are not identified.
    """
    x = None if x is None else checked_inputs(posterior, x)
    draws: Any = posterior.approximation
    if not is_chains(posterior) or draws.shape[1] < MIN_DRAWS:
        return {}
    found = {"log joint": log_joint_figures(posterior)}
    if isinstance(posterior.model, LogDensity):
        found["parameters"] = joined(
            figures.flat for figures in parameter_figures(posterior).values()
        )
    if x is not None:
        found["predictions"] = prediction_figures(posterior, x)
    return {name: figures for name, figures in found.items() if figures is not None}


def _short_steps(posterior: Posterior) -> str:
    rates = after_warmup(posterior, "acceptance_rate")
    if rates is None or rates.mean(dtype=np.float64) <= FULL_ACCEPTANCE:
        return ""
    return f" The acceptance rate of {rates.mean(dtype=np.float64):.3f} allows a larger step size."


# -- weighted draws, temperatures and modes --------------------------------------------------------


def _heavy_weights(posterior: Posterior) -> Iterator[Finding]:
    pareto_k = posterior.info.get("pareto_k")
    if pareto_k is not None and np.max(pareto_k) > PARETO_K:
        worst = float(np.max(pareto_k))
        yield Finding(
            "The proposal does not cover the posterior: the tail of the importance weights is too heavy for "
            f"weighted means to converge (Pareto k {worst:.2f}, above {PARETO_K}).",
            _finite(worst),
            "Use a proposal that is wider or closer to the posterior, or run Markov chains.",
            grave=True,
        )


def _not_counted(posterior: Posterior) -> Iterator[Finding]:
    states, counted = (posterior.info.get(name) for name in ("states", "counted"))
    if states is not None and counted is not None and counted < states:
        share = float(counted / states)
        yield Finding(
            f"Only {counted:,} of {states:,} states of the weights were counted, so the sum is not exact.",
            share,
            "Run it to the end; with checkpoint=, it continues from where it stopped.",
            grave=True,
        )


def _few_weights(posterior: Posterior) -> Iterator[Finding]:
    # Judged only if the run recorded it: exact weights may be uneven without any fault.
    effective = posterior.info.get("effective_sample_size")
    if "states" in posterior.info:
        return  # a partial enumeration has a finding of its own
    if effective is not None and np.ndim(effective) == 0 and effective < WEIGHTED_ESS:
        draws: Any = posterior.approximation
        of = f" {draws.shape[0] * draws.shape[1]}" if isinstance(draws, Draws) else ""
        yield Finding(
            f"The effective sample size of the{of} weighted draws is {effective:.1f} (below {WEIGHTED_ESS}).",
            float(effective),
            "Raise num_draws, or use a proposal closer to the posterior.",
        )


def _cold(posterior: Posterior) -> Iterator[Finding]:
    reached = _tempering(posterior)
    if reached is not None and reached < 1:
        yield Finding(
            f"Tempering ended at temperature {reached:.3g}; only at 1 is the target the posterior.",
            reached,
            "Run it to the end, or raise num_steps.",
            grave=True,
        )


def _not_at_the_mode(posterior: Posterior) -> Iterator[Finding]:
    decrement, free = (posterior.info.get(k) for k in ("newton_decrement", "free_parameters"))
    if decrement is None or free is None or not decrement > OFF_MODE * free:
        return
    distance, gradient = float(decrement / free), posterior.info["gradient_norm"]
    yield Finding(
        f"The curvature was computed {distance**0.5:.2g} standard deviations per weight away from the mode "
        f"(the gradient there has norm {gradient:.2g}).",
        distance,
        "Raise num_steps, or run MAP on all rows first and start from its result: fit(..., start=posterior).",
        grave=distance > FAR_OFF_MODE,
    )


def _noise_understated(posterior: Posterior) -> Iterator[Finding]:
    """Applies to a joint mode of weights and noise, at which the weights have explained a part of the noise."""
    scale, marginal = (posterior.info.get(k) for k in ("noise_scale", "marginal_noise_scale"))
    if scale is None or marginal is None or not marginal > NOISE_UNDERSTATED * scale:
        return
    yield Finding(
        f"The noise scale at the mode, {scale:.3g}, is too small: the weights have fitted a part of the noise. "
        f"The marginal likelihood is largest at {marginal:.3g}.",
        float(marginal / scale),
        "Use Laplace, SWAG or DeepEnsemble, which estimate the noise by its marginal likelihood, a narrower "
        "prior or more rows.",
        grave=marginal > NOISE_FAR_UNDERSTATED * scale,
    )


def _still_climbing(posterior: Posterior) -> Iterator[Finding]:
    """Judge the restart that ended highest, which is the posterior.

    Discrete weights are exempt: their log joint rises in jumps.
    """
    best = posterior.info.get("best_log_joint")
    if best is None or np.ndim(best) != 2 or best.shape[1] < 100 or posterior.model.discrete:
        return
    draws: Any = posterior.approximation
    size = sum(np.size(leaf[0, 0]) for leaf in jax.tree.leaves(draws.params))
    path = best[np.argmax(best[:, -1])]
    last, before = float(path[-1]), float(path[-1 - len(path) // 10])
    if last - before > CLIMBING * size:
        yield Finding(
            f"The best log joint still rose by {last - before:.3g}, to {last:.5g}, over the last tenth of the "
            "steps, so the mode was not reached.",
            last - before,
            "Lower initial_temperature, raise num_steps, or continue from the result: "
            "fit(..., start=posterior).",
            grave=True,
        )


def _tempering(posterior: Posterior) -> float | None:
    """The final temperature of a run whose temperature rises to 1, or ``None``.

    A temperature that falls belongs to a search for a mode, and may end at any value.
    """
    history = posterior.info.get("temperature")
    if history is None or np.ndim(history) != 2 or np.any(history[:, -1] < history[:, 0]):
        return None
    return float(np.min(history[:, -1]))


_OF_ANY_RUN = (
    *(_unfinished, _unscaled, _not_settled, _members_agree),
    *(_nothing_learned, _switched_off, _collapsed),
)
_ALARMING = (
    *(_never_moved, _hardly_accepted, _diverged, _heavy_weights, _cold, _not_counted),
    *(_not_at_the_mode, _noise_understated, _still_climbing),
)


# -- how the draws move ----------------------------------------------------------------------------


def _moved(posterior: Posterior) -> np.ndarray | None:
    """Which chains have two different draws; ``None`` if the draws are not chains.

    The first and the last draw are compared first, which settles most chains at once.
    """
    draws: Any = posterior.approximation
    if not is_chains(posterior) or draws.shape[1] < 2:
        return None
    moved = np.zeros(draws.shape[0], bool)
    for leaf in jax.tree.leaves(draws.params):
        for chain in np.flatnonzero(~moved):
            each = np.asarray(leaf[chain])
            moved[chain] = np.any(each[-1] != each[0]) or np.any(each != each[:1])
    return moved


def _same_state(posterior: Posterior) -> bool:
    draws: Any = posterior.approximation
    return all(np.all(leaf[:, 0] == leaf[:1, 0]) for leaf in jax.tree.leaves(draws.params))


def _longest_stay(draws: Draws) -> np.ndarray:
    """The largest number of consecutive equal draws in each chain."""
    chains, count = draws.shape
    changed = np.zeros((chains, count + 1), bool)
    changed[:, [0, -1]] = True
    for leaf in jax.tree.leaves(draws.params):
        for chain in np.flatnonzero(~changed.all(1)):
            each = np.reshape(leaf[chain], (count, -1))
            changed[chain, 1:-1] |= np.any(each[1:] != each[:-1], axis=1)
    return np.array([np.diff(np.flatnonzero(row)).max() for row in changed])


def _which(chains: np.ndarray, noun: str = "Chain") -> str:
    """The chains of a mask in words; chains are numbered from 0."""
    found = [str(chain) for chain in np.flatnonzero(chains)]
    if len(found) == len(chains) > 1:
        return f"{'Every' if noun[0].isupper() else 'every'} chain"
    if len(found) > 5:
        return f"{len(found)} of {len(chains)} {noun.lower()}s"
    if len(found) > 1:
        return f"{noun}s {', '.join(found[:-1])} and {found[-1]}"
    return f"{noun} {found[0]}"


def _finite(value: float) -> float:
    return float(np.nan_to_num(value))


services.diagnose = diagnose
services.alarms = alarms
