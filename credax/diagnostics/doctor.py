"""The doctor: what is wrong with a posterior, in sentences with their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
"""Above it, chains disagree (Vehtari et al., 2021)."""
ESS_PER_CHAIN, ESS = 100, 400
"""Below it, R-hat and the errors themselves are not reliable (likewise): 100 a chain, and 400 are enough."""
BFMI = 0.3
"""Below it, the energy moves too slowly for the tails (Betancourt, 2016)."""
PARETO_K = 0.7
"""Above it, no practical number of draws makes the mean of their weights settle (Vehtari et al., 2024)."""
WEIGHTED_ESS = 100
"""Weighted draws are independent: so many give a mean within a tenth of its standard deviation."""
ACCEPTANCE, NO_ACCEPTANCE, FULL_ACCEPTANCE = 0.1, 0.01, 0.99
"""Below the first a chain hardly moves, below the second it cannot be trusted; above the third its steps are
short. The best rate is 0.23 for a random walk in many dimensions and higher for all else."""
DIVERGENT, DIVERGENT_STEPS = 0.01, 10
"""Grave is more than this share of the steps, and so many: a few are the adaptation's accidents."""
OFF_MODE, FAR_OFF_MODE = 0.1, 1.0
"""How far a point is from the mode, in mean squared standard deviations of the posterior a weight: a third of
one shows, a whole one makes another posterior of it."""
NOTHING_LEARNED = 0.1
"""Nats between posterior and prior, all weights together: the data have not even halved one weight's range."""
COLLAPSED = 1e-8
"""A variance of the weights, as a share of their mean square, that float32 predictions hardly show."""
SAME_PREDICTION = 1e-4
"""The share of the members' disagreement in the variance of a prediction that is as good as none."""
COVERAGE, OFF_COVERAGE, STANDARD_ERRORS = 0.9, 0.05, 4.0
"""Intervals of this level are judged; wrong is what is off by so much, and by so many standard errors."""
CLIMBING = 0.2
"""Nats a weight by which the best state may still rise in the last tenth of an annealing: all that is left to
climb from a typical draw of the posterior is half a nat a weight."""
STILL = 100
"""Steps for which a chain that accepts one proposal in ten stands still once in 40,000 times."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
      what: the sentence.
      value: the number behind it.
      advice: what to try.
      grave: whether the posterior should not be used as it is: ``fit`` warns.
    """

    what: str
    value: float
    advice: str
    grave: bool = False

    def __str__(self) -> str:
        return f"{self.what} {self.advice}"


class Diagnosis(tuple[Finding, ...]):
    """The findings; empty where nothing was found. Printed, it reads as text."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(f"- {finding}" for finding in self) if self else "No problem found."

    __repr__ = __str__


def diagnose(posterior: Posterior, x: Any = None, y: Any = None) -> Diagnosis:
    """Every finding about a posterior, whatever method made it. See :meth:`credax.Posterior.diagnose`."""
    if y is not None and x is None:
        raise ValueError(
            "diagnose(x=...) must be given where y is: they are rows and their targets."
        )
    checks = (*_OF_ANY_RUN, *_ALARMING, _few_weights, _stood_still, _slow_energy)
    found = [finding for check in checks for finding in check(posterior)]
    found += _not_mixed(posterior, x)
    if x is not None:
        found += _members_predict_alike(posterior, x)
    if y is not None:
        found += _not_calibrated(posterior, x, y)
    return Diagnosis(found)


def alarms(posterior: Posterior) -> Diagnosis:
    """The findings so grave that ``fit`` warns of them; cheap to look for."""
    found = (finding for check in _ALARMING for finding in check(posterior))
    return Diagnosis(finding for finding in found if finding.grave)


# -- any run ---------------------------------------------------------------------------------------


def _unfinished(posterior: Posterior) -> Iterator[Finding]:
    if posterior.info.get("ended") == "interrupt":
        steps = int(posterior.info["steps"])
        yield Finding(
            f"The run was interrupted after {steps} steps.",
            steps,
            "Run it to its end, with checkpoint= to go on from where it was.",
        )


def _not_settled(posterior: Posterior) -> Iterator[Finding]:
    """Compares the last two tenths of a run, in standard errors of their difference."""
    if len(posterior.info.get("kept", ())) or _tempering(posterior) is not None:
        return  # a chain is meant to keep moving, and a rising temperature lifts the log joint
    if any(_still_climbing(posterior)):
        return  # which says the same, and more
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
    """Replicas that ended at the same weights count as one."""
    count, share = _members(posterior), _spread_of_members(posterior)
    if share <= 1e-6:
        yield Finding(
            f"The {count} members ended at the same weights (their variance is {share:.1e} of "
            "their mean square), so their spread says nothing about uncertainty.",
            share,
            "A convex problem has one optimum; use a method that samples around it.",
        )


def _members(posterior: Posterior) -> int:
    """How many points stand side by side with equal weight; 0 where draws are chains, or not points."""
    draws: Any = posterior.approximation
    if not isinstance(draws, Draws) or draws.log_weights is not None:
        return 0
    return draws.shape[0] if draws.shape[0] > 1 and draws.shape[1] == 1 else 0


def _spread_of_members(posterior: Posterior) -> float:
    draws: Any = posterior.approximation
    return _spread(draws.params) if _members(posterior) else np.inf


def _spread(params: Any) -> float:
    """The variance of stacked weights as a share of their mean square."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params)]
    between = sum(float(leaf.var(0).sum()) for leaf in leaves)
    size = sum(float((leaf**2).mean(0).sum()) for leaf in leaves)
    return between / max(size, 1e-300)


