"""Active learning: rules compared with direct formulas, batches with brute force, the loop with a record."""

import itertools

import jax
import numpy as np
import pytest
from scipy.special import logsumexp

import credax as cx
from credax.decisions import active_learning as al
from credax.decisions.active_learning import acquire, active_learning, batch_bald, spread_out
from credax.posterior.approximations import Draws

RNG = np.random.default_rng(0)


def posterior_of(likelihood, y, rows=6, draws=4, log_weights=None, seed=0):
    """A posterior of a linear network with random draws, and rows to choose from."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(len(y), 3))
    model = cx.Model(cx.networks.linear(), likelihood=likelihood).bind((x, y))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(
        lambda leaf: rng.normal(size=(1, draws, *leaf.shape)).astype(leaf.dtype), shapes
    )
    return cx.Posterior(model, Draws(params, (), log_weights)), rng.normal(size=(rows, 3))


LABELS = np.array([0, 1, 2, 0, 1, 2])
CLASSES = posterior_of(cx.likelihoods.Categorical(), LABELS)
NUMBERS = posterior_of(cx.likelihoods.Gaussian(0.5), np.arange(6.0))
TWO_NUMBERS = posterior_of(cx.likelihoods.Gaussian([0.5, 2.0]), RNG.normal(size=(6, 2)))
YES_OR_NO = posterior_of(cx.likelihoods.Bernoulli(), LABELS % 2)


def outputs(posterior, x):
    params = posterior.draws["layer_0"]
    return np.asarray(np.einsum("ni,sio->sno", x, params["kernel"][0]) + params["bias"][0][:, None])


def class_probs(posterior, x):
    f = outputs(posterior, x)
    if f.shape[2] == 1:
        f = np.concatenate([np.zeros_like(f), f], axis=2)
    return np.exp(f - logsumexp(f, axis=2, keepdims=True)).astype(np.float64)


def entropy(p, axis=-1):
    return -np.sum(p * np.log(p), axis=axis)


# -- one row at a time -----------------------------------------------------------------------------


def expected_order(value):
    return np.argsort(-value)


@pytest.mark.parametrize("posterior, x", [CLASSES, YES_OR_NO], ids=["three", "two"])
def test_rules_for_classes(posterior, x):
    probs = class_probs(posterior, x)
    mean = probs.mean(0)
    value = {
        "bald": entropy(mean) - entropy(probs).mean(0),
        "entropy": entropy(mean),
        "variance": probs.var(0).sum(1),
        "margin": -np.diff(np.sort(mean, axis=1)[:, -2:], axis=1)[:, 0],
    }
    for rule, values in value.items():
        chosen = acquire(posterior, x, 6, rule=rule)
        np.testing.assert_array_equal(chosen, expected_order(values), err_msg=rule)
        np.testing.assert_array_equal(acquire(posterior, x, 2, rule=rule), chosen[:2])


@pytest.mark.parametrize(
    "posterior, x, noise", [(*NUMBERS, [0.5]), (*TWO_NUMBERS, [0.5, 2.0])], ids=["one", "two"]
)
def test_rules_for_numbers(posterior, x, noise):
    epistemic, noise = outputs(posterior, x).var(0), np.square(noise)
    value = {
        "bald": 0.5 * np.log1p(epistemic / noise).sum(1),
        "entropy": 0.5 * np.log(epistemic + noise).sum(1),
        "variance": epistemic.sum(1),
    }
    for rule, values in value.items():
        chosen = acquire(posterior, x, 6, rule=rule)
        np.testing.assert_array_equal(chosen, expected_order(values), err_msg=rule)


def test_random_rows_are_each_as_likely():
    posterior, x = CLASSES
    first = [acquire(posterior, x, 3, rule="random", key=k)[0] for k in range(300)]
    counts = np.bincount(first, minlength=6)
    assert np.sum((counts - 50) ** 2 / 50) < 20.5  # the 99.9 % quantile of chi-squared(5)


@pytest.mark.parametrize("rule", al.RULES)
def test_no_row_is_chosen_twice(rule):
    posterior, x = CLASSES
    x = np.concatenate([x, x])  # ties
    assert sorted(acquire(posterior, x, 12, rule=rule, key=3)) == list(range(12))
    if rule != "margin":
        for posterior, x in (NUMBERS, TWO_NUMBERS):
            assert sorted(acquire(posterior, x, 6, rule=rule)) == list(range(6))


# -- batches: classification -----------------------------------------------------------------------


def joint_information(probs, weights, rows):
    """I(y_rows; w), as a sum over all labellings."""
    samples, _, classes = probs.shape
    joint = 0.0
    for labels in itertools.product(range(classes), repeat=len(rows)):
        given = np.ones(samples)
        for row, label in zip(rows, labels, strict=True):
            given = given * probs[:, row, label]
        p = np.sum(weights * given)
        joint -= p * np.log(p)
    return joint - sum(weights @ entropy(probs[:, row]) for row in rows)


def greedy(information, rows, count):
    chosen = []
    for _ in range(count):
        left = [row for row in range(rows) if row not in chosen]
        chosen.append(max(left, key=lambda row: information([*chosen, row])))
    return chosen


def made_up_probs(samples, rows, classes, seed):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(classes, 0.7), (samples, rows))
    return probs, rng.dirichlet(np.ones(samples))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows, classes", [(3, 3), (5, 3), (6, 2)])
def test_batches_of_classes_are_greedy_in_the_joint_information(rows, classes, seed):
    probs, weights = made_up_probs(7, rows, classes, seed)
    expected = greedy(lambda b: joint_information(probs, weights, b), rows, 3)
    np.testing.assert_array_equal(batch_bald(probs, weights, 3, 0), expected)


def test_the_entropy_given_labels_is_that_of_all_labellings():
    probs, weights = made_up_probs(5, 4, 3, 1)
    belief, share = [], []
    for labels in itertools.product(range(3), repeat=2):
        joint = weights * probs[:, 0, labels[0]] * probs[:, 1, labels[1]]
        share.append(joint.sum())
        belief.append(joint / joint.sum())
    found = al._conditional_entropy(np.transpose(belief), np.array(share), probs)
    gain = found - weights @ entropy(probs)
    pair = joint_information(probs, weights, [0, 1])
    for row in (2, 3):
        assert gain[row] == pytest.approx(joint_information(probs, weights, [0, 1, row]) - pair)


def test_blocks_of_rows_change_nothing(monkeypatch):
    probs, weights = made_up_probs(6, 9, 3, 2)
    whole = batch_bald(probs, weights, 4, 0)
    monkeypatch.setattr(al, "TABLE", 1)
    np.testing.assert_array_equal(batch_bald(probs, weights, 4, 0), whole)


def test_drawn_labellings_estimate_the_entropy(monkeypatch):
    """After five rows, sampled labellings estimate the entropy over all 243 labellings."""
    probs, weights = made_up_probs(6, 8, 3, 3)

    def estimate(offsets):
        belief, share = weights[:, None], np.ones(1)
        for row, offset in enumerate(offsets):
            belief, share = al._labelled(belief, share, probs[:, row], offset)
        assert share.sum() == pytest.approx(1)
        return al._conditional_entropy(belief, share, probs)

    exact = estimate(np.zeros(5))
    monkeypatch.setattr(al, "LABELLINGS", 24)
    estimates = np.array([estimate(u) for u in np.random.default_rng(0).uniform(size=(400, 5))])
    error = estimates.std(0, ddof=1) / np.sqrt(len(estimates))
    assert np.all(np.abs(estimates.mean(0) - exact) < 4 * error)
    assert np.all(estimates.std(0) < 0.2)
    assert np.all(error < 0.01)


def test_many_rows_do_not_underflow(monkeypatch):
    probs, weights = made_up_probs(10, 400, 3, 4)
    monkeypatch.setattr(al, "LABELLINGS", 9)
    assert len(set(batch_bald(probs, weights, 380, 0))) == 380


def test_a_batch_avoids_what_it_has_asked_already():
    """Two rows carry the same information; a third carries less, but different information."""
    halves = np.array([[0.99, 0.01]] * 2 + [[0.01, 0.99]] * 2)
    other = np.array([[0.9, 0.1], [0.1, 0.9]] * 2)
    probs = np.stack([halves, halves, other], axis=1)
    weights = np.full(4, 0.25)
    assert list(batch_bald(probs, weights, 2, 0)) == [0, 2]


def test_weights_of_draws_count_in_a_batch():
    log_weights = np.log([[0.7, 0.2, 0.05, 0.05]])
    posterior, x = posterior_of(cx.likelihoods.Categorical(), LABELS, log_weights=log_weights)
    probs, weights = class_probs(posterior, x), np.exp(log_weights[0])
    expected = greedy(lambda b: joint_information(probs, weights, b), 6, 3)
    plain = greedy(lambda b: joint_information(probs, np.full(4, 0.25), b), 6, 3)
    assert expected != plain
    np.testing.assert_array_equal(acquire(posterior, x, 3, rule="batch_bald"), expected)


def test_the_first_row_of_a_batch_is_that_of_bald():
    for posterior, x in (CLASSES, YES_OR_NO, NUMBERS):
        first = acquire(posterior, x, rule="bald")
        np.testing.assert_array_equal(acquire(posterior, x, rule="batch_bald"), first)


# -- batches: regression ---------------------------------------------------------------------------


def normal_information(means, noise, weights, rows):
    """Half the log ratio of the determinants of the targets' joint covariance and of the noise covariance."""
    chosen = means[:, rows].reshape(len(means), -1)
    noise = noise[rows].reshape(-1)
    deviation = chosen - weights @ chosen
    covariance = deviation.T @ (weights[:, None] * deviation)
    total = np.linalg.slogdet(covariance + np.diag(noise))[1]
    return 0.5 * (total - np.log(noise).sum())


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_batches_of_numbers_are_greedy_in_the_log_determinant(targets, seed):
    rng = np.random.default_rng(seed)
    low_rank = rng.normal(size=(12, 3)) @ rng.normal(
        size=(3, 7 * targets)
    )  # rows share information
    means = low_rank.reshape(12, 7, targets)
    noise, weights = rng.uniform(0.2, 2, (7, targets)), rng.dirichlet(np.ones(12))
    expected = greedy(lambda b: normal_information(means, noise, weights, b), 7, 5)
    np.testing.assert_array_equal(spread_out(means, noise, weights, 5), expected)


