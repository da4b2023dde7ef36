"""Bandits: exact regret, Thompson sampling from known posteriors, the buffer, and all kinds of agents."""

import gzip
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import norm

import credax as cx
from credax.core.typing import Draw
from credax.decisions import agents, bandits
from credax.decisions.agents import Buffer, expected_reward
from credax.decisions.bandits import Bandit, play
from credax.inference.ensembles.dropout import MCDropout
from credax.inference.laplace import Laplace
from credax.inference.method import Acting, Method, Trace
from credax.posterior.approximations import Draws
from credax.posterior.approximations.normals import FullNormal

LINEAR = cx.Model(cx.networks.mlp([]), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(1.0))
STILL = 1e-30
"""A learning rate so small that the weights do not change."""


def table(rows=40, actions=3, values=2, seed=0):
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=(rows, actions, values))
    return Bandit(
        rng.normal(size=(rows, 2)), rewards, rng.dirichlet(np.ones(values), (rows, actions))
    )


def stubborn_play(epsilon):
    """A bandit, and a run of an agent whose weights never change."""
    settings = {"num_steps": 5_000, "batch_size": 1, "buffer": 64, "progress": False}
    return table(), play(table(), LINEAR, cx.MAP(learning_rate=STILL), epsilon=epsilon, **settings)


@pytest.fixture(scope="module")
def random_play():
    """A run with uniformly random actions, for which regret and rewards have known distributions."""
    return stubborn_play(1.0)


SHORT = {"num_steps": 60, "batch_size": 4, "buffer": 100, "progress": False}


# -- the environment ------------------------------------------------------------------------------


def test_expected_rewards_are_sums_over_the_values():
    bandit = table(rows=5)
    for row in range(5):
        for action in range(3):
            pairs = zip(bandit.rewards[row, action], bandit.probabilities[row, action], strict=True)
            assert bandit.expected[row, action] == pytest.approx(sum(r * p for r, p in pairs))
    np.testing.assert_allclose(bandit.gaps.min(1), 0)
    np.testing.assert_allclose(
        bandit.expected + bandit.gaps, bandit.expected.max(1)[:, None] * np.ones(3)
    )


def test_one_value_is_certain_and_several_are_equally_likely_where_nothing_else_is_said():
    contexts = np.zeros((4, 1))
    np.testing.assert_allclose(Bandit(contexts, np.tile([1.0, 2.0], (4, 1))).expected[0], [1, 2])
    halves = Bandit(contexts, np.tile([[5.0, 5.0], [5.0, -35.0]], (4, 1, 1)))
    np.testing.assert_allclose(halves.expected, np.tile([5.0, -15.0], (4, 1)))


def test_inputs_are_contexts_with_the_code_of_each_action():
    bandit = table()
    x = bandit.inputs([3, 7])
    assert repr(bandit) == "Bandit(40 contexts with 2 features, 3 actions)"
    assert x.shape == (2, 3, 5)
    np.testing.assert_array_equal(x[1, 2], [*bandit.contexts[7], 0, 0, 1])


@pytest.mark.parametrize("header", [True, False])
def test_mushrooms_are_read_from_text_and_from_gzip(tmp_path, header):
    letters = ["e," + ",".join("a" * 22), "p," + ",".join("ab" * 11), "p," + ",".join("a?" * 11)]
    lines = (["class," + ",".join(f"f{i}" for i in range(22))] if header else []) + letters
    plain, packed = tmp_path / "mushrooms.csv", tmp_path / "mushrooms.data.gz"
    plain.write_text("\n".join(lines) + "\n")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        bandit = bandits.mushrooms(path)
        # The odd columns have one distinct letter, the even ones three.
        assert bandit.contexts.shape == (3, 11 + 33)
        np.testing.assert_array_equal(bandit.contexts.sum(1), 22)
        np.testing.assert_allclose(bandit.expected, [[0, 5], [0, -15], [0, -15]])
        np.testing.assert_allclose(bandit.gaps, [[5, 0], [0, 15], [0, 15]])


def test_a_file_that_holds_no_mushrooms_is_refused(tmp_path):
    path = tmp_path / "iris.csv"
    path.write_text("5.1,3.5,1.4,0.2,setosa\n")
    with pytest.raises(ValueError, match=r"mushrooms\(path=...\) must be the UCI file"):
        bandits.mushrooms(path)
    with pytest.raises(FileNotFoundError):
        bandits.mushrooms(tmp_path / "nowhere.csv")