# -- a distribution of the weights ----------------------------------------------------------------


def _nothing_learned(posterior: Posterior) -> Iterator[Finding]:
    """Where a variational run says how far its q is from the prior."""
    history = posterior.info.get("kl")
    if history is None or np.ndim(history) != 2 or isinstance(posterior.model, LogDensity):
        return
    kl = float(np.asarray(history)[:, -1].mean())
    if kl < NOTHING_LEARNED:
        of = f", {abs(kl / posterior.elbo[0]):.1g} of the bound" if posterior.elbo else ""
        yield Finding(
            f"The posterior has fallen back to the prior: the KL between them is {kl:.2g} nats{of}.",
            kl,
            "Narrow the prior or the network, give a smaller noise scale, or let the KL rise slowly "
            "(kl_annealing).",
        )


def _collapsed(posterior: Posterior) -> Iterator[Finding]:
    """A distribution that has become a point; draws are judged as members and as chains."""
    if isinstance(posterior.approximation, Draws):
        return
    share = _spread(posterior.sample(0, 8))
    if share <= COLLAPSED:
        yield Finding(
            "The posterior has collapsed to a point: the standard deviation of the weights is "
            f"{share**0.5:.1g} of their size.",
            share,
            "Check that the noise scale is not too small, raise temperature to 1, or run a method of another "
            "kind.",
        )


# -- rows ------------------------------------------------------------------------------------------


def _members_predict_alike(posterior: Posterior, x: Any) -> Iterator[Finding]:
    count = _members(posterior)
    if not count or _spread_of_members(posterior) <= 1e-6:
        return  # members at one place are spoken of above
    predictive = posterior.predict(x)
    share = float(np.mean(predictive.epistemic) / max(float(np.mean(predictive.variance)), 1e-300))
    if share < SAME_PREDICTION:
        yield Finding(
            f"The {count} members predict the same: they account for {share:.1e} of the variance there.",
            share,
            "Let them differ: other starts, a wider prior for their starts, fewer steps, or more units. Rows "
            "far from those of the fit show whether they do.",
        )


def _not_calibrated(posterior: Posterior, x: Any, y: Any) -> Iterator[Finding]:
    """In standard errors that the number would have were the posterior right."""
    scores = posterior.evaluate(x, y)
    if scores.coverage is not None:
        off = scores.coverage - COVERAGE
        error = (COVERAGE * (1 - COVERAGE) / scores.rows) ** 0.5
        # A count has no interval of just 90 %: only too little is told of it.
        whole = posterior.model.likelihood.task == "count"  # pyright: ignore[reportAttributeAccessIssue]
        if abs(off) < max(OFF_COVERAGE, STANDARD_ERRORS * error) or (off > 0 and whole):
            return
        inside = (
            f"{100 * scores.coverage:.3g} % of {scores.rows} targets lie in their 90 % intervals"
        )
        too = "Only " if off < 0 else ""
        then = "narrower" if off < 0 else "wider"
        yield Finding(
            f"{too}{inside}, which are {then} than they should be.",
            float(scores.coverage),
            "Learn the noise scale (scale=None), or correct the intervals by rows held back: "
            "posterior.calibrate(x, y).",
        )
    if scores.accuracy is not None and scores.sharpness is not None:
        off = scores.sharpness - scores.accuracy
        error = (scores.sharpness * (1 - scores.sharpness) / scores.rows) ** 0.5
        if abs(off) < max(OFF_COVERAGE, STANDARD_ERRORS * error):
            return
        too = "too sure" if off > 0 else "not sure enough"
        yield Finding(
            f"The probabilities are {too}: the likeliest class has {scores.sharpness:.3g} on average and is "
            f"right for {scores.accuracy:.3g} of {scores.rows} rows.",
            float(off),
            "Correct them by rows held back: posterior.calibrate(x, y).",
        )


