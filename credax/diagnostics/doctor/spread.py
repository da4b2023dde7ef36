"""Whether predictions spread as they do under the exact posterior, near the data and away from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from credax.diagnostics.doctor import chains, distributions, runs
from credax.diagnostics.doctor.findings import Case, Errs, Finding
from credax.diagnostics.doctor.scales import LEAST_SCALE
from credax.diagnostics.doctor.stirring import stirred

SPREAD, NOISE = {"near": 2.0, "between": 2.0, "mixed": 2.0, "far": 2.5}, 1.5
"""The ratio of standard deviations before and after the chains, or its inverse, that is a finding. Far from the
data, even good approximations differ by a factor of two."""
APART, APART_TOO = 3.0, 2.0
"""The distance of the exact posterior's predictions from the predicted mean, in predicted standard deviations,
that is a finding. It is 1 if the posterior is right, and up to 2.8 far from the data for approximations that
have no other fault. Where the spread or noise of a posterior is off somewhere, all places are named that exceed
the second value."""
ERRORS = 2.0
"""The number of standard errors by which spreads and distances have to exceed these limits."""
MOVED, SURE = 0.08, 0.01
"""The total variation between the class probabilities before and after that is a finding, and the change of the
largest probability that shows its direction."""
BETTER, BETTER_ERRORS = 3.0, 2.5
"""By how many nats, and standard errors, larger scales must predict all rows better (odds of twenty to one)."""
NAMES = {
    "near": "in the data",
    "between": "between the data",
    "mixed": "where columns of different rows meet",
    "far": "far from the data",
}
CHAINS = "short chains of Hamiltonian Monte Carlo, which leave the exact posterior as it is"
SAMPLER = (
    "So few rows allow a sampler: MCLMC, NUTS or MicrocanonicalEnsemble. posterior.calibrate corrects what is "
    "predicted for rows like those of the fit."
)
LEARNED = (
    " A sampler takes the scales of the prior that were learned with fit(..., prior=posterior.prior, "
    "start=posterior)."
)


def not_left_as_it_is(case: Case) -> Iterator[Finding]:
    """The spread of the predictions, the noise or the class probabilities change when chains move the draws."""
    if case.part:
        return  # the components of a stack are weighted by what their predictions are worth
    exact = getattr(case.posterior.method, "kind", "point") == "exact"
    if exact and len(case.info.get("kept", ())) and not any(chains.not_mixed(case)):
        return  # chains of the exact posterior that agree
    found = stirred(case.posterior)
    if any(distributions.collapsed(case)) or any(distributions.members_agree(case)):
        return  # a point is too sure everywhere
    if found.get("movable") and "stirred" not in found:
        yield Finding(
            "Whether the posterior is as wide as the exact one was not examined before it was saved, and a "
            "file does not hold the rows of the fit.",
            0.0,
            "Call diagnose() before save(), and the file keeps what it found.",
        )
    learned = LEARNED if getattr(case.posterior.model, "learned_prior", False) else ""
    for finding in (*_spread(case, found), *_noise(case, found), *_classes(found)):
        yield replace(finding, advice=finding.advice + learned)
    yield from _switched_off(found)


def _spread(case: Case, found: Mapping[str, float]) -> Iterator[Finding]:
    ratios = {place: found[f"spread_{place}"] for place in NAMES if f"spread_{place}" in found}
    limits = {p: SPREAD[p] * np.exp(ERRORS * found.get(f"spread_error_{p}", 0.0)) for p in ratios}
    narrow = {p: 1 / max(ratio, 1e-9) for p, ratio in ratios.items() if ratio < 1 / limits[p]}
    wide = {p: ratio for p, ratio in ratios.items() if ratio > limits[p]}
    named = {*narrow, *wide}
    if any(distributions.too_narrow(case)) or any(distributions.members_predict_alike(case)):
        narrow.pop("near", None)  # these findings say the same
        named.add("near")
    if any(distributions.too_wide(case)):
        wide.pop("near", None)
    factor = "the epistemic standard deviation by a factor of {}"
    yield from _at_places("too sure", f"enlarge {factor}", narrow)
    yield from _at_places("too unsure", f"reduce {factor}", wide)
    yield from _apart(found, named)


def _apart(found: Mapping[str, float], named: set[str]) -> Iterator[Finding]:
    """The predictions of the exact posterior are many standard deviations away from those of this one."""
    limit = APART_TOO if named or _noise_is_off(found) else APART
    each = {}
    for place in NAMES:
        distance = found.get(f"distance_{place}", 1.0)
        least = distance * np.exp(-ERRORS * found.get(f"distance_error_{place}", 0.0))
        if place not in named and least > limit:
            each[place] = distance
    distance = (
        "distance from its mean, in its epistemic standard deviations, is {}, where 1 is right"
    )
    yield from _at_places("too sure", f"lead to predictions whose {distance}", each)


def _at_places(errs: Errs, effect: str, each: Mapping[str, float]) -> Iterator[Finding]:
    """A finding that names the effect of the chains at each of these places, if there are any."""
    if each:
        values = _listed([f"{_factor(value)} {NAMES[place]}" for place, value in each.items()])
        what = f"The posterior is {errs}: {CHAINS}, {effect.format(values)}."
        yield Finding(what, max(each.values()), SAMPLER, errs=errs)


def _noise(case: Case, found: Mapping[str, float]) -> Iterator[Finding]:
    ratio = found.get("noise_near", 1.0)
    if not _noise_is_off(found) or any(distributions.too_wide(case)):
        return
    if any(runs.noise_understated(case)):
        return
    errs, change = ("too sure", "enlarge") if ratio < 1 else ("too unsure", "reduce")
    yield Finding(
        f"The noise is {'under' if ratio < 1 else 'over'}stated: {CHAINS}, {change} its standard deviation by "
        f"a factor of {_factor(max(ratio, 1 / max(ratio, 1e-9)))}.",
        ratio,
        SAMPLER,
        errs=errs,
    )


def _noise_is_off(found: Mapping[str, float]) -> bool:
    return not 1 / NOISE <= found.get("noise_near", 1.0) <= NOISE


def _classes(found: Mapping[str, float]) -> Iterator[Finding]:
    moved = {place: found.get(f"moved_{place}", 0.0) for place in NAMES}
    for errs in ("too sure", "too unsure", ""):
        each = [place for place in NAMES if moved[place] > MOVED and _errs(found, place) == errs]
        if each:
            places = _listed([f"{moved[place]:.2g} {NAMES[place]}" for place in each])
            yield Finding(
                f"The class probabilities are {errs or 'off'}: {CHAINS}, change them by {places}, in total "
                "variation.",
                max(moved[place] for place in each),
                SAMPLER,
                errs=errs,
            )


def _switched_off(found: Mapping[str, float]) -> Iterator[Finding]:
    """Units that were switched off explain the data better, under larger scales than the learned ones."""
    gain, error = found.get("raised", 0.0), found.get("raised_error", 0.0)
    if gain > max(BETTER, BETTER_ERRORS * error):
        yield Finding(
            "The learned scales of the prior switch off units that the data need: short chains of Hamiltonian "
            f"Monte Carlo under scales of at least {LEAST_SCALE:g} predict rows that are left out better, by "
            f"{gain:.2g} nats (standard error {error:.2g}).",
            gain,
            "Give the prior a scale, e.g. cx.priors.Normal(1.0), and use a sampler, which so few rows allow: "
            "MCLMC, NUTS or MicrocanonicalEnsemble.",
            errs="too unsure",
        )


def _errs(found: Mapping[str, float], place: str) -> Errs:
    """The direction in which the probability of the most probable class errs."""
    gap = found[f"confidence_{place}"]
    return "too sure" if gap > SURE else "too unsure" if gap < -SURE else ""


def _factor(factor: float) -> str:
    return f"{factor:.2g}" if factor < 100 else "over 100"


def _listed(parts: list[str]) -> str:
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
