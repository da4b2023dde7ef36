"""Whether a run did what it set out to do: reached its end, its optimum, its target density."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from credax.diagnostics.doctor.findings import Case, Finding, finite
from credax.posterior.approximations import Draws

PARETO_K = 0.7
"""Above this value, no practical number of draws makes weighted means converge (Vehtari et al., 2024)."""
WEIGHTED_ESS = 100
"""Weighted draws are independent: with this effective sample size, the standard error of a mean is a tenth of
the standard deviation."""
FEW_ANCESTORS = 5
"""With fewer ancestors than this, neither the particles nor the error of the evidence can be trusted."""
OFF_MODE, FAR_OFF_MODE = 0.1, 1.0
"""The squared distance of a point from the mode, in posterior standard deviations, averaged over the weights.
At the first value (a third of a standard deviation) the error is visible; at the second (a whole one) the
result is a different posterior."""
GAIN_PER_WEIGHT, GAIN_PER_ROW, LEAST_GAIN = OFF_MODE / 2, 0.05, 1.0
"""What an objective may be short of its optimum, in nats: this much per weight, which is half the squared
distance above; this much per row, which shows in the predictions; and in any case the last value in all."""
NOISE_UNDERSTATED, NOISE_FAR_UNDERSTATED = 1.25, 2.0
"""The ratio of the noise scale of largest marginal likelihood to that at the joint mode. At the first value,
intervals of 90 % cover 81 %; at the second, 59 %."""
CLIMBING = 0.2
"""Nats per weight by which the best log joint may still rise in the last tenth of an annealing run. A typical
posterior draw lies half a nat per weight below the mode."""


def unfinished(case: Case) -> Iterator[Finding]:
    """The run was interrupted."""
    if case.info.get("ended") == "interrupt":
        steps = int(case.info["steps"])
        yield Finding(
            f"The run was interrupted after {steps} steps.",
            steps,
            "Run it to the end; with checkpoint=, it continues from where it stopped.",
        )


def unscaled(case: Case) -> Iterator[Finding]:
    """What ``fit`` warned of when it looked at the data."""
    text = str(case.info.get("data_warnings", ""))
    if text:
        what, _, advice = text.partition(". ")
        yield Finding(f"{what}.", 1.0, advice)


def not_settled(case: Case) -> Iterator[Finding]:
    """The objective can still be raised: a Newton step raises it, or it still rose at the end of the run."""
    if len(case.info.get("kept", ())) or _tempering(case) is not None:
        return  # a chain is meant to keep moving, and the log joint rises with the temperature
    if any(still_climbing(case)) or any(not_at_the_mode(case)):
        return  # these findings say the same in more detail
    found = list(_short_of_the_optimum(case))
    yield from found or _still_rose(case)


def _short_of_the_optimum(case: Case) -> Iterator[Finding]:
    found = case.examination
    gain = found.get("gain")
    if gain is None or case.info.get("ended", "complete") != "complete":
        return  # a run that was ended early is not meant to be at its optimum
    weights = found["weights"]
    allowed = max(LEAST_GAIN, _visible(case))
    if gain - 2 * found["gain_error"] > allowed:
        label = {"elbo": "ELBO"}.get(found["objective"], found["objective"].replace("_", " "))
        yield Finding(
            f"The {label} has not reached its maximum: one step of Newton's method raises it by {gain:.3g} "
            f"nats ({gain / weights:.2g} per weight).",
            float(gain),
            "Raise num_steps or learning_rate, or continue from the result: fit(..., start=posterior). Columns "
            "of x that are scaled to unit variance and not strongly correlated need fewer steps.",
        )


def _visible(case: Case) -> float:
    """What an objective may be short of its optimum, in nats, before it shows in the weights or predictions."""
    found = case.examination
    weights = found.get("weights", case.posterior.approximation.num_weights)
    rows = found.get("total_rows", case.info.get("num_rows", np.inf))
    return float(min(GAIN_PER_WEIGHT * weights, GAIN_PER_ROW * rows))


def _still_rose(case: Case) -> Iterator[Finding]:
    """Compare the means over the last two tenths of the steps, in standard errors of their difference.

    A rise of a per cent of an objective near zero is nothing: it also has to show in the predictions.
    """
    for name in ("log_joint", "log_likelihood", "elbo"):
        history = case.info.get(name)
        if history is not None and np.ndim(history) == 2 and history.shape[1] >= 100:
            break
    else:
        return
    tenth = history.shape[1] // 10
    before, last = history[:, -2 * tenth : -tenth], history[:, -tenth:]
    gain = last.mean(1) - before.mean(1)
    error = np.sqrt((last.var(1) + before.var(1)) / tenth)
    scale = np.abs(last.mean(1)) + 1.0
    shows = gain > (_visible(case) if case.posterior.training or "num_rows" in case.info else 0.0)
    moving = (gain > 4 * error) & (gain > 0.01 * scale) & shows
    if moving.any():
        worst = float(np.max(gain / scale))
        label = name.replace("_", " ")
        yield Finding(
            f"The {label} still rose by {100 * worst:.1f} % over the last tenth of the steps"
            f" in {int(moving.sum())} of {len(moving)} replicas.",
            worst,
            "Raise num_steps.",
        )


def heavy_weights(case: Case) -> Iterator[Finding]:
    """The importance weights have too heavy a tail."""
    pareto_k = case.info.get("pareto_k")
    if pareto_k is not None and np.max(pareto_k) > PARETO_K:
        worst = float(np.max(pareto_k))
        yield Finding(
            "The proposal does not cover the posterior: the tail of the importance weights is too heavy for "
            f"weighted means to converge (Pareto k {worst:.2f}, above {PARETO_K}).",
            finite(worst),
            "Use a proposal that is wider or closer to the posterior, or run Markov chains.",
            grave=True,
        )


def few_weights(case: Case) -> Iterator[Finding]:
    """The weighted draws are worth few draws of equal weight."""
    # Judged only if the run recorded it: exact weights may be uneven without any fault.
    effective = case.info.get("effective_sample_size")
    if "states" in case.info:
        return  # a partial enumeration has a finding of its own
    if effective is not None and np.ndim(effective) == 0 and effective < WEIGHTED_ESS:
        draws: Any = case.posterior.approximation
        of = f" {draws.shape[0] * draws.shape[1]}" if isinstance(draws, Draws) else ""
        yield Finding(
            f"The effective sample size of the{of} weighted draws is {effective:.1f} (below {WEIGHTED_ESS}).",
            float(effective),
            "Raise num_draws, or use a proposal closer to the posterior.",
            errs="too sure",
        )


def few_ancestors(case: Case) -> Iterator[Finding]:
    """Nearly all particles of a population descend from the same few draws of the prior."""
    history = case.info.get("ancestors")
    if history is None or np.ndim(history) != 2 or not np.size(history):
        return
    ancestors = float(np.mean(np.asarray(history)[:, -1]))
    if ancestors < FEW_ANCESTORS:
        draws: Any = case.posterior.approximation
        yield Finding(
            f"The {draws.shape[1]} particles come from {ancestors:.3g} draws of the prior, so they may miss "
            "much of the posterior, and the error of the log evidence is a guess.",
            ancestors,
            "Raise num_moves, num_leapfrog or particles.",
            grave=True,
        )


def cold(case: Case) -> Iterator[Finding]:
    """Tempering ended before it reached the posterior."""
    reached = _tempering(case)
    if reached is not None and reached < 1:
        yield Finding(
            f"Tempering ended at temperature {reached:.3g}; only at 1 is the target the posterior.",
            reached,
            "Run it to the end, or raise num_steps.",
            grave=True,
        )


def not_counted(case: Case) -> Iterator[Finding]:
    """An enumeration left out some states."""
    states, counted = (case.info.get(name) for name in ("states", "counted"))
    if states is not None and counted is not None and counted < states:
        share = float(counted / states)
        yield Finding(
            f"Only {counted:,} of {states:,} states of the weights were counted, so the sum is not exact.",
            share,
            "Run it to the end; with checkpoint=, it continues from where it stopped.",
            grave=True,
        )


def not_at_the_mode(case: Case) -> Iterator[Finding]:
    """The curvature of a Laplace approximation was computed far from the mode."""
    decrement, free = (case.info.get(k) for k in ("newton_decrement", "free_parameters"))
    if decrement is None or free is None or not decrement > OFF_MODE * free:
        return
    distance, gradient = float(decrement / free), case.info["gradient_norm"]
    yield Finding(
        f"The curvature was computed {distance**0.5:.2g} standard deviations per weight away from the mode "
        f"(the gradient there has norm {gradient:.2g}).",
        distance,
        "Raise num_steps, or run MAP on all rows first and start from its result: fit(..., start=posterior).",
        grave=distance > FAR_OFF_MODE,
    )


def noise_understated(case: Case) -> Iterator[Finding]:
    """Applies to a joint mode of weights and noise, at which the weights have explained a part of the noise."""
    scale, marginal = (case.info.get(k) for k in ("noise_scale", "marginal_noise_scale"))
    if scale is None or marginal is None or not marginal > NOISE_UNDERSTATED * scale:
        return
    yield Finding(
        f"The noise scale at the mode, {scale:.3g}, is too small: the weights have fitted a part of the noise. "
        f"The marginal likelihood is largest at {marginal:.3g}.",
        float(marginal / scale),
        "Use Laplace, SWAG or DeepEnsemble, which estimate the noise by its marginal likelihood, a narrower "
        "prior or more rows.",
        grave=marginal > NOISE_FAR_UNDERSTATED * scale,
        errs="too sure",
    )


def still_climbing(case: Case) -> Iterator[Finding]:
    """The best log joint of an annealing run still rose; the restart that ended highest is the posterior.

    Discrete weights are exempt: their log joint rises in jumps.
    """
    best = case.info.get("best_log_joint")
    if best is None or np.ndim(best) != 2 or best.shape[1] < 100 or case.posterior.model.discrete:
        return
    draws: Any = case.posterior.approximation
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


def _tempering(case: Case) -> float | None:
    """The final temperature of a run whose temperature rises to 1, or ``None``.

    A temperature that falls belongs to a search for a mode, and may end at any value.
    """
    history = case.info.get("temperature")
    if history is None or np.ndim(history) != 2 or np.any(history[:, -1] < history[:, 0]):
        return None
    return float(np.min(history[:, -1]))