# -- chains ----------------------------------------------------------------------------------------


def _never_moved(posterior: Posterior) -> Iterator[Finding]:
    moved = _moved(posterior)
    if moved is None or moved.all():
        return
    if posterior.model.discrete and not moved.any() and _same_state(posterior):
        return  # it may be the only state with any probability, and the chains agree
    steps = int(posterior.info["kept"][-1] - posterior.info["kept"][0])
    who = f"{_which(~moved)} never" if moved.any() else "No chain"
    yield Finding(
        f"{who} moved in {steps} steps.",
        float(np.sum(~moved)),
        "Take smaller steps, run a longer warm-up, or start from an optimum: fit(..., start=posterior).",
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
            f"{_which(still)} stood still for up to {stays.max()} of {draws.shape[1]} draws.",
            float(stays.max()),
            "Take smaller steps: a chain that sticks has met a region that they are too long for.",
        )


def _hardly_accepted(posterior: Posterior) -> Iterator[Finding]:
    """Among chains that moved at all. Discrete weights may well have nowhere else to go."""
    rates = after_warmup(posterior, "acceptance_rate")
    if rates is None or posterior.model.discrete:
        return
    mean, moved = rates.mean(1, dtype=np.float64), _moved(posterior)
    low = (mean < ACCEPTANCE) & (True if moved is None else moved)
    if low.any():
        worst = float(mean[low].min())
        yield Finding(
            f"{_which(low)} accepted hardly any proposal after warm-up (as few as {100 * worst:.2g} %).",
            worst,
            "Take smaller steps, run a longer warm-up, or start from an optimum: fit(..., start=posterior).",
            grave=worst < NO_ACCEPTANCE and rates.shape[1] >= STILL,
        )


def _diverged(posterior: Posterior) -> Iterator[Finding]:
    diverging = after_warmup(posterior, "diverging")
    if diverging is None or not np.any(diverging > 0):
        return
    count, share = int(np.sum(diverging > 0)), float(np.mean(diverging > 0))
    yield Finding(
        f"{count} of {diverging.size} steps after warm-up diverged ({100 * share:.2g} %), so the draws miss "
        "where the density bends sharply.",
        share,
        "Take smaller steps by a higher target acceptance rate, run a longer warm-up, or give a tighter prior.",
        grave=share > DIVERGENT and count >= DIVERGENT_STEPS,
    )


def _slow_energy(posterior: Posterior) -> Iterator[Finding]:
    found = bfmi(posterior)
    if found is not None and found.min() < BFMI:
        yield Finding(
            f"The energy of {_which(found < BFMI, 'chain')} moves slowly (BFMI {found.min():.2g}, below "
            f"{BFMI}), so the tails are visited too rarely.",
            float(found.min()),
            "Raise num_draws, or give a prior with lighter tails.",
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
                "Run longer (num_warmup, num_draws). Chains that stay apart have met different modes: then "
                "more of them cover more.",
            )
        if least < min(ESS_PER_CHAIN * chains, ESS):
            yield Finding(
                f"The {chains * count} draws are worth {least:.0f} independent ones for the {name} (below "
                f"{min(ESS_PER_CHAIN * chains, ESS)}).",
                least,
                f"Raise num_draws.{_short_steps(posterior)}",
            )


def _judged(posterior: Posterior, x: Any) -> dict[str, Figures]:
    """What the chains should agree about; not the weights of a network, which are not identified."""
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
    return f" An acceptance rate of {rates.mean(dtype=np.float64):.3f} allows longer steps."


# -- weighted draws and temperatures ---------------------------------------------------------------


