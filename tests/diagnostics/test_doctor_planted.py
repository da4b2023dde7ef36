"""Real runs with a planted failure, each of which is named, and sound runs, about which nothing is said."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx

pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

rng = np.random.default_rng(0)


def correlated(rho, rows=200, columns=4):
    x = rho**0.5 * rng.normal(size=(rows, 1)) + (1 - rho) ** 0.5 * rng.normal(size=(rows, columns))
    return x, x @ np.array([1.0, -1.0, 2.0, 0.5]) + 0.3 * rng.normal(size=rows)


def sine(rows=100):
    x = np.sort(rng.uniform(-1, 1, rows))[:, None]
    return x, np.sin(4 * x[:, 0]) + 0.1 * rng.normal(size=rows)


def labels(rows=300):
    x = rng.normal(size=(rows, 2))
    return x, (rng.uniform(size=rows) < 1 / (1 + np.exp(-2 * x[:, 0]))).astype(int)


def counts(rows=200):
    x = rng.uniform(-1, 1, size=(rows, 1))
    return x, rng.poisson(np.exp(1 + x[:, 0])).astype(float)


LINE, STEEP, WAVE, LABELS, COUNTS = correlated(0.3), correlated(0.99), sine(), labels(), counts()
NOISE = rng.normal(size=(60, 20)), rng.integers(0, 2, 60)  # nothing to learn, and room to memorise


def linear(scale=0.3):
    return cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(scale))


def network(*hidden, scale: float | None = 0.1):
    return cx.Model(
        cx.networks.mlp(list(hidden)), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(scale)
    )


def classifier(*hidden):
    return cx.Model(cx.networks.mlp(list(hidden)), likelihood=cx.likelihoods.Bernoulli())


NORMAL = cx.LogDensity(lambda key: jax.random.normal(key, (3,)), lambda w: -0.5 * jnp.sum(w**2))


def two_modes(w):
    return jnp.logaddexp(-0.5 * jnp.sum((w - 10) ** 2), -0.5 * jnp.sum((w + 10) ** 2))


def funnel(w):
    """Neal's funnel: the scale of nine variables is the exponential of the tenth."""
    return -0.5 * (w[0] / 3) ** 2 - 0.5 * jnp.sum((w[1:] * jnp.exp(-w[0] / 2)) ** 2) - 4.5 * w[0]


TWO_MODES = cx.LogDensity(lambda key: 10 * jnp.sign(jax.random.normal(key, (1,))), two_modes)
FUNNEL = cx.LogDensity(lambda key: jax.random.normal(key, (10,)), funnel)


class Planted(NamedTuple):
    """A run with a failure, the words that name it, and a run that follows the advice, if there is one."""

    model: Any
    data: Any
    method: Any
    words: str
    mended: Callable[[], tuple[Any, Any]] | None = None
    key: int = 0


PLANTED = {
    "MAP short of its mode": Planted(
        linear(),
        STEEP,
        cx.MAP(num_steps=500),
        "The log joint has not reached its maximum",
        lambda: (linear(), cx.MAP(num_steps=20_000, learning_rate=0.05)),
    ),
    "a variational bound short of its optimum": Planted(
        linear(),
        STEEP,
        cx.BayesByBackprop(num_steps=500),
        "The ELBO has not reached its maximum",
        lambda: (linear(), cx.BayesByBackprop(num_steps=20_000, learning_rate=0.02)),
    ),
    "predictions worse than a line": Planted(
        network(20),
        LINE,
        cx.MAP(learning_rate=1e-5),
        "a straight line explains",
        lambda: (network(20, scale=0.3), cx.MAP()),
    ),
    "noise too small": Planted(
        linear(0.03),
        LINE,
        cx.MAP(),
        "the intervals are too narrow. Learn the noise scale",
        lambda: (linear(None), cx.MAP()),
    ),
    "fallen back to the prior": Planted(
        network(50, 50, scale=0.5),
        (WAVE[0][::3], WAVE[1][::3]),
        cx.BayesByBackprop(num_steps=3000, kl_annealing=0),
        "The network explains the targets no better than a constant",
    ),
    "a cold posterior": Planted(
        network(10),
        WAVE,
        cx.BayesByBackprop(temperature=0.01),
        "narrower than the curvature says",
        lambda: (network(10), cx.BayesByBackprop()),
    ),
    "members at one optimum": Planted(
        linear(),
        LINE,
        cx.DeepEnsemble(members=3, learning_rate=0.05),
        "The 3 members ended at the same weights",
        lambda: (
            linear(),
            cx.DeepEnsemble(members=20, learning_rate=0.05, random_prior=True, noisy_targets=True),
        ),
    ),
    "chains that never move": Planted(
        NORMAL,
        None,
        cx.HMC(step_size=1e4, num_warmup=0, num_draws=200, chains=2),
        "No chain moved",
        lambda: (NORMAL, cx.HMC(num_warmup=300, num_draws=500)),
    ),
    "divergent steps": Planted(
        FUNNEL,
        None,
        cx.NUTS(num_warmup=300, num_draws=500, chains=4, target_accept=0.6),
        "steps after warm-up diverged",
    ),
    "chains in different modes": Planted(
        TWO_MODES,
        None,
        cx.HMC(num_warmup=200, num_draws=300, chains=4),
        "R-hat of the parameters",
        key=1,
    ),
    "a proposal that misses": Planted(
        linear(0.3),
        LINE,
        cx.ImportanceSampling(num_draws=500, proposal="prior"),
        "The proposal does not cover the posterior",
    ),
    "few ancestors": Planted(
        linear(0.3),
        LINE,
        cx.SMC(particles=16, num_moves=1, num_leapfrog=1, target_ess=0.25),
        "particles come from",
        lambda: (linear(0.3), cx.SMC(particles=300)),
    ),
    "Laplace off the mode": Planted(
        network(10),
        WAVE,
        cx.Laplace(num_steps=20),
        "standard deviations per weight away from the mode",
        lambda: (network(10), cx.Laplace(num_steps=20_000, learning_rate=0.03)),
    ),
    "draws that are strongly correlated": Planted(
        NORMAL,
        None,
        cx.HMC(step_size=0.01, num_leapfrog=1, num_warmup=0, num_draws=1000, chains=4),
        "effective sample size of the",
        lambda: (NORMAL, cx.HMC(num_warmup=300, num_draws=1000, chains=4)),
    ),
    "overconfident on new rows": Planted(
        classifier(50), NOISE, cx.MaximumLikelihood(), "The class probabilities are overconfident"
    ),
}
QUICK = {"MAP short of its mode", "few ancestors"}


