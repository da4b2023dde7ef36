"""Convergence figures: compared with ArviZ and with known answers, of weights and of predictions."""

import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm, rankdata

import credax as cx
from credax.diagnostics import Convergence, Figures, convergence, figures_of
from credax.posterior.approximations import Draws
from credax.posterior.approximations.families import MeanField

DENSITY = cx.LogDensity(lambda key: np.zeros(2), lambda params: 0.0)
RNG = np.random.default_rng


def autoregressive(correlation, chains=4, draws=1000, quantities=1, seed=0):
    """Stationary normal chains of unit variance, with leading axes (chain, draw)."""
    noise = RNG(seed).normal(size=(chains, draws, quantities))
    values = noise.copy()
    for t in range(1, draws):
        values[:, t] = correlation * values[:, t - 1] + np.sqrt(1 - correlation**2) * noise[:, t]
    return values


def chains(params, model=DENSITY, **info):
    """A posterior that consists of chains."""
    draws = jax.tree.leaves(params)[0].shape[1]
    return cx.Posterior(model, Draws(params), info={"kept": np.arange(draws), **info})


# -- comparison with ArviZ -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def arviz():
    """ArviZ's figures of an array (chain, draw, quantity), computed for one quantity at a time."""
    from arviz_stats.base import array_stats

    def figures(values):
        values = np.moveaxis(np.asarray(values, np.float64), -1, 0)
        square = (values - values.mean((1, 2), keepdims=True)) ** 2
        found = {
            "ess_bulk": array_stats.ess(values),
            "ess_tail": array_stats.ess(values, method="tail", prob=(0.05, 0.95)),
            "mcse_mean": array_stats.mcse(values),
            # The formula of ArviZ 1.0; earlier versions used another one.
            "mcse_sd": square.std((1, 2))
            / np.sqrt(array_stats.ess(values, method="sd"))
            / (2 * np.sqrt(square.mean((1, 2)))),
        }
        if values.shape[1] > 1:
            found["r_hat"] = array_stats.rhat(values)
        return found

    return figures


@pytest.mark.matrix
@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.5, 0.99])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("draws", [4, 5, 6, 7, 8, 9, 11, 50, 501])
def test_figures_are_those_of_arviz(arviz, correlation, count, draws):
    values = autoregressive(correlation, count, draws, quantities=10)
    for name, want in arviz(values).items():
        np.testing.assert_allclose(getattr(figures_of(values), name), want, rtol=1e-9)


@pytest.mark.parametrize("draws", [40, 301])
def test_ties_share_their_rank(arviz, draws):
    values = np.round(3 * autoregressive(0.7, 3, draws, quantities=20))
    for name, want in arviz(values).items():
        np.testing.assert_allclose(getattr(figures_of(values), name), want, rtol=1e-9)


def test_chains_that_disagree_or_stick_have_the_figures_of_arviz(arviz):
    values = autoregressive(0.3, 4, 200, quantities=4)
    values[0, :, 0] += 3  # one chain is shifted
    values[1, :, 1] *= 4  # one chain is wider
    values[2, 100:, 2] = values[2, 100, 2]  # one chain is stuck from the middle on
    values[:, :, 3] += np.linspace(0, 5, 200)  # all chains drift
    found = figures_of(values)
    for name, want in arviz(values).items():
        np.testing.assert_allclose(getattr(found, name), want, rtol=1e-9)
    assert np.all(found.r_hat > 1.01)


@pytest.mark.parametrize("draws", [4, 21, 300])
def test_one_chain_is_judged_by_its_halves(arviz, draws):
    values = autoregressive(0.5, 1, draws)[..., 0]
    half = draws // 2
    halves = np.concatenate([values[:, :half], values[:, -half:]])

    def r_hat(halves):
        ranks = rankdata(halves).reshape(halves.shape)
        scores = norm.ppf((ranks - 0.375) / (halves.size + 0.25))
        within = scores.var(1, ddof=1).mean()
        return np.sqrt((half - 1) / half + scores.mean(1).var(ddof=1) / within)

    found = figures_of(values)
    want = max(r_hat(halves), r_hat(np.abs(halves - np.median(halves))))
    assert found.r_hat == pytest.approx(want, rel=1e-9)
    for name, want in arviz(values[..., None]).items():
        np.testing.assert_allclose(getattr(found, name), want[0], rtol=1e-9)