def test_rows_without_spread_are_chosen_last():
    means = np.zeros((5, 3, 1))
    means[:, 1, 0] = np.arange(5)
    chosen = spread_out(means, np.ones((3, 1)), np.full(5, 0.2), 3)
    assert chosen[0] == 1
    assert sorted(chosen) == [0, 1, 2]


# -- the loop --------------------------------------------------------------------------------------


LINE = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.5))
ENSEMBLE = cx.DeepEnsemble(members=3, num_steps=5, learning_rate=0.05)
X = RNG.normal(size=(30, 3))
Y = X @ [1.0, -1.0, 0.5]


@pytest.mark.slow
def test_the_loop_asks_as_often_and_for_as_many_as_it_is_told():
    asked = []

    def oracle(rows):
        asked.append(rows)
        return Y[10:20][rows]

    pool, test = (X[10:20], oracle), (X[20:], Y[20:])
    options = {"rounds": 3, "count": 2, "test": test, "key": 1}
    history = active_learning(LINE, (X[:4], Y[:4]), pool, ENSEMBLE, **options)
    assert history.labels == [4, 6, 8, 10]
    assert [len(rows) for rows in history.chosen] == [2, 2, 2]
    assert len(set(np.concatenate(history.chosen))) == 6
    for mine, its in zip(asked, history.chosen, strict=True):
        np.testing.assert_array_equal(mine, its)
    assert len(history.scores) == 4
    last = history.posterior.evaluate(*test)
    assert history.scores[-1].log_likelihood == last.log_likelihood
    # Labels given as an array and the same key give the same rows and the same posterior.
    known = (X[10:20], Y[10:20])
    assert repr(history).splitlines()[0].split()[0] == "labels"
    assert len(repr(history).splitlines()) == 5
    assert history._repr_html_().count("<tr>") == 5
    again = active_learning(LINE, (X[:4], Y[:4]), known, ENSEMBLE, **options)
    np.testing.assert_array_equal(again.chosen, history.chosen)
    assert again.scores[-1].log_likelihood == last.log_likelihood