def each(cases):
    marks = {name: () if name in QUICK else pytest.mark.slow for name in cases}
    return [pytest.param(name, marks=marks[name], id=name) for name in cases]


@pytest.mark.parametrize("name", each(PLANTED))
def test_a_planted_failure_is_named(name):
    case = PLANTED[name]
    found = cx.fit(case.model, case.data, case.method, key=case.key, progress=False)
    rows = (rng.normal(size=(200, 20)), rng.integers(0, 2, 200)) if case.data is NOISE else ()
    assert case.words in str(found.diagnose(*rows))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in PLANTED.items() if case.mended])
def test_advice_that_is_followed_removes_the_finding(name):
    case = PLANTED[name]
    assert case.mended is not None
    model, method = case.mended()
    found = cx.fit(model, case.data, method, key=case.key, progress=False)
    assert case.words not in str(found.diagnose())


SOUND = {
    "MAP, line": (linear(), LINE, cx.MAP(learning_rate=0.05)),
    "MAP, correlated line": (linear(), STEEP, cx.MAP(num_steps=20_000, learning_rate=0.05)),
    "MAP, network": (network(20), WAVE, cx.MAP(num_steps=5000)),
    "MAP, learned noise": (linear(None), LINE, cx.MAP(learning_rate=0.05)),
    "MAP, labels": (classifier(10), LABELS, cx.MAP()),
    "maximum likelihood, line": (linear(None), LINE, cx.MaximumLikelihood(learning_rate=0.05)),
    "Bayes by Backprop, line": (linear(), LINE, cx.BayesByBackprop()),
    "Bayes by Backprop, full rank": (linear(), LINE, cx.BayesByBackprop(family="full_rank")),
    "Bayes by Backprop, network": (network(10), WAVE, cx.BayesByBackprop(num_steps=10_000)),
    "Bayes by Backprop, labels": (classifier(10), LABELS, cx.BayesByBackprop()),
    "IVON, network": (network(10), WAVE, cx.IVON()),
    "Laplace, network": (network(10), WAVE, cx.Laplace(num_steps=20_000, learning_rate=0.03)),
    "Laplace, labels": (classifier(10), LABELS, cx.Laplace(num_steps=5000)),
    "ensemble, network": (
        network(20, scale=0.3),
        LINE,
        cx.DeepEnsemble(random_prior=True, bootstrap=True),
    ),
    "dropout, network": (network(50, scale=None), LINE, cx.MCDropout()),
    "HMC, density": (NORMAL, None, cx.HMC(num_warmup=300, num_draws=500)),
    "NUTS, line": (linear(), LINE, cx.NUTS(num_warmup=300, num_draws=300, chains=4)),
    "microcanonical ensemble, network": (network(10), WAVE, cx.MicrocanonicalEnsemble(members=4)),
    "SMC, line": (linear(), LINE, cx.SMC(particles=500)),
    "MAP, counts": (
        cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Poisson()),
        COUNTS,
        cx.MAP(learning_rate=0.05),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_run_is_left_in_peace(name):
    model, data, method = SOUND[name]
    found = cx.fit(model, data, method, progress=False)
    rows = () if data is None else (data[0],)
    assert str(found.diagnose(*rows)) == "No problem found."
