"""Samplers on ten classic targets with exact moments: are they right, and how fast? With BlackJAX and NumPyro.

For each target and sampler: the largest deviation of a mean from its exact value, in Monte Carlo standard
errors; and the smallest bulk effective sample size of the functions of the target, per 1,000 gradients and per
second of warm-up and sampling, without compilation. All samplers have four chains of 1,000 draws after 1,000
steps of warm-up (5,000 for MCLMC, whose steps are single gradients), and their defaults otherwise. If R-hat is
above 1.1, the chains have not mixed, and the other figures mean little.

The NUTS of BlackJAX finds its step size and masses by its window adaptation. All chains of a sampler run in
parallel, in NumPyro too (``chain_method="vectorized"``), which is left out if it is not installed.

Run as ``python -m benchmarks samplers``, with ``--targets`` and ``--samplers`` for a part of it. Each cell is
stored as it is measured, and what is stored is not measured again; ``--again`` measures it anew.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import credax as cx
from benchmarks.quality import page, store
from benchmarks.targets import Target, targets

NAME = "samplers"
OWN_PAGE = page.PAGE
CHAINS, WARMUP, DRAWS = 4, 1_000, 1_000
TARGETS = {target.name: target for target in targets()}
Sampler = Callable[[Target], tuple[np.ndarray, float, float]]


def options(arguments: list[str]) -> dict[str, Any]:
    """The arguments of ``measure`` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks samplers")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), metavar="TARGET")
    parser.add_argument("--samplers", nargs="+", choices=list(SAMPLERS), metavar="SAMPLER")
    parser.add_argument("--again", action="store_true", help="measure what has been measured too")
    return vars(parser.parse_args(arguments))


def measure(targets: Any = None, samplers: Any = None, again: bool = False) -> dict:
    """The stored figures, after those that are missing have been measured and stored."""
    chosen = list(samplers or SAMPLERS)
    if "NumPyro NUTS" in chosen and importlib.util.find_spec("numpyro") is None:
        print("NumPyro is left out: pip install numpyro to run it.")
        chosen.remove("NumPyro NUTS")
    if again:
        left = lambda keys: keys[0] not in (targets or TARGETS) or keys[1] not in chosen  # noqa: E731
        store.forget(NAME, left, depth=2)
    for target in targets or TARGETS:
        for name in chosen:
            store.cell(NAME, (target, name), lambda: one(TARGETS[target], SAMPLERS[name]))  # noqa: B023
    return store.figures(NAME)


def one(target: Target, sampler: Sampler) -> dict:
    """The figures of a sampler on a target."""
    return judged(target, *sampler(target))


def write_page(figures: dict[str, Any]) -> None:
    """Draw the page again from all that is stored."""
    page.write()


def judged(target: Target, draws: np.ndarray, seconds: float, gradients: float) -> dict:
    """The figures of draws ``(chain, draw, size)``."""
    from arviz_stats.base import array_stats

    values = np.moveaxis(target.functions(np.asarray(draws, np.float64)), -1, 0)
    ess = np.array([array_stats.ess(v, method="bulk") for v in values])
    spread = np.array([array_stats.rhat(v) for v in values])
    # The error of a mean by the effective sample size for means, with the exact standard deviation.
    for_means = np.array([array_stats.ess(v, method="mean") for v in values])
    z = (values.mean((1, 2)) - target.means) / (target.scales / np.sqrt(for_means))
    return {
        "largest |z|": float(np.abs(z).max()),
        "of functions": len(z),
        "ESS per 1,000 gradients": float(1_000 * ess.min() / gradients),
        "ESS per second": float(ess.min() / seconds),
        "R-hat": float(spread.max()),
    }


def _credax(target: Target, method: Any) -> tuple[np.ndarray, float, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cx.PosteriorWarning)
        posterior = cx.fit(target.density, None, method, key=1, progress=False)
    info = posterior.info
    # A step of MCLMC computes two gradients.
    gradients = info["num_leapfrog"].sum() if "num_leapfrog" in info else 2 * CHAINS * info["steps"]
    return np.asarray(posterior.draws), info["seconds"], float(gradients)


def _blackjax(target: Target) -> tuple[np.ndarray, float, float]:
    import blackjax

    warmup = blackjax.window_adaptation(blackjax.nuts, target.log_density)

    def one(key):
        start_key, warmup_key, key = jax.random.split(key, 3)
        start = target.density.init(start_key)
        (state, parameters), adapting = warmup.run(warmup_key, start, num_steps=WARMUP)
        step = blackjax.nuts(target.log_density, **parameters).step

        def move(state, key):
            state, info = step(key, state)
            return state, (state.position, info.num_integration_steps)

        _, (draws, lengths) = jax.lax.scan(move, state, jax.random.split(key, DRAWS))
        return draws, lengths.sum() + adapting.info.num_integration_steps.sum()

    with jax.numpy_dtype_promotion("standard"):
        run = jax.jit(jax.vmap(one)).lower(jax.random.split(jax.random.key(1), CHAINS)).compile()
        began = time.perf_counter()
        draws, lengths = jax.block_until_ready(run(jax.random.split(jax.random.key(1), CHAINS)))
    return np.asarray(draws), time.perf_counter() - began, float(lengths.sum())


def _numpyro(target: Target) -> tuple[np.ndarray, float, float]:
    from numpyro.infer import MCMC, NUTS

    mcmc = MCMC(
        NUTS(potential_fn=lambda x: -target.log_density(x)),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    start = jax.vmap(target.density.init)(jax.random.split(jax.random.key(2), CHAINS))
    fields = {"extra_fields": ("num_steps",)}

    def run() -> tuple[np.ndarray, float]:
        mcmc.post_warmup_state = None
        mcmc.warmup(jax.random.key(1), init_params=start, collect_warmup=True, **fields)
        lengths = np.sum(mcmc.get_extra_fields()["num_steps"])
        mcmc.run(mcmc.post_warmup_state.rng_key, **fields)
        lengths += np.sum(mcmc.get_extra_fields()["num_steps"])
        return np.asarray(mcmc.get_samples(group_by_chain=True)), float(lengths)

    with jax.numpy_dtype_promotion("standard"):
        run()  # compiles
        began = time.perf_counter()
        draws, gradients = run()
    return draws, time.perf_counter() - began, gradients


SAMPLERS: dict[str, Sampler] = {
    "credax NUTS": lambda t: _credax(t, cx.NUTS(CHAINS, WARMUP, DRAWS)),
    "credax HMC": lambda t: _credax(t, cx.HMC(CHAINS, WARMUP, DRAWS)),
    "credax MCLMC": lambda t: _credax(t, cx.MCLMC(CHAINS, num_warmup=5_000, num_draws=DRAWS)),
    "BlackJAX NUTS": _blackjax,
    "NumPyro NUTS": _numpyro,
}
