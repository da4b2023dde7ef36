"""What posteriors, predictions and approximations show of themselves: the facts, in few lines."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.model.networks import linear, mlp
from credax.posterior import approximations, display
from credax.posterior.approximations import APPROXIMATIONS, Draws, GaussianMixture, MeanField
from credax.storage.describe import Stored

X = np.random.default_rng(0).normal(size=(40, 2))


def bound(network=None, likelihood=None, y=X[:, 0]):
    likelihood = cx.likelihoods.Gaussian(0.5) if likelihood is None else likelihood
    return cx.Model(mlp([8]) if network is None else network, likelihood=likelihood).bind((X, y))


def draws_of(model, replicas, draws, weighted=False):
    """Random draws, without a fit."""
    generator = np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(
        lambda leaf: generator.normal(size=(replicas, draws, *leaf.shape)).astype(leaf.dtype),
        shapes,
    )
    return Draws(params, (), np.zeros((replicas, draws)) if weighted else None)


def predictive(replicas=2, draws=3, rows=X, **model):
    model = bound(**model)
    return cx.Posterior(model, draws_of(model, replicas, draws)).predict(rows)


# -- posteriors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method, shape, weighted, text",
    [
        (cx.DeepEnsemble(), (5, 1), False, "Posterior(DeepEnsemble, 5 members, 33 weights, 3.1 s)"),
        (cx.MAP(), (1, 1), False, "Posterior(MAP, 1 draw, 33 weights, 3.1 s)"),
        (
            cx.NUTS(chains=4),
            (4, 1000),
            False,
            "Posterior(NUTS, 4 chains of 1,000 draws, 33 weights, 3.1 s)",
        ),
        (cx.NUTS(chains=1), (1, 1000), False, "Posterior(NUTS, 1,000 draws, 33 weights, 3.1 s)"),
        (cx.SMC(), (1, 1000), False, "Posterior(SMC, 1,000 particles, 33 weights, 3.1 s)"),
        (
            cx.ImportanceSampling(),
            (1, 70),
            True,
            "Posterior(ImportanceSampling, 70 weighted draws, 33 weights, 3.1 s)",
        ),
        (
            Stored({"type": "Tempered", "custom": True, "chains": 2}, "credax has no such method"),
            (2, 7),
            False,
            "Posterior(Tempered, 2 chains of 7 draws, 33 weights, 3.1 s)",
        ),
        (None, (2, 7), False, "Posterior(2 replicas of 7 draws, 33 weights, 3.1 s)"),
    ],
    ids=str,
)
def test_a_posterior_says_how_it_was_made_and_how_large_it_is(method, shape, weighted, text):
    model = bound()
    draws = draws_of(model, *shape, weighted)
    assert repr(cx.Posterior(model, draws, method, {"seconds": 3.14})) == text
    without = repr(cx.Posterior(model, draws, method))
    assert without == text.replace(", 3.1 s", "")


def test_other_distributions_are_named():
    model = bound()
    params = model.init(cx.random.key(0))
    posterior = cx.Posterior(model, MeanField.around(params, 0.1), cx.BayesByBackprop())
    assert repr(posterior) == "Posterior(BayesByBackprop, MeanField, 33 weights)"
    several = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), params)
    factors = jax.tree.map(lambda leaf: jnp.zeros((3, 4, *leaf.shape)), params)
    mixture = GaussianMixture(several, several, factors)
    assert repr(cx.Posterior(model, mixture, cx.SWAG(members=3))) == (
        "Posterior(SWAG, 3 members, GaussianMixture, 33 weights)"
    )


def test_a_posterior_in_a_notebook_is_a_small_table():
    model = bound()
    estimates = {"log_evidence": (-12.314, 0.0413, "too low: <bound>"), "elbo": None}
    posterior = cx.Posterior(model, draws_of(model, 5, 1), cx.DeepEnsemble(), **estimates)
    page = posterior._repr_html_()
    assert page.startswith("<table>")
    for part in (
        "DeepEnsemble",
        "5 members",
        "33 weights",
        "-12.31 ± 0.04 (too low: &lt;bound&gt;)",
    ):
        assert f"<td>{part}</td>" in page
    assert "elbo" not in page


def test_a_large_posterior_is_shown_as_shortly_as_a_small_one():
    model = bound(mlp([310, 310]))
    posterior = cx.Posterior(
        model, draws_of(model, 2, 3), cx.NUTS(), {"log_joint": np.zeros((2, 9))}
    )
    assert "97,651 weights" in repr(posterior)
    for value in (posterior, posterior.approximation, posterior.predict(X)):
        assert len(repr(value)) < 450
        assert len(repr(value).splitlines()) < 12


# -- approximations ---------------------------------------------------------------------------------


def test_draws_show_their_number():
    model = bound()
    assert repr(draws_of(model, 4, 1000)) == "Draws(4 replicas of 1,000 draws, 33 weights)"
    assert repr(draws_of(model, 1, 1)) == "Draws(1 draw, 33 weights)"
    assert repr(draws_of(model, 1, 9, True)) == "Draws(9 weighted draws, 33 weights)"
    samples = draws_of(model, 2, 3).samples(jax.random.key(0), None)
    assert repr(samples) == "Samples(6 samples)"


PARAMS = {"a": jnp.zeros((3, 2)), "b": jnp.zeros(4)}
MADE = {
    "MeanField(10 weights)": MeanField.around(PARAMS, 0.1),
    "LowRank(rank 3, 10 weights)": approximations.LowRank.around(PARAMS, 0.1, 3, jax.random.key(0)),
    "FullRank(10 weights)": approximations.FullRank.around(PARAMS, 0.1),
    "Categorical(10 weights)": approximations.Categorical(
        jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape)), PARAMS), ((0.0, 1.0),) * 2
    ),
    "GaussianMixture(2 components, rank 5, 10 weights)": GaussianMixture(
        jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape)), PARAMS),
        jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape)), PARAMS),
        jax.tree.map(lambda leaf: jnp.zeros((2, 5, *leaf.shape)), PARAMS),
    ),
    "Masked(10 weights)": approximations.Masked(PARAMS, jnp.zeros(2), (None, None)),
    "Seeds(10 weights)": approximations.Seeds(PARAMS, ()),
    "FullNormal(linearised, 10 weights)": approximations.FullNormal(
        PARAMS, jnp.eye(10), (True, True), True
    ),
    "RankOne(3 members, 10 weights)": approximations.RankOne(
        PARAMS, *[jax.tree.map(lambda leaf: jnp.ones((3, 0)), PARAMS)] * 2, ((), ())
    ),
    "LowRankNormal(rank 2, linearised, 10 weights)": approximations.LowRankNormal(
        PARAMS, jnp.eye(10)[:, :2], jnp.ones(2), jnp.ones(10), (True, True), True
    ),
    "KroneckerNormal(10 weights)": approximations.KroneckerNormal(
        PARAMS, PARAMS, PARAMS, PARAMS, ((), ()), False
    ),
}


@pytest.mark.parametrize("text", MADE)
def test_approximations_show_their_kind_and_size_and_no_array(text):
    assert repr(MADE[text]) == text


def test_every_approximation_is_shown_here():
    shown = {type(value).__name__ for value in MADE.values()} | {"Draws"}
    assert shown == set(APPROXIMATIONS)


def test_an_approximation_can_be_shown_while_it_is_traced():
    texts = []
    jax.jit(lambda family: texts.append(repr(family)))(MADE["MeanField(10 weights)"])
    assert texts == ["MeanField(10 weights)"]


# -- predictions ------------------------------------------------------------------------------------


def cells(text):
    """The cells of the rows of a table, without the line of headings."""
    lines = text.splitlines()[2:]
    return [re.split(r"\s{2,}", line.strip()) for line in lines if not line.startswith("...")]


def test_a_prediction_of_numbers_shows_its_first_rows():
    found = predictive()
    text = repr(found)
    title, heads, *_, last = text.splitlines()
    assert title == "Predictive(40 rows, averaged over 6 samples)"
    assert heads.split() == ["mean", "std", "epistemic", "aleatoric"]
    assert last == "... 35 more rows"
    rows = cells(text)
    assert [int(row[0]) for row in rows] == [0, 1, 2, 3, 4]
    for at, name in enumerate(heads.split(), 1):
        shown = [float(row[at]) for row in rows]
        np.testing.assert_allclose(shown, getattr(found, name)[:5], rtol=1e-3)
    assert repr(found) == text, "all rows are known by now"


def test_no_more_rows_are_computed_than_are_shown():
    found = predictive()
    repr(found)
    assert "_moments" not in vars(found)
    few = predictive(rows=X[:3])
    assert repr(few).splitlines()[-1].startswith("2")
    assert "_moments" in vars(few), "so that nothing is computed twice"
    assert repr(predictive(rows=X[:6])).endswith("... 1 more row")


def test_a_prediction_of_classes_shows_its_labels():
    found = predictive(likelihood=cx.likelihoods.Categorical(), y=np.arange(40) % 3)
    text = repr(found)
    heads = text.splitlines()[1]
    assert heads.split("  ")[-1].strip() == "mutual information"
    assert heads.split() == ["label", "probability", "entropy", "mutual", "information"]
    labels = [int(row[1]) for row in cells(text)]
    np.testing.assert_array_equal(labels, found.label[:5])
    np.testing.assert_allclose(
        [float(row[2]) for row in cells(text)], found.probs.max(1)[:5], rtol=1e-3
    )


def test_several_labels_and_several_targets_share_a_cell():
    labels = predictive(likelihood=cx.likelihoods.Bernoulli(), y=np.ones((40, 2), int))
    assert repr(labels).splitlines()[1].split()[0] == "mean"
    assert re.search(r"\n0 +\(\S+, \S+\) ", repr(labels))
    targets = predictive(y=np.zeros((40, 4)))
    assert re.search(r"\n0 +\(\S+, \S+, \S+, \.\.\.\) ", repr(targets))


def test_a_prediction_of_counts_and_one_in_closed_form_are_shown_as_well():
    counts = predictive(likelihood=cx.likelihoods.Poisson(), y=np.arange(40) % 3)
    assert "aleatoric" in repr(counts)
    model = bound(linear())
    params = model.init(cx.random.key(0))
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    free = (True,) * len(jax.tree.leaves(params))
    normal = approximations.FullNormal(params, jnp.eye(size), free, True)
    found = cx.Posterior(model, normal).predict(X)
    assert repr(found).startswith("Predictive(40 rows, in closed form)")
    assert repr(normal.samples(jax.random.key(0), 7)) == "Samples(7 samples, linearised)"


def test_a_prediction_in_a_notebook_is_a_small_table():
    page = predictive()._repr_html_()
    assert page.count("<tr>") == 6
    assert "<caption>Predictive(40 rows, averaged over 6 samples)</caption>" in page
    assert "<th>epistemic</th>" in page
    assert page.endswith("<p>... 35 more rows</p>")


# -- words ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Own:
    """A method from elsewhere."""

    chains: int = 3


def test_the_word_for_a_replica_is_that_of_the_method_s_setting():
    assert display.draws_text(3, 1, Own()) == "3 chains"
    assert display.draws_text(3, 2, object()) == "3 replicas of 2 draws"
    assert display.method_name(Own()) == "Own"