# -- regret and rewards ---------------------------------------------------------------------------


def test_regret_is_that_of_the_actions_replayed(random_play):
    bandit, result = random_play
    expected = np.sum(bandit.rewards.astype(float) * bandit.probabilities, axis=2)
    total, curve = 0.0, []
    for row, action in zip(result.contexts, result.actions, strict=True):
        total += max(expected[row]) - expected[row, action]
        curve.append(total)
    np.testing.assert_allclose(result.regret, curve, rtol=1e-9)


def test_a_random_agent_has_the_regret_of_chance(random_play):
    bandit, result = random_play
    error = bandit.gaps.std() * np.sqrt(len(result.regret))
    assert abs(result.regret[-1] - len(result.regret) * bandit.gaps.mean()) < 4 * error
    for numbers, count in ((result.actions, 3), (result.contexts, 40)):
        share = np.bincount(numbers, minlength=count) / len(numbers)
        error = np.sqrt((1 / count) * (1 - 1 / count) / len(numbers))
        assert np.abs(share - 1 / count).max() < 4 * error


def test_rewards_have_their_probabilities(random_play):
    bandit, result = random_play
    values = bandit.rewards[result.contexts, result.actions]
    assert np.all(np.any(values == result.rewards[:, None], axis=1))
    first = (values[:, 0] == result.rewards).astype(float)
    chance = bandit.probabilities[result.contexts, result.actions, 0].astype(float)
    # The residual times any function of the context has mean zero.
    for weight in (np.ones(len(first)), chance - chance.mean()):
        error = np.sqrt(np.sum(weight**2 * chance * (1 - chance)))
        assert abs(np.sum(weight * (first - chance))) < 4 * error


def test_equal_values_are_decided_by_chance_and_others_are_not():
    uniforms = (np.arange(600) + 0.5) / 600
    choose = jax.vmap(agents.best_action, in_axes=(None, 0))
    for values, shares in (
        ([1.0, 1.0], [300, 300]),
        ([0.0, 2.0, -1.0, 2.0, 2.0], [0, 200, 0, 200, 200]),
        ([0.0, 1e-30, -1.0], [0, 600, 0]),
    ):
        chosen = np.asarray(choose(jnp.array(values), jnp.array(uniforms)))
        np.testing.assert_array_equal(np.bincount(chosen, minlength=len(values)), shares)


def test_epsilon_is_the_probability_of_chance():
    bandit, result = stubborn_play(0.3)
    layer = jax.tree.map(lambda leaf: leaf[0, 0], result.posterior.draws)["layer_0"]
    values = bandit.inputs(result.contexts) @ layer["kernel"][:, 0]
    others = np.mean(result.actions != values.argmax(1))
    share = 0.3 * 2 / 3
    assert abs(others - share) < 4 * np.sqrt(share * (1 - share) / len(values))


# -- Thompson sampling ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("draws", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_action_is_taken_as_often_as_it_is_likely_to_be_the_best(draws):
    """With a fixed q, the difference of the two actions' values is normal with known mean and variance."""
    bandit = Bandit(np.zeros((1, 1)), [[0.0, 0.0]])
    method = cx.BayesByBackprop(learning_rate=STILL, initial_scale=1.0)
    settings = {"num_steps": 4_000, "batch_size": 1, "buffer": 8, "draws": draws, "key": 3}
    result = play(bandit, LINEAR, method, progress=False, **settings)
    family = result.posterior.approximation
    mean = family.mean["layer_0"]["kernel"][1:, 0]
    best = norm.cdf((mean[1] - mean[0]) / np.sqrt(2 / draws))
    assert 0.05 < best < 0.95
    assert abs(result.actions.mean() - best) < 4 * np.sqrt(best * (1 - best) / 4_000)


def risky():
    """A small certain reward, or a risk that pays on average but fails half of the time."""
    return Bandit(np.zeros((1, 1)), [[[0.1, 0.1], [-1.0, 3.0]]])


@pytest.mark.slow
def test_greedy_gets_stuck_and_thompson_does_not():
    settings = {"num_steps": 400, "updates": 4, "batch_size": 32, "buffer": 400, "progress": False}
    greedy, thompson = [], []
    for key in range(6):
        method = cx.MAP(learning_rate=0.03)
        greedy.append(play(risky(), LINEAR, method, key=key, **settings).regret[-1])
        # It starts at the prior. The exact posterior too loses more than the limit in one run of twenty.
        method = cx.BayesByBackprop(learning_rate=0.01, initial_scale=1.0)
        thompson.append(play(risky(), LINEAR, method, key=key, **settings).regret[-1])
    gap = 0.9
    assert sum(loss > 0.9 * 400 * gap for loss in greedy) >= 2
    assert all(loss < 0.5 * 400 * gap for loss in thompson)
    assert np.mean(greedy) > 2 * np.mean(thompson)


