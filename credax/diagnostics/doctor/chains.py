"""Whether Markov chains moved, accepted, kept their energy and mixed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from scipy.stats import f, gamma

from credax.diagnostics.convergence import (
    MIN_DRAWS,
    Figures,
    after_warmup,
    bfmi,
    is_chains,
    joined,
    log_joint_figures,
    parameter_figures,
    prediction_figures,
)
from credax.diagnostics.doctor.findings import Case, Finding, finite
from credax.inference.montecarlo import schedules
from credax.inference.montecarlo.langevin import LangevinChains
from credax.model import LogDensity
from credax.model.likelihoods import Heads
from credax.posterior.approximations import Draws

R_HAT, FALSE_ALARMS = 1.01, 0.01
"""Above the first value, the chains disagree (Vehtari et al., 2021), unless independent draws of this number
reach as high a value with a probability above the second."""
ESS_PER_CHAIN, ESS = 100, 400
"""Below this effective sample size, R-hat and the standard errors themselves are unreliable (Vehtari et al.,
2021): 100 per chain, but no more than 400 in total."""
ESS_SHARE, SHORT = 0.25, 400
"""Of few draws, an effective sample size of at least this share is asked for, and less if there are fewer draws
than the second value: estimates of it from so few draws scatter widely. Independent draws stay above this with
a probability of 99.9 % for each quantity."""
INFLATION = 0.1
"""The relative excess of the variance of draws, averaged over the weights, above which steps are too long."""
HEATED = 0.6
"""The nats by which the draws of cycles lie below the best place that exploring has found, over half a nat per
weight, below which they are too near to it. A normal posterior has the ratio 1, draws with 0.77 times its
standard deviation this one."""
ESCAPED, LEAST = 2.0, 20.0
"""The nats per weight, or per row if there are fewer rows, by which the log joint may vary beyond one nat per
weight, and in any case. That of a normal posterior varies by the square root of half the number of weights."""
BATCHES = 15.0
"""By how many median deviations, about ten standard deviations, the estimate from a minibatch may be lower."""
BFMI = 0.3
"""Below this value, the energy changes too slowly to explore the tails (Betancourt, 2016)."""
ACCEPTANCE, NO_ACCEPTANCE, FULL_ACCEPTANCE = 0.1, 0.01, 0.99
"""Acceptance rates. Below the first a chain hardly moves; below the second it cannot be trusted; above the
third its steps are shorter than necessary. The optimal rate is 0.23 for a random walk in many dimensions and
higher for all other samplers."""
DIVERGENT, DIVERGENT_STEPS, WITH_SYMPTOMS = 0.01, 10, 3
"""Divergences are grave if they exceed this fraction of the steps and there are at least this many of them, or
the last number if a chain also stood still or its energy mixes slowly. A few may be accidents of the
adaptation."""
STILL = 100
"""Number of steps for which a chain with acceptance rate 0.1 stands still with probability 1 in 40,000."""


def never_moved(case: Case) -> Iterator[Finding]:
    """All draws of a chain are the same."""
    moved = _moved(case.posterior)
    if moved is None or moved.all():
        return
    if case.posterior.model.discrete and not moved.any() and _same_state(case.posterior):
        return  # the chains agree, and this may be the only state with any probability
    steps = int(case.info["kept"][-1] - case.info["kept"][0])
    who = f"{_which(~moved)} never" if moved.any() else "No chain"
    yield Finding(
        f"{who} moved in {steps} steps.",
        float(np.sum(~moved)),
        "Use a smaller step size, run a longer warm-up, or start from an optimum: fit(..., start=posterior).",
        grave=steps >= STILL,
    )


def stood_still(case: Case) -> Iterator[Finding]:
    """A chain stays at one draw for a tenth of its draws."""
    moved = _moved(case.posterior)
    if moved is None or not moved.any() or case.posterior.model.discrete:
        return
    draws: Any = case.posterior.approximation
    stays = np.where(moved, _longest_stay(draws), 0)
    still = stays >= max(STILL, draws.shape[1] / 10)
    if still.any():
        yield Finding(
            f"{_which(still)} stood still for up to {stays.max()} consecutive draws of {draws.shape[1]}.",
            float(stays.max()),
            "Use a smaller step size (for HMC and NUTS, a higher target acceptance rate): in some regions "
            "nearly all proposals are rejected.",
            grave=True,
        )


def hardly_accepted(case: Case) -> Iterator[Finding]:
    """Applies to chains that moved. Discrete weights are exempt: they may have no other probable state."""
    rates = after_warmup(case.posterior, "acceptance_rate")
    if rates is None or case.posterior.model.discrete:
        return
    mean, moved = rates.mean(1, dtype=np.float64), _moved(case.posterior)
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


def diverged(case: Case) -> Iterator[Finding]:
    """Steps after warm-up lost the energy level."""
    diverging = after_warmup(case.posterior, "diverging")
    if diverging is None or not np.any(diverging > 0):
        return
    count, share = int(np.sum(diverging > 0)), float(np.mean(diverging > 0))
    grave = share > DIVERGENT and count >= DIVERGENT_STEPS
    if not grave and count >= WITH_SYMPTOMS:
        grave = any(stood_still(case)) or any(slow_energy(case))
    yield Finding(
        f"{count} of {diverging.size} steps after warm-up diverged ({100 * share:.2g} %), so the draws miss "
        "regions of high curvature.",
        share,
        "Raise the target acceptance rate, which makes the steps smaller, run a longer warm-up, or use a "
        "tighter prior.",
        grave=grave,
    )


def long_steps(case: Case) -> Iterator[Finding]:
    """The steps of Langevin dynamics, which no acceptance corrects, widen the distribution of the draws."""
    inflation = after_warmup(case.posterior, "inflation")
    if inflation is not None and inflation.mean(dtype=np.float64) > INFLATION:
        excess = float(inflation.mean(dtype=np.float64))
        yield Finding(
            f"The steps are so long that they add {100 * excess:.0f} % to the variance of the weights on "
            "average, and more to that of weights which the data determine: the posterior is too unsure.",
            excess,
            "Lower step_size, and raise num_draws or thin by as much; or use SGHMC, which errs less.",
            errs="too unsure",
        )


def short_cycles(case: Case) -> Iterator[Finding]:
    """Draws that did not spread from the place that a cycle of Langevin dynamics has found without noise.

    The log joint of a normal posterior is half a nat per weight below its maximum, on average. The best place
    of all chains and cycles counts, since the others may not have found one yet.
    """
    history, method = case.info.get("log_joint"), case.posterior.method
    if not isinstance(method, LangevinChains) or method.cycles is None or history is None:
        return
    history, kept = np.asarray(history, np.float64), case.info["kept"]
    length, explored = schedules.cycle(method)
    ends = method.num_warmup + explored + length * np.arange(method.cycles)
    ends = ends[ends < history.shape[1]]
    if not len(ends) or not len(kept):
        return  # stopped before its first draw
    found = max(history[:, end - max(explored // 10, 1) : end].mean(1).max() for end in ends)
    below = float(found - history[:, kept].mean())
    weights = case.posterior.approximation.num_weights
    expected = 0.5 * method.temperature * weights
    if below < HEATED * expected:
        yield Finding(
            "The cycles are so short that the draws stay near the places that exploring has found: their log "
            f"joint is {below:.3g} nats below the one there, that of draws from a posterior of {weights:,} "
            f"weights about {expected:.3g}. The posterior is too sure.",
            below,
            "Use fewer cycles, or raise num_draws or thin.",
            errs="too sure",
        )


def escaped(case: Case) -> Iterator[Finding]:
    """A chain without acceptance left the places that explain the data."""
    values, rows = case.info.get("log_joint"), case.info.get("num_rows")
    if values is None or rows is None or "gradient_norm" not in case.info:
        return  # other chains accept no such step
    if getattr(case.posterior.method, "cycles", None) is not None:
        return  # each cycle begins with steps that are meant to be too long
    values = values[:, case.info["kept"]]
    if not values.size:
        return  # stopped before its first draw
    weights = case.posterior.approximation.num_weights
    temperature = max(1.0, float(getattr(case.posterior.method, "temperature", 1.0)))
    allowed = temperature * (weights + ESCAPED * min(weights, rows) + LEAST)
    method, middle = case.posterior.method, np.median(values)
    if any(getattr(method, name, None) for name in ("batch_size", "sgd_batch_size")):
        # The estimates from minibatches differ from step to step, whatever the chain does.
        allowed += BATCHES * float(np.median(np.abs(values - middle)))
    lost = float(middle - values.min())
    if lost > allowed:
        yield Finding(
            f"Some chains left the places that explain the data: the log joint of a draw is {lost:.3g} "
            f"nats below their median ({lost / rows:.2g} per row).",
            finite(lost),
            "Leave step_size to be found (step_size=None), or lower it.",
            grave=True,
        )


def slow_energy(case: Case) -> Iterator[Finding]:
    """The energy changes little from step to step, relative to its range."""
    found = bfmi(case.posterior)
    if found is not None and found.min() < BFMI:
        yield Finding(
            f"The energy of {_which(found < BFMI, 'chain')} mixes slowly (BFMI {found.min():.2g}, below "
            f"{BFMI}), so the tails are explored too rarely.",
            float(found.min()),
            "Raise num_draws, or use a prior with lighter tails.",
        )


def not_mixed(case: Case) -> Iterator[Finding]:
    """The chains disagree, or are worth few independent draws."""
    for name, figures in _judged(case).items():
        draws: Any = case.posterior.approximation
        chains, count = draws.shape
        each, size = bool(case.info.get("modes")), figures.r_hat.size
        limit, wanted = r_hat_limit(chains, count, size, each=each), wanted_ess(chains, count)
        # R-hat and the effective sample size are functions of the same variances. Chains that are worth enough
        # independent draws may have a larger R-hat, since their draws are correlated, but they do agree.
        ess = np.minimum(figures.ess_bulk, figures.ess_tail)
        enough = ess >= wanted_ess(chains, count, most=np.inf)
        apart = figures.r_hat > limit
        for i in np.flatnonzero(apart & enough):
            effective = min(count, int(ess.flat[i] / chains))
            apart.flat[i] = figures.r_hat.flat[i] > r_hat_limit(chains, effective, size, each=each)
        if apart.any():
            worst = float(np.max(np.where(apart, figures.r_hat, 1.0)))
            reaches = "is" if size == 1 else "reaches"
            above = "" if size == 1 else f" for {np.sum(apart)} of {size}"
            who = "the chains disagree" if chains > 1 else "the two halves of the chain disagree"
            if each:
                who = "the two halves of each member's chain disagree"
            yield Finding(
                f"R-hat of the {name} {reaches} {worst:.4g} (above {limit:.4g}{above}): {who}.",
                finite(worst),
                "Run longer chains (num_warmup, num_draws). Chains that stay apart are in different modes; "
                "more chains then cover more of them.",
            )
        least = figures.least_ess
        if least < wanted:
            many = "" if size == 1 else "smallest "
            yield Finding(
                f"The {many}effective sample size of the {name} is {least:.0f} for {chains * count} draws "
                f"(below {wanted:.0f}).",
                least,
                f"Raise num_draws.{_short_steps(case)}",
            )


def r_hat_limit(chains: int, draws: int, quantities: int, *, each: bool = False) -> float:
    r"""The value of R-hat above which chains disagree: 1.01, or more for few draws of many quantities.

    For independent draws, :math:`n (\hat R^2 - 1) + 1` is the ratio of the variances between and within the m
    half-chains, which has an F distribution with :math:`m - 1` and :math:`m (n - 1)` degrees of freedom. The
    largest R-hat of all quantities, each of which is the larger one of two, exceeds the limit with probability
    1 % at most.

    Args:
      chains: the number of chains.
      draws: the number of draws per chain.
      quantities: the number of quantities.
      each: whether every chain was judged separately, and R-hat is the root mean square over the chains.
    """
    n, tail = draws // 2, FALSE_ALARMS / max(quantities, 1)
    if not each:
        m = 2 * chains
        ratio = f.isf(tail / 2, m - 1, m * (n - 1))
    else:
        # The mean over the chains of the larger one of two ratios, by a gamma distribution of equal moments.
        probability = (np.arange(4096) + 0.5) / 4096
        larger = f.ppf(np.sqrt(probability), 1, 2 * (n - 1))
        mean, variance = larger.mean(), larger.var() / chains
        ratio = gamma.isf(tail, mean**2 / variance, scale=variance / mean)
    return max(R_HAT, float(np.sqrt((n - 1 + ratio) / n)))


def wanted_ess(chains: int, draws: int, most: float = ESS) -> float:
    """The effective sample size that chains of this number and length should have."""
    total = chains * draws
    return min(ESS_PER_CHAIN * chains, most, ESS_SHARE * total * min(1.0, total / SHORT))


def _judged(case: Case) -> dict[str, Figures]:
    """The figures of the quantities about which chains should agree.

    The weights of a network are not among them: they are not identified.
    """
    posterior = case.posterior
    draws: Any = posterior.approximation
    if not is_chains(posterior) or draws.shape[1] < MIN_DRAWS:
        return {}
    found = {"log joint": log_joint_figures(posterior)}
    if isinstance(posterior.model, LogDensity):
        found["parameters"] = joined(
            figures.flat for figures in parameter_figures(posterior).values()
        )
    if case.x is not None and not isinstance(getattr(posterior.model, "likelihood", None), Heads):
        found["predictions"] = prediction_figures(posterior, case.x)
    return {name: figures for name, figures in found.items() if figures is not None}


def _short_steps(case: Case) -> str:
    rates = after_warmup(case.posterior, "acceptance_rate")
    if rates is None or rates.mean(dtype=np.float64) <= FULL_ACCEPTANCE:
        return ""
    return f" The acceptance rate of {rates.mean(dtype=np.float64):.3f} allows a larger step size."


# -- how the draws move ----------------------------------------------------------------------------


def _moved(posterior: Any) -> np.ndarray | None:
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


def _same_state(posterior: Any) -> bool:
    draws: Any = posterior.approximation
    return all(np.all(leaf[:, 0] == leaf[:1, 0]) for leaf in jax.tree.leaves(draws.params))


def _longest_stay(draws: Draws) -> np.ndarray:
    """The largest number of consecutive equal draws in each chain.

    A single number of each draw is compared first, which shows for most chains that they move all the time.
    """
    chains, count = draws.shape
    changed = np.zeros((chains, count + 1), bool)
    changed[:, [0, -1]] = True
    leaves = [np.reshape(leaf, (chains, count, -1)) for leaf in jax.tree.leaves(draws.params)]
    for leaf in (*(leaf[..., :1] for leaf in leaves), *leaves):
        for chain in np.flatnonzero(~changed.all(1)):
            changed[chain, 1:-1] |= np.any(leaf[chain, 1:] != leaf[chain, :-1], axis=1)
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
