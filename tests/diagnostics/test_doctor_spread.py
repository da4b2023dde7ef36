"""Short chains say whether predictions spread as under the exact posterior, here of a linear network."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest
from scipy.stats import norm

import credax as cx
from credax.diagnostics.doctor import scales, spread, stirring
from credax.diagnostics.doctor.findings import Case
from credax.model.networks.wandering import Wandering
from credax.posterior.approximations import Draws

LINEAR = cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.3))
PLACES = ("near", "between", "mixed", "far")


def columns(rows=60):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    return x, x @ np.array([1.0, -2.0]) + 0.3 * rng.normal(size=rows)


def exactly(x, y, rows):
    """The mean and the variance of the output at these rows, under the exact posterior of ``LINEAR``."""
    known, asked = (np.concatenate([np.ones((len(each), 1)), each], axis=1) for each in (x, rows))
    covariance = np.linalg.inv(np.eye(3) + known.T @ known / 0.3**2)
    return asked @ covariance @ known.T @ y / 0.3**2, np.einsum(
        "ij,jk,ik->i", asked, covariance, asked
    )


def scaled(factor, model=LINEAR, data=None, shift=0.0):
    """Draws of the exact posterior, at a multiple of their distance from its mean, and shifted.

    The shift of each weight is in standard deviations of the weight.
    """
    data = columns() if data is None else data
    exact = cx.fit(model, data, cx.Laplace(structure="full", num_steps=3_000), progress=False)
    draws = exact.sample(1, 100)
    centre = jax.tree.map(lambda leaf: leaf.mean(0), draws)
    moved = jax.tree.map(
        lambda leaf, mid: (mid + factor * (leaf - mid) + shift * leaf.std(0))[:, None],
        draws,
        centre,
    )
    return replace(exact, approximation=Draws(moved))


def of_spread(posterior):
    return list(spread.not_left_as_it_is(Case(posterior)))


@pytest.mark.parametrize("factor, errs", [(0.35, "too sure"), (1.0, None), (4.0, "too unsure")])
def test_the_spread_of_the_predictions_is_compared_with_the_exact_one(factor, errs):
    posterior = scaled(factor)
    found = stirring.stirred(posterior)
    for place in PLACES:
        assert found[f"spread_{place}"] == pytest.approx(factor, rel=0.35)
        assert found[f"noise_{place}"] == pytest.approx(1)
    findings = of_spread(posterior)
    assert [finding.errs for finding in findings] == ([] if errs is None else [errs])
    for finding in findings:
        assert f"The posterior is {errs}" in finding.what
        assert "in the data" in finding.what
        assert "far from the data" in finding.what
        assert finding.value == pytest.approx(max(factor, 1 / factor), rel=0.5)
        assert finding in {replace(each, kind="run") for each in posterior.diagnose()}


def test_the_distance_of_the_predictions_is_compared_with_the_exact_one():
    """The chains forget a shift, whose distance has a closed form; the spread does not show it."""
    x, y = columns()
    posterior = scaled(1.0, shift=4.0)
    found = stirring.stirred(posterior)
    for place, rows in stirring._places(posterior.training).items():
        predictive = posterior.predict(rows)
        mean, exact = exactly(x, y, rows)
        off = (mean - predictive.mean) ** 2
        want = np.median((exact + off) / predictive.epistemic) ** 0.5
        wants = {"spread": np.median(predictive.epistemic / exact) ** 0.5, "distance": want}
        for name, value in wants.items():
            error = found[f"{name}_error_{place}"]
            assert 0 < error < 0.2
            assert abs(np.log(found[f"{name}_{place}"] / value)) < 4 * error
    (finding,) = of_spread(posterior)
    assert finding.errs == "too sure"
    assert "whose distance from its mean" in finding.what
    assert finding.value == max(found[f"distance_{place}"] for place in PLACES)
    near = stirring.stirred(scaled(1.0))
    for place in PLACES:
        assert near[f"distance_{place}"] == pytest.approx(1, rel=0.35)


@pytest.mark.parametrize(
    "figures, told",
    [
        ({"distance_far": 3.5, "distance_error_far": 0.05}, True),
        ({"distance_far": 3.5, "distance_error_far": 0.1}, False),  # it may be 2.9
        ({"distance_far": 2.5, "distance_error_far": 0.05}, False),
        ({"distance_far": 2.5, "distance_error_far": 0.05, "noise_near": 1.6}, True),
        ({"distance_far": 2.5, "distance_error_far": 0.05, "spread_near": 2.5}, True),
        ({"distance_far": 2.1, "distance_error_far": 0.05, "spread_near": 2.5}, False),
        ({"distance_far": 5.0, "distance_error_far": 0.05, "spread_far": 0.3}, False),
        ({"spread_near": 2.5}, False),  # of a file that was written before distances were known
    ],
)
def test_distances_are_judged_with_their_errors(figures, told):
    """Places that the spread has named are not named again, and other faults lower the limit."""
    posterior = replace(scaled_once(), examined={"stirred": True, **figures})
    found = [finding for finding in of_spread(posterior) if "distance" in finding.what]
    assert bool(found) is told


@pytest.mark.parametrize(
    "figures, errs",
    [
        ({"spread_near": 2.5, "spread_error_near": 0.05}, ["too unsure"]),
        ({"spread_near": 2.5, "spread_error_near": 0.2}, []),  # it may be 1.7
        ({"spread_near": 0.4, "spread_error_near": 0.05}, ["too sure"]),
        ({"spread_near": 0.4, "spread_error_near": 0.2}, []),
        (
            {"spread_near": 2.5, "spread_far": 0.2, "spread_error_far": 0.1},
            ["too sure", "too unsure"],
        ),
    ],
)
def test_spreads_are_judged_with_their_errors(figures, errs):
    posterior = replace(scaled_once(), examined={"stirred": True, **figures})
    assert [finding.errs for finding in of_spread(posterior)] == errs


def test_the_chains_are_those_of_the_network_without_the_functions_that_predictions_add():
    """The members predict with random functions, which the exact posterior, in closed form, does not have."""
    x, y = columns()
    method = cx.CrossFitEnsemble(members=4, num_steps=300, snapshots=2)
    posterior = cx.fit(LINEAR, (x, y), method, progress=False)
    assert isinstance(posterior.model.network, Wandering)
    found = stirring.stirred(posterior)
    for place, rows in stirring._places(posterior.training).items():
        want = np.median(posterior.predict(rows).epistemic / exactly(x, y, rows)[1]) ** 0.5
        assert abs(np.log(found[f"spread_{place}"] / want)) < 4 * found[f"spread_error_{place}"]


@cache
def learned_prior_fit():
    """Mean field under learned scales, too narrow along the difference of two columns that are nearly alike."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 1)) + 0.2 * rng.normal(size=(80, 2))
    y = x @ np.array([1.0, -2.0]) + 0.3 * rng.normal(size=80)
    model = replace(LINEAR, prior=cx.priors.LearnedNormal())
    method = cx.BayesByBackprop(num_steps=2_000, learning_rate=0.03)
    return x, y, cx.fit(model, (x, y), method, progress=False)