# -- drawing from a state -------------------------------------------------------------------------


def draws_of(method, states, model, rows, count=4_000):
    rows = jnp.asarray(rows, jnp.result_type(float))
    draw = jax.jit(jax.vmap(lambda key: method.draw(key, states, model, rows).params))
    return draw(jax.random.split(cx.random.key(1), count))


@pytest.mark.matrix
@pytest.mark.parametrize(
    "method",
    [
        cx.BayesByBackprop(initial_scale=0.3),
        cx.BayesByBackprop(initial_scale=0.3, averaging=0.5, family="full_rank"),
        cx.BlackBoxVI(initial_scale=0.3),
        cx.IVON(),
    ],
    ids=["mean field", "full rank", "black box", "ivon"],
)
def test_draws_of_a_state_have_the_moments_of_its_posterior(method):
    rng = np.random.default_rng(0)
    bound, data = LINEAR.prepare((rng.normal(size=(30, 3)), rng.normal(size=30)))
    state = method.init(cx.random.key(0), bound, data)
    leaves, tree = jax.tree.flatten(state)
    moved = [
        np.asarray(a + 0.1 * abs(rng.normal(size=a.shape)), a.dtype)
        for a in map(np.asarray, leaves)
    ]
    state = jax.tree.unflatten(tree, map(jnp.asarray, moved))  # all parts of the state now differ
    stacked = jax.tree.map(lambda leaf: leaf[None], state)
    trace = Trace(stacked, None, {}, data, cx.random.key(0), steps=1)
    mean, variance = method.posterior(bound, trace).approximation.moments()
    draws = draws_of(method, state, bound, data.rows)
    count = 4_000
    for got, m, v in zip(*map(jax.tree.leaves, (draws, mean, variance)), strict=True):
        assert np.all(np.abs(got.mean(0) - m) < 4 * np.sqrt(v / count))
        assert np.all(np.abs(got.var(0) / v - 1) < 4 * np.sqrt(2 / count))


def test_methods_that_act_while_they_learn():
    rng = np.random.default_rng(0)
    bound, data = LINEAR.prepare((rng.normal(size=(30, 3)), rng.normal(size=30)))
    for method in (cx.MAP(), cx.BayesByBackprop(), cx.IVON(), cx.DeepEnsemble(), MCDropout()):
        assert isinstance(method, Acting)
        assert agents.learns(method, bound, data)
    for method in (cx.HMC(), Laplace(), cx.SMC()):
        assert not isinstance(method, Acting)
        assert not agents.learns(method, bound, data)


class Seen(NamedTuple):
    """The number of steps, as the method is told and as its state counts them."""

    told: jax.Array
    counted: jax.Array


@dataclass(frozen=True)
class Counter(Method):
    """A method that diverges unless each step is given the number of steps before it."""

    num_steps: int = 1
    batch_size: int | None = 1
    learning_rate: float = 1.0

    def init(self, key, model, data):
        return model.init(key), jnp.zeros((), jnp.int32)

    def step(self, key, state, model, batch, step):
        params, count = state
        assert step.dtype == jnp.int32
        return (params, count + 1), Seen(jnp.where(step == count, 0.0, jnp.nan), count)

    def draw(self, key, state, model, rows):
        return Draw(state[0])

    def posterior(self, model, trace):
        assert trace.steps == trace.state[1][0]
        params = jax.tree.map(lambda leaf: np.asarray(leaf)[:, None], trace.state[0])
        return cx.Posterior(model, Draws(params), info={"counted": int(trace.state[1][0])})


@pytest.mark.parametrize("updates", [1, 3])
def test_the_count_of_steps_goes_on_over_interactions(updates):
    settings = {**SHORT, "updates": updates}
    assert play(table(), LINEAR, Counter(), **settings).posterior.info["counted"] == 60 * updates