def _heavy_weights(posterior: Posterior) -> Iterator[Finding]:
    pareto_k = posterior.info.get("pareto_k")
    if pareto_k is not None and np.max(pareto_k) > PARETO_K:
        worst = float(np.max(pareto_k))
        yield Finding(
            f"The proposal misses the posterior: the tail of the importance weights is too heavy for their "
            f"averages to settle (Pareto k {worst:.2f}, above {PARETO_K}).",
            _finite(worst),
            "Give a proposal that is wider or nearer to the posterior, or run Markov chains.",
            grave=True,
        )


def _not_counted(posterior: Posterior) -> Iterator[Finding]:
    states, counted = (posterior.info.get(name) for name in ("states", "counted"))
    if states is not None and counted is not None and counted < states:
        share = float(counted / states)
        yield Finding(
            f"Only {counted:,} of {states:,} states of the weights were counted, so the sum is not exact.",
            share,
            "Let the run go on to its end, with checkpoint= from where it was.",
            grave=True,
        )


def _few_weights(posterior: Posterior) -> Iterator[Finding]:
    # Only where the run says so: uneven weights are no fault of weights that are exact.
    effective = posterior.info.get("effective_sample_size")
    if "states" in posterior.info:
        return  # a part of an exact sum is spoken of above
    if effective is not None and np.ndim(effective) == 0 and effective < WEIGHTED_ESS:
        draws: Any = posterior.approximation
        of = f" {draws.shape[0] * draws.shape[1]}" if isinstance(draws, Draws) else ""
        yield Finding(
            f"The{of} weighted draws are worth {effective:.1f} of equal weight (below {WEIGHTED_ESS}).",
            float(effective),
            "Raise num_draws, or give a proposal nearer to the posterior.",
        )


def _cold(posterior: Posterior) -> Iterator[Finding]:
    reached = _tempering(posterior)
    if reached is not None and reached < 1:
        yield Finding(
            f"The temperature rose to {reached:.3g} and not to 1, where the posterior is.",
            reached,
            "Let the run go on to its end, or raise num_steps.",
            grave=True,
        )


def _not_at_the_mode(posterior: Posterior) -> Iterator[Finding]:
    decrement, free = (posterior.info.get(k) for k in ("newton_decrement", "free_parameters"))
    if decrement is None or free is None or not decrement > OFF_MODE * free:
        return
    distance, gradient = float(decrement / free), posterior.info["gradient_norm"]
    yield Finding(
        f"The curvature was taken {distance**0.5:.2g} standard deviations a weight away from the mode (the "
        f"gradient there has norm {gradient:.2g}).",
        distance,
        "Raise num_steps, or go on with MAP on all rows and start from there: fit(..., start=posterior).",
        grave=distance > FAR_OFF_MODE,
    )


def _still_climbing(posterior: Posterior) -> Iterator[Finding]:
    """In the restart that ended highest, which is the posterior. Discrete weights rise in leaps."""
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
            "steps, so the mode is not reached.",
            last - before,
            "Lower initial_temperature, raise num_steps, or go on from there: fit(..., start=posterior).",
            grave=True,
        )


def _tempering(posterior: Posterior) -> float | None:
    """The last temperature, where it rises: one that falls seeks a mode, and ends wherever it likes."""
    history = posterior.info.get("temperature")
    if history is None or np.ndim(history) != 2 or np.any(history[:, -1] < history[:, 0]):
        return None
    return float(np.min(history[:, -1]))


_OF_ANY_RUN = (_unfinished, _not_settled, _members_agree, _nothing_learned, _collapsed)
_ALARMING = (
    *(_never_moved, _hardly_accepted, _diverged, _heavy_weights, _cold, _not_counted),
    *(_not_at_the_mode, _still_climbing),
)


# -- how the draws move ----------------------------------------------------------------------------


def _moved(posterior: Posterior) -> np.ndarray | None:
    """Which chains have two different draws; a chain that does is seen to at once."""
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
    """For each chain, the most draws in a row that are the same."""
    chains, count = draws.shape
    changed = np.zeros((chains, count + 1), bool)
    changed[:, [0, -1]] = True
    for leaf in jax.tree.leaves(draws.params):
        for chain in np.flatnonzero(~changed.all(1)):
            each = np.reshape(leaf[chain], (count, -1))
            changed[chain, 1:-1] |= np.any(each[1:] != each[:-1], axis=1)
    return np.array([np.diff(np.flatnonzero(row)).max() for row in changed])


def _which(chains: np.ndarray, noun: str = "Chain") -> str:
    """The chains of a mask in words, counted from 0."""
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