def test_learned_scales_of_the_prior_stay_as_they_are():
    """The exact posterior under these scales has a closed form, which the chains approach."""
    x, _, posterior = learned_prior_fit()
    scale = jax.tree.map(np.ravel, posterior.prior.scale.tree)
    precision = 1 / np.concatenate([scale["layer_0"]["bias"], scale["layer_0"]["kernel"]]) ** 2
    design = lambda rows: np.concatenate([np.ones((len(rows), 1)), rows], axis=1)  # noqa: E731
    covariance = np.linalg.inv(np.diag(precision) + design(x).T @ design(x) / 0.3**2)
    found = stirring.stirred(posterior)
    for place, rows in stirring._places(posterior.training).items():
        exact = np.einsum("ij,jk,ik->i", design(rows), covariance, design(rows))
        want = np.median(posterior.predict(rows).epistemic / exact) ** 0.5
        assert abs(np.log(found[f"spread_{place}"] / want)) < 4 * found[f"spread_error_{place}"]
    (finding,) = of_spread(posterior)
    assert finding.errs == "too sure"
    assert "prior=posterior.prior" in finding.advice


def test_the_advice_for_learned_scales_removes_the_finding():
    x, y, posterior = learned_prior_fit()
    model = replace(posterior.model, prior=cx.priors.LearnedNormal())
    chains = cx.fit(
        model, (x, y), cx.MCLMC(), prior=posterior.prior, start=posterior, progress=False
    )
    assert not of_spread(chains)