def test_each_posterior_is_fitted_to_all_labels_so_far():
    pool = (X[10:20], Y[10:20])
    history = active_learning(LINE, (X[:4], Y[:4]), pool, ENSEMBLE, rounds=2, count=2, key=1)
    rows = 10 + np.concatenate(history.chosen)
    x, y = np.concatenate([X[:4], X[rows]]), np.concatenate([Y[:4], Y[rows]])
    key = jax.random.split(jax.random.split(cx.random.key(1), 3)[-1])[0]
    expected = cx.fit(LINE, (x, y), ENSEMBLE, key=key, progress=False).draws
    jax.tree.map(np.testing.assert_array_equal, history.posterior.draws, expected)


@pytest.mark.parametrize("warm", [False, True])
def test_a_warm_start_goes_on_from_the_posterior_before(warm):
    method = cx.DeepEnsemble(members=3, num_steps=1, learning_rate=1e-30)  # the weights stay put
    history = active_learning(
        LINE, (X[:4], Y[:4]), (X[10:20], Y[10:20]), method, rounds=1, warm_start=warm, key=5
    )
    none = active_learning(
        LINE, (X[:4], Y[:4]), (X[10:20], Y[10:20]), method, rounds=0, warm_start=warm, key=5
    )
    assert repr(none) == "History(0 rounds, 4 to 4 labels)"
    assert none.labels == [4]
    assert none.chosen == []
    assert none.scores == []
    first = active_learning(LINE, (X[:4], Y[:4]), (X[10:20], Y[10:20]), method, rounds=1, key=5)
    same = np.array_equal(
        first.posterior.draws["layer_0"]["kernel"], history.posterior.draws["layer_0"]["kernel"]
    )
    assert same is not warm