def test_moments_are_over_all_draws():
    values = autoregressive(0.5, 3, 101, quantities=5)
    found = figures_of(values)
    np.testing.assert_allclose(found.mean, values.mean((0, 1)))
    np.testing.assert_allclose(found.sd, values.std((0, 1), ddof=1))


@pytest.mark.slow
def test_many_quantities_take_a_fraction_of_arviz_time(arviz):
    values = autoregressive(0.99, quantities=100)

    def seconds(function):
        begin = time.process_time()
        function(values)
        return time.process_time() - begin

    assert seconds(figures_of) < 0.5 * seconds(arviz)


# -- known answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("correlation", [-0.5, 0.0, 0.6, 0.9])
def test_the_effective_size_of_an_autoregression(correlation):
    """At lag t the values have correlation r^t and their squares r^(2t), so the sums are geometric series."""
    draws, quantities = 2000, 200
    values = autoregressive(correlation, 4, draws, quantities)
    found, size = figures_of(values), 4 * draws
    time_of = lambda r: (1 + r) / (1 - r)  # noqa: E731
    mean, sd = time_of(correlation), time_of(correlation**2)
    # Geyer's truncation and the finite length leave an error of a few per cent; the noise is below one.
    np.testing.assert_allclose(np.mean(size / found.ess_bulk), mean, rtol=0.05)
    np.testing.assert_allclose(np.mean(found.mcse_mean**2), mean / size, rtol=0.05)
    np.testing.assert_allclose(np.mean(found.mcse_sd**2), sd / (2 * size), rtol=0.05)
    # The standard errors agree with the spread over the 200 quantities, whose own noise is 5 %.
    np.testing.assert_allclose(found.mean.std(), np.sqrt(mean / size), rtol=0.2)
    np.testing.assert_allclose(found.sd.std(), np.sqrt(sd / (2 * size)), rtol=0.2)


def test_the_effective_size_of_a_tail():
    """The correlation of the indicators of a tail, from the bivariate normal distribution."""
    r, p, draws = 0.8, 0.05, 2000
    values = autoregressive(r, 4, draws, quantities=200)
    joint = [
        multivariate_normal.cdf([norm.ppf(p)] * 2, cov=[[1, r**t], [r**t, 1]]) for t in range(1, 40)
    ]
    want = 4 * draws / (1 + 2 * np.sum((np.array(joint) - p**2) / (p * (1 - p))))
    found = figures_of(values)
    # It is the smaller of the values for two tails that are equally difficult.
    assert 0.85 * want < found.ess_tail.mean() < want
    assert found.ess_bulk.mean() < 0.7 * found.ess_tail.mean()


