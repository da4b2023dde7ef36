"""Whether the distribution over the weights is one: not a point, not the prior, not too narrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from credax.diagnostics.doctor.findings import Case, Finding, percent
from credax.diagnostics.doctor.moments import moments
from credax.diagnostics.doctor.predictions import explains_little
from credax.model import LogDensity
from credax.posterior.approximations import Draws
from credax.posterior.approximations.families import Family
from credax.posterior.heads import HeadsPredictive

NOTHING_LEARNED = 0.1
"""KL divergence in nats between posterior and prior, summed over all weights, below which the data have not
even halved the range of a single weight."""
NO_GAIN = 3.0
"""Nats by which a network must explain all targets better than a constant (odds of twenty to one)."""
AT_PRIOR, MOSTLY = 0.05, 0.5
"""A weight whose KL divergence from its prior is below the first value, in nats, has learned nothing. The
posterior has fallen back if this holds for the second share of the weights and predictions explain little."""
COLLAPSED = 1e-8
"""Variance of the weights, as a fraction of their mean square, that hardly shows in float32 predictions."""
SAME_WEIGHTS = 1e-4
"""Variance of the members' weights, as a fraction of their mean square: they agree to a hundredth."""
SAME_PREDICTION = 1e-4
"""Fraction of the predictive variance below which the disagreement between ensemble members is negligible."""
LEFT_OUT = 3.0
"""The standard deviation of a row given all others, relative to that of the targets, above which a prediction
is worse than the mean of the targets and says so."""
TOO_WIDE = 0.25
"""Mean square of the residuals of the fitted rows, over the variance that was predicted for them, at which the
predicted standard deviation is twice that of the residuals."""
NARROW = 0.1
"""Variance of the predictions, relative to that of the linearised network, below which they are too certain."""


def fell_back(case: Case) -> Iterator[Finding]:
    """A variational posterior that learned nothing, or too little to explain the targets."""
    history, model = case.info.get("kl"), case.posterior.model
    if history is None or np.ndim(history) != 2 or isinstance(model, LogDensity):
        return
    advice = (
        "Let the bound learn the scales of the prior (prior=cx.priors.LearnedNormal(), with BayesByBackprop), "
        "or use a smaller network or a sampler. If cx.MAP explains no more, x says nothing about y."
    )
    kl, elbo = float(np.asarray(history)[:, -1].mean()), case.posterior.elbo
    if kl < NOTHING_LEARNED:
        of = f", {abs(kl / elbo[0]):.1g} times the ELBO" if elbo else ""
        yield Finding(
            "The posterior has fallen back to the prior: the KL divergence between them is "
            f"{kl:.2g} nats{of}.",
            kl,
            advice,
        )
        return
    gain = case.info.get("gain")
    if gain is not None and gain < NO_GAIN:
        yield Finding(
            "The network explains the targets no better than a constant: the expected log likelihood of all "
            f"rows is {gain:+.2g} nats relative to equal outputs for every row.",
            float(gain),
            advice,
        )
        return
    explained, share = explains_little(case), _share_at_prior(case)
    if explained is not None and share is not None and share > MOSTLY:
        yield Finding(
            f"The posterior has fallen back to the prior: {percent(share)} of the weights are distributed as "
            f"under the prior, and the predictions explain {percent(explained)} of the variance.",
            share,
            advice,
        )


def _share_at_prior(case: Case) -> float | None:
    """The share of the network's weights whose marginal distribution is that of their Gaussian prior."""
    family, model = case.posterior.approximation, case.posterior.model
    if not isinstance(family, Family) or isinstance(model, LogDensity) or model.discrete:
        return None
    if model.correlated_prior:
        return None
    mean, variance = moments(family)
    priors = model.split(model.leaf_priors(mean))[0]
    mean, variance = (model.split(part)[0] for part in (mean, variance))
    count = at_prior = 0
    leaves = zip(*map(jax.tree.leaves, (mean, variance, priors)), strict=True)
    for mean, variance, prior in leaves:
        normal = prior.gaussian(np.shape(mean))
        if normal is None:
            return None
        ratio = np.asarray(variance, np.float64) / normal[1] ** 2
        distance = (np.asarray(mean, np.float64) - normal[0]) / normal[1]
        kl = 0.5 * (ratio + distance**2 - 1 - np.log(ratio))
        count, at_prior = count + kl.size, at_prior + int(np.sum(kl < AT_PRIOR))
    return at_prior / count