def test_a_class_that_the_first_rows_do_not_show():
    labels = np.arange(30) % 3
    first = np.flatnonzero(labels < 2)[:6]
    pool = np.setdiff1d(np.arange(30), first)
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Categorical())
    history = active_learning(
        model, (X[first], labels[first]), (X[pool], labels[pool]), ENSEMBLE, rounds=1, count=9
    )
    assert history.posterior.predict(X).probs.shape == (30, 3)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"rule": "luck"}, ValueError, r"active_learning\(rule=...\) must be one of 'bald', "),
        ({"rounds": -1}, ValueError, r"active_learning\(rounds=...\) must be a whole number"),
        ({"count": 0}, ValueError, r"active_learning\(count=...\) must be a whole number"),
        ({"rounds": 6, "count": 2}, ValueError, "at most the number of pool rows, 10, summed"),
        ({"pool": (X[:3], Y[:4])}, ValueError, r"of shape \(3,\); got an array of shape \(4,\)"),
        ({"pool": (X[:3, :2], Y[:3])}, ValueError, r"rows of shape \(3,\), as in data; got"),
        ({"pool": X}, TypeError, "must be a pair"),
        ({"pool": (X[:3], lambda rows: Y[:5])}, ValueError, "one label each, of shape"),
        ({"data": (X[:3], Y[:4])}, ValueError, "same number of rows"),
        ({"test": X}, TypeError, "must be a pair"),
        ({"model": cx.networks.linear()}, TypeError, r"\(model=...\) must be a cx.Model"),
    ],
)
def test_bad_input_to_the_loop(change, error, message):
    arguments = {
        "model": LINE,
        "data": (X[:4], Y[:4]),
        "pool": (X[10:20], Y[10:20]),
        "method": ENSEMBLE,
        "rounds": 1,
        **change,
    }
    with pytest.raises(error, match=message):
        active_learning(**arguments)


