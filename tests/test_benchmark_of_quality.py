"""The benchmarks of the papers' tables: what they store, choose, compare and show."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import credax as cx
from benchmarks.quality import (
    bandit,
    cifar,
    data,
    goals,
    lora,
    mnist,
    page,
    pictures,
    published,
    reference,
    store,
    uci,
)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Figures, page and pictures in a folder of their own."""
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "evidence.md")
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """A table of 60 rows in the place of yacht; two columns, of which the first decides y."""
    monkeypatch.setenv("CREDAX_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (60, 2))
    y = 3 * x[:, 0] + 0.1 * rng.normal(size=60)
    test = np.zeros((2, 60), bool)
    test[0, :10], test[1, 10:20] = True, True
    (tmp_path / "uci").mkdir()
    gap = np.stack([np.abs(x[:, 0]) < 0.3, np.abs(x[:, 1]) < 0.3])
    np.savez(tmp_path / "uci" / "yacht.npz", x=x, y=y, test_mask=test, gap_mask=gap)
    return tmp_path


# -- what is stored -----------------------------------------------------------------------------------


def test_a_cell_is_measured_once_and_stored_at_once(results):
    calls = []
    measure = lambda: calls.append(1) or {"error": 0.5}  # noqa: E731
    for _ in range(2):
        assert store.cell("some", ("a", "b"), measure) == {"error": 0.5}
    assert len(calls) == 1
    stored = json.loads((results / "some.json").read_text())
    assert stored["figures"] == {"a": {"b": {"error": 0.5}}}
    assert [path.name for path in results.iterdir()] == ["some.json"]


def test_forgetting_removes_the_cells_that_are_not_kept(results):
    for method in ("MAP", "IVON"):
        store.put("some", ("splits", "yacht", method, "0"), {"rmse": 1.0})
    store.forget("some", lambda keys: keys[2] != "MAP", depth=4)
    assert store.figures("some") == {"splits": {"yacht": {"IVON": {"0": {"rmse": 1.0}}}}}


def test_cells_of_several_processes_are_all_kept(results):
    """Eight processes, each of which stores five cells in the same file at the same time."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom benchmarks.quality import store\n"
        "store.RESULTS = Path(sys.argv[1])\n"
        "for i in range(5): store.put('some', ('a', f'{sys.argv[2]} {i}'), i)"
    )
    start = lambda number: subprocess.Popen([sys.executable, "-c", code, results, str(number)])  # noqa: E731
    for process in [start(number) for number in range(8)]:
        assert process.wait() == 0
    assert len(store.figures("some")["a"]) == 40


def test_cells_of_another_folder_are_added(results, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    store.put("some", ("a", "b"), 1)
    store.put("some", ("a", "c"), 2)
    there = {"figures": {"a": {"c": 3, "d": 4}}, "date": "2026-01-01"}
    (other / "some.json").write_text(json.dumps(there))
    store.merge(other)
    assert store.figures("some") == {"a": {"b": 1, "c": 3, "d": 4}}
    assert json.loads((results / "some.json").read_text())["date"] == "2026-01-01"


def test_missing_data_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CREDAX_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit, match="set CREDAX_DATA to the folder that contains uci"):
        data.table("yacht")


def test_images_are_read_in_the_units_of_the_paper(tmp_path, monkeypatch):
    import gzip

    monkeypatch.setenv("CREDAX_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    pixels = np.arange(2 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(2, 28, 28)
    for what, values in (("images-idx3", pixels), ("labels-idx1", np.array([7, 2], np.uint8))):
        head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
        (tmp_path / "mnist" / f"train-{what}-ubyte.gz").write_bytes(
            gzip.compress(head + values.tobytes())
        )
    x, y = data.images("mnist", "train")
    np.testing.assert_allclose(x, pixels.reshape(2, 784) / 126, rtol=1e-6)
    assert y.tolist() == [7, 2]


# -- UCI ----------------------------------------------------------------------------------------------


def test_every_table_has_all_published_columns():
    for figures in (published.LOG_LIKELIHOOD, published.RMSE):
        assert set(figures) == set(data.TABLES)
        assert {len(values) for values in figures.values()} == {len(published.UCI_COLUMNS)}


@pytest.mark.slow
def test_the_setting_is_chosen_without_the_test_rows(results, tables, monkeypatch):
    """Whatever stands in the test rows, the same setting is chosen by the same held-out figures."""
    short = uci.Case((0.01, 1.0), uci._fan_in, lambda _: cx.MAP(num_steps=300))
    monkeypatch.setitem(uci.CASES, "MAP", short)
    first = uci.measure(["yacht"], ["MAP"], splits=1)["splits"]["yacht"]["MAP"]["0"]
    assert first["setting"] == 1.0  # the other prior leaves nothing of the slope
    assert first["held_out"]["1.0"] > first["held_out"]["0.01"] + 0.5
    assert first["rmse"] < 0.5
    path = tables / "uci" / "yacht.npz"
    stored = dict(np.load(path))
    stored["y"][stored["test_mask"][0]] = 1e3
    np.savez(path, **stored)
    again = uci.on_split("MAP", "yacht", 0)
    assert again["held_out"] == first["held_out"]
    assert again["rmse"] > 900


def test_the_parts_of_several_processes_are_all_cells_once(tables):
    whole = list(uci._cells(["yacht"], ["MAP", "IVON"], 2, 1))
    assert len(whole) == len(set(whole)) == 6
    assert sorted(whole[0::4] + whole[1::4] + whole[2::4] + whole[3::4]) == sorted(whole)


@pytest.mark.slow
def test_uncertainty_rises_in_a_gap(results, tables, monkeypatch):
    short = uci.Case((1.0,), uci._fan_in, lambda _: cx.Laplace(num_steps=500))
    monkeypatch.setitem(uci.CASES, "Laplace", short)
    found = uci.measure(["yacht"], ["Laplace"], splits=0, gaps=2)["gaps"]["yacht"]["Laplace"]
    assert set(found) == {"0", "1"}
    assert all(cell["ratio"] > 0 for cell in found.values())


# -- MNIST, CIFAR-10, HMC -------------------------------------------------------------------------------


@pytest.mark.parametrize("label", mnist.CASES)
def test_every_method_has_the_same_number_of_minibatches(label):
    for case in mnist.grid(label).values():
        method = mnist.with_steps(case.method, 200)
        assert method.num_steps == 200
        assert method.batch_size == mnist.BATCH


def test_the_setting_with_the_lowest_error_in_the_trials_is_chosen(results, monkeypatch):
    names = list(mnist.grid("IVON"))
    errors = {case: 10.0 - i for i, case in enumerate(mnist.grid("IVON").values())}
    trial = lambda case, units, epochs, rows: {"error": errors[case]}  # noqa: E731
    monkeypatch.setattr(mnist, "trial", trial)
    for part in ("0/2", "1/2"):  # two processes
        mnist.measure([16], 1, methods=["IVON"], trials=3, part=part)
    monkeypatch.setattr(mnist, "trial", None)  # all trials are stored
    monkeypatch.setattr(mnist, "one", lambda *a: {"error": 1.0, "setting": a[-1]})
    found = mnist.measure([16], 1, methods=["IVON"], trials=3)
    assert found["16 units, 1 epochs, 50000 rows"]["IVON"]["setting"] == names[-1]


def test_calibration_error_of_a_coin_that_is_called_with_certainty():
    class Certain:
        probs = np.tile([1.0, 0.0], (4, 1))
        label = np.zeros(4, int)
        entropy = mutual_information = np.zeros(4)

        def log_prob(self, y):
            return np.where(y == 0, 0.0, -5.0)

    class Posterior:
        def predict(self, x, num_samples):
            return Certain()

    found = mnist.judged(Posterior(), np.zeros((4, 1)), np.array([0, 1, 0, 1]), None)["scores"]
    assert found == {"error": 50.0, "log_likelihood": -2.5, "calibration_error": 0.5}


def test_the_network_of_the_reference_has_its_number_of_weights():
    """Nineteen convolutions of size three and a last layer; 512 and 2,048 weights where the width changes."""
    shapes = cifar._shapes()
    kernels = sum(np.prod(s) for name, s in shapes.items() if name.endswith("kernel"))
    layers = [name for name, s in shapes.items() if name.endswith("kernel") and s[0] == 3]
    assert len(layers) + 1 == 20
    assert kernels == 432 + 6 * 2304 + 4608 + 5 * 9216 + 18432 + 5 * 36864 + 512 + 2048 + 640
    params = jax.eval_shape(cifar._init, jax.random.key(0))
    outputs = jax.eval_shape(cifar._apply, params, jax.ShapeDtypeStruct((2, 32, 32, 3), "float32"))
    assert outputs.shape == (2, 10)


@pytest.mark.parametrize("label", cifar.CASES)
def test_every_network_has_about_the_same_number_of_minibatches(label):
    for method in cifar.grid(label).values():
        assert 19_000 <= cifar.with_length(method, 20_000).num_steps <= 21_000


def test_predictions_of_several_keys_are_averaged(results, monkeypatch):
    whole = {"y_test": np.array([0, 1]), "hmc_test_probs": np.eye(2)}
    monkeypatch.setattr(cifar, "data", lambda: whole)

    def of_key(method, epochs, rows, tests, key, path):
        path.parent.mkdir(exist_ok=True)
        np.save(path, np.array([[1.0, 0.0], [1.0, 0.0]]) if key else np.full((2, 2), 0.5))
        return {"epochs": epochs, "seconds": 1.0, "device": "cpu", "agreement": 50.0}

    monkeypatch.setattr(cifar, "of_key", of_key)
    cifar.measure(3, 2, 2, methods=["MAP"], keys=[1])
    found = cifar.measure(3, 2, 2, methods=["MAP"], keys=[0, 1])["3 epochs, 2 rows, 2 tests"]
    assert set(found) == {"MAP, key 1", "MAP, mean of 2"}
    assert found["MAP, mean of 2"]["total_variation"] == 0.5
    assert found["MAP, mean of 2"]["epochs"] == 6


def test_distance_to_the_reference():
    probs = np.array([[0.5, 0.3, 0.2], [0.1, 0.9, 0.0]])
    true = np.array([[0.4, 0.5, 0.1], [0.1, 0.9, 0.0]])
    found = cifar.distance(probs, true)
    assert found == pytest.approx({"agreement": 50.0, "total_variation": 0.1})


def test_moved_and_widened_answers_are_that_far_apart():
    true = {"quantiles": [[0.0], [1.0]], "sd": [2.0], "epistemic": [1.0]}
    found = {"quantiles": [[1.0], [2.0]], "sd": [3.0], "epistemic": [0.5]}
    assert reference.apart(found, true) == {"distance": 0.5, "spread": 0.5, "width": 1.5}


# -- the page -----------------------------------------------------------------------------------------


def test_the_page_says_what_is_behind_each_figure(results):
    scores = {"log_likelihood": -1.0, "rmse": 0.5, "coverage": 0.9}
    for number in range(2):
        store.put("uci", ("splits", "yacht", "MAP", str(number)), scores)
    store.put("uci", ("splits", "yacht", "IVON", "0"), {"failed": "DivergedError: NaN"})
    store.put("uci", ("gaps", "yacht", "MAP", "0"), {"ratio": 1.5})
    auroc = {name: {"entropy": 0.9, "mutual_information": 0.8} for name in mnist.OTHERS}
    image = {"error": 1.5, "log_likelihood": -0.05, "calibration_error": 0.01, "seconds": 9.0}
    pruning = {str(share): 1.3 for share in published.PRUNING}
    run = "1200 units, 10 epochs, 50000 rows"
    store.put("mnist", (run, mnist.MIXTURE), image | {"auroc": auroc, "pruning": pruning})
    curve = {"steps": [5_000, 10_000], "regret": [400.0, 500.0], "final": 500.0}
    store.put("bandit", ("10000 steps, 64 updates", "greedy", "0"), curve)
    figures = {"distance": 0.1, "spread": 0.7, "width": 1.1, "gradients": 2_000.0, "seconds": 1.0}
    store.put("reference", ("yacht", "MAP"), figures)
    store.put("reference_answers", ("yacht",), {"r_hat": 1.01})
    page.write()
    text = (results / "evidence.md").read_text()
    assert "| MAP | 2 | -1.00 ± 0.00 |" in text
    assert "IVON on yacht, split 0: DivergedError" in text
    assert f"| {mnist.MIXTURE} | 1.50 | *1.32* |" in text
    assert "| 98 % | 1.30 | *1.39* |" in text
    assert "| greedy | 500 | 1 | *4,800* |" in text
    assert "| MAP | 2,000 | 0.100 (sd × 0.7) |" in text
    assert "error in %, mixture prior | ≤ 1.32 | 1.50 | by 0.18 |" in text
    assert "95 % of the weights removed | ≤ 1.39 | 1.30 | reached |" in text
    assert "regret of Bayes by Backprop | ≤ 5,700 | not measured |" in text
    assert "Measured with an earlier version" in text
    for name in ("uci", "cifar", "bandit", "reference"):
        assert (results / f"evidence_{name}.png").stat().st_size > 3_000


def test_trials_of_a_bandit_are_kept_apart_from_its_runs(results, monkeypatch, capsys):
    monkeypatch.setattr(bandit, "one", lambda agent, *others: {"final": 500.0 - len(agent)})
    for variant in (0, 1):
        assert bandit.measure(steps=10, keys=[100], variant=variant) == {}
    assert len(bandit.measure(["greedy"], steps=10, runs=2)["10 steps, 64 updates"]["greedy"]) == 2
    bandit.measure(variant=-1)
    longest, shortest = capsys.readouterr().out.splitlines()[-2:]
    assert "variant 1" in longest
    assert "variant 0" in shortest


def test_tables_above_a_column_are_counted():
    cells = lambda *values: {str(i): {"log_likelihood": v} for i, v in enumerate(values)}  # noqa: E731
    splits = {
        "yacht": {"IVON": cells(-2.0, -3.0), "MAP": cells(-1.0)},  # BBB: -2.41
        "energy": {"IVON": cells(-1.0) | {"1": {"failed": "DivergedError"}}},  # BBB: -1.50
        "kin8nm": {"MAP": cells(0.0)},
    }
    below, few = ["yacht by 0.09 (2 splits)"], ["energy (1 split)"]
    assert goals.above_column(splits, "BBB", "IVON") == (1, 2, below, few)
    below, few = ["kin8nm by 1.11 (1 split)"], ["yacht (1 split)", "energy (1 split)"]
    assert goals.above_column(splits, "BBB", None) == (2, 3, below, few)
    splits["energy"]["IVON"] |= cells(*[-1.0] * 5)
    assert goals.above_column(splits, "BBB", "IVON")[3] == []


def test_dropout_is_compared_on_the_same_splits(monkeypatch):
    monkeypatch.setitem(published.DROPOUT_BY_SPLIT, "yacht", (-1.0, -2.0, -0.75))  # -1.25 over all
    cells = lambda **values: {k[1:]: {"log_likelihood": v} for k, v in values.items()}  # noqa: E731
    found = lambda cells: goals.above_column({"yacht": {"MAP": cells}}, "dropout 2018", "MAP")  # noqa: E731
    assert found(cells(_1=-1.9))[0] == 1
    assert found(cells(_0=-1.1))[2] == ["yacht by 0.10 (1 split)"]
    assert found(cells(_0=-1.3, _1=-1.3, _2=-1.3))[2] == ["yacht by 0.05 (3 splits)"]


def test_the_wider_choice_counts_for_its_method_whatever_its_figure():
    cells = lambda value: {"0": {"log_likelihood": value}}  # noqa: E731
    splits = {
        "yacht": {"MAP": cells(-1.0), "MAP, wider choice": cells(-3.0)},  # BBB: -2.41
        "kin8nm": {"MAP": cells(2.0)},
    }
    below, few = ["yacht by 0.59 (1 split)"], ["kin8nm (1 split)"]
    assert goals.above_column(splits, "BBB", "MAP") == (1, 2, below, few)
    assert goals.above_column(splits, "BBB", None)[:3] == (2, 2, [])


def test_more_is_chosen_one_thing_after_the_other(results, monkeypatch):
    """The rate of 0.001 is better, the noise of rows worse, more steps better, half the noise better still."""
    rows = np.zeros((100, 1)), np.zeros(100)
    monkeypatch.setattr(uci, "split", lambda name, number: data.Split(*rows, *rows))
    held = {
        "0.01": -4.0,
        "0.001": -3.0,
        "0.001, noise of rows": -5.0,
        "0.001, 4 x steps": -2.0,
        "0.001, 4 x steps, 0.5 x noise": -1.0,
        "0.001, 4 x steps, 0.7 x noise": -1.5,
        "0.001, 4 x steps, 1.4 x noise": -2.5,
    }
    fits = []

    def fitted(case, choice, x, y, units):
        fits.append((str(choice), len(y)))
        return choice, len(y)

    def scores(posterior, x, y):
        choice, count = posterior
        value = held[str(choice)] * (1 if count == 90 else 10)
        return {"log_likelihood": value, "rmse": 1.0, "coverage": 0.9}

    def with_noise(posterior, factor):
        return posterior[0]._replace(noise=factor), posterior[1]

    monkeypatch.setattr(uci, "fitted", fitted)
    monkeypatch.setattr(uci, "scores", scores)
    monkeypatch.setattr(uci, "with_noise", with_noise)
    before = {"setting": 0.01, "held_out": {"0.01": -4.0}, "seconds": 1.0}
    stored = before | scores((uci.Choice(0.01), 100), 0, 0)
    store.put("uci", ("splits", "yacht", "MCDropout", "0"), stored)
    found = uci.on_split("MCDropout, wider choice", "yacht", 0)
    assert found["held_out"] == held
    assert found["setting"] == "0.001, 4 x steps, 0.5 x noise"
    assert found["log_likelihood"] == -10.0
    tried = ["0.001", "0.001, noise of rows", "0.001, 4 x steps"]
    assert fits == [*((name, 90) for name in tried), (found["setting"], 100)]

    fits.clear()
    held.update(dict.fromkeys([name for name in held if name != "0.01"], -9.0))
    held.update({f"0.01{end}": -9.0 for end in (", noise of rows", ", 4 x steps")})
    held.update({f"0.01, {factor} x noise": -9.0 for factor in uci.FACTORS})
    found = uci.on_split("MCDropout, wider choice", "yacht", 0)
    assert (found["setting"], found["log_likelihood"]) == ("0.01", -40.0)  # as it is stored
    assert all(count == 90 for _, count in fits)


def test_the_noise_is_chosen_by_held_out_rows(results):
    scores = {"rmse": 1.0, "coverage": 0.9, "seconds": 1.0}
    for label, held, test in (
        ("DeepEnsemble", -2.0, -1.0),
        ("DeepEnsemble, noise of rows", -1.5, -3.0),
    ):
        cell = scores | {
            "held_out": {"1.0": held, "3.0": -9.0},
            "setting": 1.0,
            "log_likelihood": test,
        }
        store.put("uci", ("splits", "yacht", label, "0"), cell)
    found = uci.on_split("DeepEnsemble, noise chosen", "yacht", 0)
    assert (found["setting"], found["log_likelihood"]) == ("1.0, noise of rows", -3.0)
    assert found["held_out"] == {"one noise": -2.0, "noise of rows": -1.5}


@pytest.mark.slow
@pytest.mark.parametrize("label", ["BayesByBackprop", "MCDropout", "DeepEnsemble"])
def test_the_noise_of_a_posterior_is_multiplied(tables, label):
    x, y, *_ = data.split("yacht", 0)
    case = uci.CASES[label]
    posterior = uci.fitted(case, uci.Choice(case.grid[0]), x, y, 5)
    found, before = uci.with_noise(posterior, 2.0).predict(x), posterior.predict(x)
    np.testing.assert_allclose(found.mean, before.mean, rtol=1e-5)
    np.testing.assert_allclose(found.epistemic, before.epistemic, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(found.aleatoric, 4 * before.aleatoric, rtol=1e-4)


def test_agents_of_the_paper_are_among_those_that_play():
    assert set(published.BANDIT) <= set(bandit.AGENTS)
    assert {case.paper for case in mnist.CASES.values() if case.paper} == set(published.MNIST_ERROR)


# -- low-rank adaptation ------------------------------------------------------------------------------


def test_a_wider_grid_measures_only_what_is_new(results, monkeypatch):
    x, y, fitted = np.zeros((5, 2)), np.arange(5), []
    out = np.arange(5) < 2
    losses = {1.0: 0.5, 2.0: 0.7, 3.0: 0.4}

    def fit(label, scale, steps, x, y, key):
        fitted.append((scale, len(x)))
        return scale

    def scores(scale, x, y):
        return {"log_loss": losses[scale], "error": len(y)}

    monkeypatch.setattr(lora, "rows", lambda key: (data.Split(x, y, x[:4], y[:4]), out))
    monkeypatch.setattr(lora, "fitted", fit)
    monkeypatch.setattr(lora, "scores", scores)

    def measured(*scales):
        fitted.clear()
        monkeypatch.setattr(lora, "settings", lambda label: [(scale, 10) for scale in scales])
        return lora.measure(["MAP"], keys=1)["MAP"]["1"]

    found = measured(1.0)
    assert fitted == [(1.0, 3), (1.0, 5)]
    assert found["error"] == 4
    assert measured(1.0, 2.0)["setting"]["scale"] == 1.0
    assert fitted == [(2.0, 3)]
    found = measured(1.0, 2.0, 3.0)
    assert fitted == [(3.0, 3), (3.0, 5)]
    assert found["held_out"] == {f"scale {s:g}, 10 steps": losses[s] for s in losses}
    assert found["setting"] == {"scale": 3.0, "steps": 10}
    measured(1.0, 2.0, 3.0)
    assert not fitted


def test_the_goals_of_low_rank_adaptation_are_those_of_one_method(results):
    def stored(**cells):
        for label, (loss, error) in cells.items():
            store.put("lora", (label, "1"), {"log_loss": loss, "calibration_error": error})
        return [goal for goal in goals.all_goals() if goal.name.startswith("LoRA")]

    assert not stored(MAP=(0.8, 0.02))
    found = stored(IVON=(0.6, 0.03))
    assert [goal.row()[3] for goal in found] == ["reached", "by 0.010"]
    found = stored(DeepEnsemble=(0.7, 0.01))
    assert all("DeepEnsemble" in goal.name and goal.short < 0 for goal in found)
    assert [goal.found for goal in found] == [0.7, 0.01]