def test_a_point_has_one_draw_and_dropout_has_masks():
    rng = np.random.default_rng(0)
    model = cx.Model(cx.networks.mlp([6]), likelihood=cx.likelihoods.Gaussian(1.0))
    bound, data = model.prepare((rng.normal(size=(30, 3)), rng.normal(size=30)))
    for method in (cx.MAP(), cx.MaximumLikelihood(), cx.DeepEnsemble()):
        state = method.init(cx.random.key(0), bound, data)
        draw = method.draw(cx.random.key(1), state, bound, jnp.ones(()))
        jax.tree.map(np.testing.assert_array_equal, draw.params, bound.init(cx.random.key(0)))
    method = MCDropout(rate=0.25)
    weights = bound.init(cx.random.key(0))
    draws = draws_of(method, method.init(cx.random.key(0), bound, data), bound, 30)
    for layer, inputs in (("layer_0", 3), ("layer_1", 6)):
        scales = draws[layer]["kernel"] / weights[layer]["kernel"]
        np.testing.assert_allclose(np.unique(np.round(scales, 4)), [0, 1.3333], atol=1e-4)
        np.testing.assert_allclose(scales, np.broadcast_to(scales[:, :, :1], scales.shape), 1e-5)
        kept = np.mean(scales[:, :, 0] > 0, axis=0)
        assert kept.shape == (inputs,)
        assert np.all(np.abs(kept - 0.75) < 4 * np.sqrt(0.25 * 0.75 / 4_000))


# -- the buffer -----------------------------------------------------------------------------------


def check_memory(bandit, result, capacity):
    steps = len(result.actions)
    kept = slice(max(0, steps - capacity), None)
    seen = bandit.inputs(result.contexts)[np.arange(steps), result.actions]
    np.testing.assert_array_equal(result.data[0], seen[kept])
    np.testing.assert_array_equal(result.data[1], result.rewards[kept])
    assert len(result.data[1]) == min(steps, capacity)


def test_the_buffer_holds_the_last_rows_in_their_order(random_play):
    check_memory(*random_play, 64)


def test_a_batch_is_of_rows_that_were_written_and_stands_for_all_of_them():
    buffer = Buffer(jnp.zeros((8, 1)), jnp.zeros(8), jnp.zeros((), jnp.int32))
    for number in range(1, 12):
        buffer = buffer.add(jnp.full(1, float(number)), jnp.asarray(float(number)))
        batch = buffer.batch(cx.random.key(0), jnp.int32(number), 2_000)
        rows = min(number, 8)
        values, counts = np.unique(np.asarray(batch.y), return_counts=True)
        np.testing.assert_array_equal(values, np.arange(number - rows + 1, number + 1))
        error = np.sqrt(2_000 * (1 / rows) * (1 - 1 / rows))
        assert np.all(np.abs(counts - 2_000 / rows) <= 4 * error)
        np.testing.assert_array_equal(batch.x[:, 0], batch.y)
        assert float(batch.total) == pytest.approx(rows)


def test_rows_may_count_for_those_that_were_forgotten():
    """A batch of each kind of buffer is of the same rows, which stand for 8 or for all 20."""
    of_kind = {}
    for counted in (False, True):
        buffer = Buffer.empty(8, 1, counted)
        for number in range(20):
            buffer = buffer.add(jnp.full(1, float(number)), jnp.asarray(float(number)))
        of_kind[counted] = buffer.batch(cx.random.key(0), jnp.int32(0), 5)
        assert buffer.numbered().count_forgotten is counted
        data = buffer.data()
        assert float(data.total) == (20 if counted else 8)
        np.testing.assert_array_equal(data.y, np.arange(12, 20))
    np.testing.assert_array_equal(of_kind[False].y, of_kind[True].y)
    assert [float(of_kind[counted].total) for counted in (False, True)] == [8, 20]


@pytest.mark.slow
def test_a_posterior_narrows_with_the_rows_that_were_forgotten():
    """The variance of the bias of a linear model with noise 1, after 400 rows of which 40 are held."""
    bandit = Bandit(np.zeros((1, 1)), [[2.0, 2.0]])
    method = cx.BayesByBackprop(learning_rate=0.01, samples=16, kl_annealing=0)
    wide = cx.Model(cx.networks.mlp([]), cx.priors.Normal(10.0), cx.likelihoods.Gaussian(1.0))
    settings = {"num_steps": 400, "updates": 10, "buffer": 40, "batch_size": 40}
    for counted, rows in ((False, 40), (True, 400)):
        result = play(bandit, wide, method, progress=False, count_forgotten=counted, **settings)
        # In a mean-field posterior, that is one over the precision: one for each row, 0.01 of the prior. With
        # this learning rate it lags behind the rows by some tenth of them; the two differ by a factor of ten.
        variance = result.posterior.approximation.moments()[1]
        np.testing.assert_allclose(variance["layer_0"]["bias"], 1 / (rows + 0.01), rtol=0.2)