def test_bad_input_to_a_choice():
    posterior, x = NUMBERS
    with pytest.raises(ValueError, match=r"acquire\(rule=...\) must be one of"):
        acquire(posterior, x, rule="best")
    with pytest.raises(ValueError, match=r'rule="margin"\) is for classification'):
        acquire(posterior, x, rule="margin")
    with pytest.raises(ValueError, match=r"acquire\(count=...\) must be at most .* 6; got 7"):
        acquire(posterior, x, 7)
    with pytest.raises(TypeError, match=r"acquire\(count=...\) must be a whole number"):
        acquire(posterior, x, 1.5)
    with pytest.raises(ValueError, match="x must have shape"):
        acquire(posterior, x[:, :2])
    density = cx.LogDensity(lambda key: {"a": np.zeros(2)}, lambda params: -params["a"].sum())
    of_density = cx.Posterior(density, Draws({"a": np.zeros((1, 3, 2))}))
    with pytest.raises(TypeError, match="this posterior is of a LogDensity"):
        acquire(of_density, x)


def test_several_labels_a_row():
    labels = np.stack([LABELS % 2, 1 - LABELS % 2], axis=1)
    posterior, x = posterior_of(cx.likelihoods.Bernoulli(), labels)
    p = 1 / (1 + np.exp(-outputs(posterior, x)))
    bits = lambda p: (-p * np.log(p) - (1 - p) * np.log(1 - p)).sum(-1)  # noqa: E731
    value = bits(p.mean(0)) - bits(p).mean(0)
    np.testing.assert_array_equal(acquire(posterior, x, 6), expected_order(value))
    for rule in ("batch_bald", "margin"):
        with pytest.raises((AttributeError, ValueError), match="one label"):
            acquire(posterior, x, 2, rule=rule)


# -- comparison with random choice -----------------------------------------------------------------


@pytest.mark.slow
def test_digits_need_fewer_labels_than_at_random():
    """On average over four keys, BALD needs at most 85 % of the labels that random choice needs."""
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    x, y = load_digits(return_X_y=True)
    x = x / 16
    model = cx.Model(
        cx.networks.mlp([64]), cx.priors.Normal(1.0), cx.likelihoods.Categorical(num_classes=10)
    )
    method = cx.DeepEnsemble(members=10, num_steps=300, learning_rate=1e-2)
    right = {"bald": [], "random": []}
    for key in range(4):
        order = np.random.default_rng(key).permutation(len(y))
        test, first, pool = order[:500], order[500:560], order[560:]
        rows = {"data": first, "pool": pool, "test": test}
        rows = {name: (x[chosen], y[chosen]) for name, chosen in rows.items()}
        for rule, found in right.items():
            history = active_learning(
                model, method=method, rule=rule, rounds=8, count=20, key=key, **rows
            )
            found.append([scores.accuracy for scores in history.scores])
    bald, at_random = (np.mean(found, axis=0) for found in right.values())
    labels = np.array(history.labels)
    assert bald[-1] > at_random[-1] + 0.01
    assert labels[np.argmax(bald >= at_random[-1])] <= 0.85 * labels[-1]