@pytest.mark.parametrize("fault", ["place", "spread"])
@pytest.mark.parametrize("count", [2, 4])
def test_r_hat_of_chains_that_never_meet(fault, count):
    """Half of the chains lie below all others, so the normal scores are half-normal with known moments."""
    values = RNG(0).uniform(size=(count, 20_000))
    if fault == "place":
        values[: count // 2] += 1
    else:
        sign = RNG(1).choice([-1, 1], size=values.shape)
        values = sign * (values + 10 * (np.arange(count) < count // 2)[:, None])
    between = (2 / np.pi) * 2 * count / (2 * count - 1)
    want = np.sqrt(1 + between / (1 - 2 / np.pi))
    assert figures_of(values).r_hat == pytest.approx(want, rel=0.01)


def test_r_hat_does_not_depend_on_the_scale():
    values = autoregressive(0.5)
    want = figures_of(values)
    found = figures_of(np.exp(3 * values))
    assert found.r_hat < want.r_hat + 0.01  # only the absolute deviations change
    np.testing.assert_allclose(found.ess_bulk, want.ess_bulk)
    np.testing.assert_allclose(found.ess_tail, want.ess_tail, rtol=0.01)
    for scaled in (figures_of(1e-20 * values), figures_of(1e20 * values)):
        np.testing.assert_allclose(scaled.r_hat, want.r_hat)
        np.testing.assert_allclose(scaled.ess_bulk, want.ess_bulk)
        np.testing.assert_allclose(scaled.mcse_mean / scaled.sd, want.mcse_mean / want.sd)
        np.testing.assert_allclose(scaled.mcse_sd / scaled.sd, want.mcse_sd / want.sd)


def test_the_standard_errors_of_a_random_walk_hold():
    """A random-walk Metropolis chain on a standard normal distribution."""
    rng, count, draws = RNG(3), 4, 4000
    position, kept = np.zeros(count), []
    for _ in range(draws):
        proposal = position + 2.4 * rng.normal(size=count)
        accepted = np.log(rng.uniform(size=count)) < (position**2 - proposal**2) / 2
        position = np.where(accepted, proposal, position)
        kept.append(position)
    found = figures_of(np.stack(kept, 1))
    assert found.r_hat < 1.01
    assert 500 < found.ess_bulk < 8000
    assert abs(found.mean) < 4 * found.mcse_mean
    assert abs(found.sd - 1) < 4 * found.mcse_sd
    assert found.mcse_sd < 0.05


# -- special values, types and shapes --------------------------------------------------------------


def test_a_constant_has_converged():
    values = autoregressive(0.5, quantities=3)
    values[..., 1] = 0.1
    found = figures_of(values)
    np.testing.assert_array_equal(found.constant, [False, True, False])
    assert np.isnan(found.r_hat[1])
    assert found.worst_r_hat == np.nanmax(found.r_hat)
    assert (found.mean[1], found.sd[1]) == (0.1, 0)
    assert (found.ess_bulk[1], found.ess_tail[1]) == (4000, 4000)
    assert (found.mcse_mean[1], found.mcse_sd[1]) == (0, 0)
    alone = figures_of(np.ones((2, 10)))
    assert alone.worst_r_hat == 1.0
    assert alone.least_ess == 20
    assert alone.worst_error == 0


def test_chains_that_are_constants_apart_have_not():
    found = figures_of(np.broadcast_to(np.arange(4.0)[:, None], (4, 100)))
    assert not found.constant
    assert found.r_hat > 1e3
    assert found.ess_bulk < 10


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_never_converges(bad):
    values = autoregressive(0.5, quantities=2)
    want = figures_of(values)
    values[1, 7, 0] = bad
    found = figures_of(values)
    assert found.r_hat[0] == np.inf
    assert found.ess_bulk[0] == found.ess_tail[0] == 0
    assert np.isnan([found.mean[0], found.sd[0], found.mcse_mean[0], found.mcse_sd[0]]).all()
    assert found.worst_r_hat == found.worst_error == np.inf
    assert found.r_hat[1] == want.r_hat[1]


@pytest.mark.parametrize("dtype", [np.float32, np.int32, jnp.bfloat16])
def test_any_dtype_is_judged_in_double_precision(dtype):
    values = jnp.asarray(10 * autoregressive(0.5, draws=60), dtype)
    found = figures_of(values)
    want = figures_of(np.asarray(values, np.float64))
    for name, figure in vars(found).items():
        assert figure.dtype == np.float64
        np.testing.assert_array_equal(figure, getattr(want, name))


@pytest.mark.parametrize("shape", [(), (1,), (3, 2), (2, 3, 2)])
def test_figures_have_the_shape_of_the_quantity(shape):
    size = int(np.prod(shape))
    values = autoregressive(0.5, draws=60, quantities=size)
    found = figures_of(values.reshape(4, 60, *shape))
    for name, figure in vars(found).items():
        assert figure.shape == shape
        np.testing.assert_array_equal(figure.ravel(), getattr(figures_of(values), name))
    assert found.flat.r_hat.shape == (size,)


def test_blocks_change_nothing(monkeypatch):
    values = autoregressive(0.5, draws=60, quantities=23)
    want = figures_of(values)
    monkeypatch.setattr(convergence, "BLOCK", 4 * 60 * 5)
    for name, figure in vars(figures_of(values)).items():
        np.testing.assert_array_equal(figure, getattr(want, name))


def test_the_worst_is_over_all_entries():
    values = autoregressive(0.0, quantities=3)
    values[0, :, 1] += 1.0
    values[..., 2] = autoregressive(0.95)[..., 0]
    found = figures_of(values)
    assert found.worst_r_hat == found.r_hat[1]
    assert found.least_ess == min(found.ess_bulk.min(), found.ess_tail.min())
    assert found.worst_error == np.max(found.mcse_mean / found.sd)
    assert found.worst_error > 1 / np.sqrt(found.ess_bulk[0])


# -- the parameters of a posterior -----------------------------------------------------------------


def test_every_leaf_is_judged():
    rng = RNG(0)
    params = {"a": rng.normal(size=(4, 100, 3, 2)), "b": [rng.normal(size=(4, 100))]}
    params["none"] = np.zeros((4, 100, 0))
    log_joint = rng.normal(size=(4, 100))
    found = chains(params, log_joint=log_joint).convergence()
    assert isinstance(found, Convergence)
    assert (found.chains, found.draws) == (4, 100)
    assert sorted(found.parameters) == ["a", "b/0"]
    np.testing.assert_array_equal(found.parameters["a"].r_hat, figures_of(params["a"]).r_hat)
    assert found.parameters["b/0"].r_hat.shape == ()
    assert isinstance(found.log_joint, Figures)
    assert found.log_joint.r_hat == figures_of(log_joint).r_hat
    assert found.predictions is None


def test_one_replica_and_one_leaf():
    values = autoregressive(0.5, 1, 100)
    found = chains(values).convergence()
    assert list(found.parameters) == ["parameters"]
    np.testing.assert_array_equal(found.parameters["parameters"].r_hat, figures_of(values).r_hat)
    assert found.log_joint is None


def test_a_posterior_without_a_run_can_be_judged():
    posterior = cx.Posterior(DENSITY, Draws(autoregressive(0.5)))
    found = posterior.convergence()
    assert found.parameters["parameters"].r_hat < 1.05
    assert found.divergences is found.bfmi is found.acceptance_rate is None


def test_figures_of_the_run_are_those_after_warm_up():
    """The run has 30 steps: 10 of warm-up, and 20 of which every fourth is kept."""
    rng, kept = RNG(0), np.array([13, 17, 21, 25, 29])
    info = {name: rng.normal(size=(2, 30)) for name in ("log_joint", "energy")}
    info["acceptance_rate"] = rng.uniform(size=(2, 30))
    info["diverging"] = np.zeros((2, 30))
    info["diverging"][:, :10] = 1
    info["diverging"][0, [10, 18]] = info["diverging"][1, 29] = 1
    posterior = cx.Posterior(DENSITY, Draws(rng.normal(size=(2, 5, 3))), info=info | {"kept": kept})
    found = posterior.convergence()
    assert found.divergences == 3
    assert found.divergent_share == pytest.approx(3 / 40)
    np.testing.assert_allclose(found.acceptance_rate, info["acceptance_rate"][:, 10:].mean(1))
    assert found.log_joint.mean == pytest.approx(info["log_joint"][:, kept].mean())
    from arviz_stats.base import array_stats

    np.testing.assert_allclose(found.bfmi, array_stats.bfmi(info["energy"][:, 10:]))


def test_an_energy_that_never_changes_misses_nothing():
    found = chains(autoregressive(0.5), energy=np.ones((4, 1000))).convergence()
    np.testing.assert_array_equal(found.bfmi, np.ones(4))


# -- predictions -----------------------------------------------------------------------------------

X = np.linspace(-2, 2, 30)[:, None]


def network_draws(model, draws=200, count=4, spread=0.1, seed=0):
    """Draws of the weights around the same point in every chain."""
    rng, centre = RNG(seed), model.init(cx.random.key(1))
    around = lambda leaf: (  # noqa: E731
        np.asarray(leaf) + spread * rng.normal(size=(count, draws, *leaf.shape))
    ).astype(leaf.dtype)
    return jax.tree.map(around, centre)


def bound(likelihood, y, hidden=(3,)):
    return cx.Model(cx.networks.mlp(list(hidden)), likelihood=likelihood).bind((X, y))


def test_hidden_units_that_trade_places_change_no_prediction():
    model = bound(cx.likelihoods.Gaussian(0.1), np.sin(X[:, 0]), hidden=(4,))
    params = jax.tree.map(np.copy, network_draws(model))
    for chain, order in enumerate([[0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0], [2, 3, 0, 1]]):
        first, second = params["layer_0"], params["layer_1"]
        first["kernel"][chain] = first["kernel"][chain][..., order]
        first["bias"][chain] = first["bias"][chain][..., order]
        second["kernel"][chain] = second["kernel"][chain][:, order]
    posterior = chains(params, model)
    weights, function = posterior.convergence(), posterior.convergence(X)
    assert weights.parameters["layer_0/kernel"].worst_r_hat > 1.5
    assert function.predictions.worst_r_hat < 1.03
    assert function.predictions.least_ess > 400
    assert function.parameters == {}
    assert "layer_0/kernel" in str(weights)
    assert "predictions" in str(function)


LIKELIHOODS = {
    "gaussian": (cx.likelihoods.Gaussian(0.1), np.sin(X[:, 0])),
    "learned": (cx.likelihoods.Gaussian(None), np.sin(X)),
    "two targets": (cx.likelihoods.Gaussian(None), np.hstack([X, np.sin(X)])),
    "heteroscedastic": (cx.likelihoods.Heteroscedastic(), np.sin(X[:, 0])),
    "categorical": (cx.likelihoods.Categorical(), np.arange(30) % 3),
    "bernoulli": (cx.likelihoods.Bernoulli(), np.arange(30) % 2),
    "poisson": (cx.likelihoods.Poisson(), np.arange(30) % 5),
}


@pytest.mark.matrix
@pytest.mark.parametrize("case", LIKELIHOODS)
def test_predictions_are_judged_by_their_means(case, monkeypatch):
    model = bound(*LIKELIHOODS[case])
    params = network_draws(model, draws=25)
    posterior = chains(params, model)
    found = posterior.convergence(X).predictions

    @jax.jit
    def mean(params):
        network, likelihood = model.split(params)
        outputs = model.network.apply(network, jnp.asarray(X, jnp.result_type(float)), ())
        return model.likelihood.mean(outputs, likelihood)

    means = np.asarray(jax.vmap(jax.vmap(mean))(params))
    shape = posterior.predict(X).mean.shape
    want = figures_of(means.reshape(4, 25, *shape))
    assert found.r_hat.shape == shape
    np.testing.assert_allclose(found.mean, posterior.predict(X).mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.mean, want.mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.sd, want.sd, rtol=1e-3)
    np.testing.assert_allclose(found.r_hat, want.r_hat, rtol=1e-2)
    np.testing.assert_allclose(found.mcse_mean, want.mcse_mean, rtol=0.1)

    monkeypatch.setattr(convergence, "PREDICTIONS", 4 * 25 * 3 * 8)
    blocks = posterior.convergence(X).predictions
    np.testing.assert_allclose(blocks.r_hat, found.r_hat, rtol=1e-2)
    np.testing.assert_allclose(blocks.mean, found.mean, rtol=1e-4, atol=1e-6)


def test_predictions_of_chains_that_differ_are_told_apart():
    model = bound(cx.likelihoods.Gaussian(0.1), np.sin(X[:, 0]))
    params = network_draws(model)
    params["layer_1"]["bias"][2] += 5.0  # the draws of chain 2 are another function
    found = chains(params, model).convergence(X)
    assert np.all(found.predictions.r_hat > 1.3)


def test_predictions_in_double_precision(x64):
    model = bound(cx.likelihoods.Gaussian(None), np.sin(X[:, 0]))
    params = network_draws(model, draws=20)
    found = chains(params, model).convergence(X)
    assert found.predictions.r_hat.shape == (30,)


# -- posteriors that cannot be judged --------------------------------------------------------------


@pytest.mark.parametrize("draws", [1, 3])
def test_too_few_draws_are_refused(draws):
    with pytest.raises(ValueError, match=f"at least 4 draws per chain; got {draws}"):
        chains(np.zeros((2, draws, 3))).convergence()


def test_four_draws_are_enough():
    assert chains(RNG(0).normal(size=(2, 4, 3))).convergence().draws == 4


def test_weighted_draws_are_refused():
    posterior = cx.Posterior(DENSITY, Draws(np.zeros((1, 9, 2)), (), np.zeros((1, 9))))
    with pytest.raises(TypeError, match="made of Markov chains; these draws are weighted"):
        posterior.convergence()


def test_posteriors_without_draws_are_refused():
    family = MeanField(np.zeros(2), np.zeros(2))
    with pytest.raises(TypeError, match="made of Markov chains; this one is a MeanField"):
        cx.Posterior(DENSITY, family).convergence()


def test_populations_and_ensembles_are_refused():
    draws = Draws(RNG(0).normal(size=(2, 100, 3)))
    with pytest.raises(TypeError, match="these draws are the final states of independent runs"):
        cx.Posterior(DENSITY, draws, info={"kept": np.arange(0)}).convergence()


def test_a_density_predicts_nothing():
    with pytest.raises(TypeError, match="x must be None for the posterior of a LogDensity"):
        chains(autoregressive(0.5)).convergence(X)


def test_inputs_are_checked():
    model = bound(cx.likelihoods.Gaussian(0.1), X[:, 0])
    with pytest.raises(ValueError, match="x must have shape"):
        chains(network_draws(model, draws=5), model).convergence(np.zeros((3, 2)))


# -- the table -------------------------------------------------------------------------------------


def test_the_table():
    params = {"weights": autoregressive(0.0, quantities=6), "fixed": np.ones((4, 1000, 2))}
    params["weights"][..., 5] = 1.0
    run = {
        "log_joint": autoregressive(0.5, seed=1)[..., 0],
        "energy": autoregressive(0.9, seed=2)[..., 0],
        "diverging": np.zeros((4, 1000)),
        "acceptance_rate": np.full((4, 1000), 0.8) + 0.01 * np.arange(4)[:, None],
    }
    run["diverging"][0, :8] = 1
    found = chains(params, **run).convergence()
    lines = str(found).splitlines()
    assert repr(found) == str(found)
    assert lines[0] == "4 chains of 1000 draws"
    assert lines[1].split() == ["entries", "R-hat", "bulk", "ESS", "tail", "ESS", "MCSE", "/", "sd"]
    log_joint = found.log_joint
    assert lines[2].split() == [
        *("log", "joint", "1"),
        f"{log_joint.r_hat:.3f}",
        f"{log_joint.ess_bulk:.0f}",
        f"{log_joint.ess_tail:.0f}",
        f"{log_joint.mcse_mean / log_joint.sd:.3f}",
    ]
    assert lines[3].split() == ["fixed", "2", "1.000", "4000", "4000", "0.000"]
    worst = found.parameters["weights"]
    assert lines[4].split()[:3] == ["weights", "6", f"{worst.worst_r_hat:.3f}"]
    assert len({len(line) for line in lines[1:5]}) == 1
    assert "fixed: 2 of 2 entries are the same in all draws, which counts as converged." in lines
    assert "weights: 1 of 6 entries are the same" in str(found)
    assert "Divergent steps after warm-up: 8 (0.2 %)." in lines
    assert "Acceptance rate: 0.80 to 0.83." in lines
    assert f"BFMI of the energy: {found.bfmi.min():.2f} to {found.bfmi.max():.2f}." in lines
    html = found._repr_html_()
    assert html.startswith("<table><caption>4 chains of 1000 draws</caption>")
    assert html.count("<tr>") == 4


def test_the_figures_of_one_or_more_quantities_in_a_line():
    one = figures_of(autoregressive(0.0)[..., 0])
    assert repr(one).startswith("Figures(1 quantity: R-hat at most 1.00")
    many = repr(figures_of(autoregressive(0.0, quantities=7)))
    assert many.startswith("Figures(7 quantities: ")
    assert len(many) < 100


def test_the_table_says_only_what_is_known():
    text = str(chains(autoregressive(0.5, 1)).convergence())
    assert text.startswith("1 chain of 1000 draws\n")
    for word in (
        "log joint",
        "predictions",
        "Divergent",
        "Acceptance",
        "BFMI",
        "same in all draws",
    ):
        assert word not in text


# -- ArviZ -----------------------------------------------------------------------------------------


def test_draws_go_to_arviz_under_its_names():
    rng, kept = RNG(0), np.array([5, 7, 9])
    params = {
        "layer_0": {"kernel": rng.normal(size=(2, 3, 4, 5))},
        "scale": rng.normal(size=(2, 3)),
    }
    names = ("log_joint", "acceptance_rate", "energy", "step_size", "num_leapfrog", "tree_depth")
    info = {name: rng.uniform(size=(2, 10)) for name in names}
    info["diverging"] = (rng.uniform(size=(2, 10)) < 0.5).astype(np.float32)
    info |= {
        "kept": kept,
        "steps": 10,
        "ended": "complete",
        "held_out_log_likelihood": np.ones((2, 2)),
    }
    tree = cx.Posterior(DENSITY, Draws(params), info=info).to_arviz()
    assert sorted(tree.children) == ["posterior", "sample_stats"]
    posterior, stats = tree["posterior"], tree["sample_stats"]
    assert sorted(posterior.data_vars) == ["layer_0.kernel", "scale"]
    kernel = posterior["layer_0.kernel"]
    assert kernel.dims == ("chain", "draw", "layer_0.kernel_dim_0", "layer_0.kernel_dim_1")
    np.testing.assert_array_equal(kernel.values, params["layer_0"]["kernel"])
    np.testing.assert_array_equal(posterior["scale"].values, params["scale"])
    np.testing.assert_array_equal(posterior["chain"].values, [0, 1])
    renamed = {"log_joint": "lp", "num_leapfrog": "n_steps"}
    wanted = {renamed.get(name, name) for name in (*names, "diverging")}
    assert set(stats.data_vars) == wanted
    for name in names:
        figure = stats[renamed.get(name, name)]
        assert figure.dims == ("chain", "draw")
        np.testing.assert_array_equal(figure.values, info[name][:, kept])
    assert stats["diverging"].dtype == bool
    np.testing.assert_array_equal(stats["diverging"].values, info["diverging"][:, kept] > 0)
    assert posterior.attrs["inference_library"] == "credax"


def test_arviz_finds_the_same_figures(arviz):
    posterior = chains({"w": autoregressive(0.5, quantities=3)})
    found, tree = posterior.convergence().parameters["w"], posterior.to_arviz()
    for name, want in arviz(tree["posterior"]["w"].values).items():
        np.testing.assert_allclose(getattr(found, name), want, rtol=1e-9)


def test_weights_go_to_arviz_beside_the_draws():
    log_weights = np.log(RNG(0).uniform(size=(1, 7)))
    draws = Draws(RNG(1).normal(size=(1, 7, 2)), (), log_weights)
    tree = cx.Posterior(DENSITY, draws, info={"kept": np.arange(0), "temperature": np.ones((1, 3))})
    tree = tree.to_arviz()
    assert list(tree["sample_stats"].data_vars) == ["log_weight"]
    np.testing.assert_array_equal(tree["sample_stats"]["log_weight"].values, log_weights)
    assert list(tree["posterior"].data_vars) == ["parameters"]


def test_an_ensemble_goes_to_arviz_as_chains_of_one_draw():
    info = {"kept": np.arange(0), "log_joint": np.zeros((5, 100))}
    tree = cx.Posterior(DENSITY, Draws(np.zeros((5, 1, 2))), info=info).to_arviz()
    assert list(tree.children) == ["posterior"]
    assert dict(tree["posterior"].sizes) == {"chain": 5, "draw": 1, "parameters_dim_0": 2}


def test_a_network_goes_to_arviz():
    model = bound(cx.likelihoods.Gaussian(None), X[:, 0])
    tree = chains(network_draws(model, draws=5), model).to_arviz()
    assert "network.layer_0.kernel" in tree["posterior"].data_vars
    assert "likelihood.log_scale" in tree["posterior"].data_vars


SCRIPT = """
import sys
import numpy as np
import credax as cx
from credax.posterior.approximations import Draws
from credax.diagnostics.doctor import alarms

density = cx.LogDensity(lambda key: np.zeros(2), lambda params: 0.0)
draws = Draws(np.random.default_rng(0).normal(size=(4, 200, 2)))
run = {name: np.random.default_rng(1).uniform(size=(4, 200)) for name in ("log_joint", "energy")}
posterior = cx.Posterior(density, draws, info={"kept": np.arange(200), **run})
alarms(posterior)
assert posterior.diagnose() == ()
assert posterior.convergence().chains == 4
print([name for name in ("arviz_base", "arviz_stats", "xarray", "matplotlib") if name in sys.modules])
"""


def test_no_slow_package_is_imported_for_a_diagnosis():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