def test_only_learned_scales_are_raised():
    arrays = {"a": {"w": np.array([0.1, 3.0])}, "b": {"w": np.array([0.2])}}
    prior = cx.priors.PerLayer({"a/*": cx.priors.LearnedNormal(), "*": cx.priors.Normal(0.2)})
    zeros = jax.tree.map(np.zeros_like, arrays)
    found = scales.raised(prior, cx.priors.Around(zeros, arrays)).scale.tree
    assert found["a"]["w"].tolist() == [scales.LEAST_SCALE, 3.0]
    assert found["b"]["w"].tolist() == pytest.approx([0.2])


@pytest.mark.parametrize("weighted", [False, True])
def test_the_gain_is_that_of_leaving_rows_out(weighted):
    """The predictive densities of rows that are left out have a closed form, under two priors."""
    x, y = columns(30)
    weights = np.where(np.arange(30) < 20, 1.0, 0.0) if weighted else None
    models = [replace(LINEAR, prior=cx.priors.Normal(scale)) for scale in (0.5, 5.0)]
    chains = cx.MCLMC(num_draws=2_000, adjusted=True)
    fits = [cx.fit(model, (x, y), chains, progress=False) for model in models]
    found = scales.gain(*fits, replace(fits[0].training, weights=weights))
    design = np.concatenate([np.ones((30, 1)), x], axis=1)

    def left_out(scale, row):
        others = np.arange(30) != row
        precision = np.eye(3) / scale**2 + design[others].T @ design[others] / 0.3**2
        mean = np.linalg.solve(precision, design[others].T @ y[others] / 0.3**2)
        variance = 0.3**2 + design[row] @ np.linalg.solve(precision, design[row])
        return norm.logpdf(y[row], design[row] @ mean, np.sqrt(variance))

    gains = np.array([left_out(5.0, row) - left_out(0.5, row) for row in range(30)])
    gains = gains if weights is None else weights * gains
    assert found["raised"] == pytest.approx(gains.sum(), abs=0.15)
    assert found["raised_error"] == pytest.approx(30**0.5 * gains.std(), rel=0.15)


@pytest.mark.parametrize(
    "gain, error, told", [(8.0, 2.0, True), (8.0, 4.0, False), (2.0, 0.1, False)]
)
def test_a_gain_is_judged_with_its_error(gain, error, told):
    figures = {"stirred": True, "raised": gain, "raised_error": error}
    posterior = replace(scaled_once(), examined=figures)
    assert any("switch off units" in finding.what for finding in of_spread(posterior)) is told


@cache
def scaled_once():
    return scaled(1.0)


def test_it_is_computed_once_and_saved(tmp_path, monkeypatch):
    posterior = scaled(4.0)
    assert "stirred" not in posterior.examination
    said = posterior.diagnose()
    monkeypatch.setattr(stirring, "_stirred", lambda posterior: pytest.fail("computed again"))
    assert posterior.diagnose() == said
    posterior.save(tmp_path / "posterior.credax")
    assert str(cx.load(tmp_path / "posterior.credax").diagnose()) == str(said)


def test_a_file_says_if_the_spread_was_not_examined_before(tmp_path):
    scaled(4.0).save(tmp_path / "posterior.credax")
    loaded = cx.load(tmp_path / "posterior.credax")
    for _ in range(2):
        (finding,) = of_spread(loaded)
        assert "was not examined before it was saved" in finding.what
        assert finding in {replace(each, kind="run") for each in loaded.diagnose()}


def test_it_needs_all_rows_and_draws_that_differ(monkeypatch):
    posterior = scaled(4.0)
    assert of_spread(posterior)
    assert not list(spread.not_left_as_it_is(Case(posterior, part=True)))
    assert "stirred" not in stirring.stirred(replace(posterior, training=None))
    part = replace(posterior.training, total=2_000)
    assert not stirring.stirred(replace(posterior, training=part))["stirred"]
    point = Draws(jax.tree.map(lambda leaf: leaf[:1], posterior.draws))
    assert not stirring.stirred(replace(posterior, approximation=point))["stirred"]
    monkeypatch.setattr(stirring, "WORK", 1e3)
    assert not stirring.stirred(replace(posterior))["stirred"]