def too_wide(case: Case) -> Iterator[Finding]:
    """What a variational family cannot represent widens the noise that is learned."""
    ratio = case.info.get("residual_ratio")
    if ratio is not None and ratio < TOO_WIDE:
        yield Finding(
            f"The predicted standard deviation is {ratio**-0.5:.2g} times that of the residuals of the fitted "
            "rows: the posterior is too unsure there.",
            float(ratio),
            "Let the bound learn the scales of the prior (prior=cx.priors.LearnedNormal(), with "
            "BayesByBackprop), or use a smaller network, a smaller noise scale if it is given, or a sampler.",
            errs="too unsure",
        )


def collapsed(case: Case) -> Iterator[Finding]:
    """Applies to parametric distributions; draws are judged as ensemble members or as chains."""
    if isinstance(case.posterior.approximation, Draws):
        return
    approximation = case.posterior.approximation
    if isinstance(approximation, Family) and not case.posterior.model.discrete:
        mean, variance = (
            sum(
                float(np.sum(np.asarray(leaf, np.float64) ** power))
                for leaf in jax.tree.leaves(part)
            )
            for part, power in zip(moments(approximation), (2, 1), strict=True)
        )
        share = variance / max(mean + variance, 1e-300)
    else:
        share = _spread(case.posterior.sample(0, 8))
    if share <= COLLAPSED:
        yield Finding(
            "The posterior has collapsed to a point: the standard deviation of the weights is "
            f"{share**0.5:.1g} times their root mean square.",
            share,
            "Check that the noise scale is not too small, raise temperature to 1, or use a method of a "
            "different kind.",
            errs="too sure",
        )


def members_agree(case: Case) -> Iterator[Finding]:
    """Ensemble members that ended at the same weights are worth one member."""
    share = _spread_of_members(case)
    if share <= SAME_WEIGHTS and case.examination.get("relative_variance", 0.0) < NARROW:
        yield Finding(
            f"The {case.members} members ended at the same weights (their variance is {share:.1e} of "
            "their mean square), so their spread says nothing about uncertainty.",
            share,
            "A convex problem has a single optimum; use a method that samples around it.",
            errs="too sure",
        )


def members_predict_alike(case: Case) -> Iterator[Finding]:
    """Ensemble members with different weights that make the same predictions."""
    if not case.members or any(members_agree(case)):
        return  # members at the same weights have a finding of their own
    if case.x is not None:
        predictive = case.posterior.predict(case.x)
        if isinstance(predictive, HeadsPredictive):
            return
        variance = max(float(np.mean(predictive.variance)), 1e-300)
        share = float(np.mean(predictive.epistemic)) / variance
    else:
        share = case.examination.get("epistemic", np.inf)
    if share < SAME_PREDICTION:
        yield Finding(
            f"The {case.members} members make the same predictions: their disagreement is {share:.1e} of the "
            "predictive variance.",
            share,
            "Make them differ: use other starting points, a wider distribution of starting points, fewer steps "
            "or more hidden units. Rows far from the training data show whether they do.",
            errs="too sure",
        )


def too_narrow(case: Case) -> Iterator[Finding]:
    """The predictions vary far less than the curvature of the log joint allows."""
    if any(collapsed(case)) or any(members_agree(case)) or any(members_predict_alike(case)):
        return  # these findings say the same in more detail
    ratio = case.examination.get("relative_variance")
    if ratio is not None and ratio < NARROW:
        yield Finding(
            "The posterior is narrower than the curvature says: in the rows of the fit, the epistemic variance "
            f"of the predictions is {ratio:.2g} times that of the linearised network.",
            ratio,
            "Make the members differ (random_prior, bootstrap), or use a method that samples around an optimum."
            if case.members
            else "Train longer, raise temperature to 1, or compare with Laplace, which takes the variance from "
            "the curvature.",
            errs="too sure",
        )


def _spread_of_members(case: Case) -> float:
    draws: Any = case.posterior.approximation
    return _spread(draws.params) if case.members else np.inf


def _spread(params: Any) -> float:
    """The variance of stacked weights over their leading axis, as a fraction of their mean square."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params)]
    between = sum(float(leaf.var(0).sum()) for leaf in leaves)
    size = sum(float((leaf**2).mean(0).sum()) for leaf in leaves)
    return between / max(size, 1e-300)


def prior_too_wide(case: Case) -> Iterator[Finding]:
    """The rows of the fit hardly narrow down predictions of a row that was left out."""
    width = case.info.get("left_out_std")
    if width is not None and width > LEFT_OUT:
        yield Finding(
            "The prior is much wider than the data: predicted from all other rows, the standard deviation of a "
            f"row is {width:.3g} times that of the targets.",
            float(width),
            "Use a narrower prior, e.g. cx.priors.FanInNormal(), whose width falls with the number of inputs, "
            "or fewer inputs.",
        )