def test_only_an_agent_that_goes_on_learning_counts_forgotten_rows():
    with pytest.raises(ValueError, match=r"play\(count_forgotten=...\) must be False for an agent"):
        play(table(), LINEAR, cx.HMC(), count_forgotten=True, **SHORT)
    with pytest.raises(TypeError, match="count_forgotten"):
        play(table(), LINEAR, cx.MAP(), count_forgotten=1, **SHORT)


# -- the run --------------------------------------------------------------------------------------


def test_the_same_key_gives_the_same_bits_however_the_run_is_cut(monkeypatch, compilations):
    method = cx.MAP(learning_rate=0.01)
    first = play(table(), LINEAR, method, key=5, **SHORT)
    check_memory(table(), first, 100)
    assert repr(first).startswith("Play(60 interactions, mean reward ")
    with compilations() as count:
        other = play(table(), LINEAR, method, key=6, **SHORT)
    assert count() == 0
    monkeypatch.setattr(bandits, "next_length", lambda *_: 7)
    again = play(table(), LINEAR, method, key=5, **SHORT)
    for name in ("contexts", "actions", "rewards", "regret"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    jax.tree.map(np.testing.assert_array_equal, first.posterior.draws, again.posterior.draws)
    assert np.any(first.contexts != other.contexts)


def test_a_number_for_the_learning_rate_is_held_and_a_schedule_is_kept():
    held = agents.online(cx.MAP(num_steps=1, learning_rate=0.01), 60, 4)
    assert held.learning_rate(10**6) == 0.01
    assert held == agents.online(cx.MAP(learning_rate=0.01), 60, 4)
    schedule = optax.constant_schedule(0.0)
    assert agents.online(cx.MAP(learning_rate=schedule), 60, 4).learning_rate is schedule


@pytest.mark.slow
def test_an_ensemble_of_randomised_priors_learns_and_is_saved(tmp_path):
    method = cx.DeepEnsemble(members=3, random_prior=True, noisy_targets=True, learning_rate=0.1)
    bandit = Bandit(np.zeros((1, 1)), [[-3.0, 1.0, -3.0]])
    result = play(bandit, LINEAR, method, **SHORT)
    assert np.mean(result.actions[30:] == 1) > 0.8
    kernels = result.posterior.draws["layer_0"]["kernel"]
    assert kernels.shape == (3, 1, 4, 1)
    assert len(np.unique(kernels[:, 0, 1])) == 3
    assert result.posterior.predict(bandit.inputs([0])[0]).mean.argmax() == 1
    result.posterior.save(tmp_path / "agent.credax")
    loaded = cx.load(tmp_path / "agent.credax").draws["layer_0"]["kernel"]
    np.testing.assert_array_equal(loaded, kernels)


def test_a_run_that_diverges_says_so():
    method = cx.MAP(learning_rate=1e30, optimiser="sgd")
    with pytest.raises(cx.DivergedError, match="MAP met NaN or infinity before interaction"):
        play(table(), LINEAR, method, **SHORT)


def test_everything_is_double_in_double_precision(x64):
    result = play(table(), LINEAR, cx.MAP(), **SHORT)
    assert result.rewards.dtype == np.float64
    assert jax.tree.leaves(result.posterior.draws)[0].dtype == np.float64


# -- agents that are refitted from time to time ---------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")
@pytest.mark.parametrize(
    "method, tolerance",
    [
        pytest.param(
            Laplace(structure="full", num_steps=500, learning_rate=0.1), 0.02, id="laplace"
        ),
        pytest.param(
            cx.HMC(chains=2, num_warmup=50, num_draws=50), 0.5, id="hmc", marks=pytest.mark.slow
        ),
    ],
)
def test_any_posterior_can_act(method, tolerance):
    bandit = Bandit(np.zeros((1, 1)), [[0.0, 2.0]])
    result = play(bandit, LINEAR, method, num_steps=90, refit=30, buffer=30, progress=False)
    check_memory(bandit, result, 30)
    # Before the first fit the agent acts by the prior, in which both actions are equally good.
    assert 0.2 < result.actions[:30].mean() < 0.8
    # Then the better action is taken more often than by chance, by four standard errors.
    assert result.actions[30:].mean() > 0.5 + 4 * 0.5 / np.sqrt(60)
    # The final posterior is that of Bayesian linear regression on the rows in the buffer.
    design, y = _design(result.data[0]), result.data[1]
    covariance = np.linalg.inv(np.eye(4) + design.T @ design)
    x = bandit.inputs([0])[0]
    spread = np.sqrt(np.diag(_design(x) @ covariance @ _design(x).T))
    predicted = result.posterior.predict(x)
    error = np.abs(predicted.mean - _design(x) @ covariance @ design.T @ y)
    assert np.all(error < tolerance * spread)
    np.testing.assert_allclose(np.sqrt(predicted.epistemic), spread, rtol=tolerance)


def _design(x):
    return np.column_stack([x, np.ones(len(x))])


def test_a_linearised_posterior_acts_by_its_linear_expansion():
    rng = np.random.default_rng(0)
    network = cx.networks.mlp([5], activation="tanh")
    model = cx.Model(network, likelihood=cx.likelihoods.Gaussian(1.0))
    bound, data = model.prepare((rng.normal(size=(20, 3)), np.zeros(20)))
    mode = jax.device_get(bound.init(cx.random.key(0)))
    size = sum(leaf.size for leaf in jax.tree.leaves(mode))
    root = np.eye(size, dtype=np.dtype(jnp.result_type(float)))
    posterior = cx.Posterior(bound, FullNormal(mode, root, (True,) * 4, True, ()))
    samples = posterior.approximation.samples(cx.random.key(0), 1)
    draw = jax.tree.map(lambda leaf: leaf[0], samples.take(0, 1))
    wanted = posterior.predict(data.x, num_samples=1).outputs[0, :, 0]
    value = jax.jit(lambda centre: expected_reward(bound, draw, centre, data.x))
    np.testing.assert_allclose(value(samples.centre), wanted, rtol=1e-4, atol=1e-5)
    assert np.abs(value(None) - wanted).max() > 0.1


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((np.zeros(3), np.zeros((3, 2))), r"Bandit\(contexts=...\) must be of shape"),
        (
            (np.zeros((3, 1)), np.zeros((2, 2))),
            r"Bandit\(rewards=...\) must be of shape \(3, actions\)",
        ),
        ((np.zeros((3, 1)), np.zeros((3, 1))), "with at least 2 actions"),
        ((np.zeros((3, 1)), np.full((3, 2), np.nan)), "finite"),
        ((np.zeros((3, 1)), np.zeros((3, 2)), np.ones((3, 3))), "of the same shape as rewards"),
        ((np.zeros((3, 1)), np.zeros((3, 2)), np.full((3, 2), 0.5)), "sum to one"),
        ((np.zeros((3, 1)), np.zeros((3, 2, 2)), np.tile([1.5, -0.5], (3, 2, 1))), "non-negative"),
    ],
)
def test_a_bandit_that_is_none_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Bandit(*arguments)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"bandit": 3}, r"play\(bandit=...\) must be a bandits.Bandit"),
        ({"model": cx.networks.mlp([5])}, r"play\(model=...\) must be a cx.Model"),
        ({"method": cx.MAP}, "with parentheses"),
        (
            {"model": cx.Model(cx.networks.mlp([5]), likelihood=cx.likelihoods.Bernoulli())},
            "number",
        ),
        (
            {"model": cx.Model(cx.networks.mlp([5]), likelihood=cx.likelihoods.Poisson())},
            "count|whole",
        ),
        ({"epsilon": 1.5}, r"play\(epsilon=...\) must be between 0 and 1; got 1.5"),
        ({"num_steps": 0}, r"play\(num_steps=...\)"),
        ({"buffer": 2.5}, r"play\(buffer=...\)"),
        ({"updates": 0}, r"play\(updates=...\)"),
        ({"draws": 0}, r"play\(draws=...\)"),
        ({"refit": 0}, r"play\(refit=...\)"),
        ({"method": cx.BayesByBackprop(kl_weights=(0.5, 0.5))}, "kl_weights"),
    ],
)
def test_what_cannot_be_played_is_refused(changes, message):
    arguments = {"bandit": table(), "model": LINEAR, "method": cx.MAP(), **changes}
    with pytest.raises((TypeError, ValueError), match=message):
        play(progress=False, **arguments)