def test_points_away_from_the_data_are_where_they_say():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-2, -1, 40), rng.uniform(1, 2, 40)])[:, None]
    places = stirring._places(cx.posterior.training.TrainingRows(x, x[:, 0], 80))
    assert set(places) == {"near", "between", "far"}  # a single column cannot meet another one
    assert np.all(np.abs(places["between"]) < 1)
    assert np.all(np.abs(places["far"]) > 2)
    diagonal = np.repeat(x, 2, axis=1)
    mixed = stirring._places(cx.posterior.training.TrainingRows(diagonal, x[:, 0], 80))["mixed"]
    assert np.isin(mixed, x).all()
    assert np.mean(np.abs(mixed[:, 0] - mixed[:, 1])) > 2


@pytest.mark.slow
@pytest.mark.parametrize("factor, errs", [(0.01, "too sure"), (20.0, "too unsure")])
def test_class_probabilities_are_compared(factor, errs):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(30, 20))
    y = (x[:, 0] + rng.normal(size=30) > 0).astype(int)
    model = cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Bernoulli())
    assert not of_spread(scaled(1.0, model, (x, y)))
    findings = of_spread(scaled(factor, model, (x, y)))
    assert errs in {finding.errs for finding in findings}
    assert all("The class probabilities are" in finding.what for finding in findings)


@pytest.mark.slow
def test_a_noise_that_is_too_large_under_learned_scales_is_told():
    """Fifty rows of a sine with noise 0.1, from which mean field learns 0.2 and more; a sampler does not."""
    rng = np.random.default_rng(104)
    x = rng.uniform(-2, 2, size=(50, 1))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=50)
    model = cx.Model(
        cx.networks.mlp([50, 50]), cx.priors.LearnedNormal(), cx.likelihoods.Gaussian(scale=None)
    )
    posterior = cx.fit(model, (x, y), cx.BayesByBackprop(), key=4, progress=False)
    noise = np.sqrt(posterior.predict(x[:1]).aleatoric[0])
    told = [f for f in posterior.diagnose() if f.what.startswith("The noise is overstated")]
    assert noise > 0.15
    assert [finding.errs for finding in told] == ["too unsure"]
    # Not MCLMC: some of its chains stay for a while where the noise is large.
    method = cx.NUTS(num_warmup=500, num_draws=500)
    chains = cx.fit(model, (x, y), method, prior=posterior.prior, start=posterior, progress=False)
    assert 0.07 < np.sqrt(chains.predict(x[:1]).aleatoric[0]) < 0.14
    assert "noise" not in str(chains.diagnose())


@pytest.mark.slow
@pytest.mark.parametrize("curved", [True, False])
def test_units_that_learned_scales_have_switched_off_are_told(curved):
    """The bound prefers a straight border between two moons; where the border is straight, nothing is told."""
    rng = np.random.default_rng(3)

    def draw(rows):
        label, angle = rng.integers(0, 2, rows), rng.uniform(0, np.pi, rows)
        if not curved:
            x = rng.normal(size=(rows, 2))
            return x, (rng.uniform(size=rows) < 1 / (1 + np.exp(-3 * x[:, 0]))).astype(int)
        first = np.where(label == 0, np.cos(angle), 1 - np.cos(angle))
        second = np.where(label == 0, np.sin(angle), 0.5 - np.sin(angle))
        return np.stack([first, second], 1) + 0.2 * rng.normal(size=(rows, 2)), label

    data, (x_new, y_new) = draw(80), draw(1_000)
    network, bernoulli = cx.networks.mlp([50, 50]), cx.likelihoods.Bernoulli()
    model = cx.Model(network, cx.priors.LearnedNormal(), bernoulli)
    learned = cx.fit(model, data, cx.BayesByBackprop(), key=3, progress=False)
    found = [f for f in learned.diagnose() if "switch off units" in f.what]
    assert [finding.errs for finding in found] == ["too unsure"] * curved
    if curved:
        model = cx.Model(network, cx.priors.Normal(1.0), bernoulli)
        chains = cx.fit(model, data, cx.MCLMC(), key=3, progress=False)
        assert "switch off units" not in str(chains.diagnose())
        scores = [each.evaluate(x_new, y_new).log_likelihood for each in (chains, learned)]
        assert scores[0] - scores[1] > 0.1


@pytest.mark.slow
def test_a_noise_that_is_too_large_is_told():
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(scale=None))
    data = columns()
    dropout = cx.fit(model, data, cx.MCDropout(rate=0.2), progress=False)
    (found,) = (f for f in dropout.diagnose() if f.what.startswith("The noise is overstated"))
    assert found.errs == "too unsure"
    chains = cx.fit(model, data, cx.MCLMC(), progress=False)
    assert "noise" not in str(chains.diagnose())
