"""What is drawn is what was asked for: lines and bands are compared with answers found another way."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, norm

import credax as cx
from credax.diagnostics import Calibrated
from credax.report import drawing

plt = pytest.importorskip("matplotlib.pyplot")

NOISE, PRIOR = 0.5, 2.0


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def fitted(x, y, likelihood, method=None, prior=PRIOR):
    model = cx.Model(cx.networks.linear(), cx.priors.Normal(prior), likelihood, standardise=False)
    return cx.fit(
        model,
        (x, y),
        method or cx.Laplace(structure="full", num_steps=1_000, learning_rate=0.05),
        progress=False,
    )


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.permutation(np.linspace(-2, 3, 40))[:, None]
    return x, 0.7 * x[:, 0] - 0.3 + NOISE * rng.normal(size=40)


@pytest.fixture(scope="module")
def line(rows):
    """A Bayesian straight line, whose predictions have a closed form."""
    return fitted(*rows, cx.likelihoods.Gaussian(NOISE))


@pytest.fixture(scope="module")
def exact(rows):
    """The mean and the two parts of the variance of that line, by linear algebra alone."""
    x, y = rows
    design = np.concatenate([x, np.ones_like(x)], 1)
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(2) / PRIOR**2)
    mean = design @ covariance @ design.T @ y / NOISE**2
    return mean, np.einsum("ni,ij,nj->n", design, covariance, design)


@pytest.fixture(scope="module")
def classes():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 1))
    y = (x[:, 0] + rng.normal(size=120) > 0).astype(int) + (x[:, 0] > 1)
    return fitted(x, y, cx.likelihoods.Categorical(3), cx.MAP(num_steps=200)), x, y


def vertices(area):
    return area.get_paths()[0].vertices


# -- numbers --------------------------------------------------------------------------------------------


def test_intervals_are_those_of_the_closed_form_in_the_order_of_the_input(rows, line, exact):
    x, y = rows
    ax = line.predict(x).plot(x, y, levels=[0.5, 0.9])
    order = np.argsort(x[:, 0])
    mean, spread = exact[0][order], np.sqrt(exact[1] + NOISE**2)[order]
    drawn = ax.lines[0]
    np.testing.assert_allclose(drawn.get_xdata(), x[order, 0], rtol=1e-6)
    np.testing.assert_allclose(drawn.get_ydata(), mean, atol=2e-3)
    for area, level in zip(ax.collections[:2], (0.9, 0.5), strict=True):
        ends = vertices(area)
        reach = norm.ppf((1 + level) / 2) * spread
        for place, m, r in zip(x[order, 0], mean, reach, strict=True):
            here = ends[np.isclose(ends[:, 0], place, atol=1e-6), 1]
            assert here.min() == pytest.approx(m - r, abs=5e-3)
            assert here.max() == pytest.approx(m + r, abs=5e-3)
    np.testing.assert_allclose(ax.collections[2].get_offsets()[:, 1], y[order], rtol=1e-6)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["90 % interval", "50 % interval", "mean", "true"]


def test_rows_without_an_input_are_ordered_by_their_mean(rows, line, exact):
    ax = line.predict(rows[0]).plot()
    np.testing.assert_allclose(ax.lines[0].get_ydata(), np.sort(exact[0]), atol=2e-3)


def test_rows_of_several_inputs_are_drawn_one_by_one():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(30, 2))
    y = x @ [1.0, -2.0] + rng.normal(size=30)
    predictive = fitted(x, y, cx.likelihoods.Gaussian(1.0)).predict(x)
    ax = predictive.plot(x[:, 0], y)
    assert not ax.lines
    segments = np.array(ax.collections[0].get_segments())
    order = np.argsort(x[:, 0])
    np.testing.assert_allclose(segments[:, 0, 1], predictive.interval(0.9)[0][order], rtol=1e-5)
    dots = predictive.plot(x[:, 0], kind="uncertainty").collections[1].get_offsets()
    np.testing.assert_allclose(np.asarray(dots), np.stack([x[:, 0], predictive.epistemic], 1), 1e-5)


def test_dots_outside_their_interval_have_the_other_colour(rows, line, exact):
    x, y = rows
    ax = cx.plots.predicted(line.predict(x), y, level=0.5)
    reach = norm.ppf(0.75) * np.sqrt(exact[1] + NOISE**2)
    outside = np.abs(y - exact[0]) > reach
    dots = ax.collections[1:]
    assert [len(each.get_offsets()) for each in dots] == [np.sum(~outside), np.sum(outside)]
    assert f"outside ({np.mean(outside):.0%})" in [
        t.get_text() for t in ax.get_legend().get_texts()
    ]


def test_coverage_is_counted_at_every_level(rows, line, exact):
    x, y = rows
    ax = line.predict(x).plot(y=y, kind="calibration")
    levels, share = ax.lines[1].get_data()
    away = np.abs(y - exact[0]) / np.sqrt(exact[1] + NOISE**2)
    counted = [np.mean(away <= norm.ppf((1 + level) / 2)) for level in levels]
    np.testing.assert_allclose(share, counted, atol=1e-12)
    assert len(levels) == 19
    band = vertices(ax.collections[0])
    at_half = band[np.isclose(band[:, 0], 0.5), 1]
    assert sorted(set(at_half.round(6))) == pytest.approx(
        [binom.ppf(0.05, 40, 0.5) / 40, binom.ppf(0.95, 40, 0.5) / 40]
    )


def test_the_two_parts_of_the_variance_are_stacked(rows, line, exact):
    x, _ = rows
    ax = line.predict(x).plot(x, kind="uncertainty")
    noise, lack = (vertices(area) for area in ax.collections)
    assert noise[:, 1].max() == pytest.approx(NOISE**2, rel=1e-4)
    assert lack[:, 1].max() == pytest.approx(np.max(exact[1]) + NOISE**2, rel=1e-2)
    ax = cx.plots.uncertainty(line.predict(x))
    np.testing.assert_allclose(
        np.asarray(ax.collections[0].get_offsets())[:, 1], np.sqrt(exact[1]), rtol=2e-2
    )


def test_one_of_several_targets_is_drawn(rows):
    x, y = rows
    both = np.stack([y, -3 * y], 1)
    predictive = fitted(x, both, cx.likelihoods.Gaussian(NOISE)).predict(x)
    drawn = predictive.plot(x, both, target=1).lines[0].get_ydata()
    np.testing.assert_allclose(drawn, predictive.mean[np.argsort(x[:, 0]), 1], rtol=1e-6)
    with pytest.raises(ValueError, match=r"target=\.\.\.\) must be .* 2 targets, from 0 to 1"):
        predictive.plot(x)
    with pytest.raises(ValueError, match=r"target=\.\.\.\) must be .* 2 targets, from 0 to 1"):
        cx.plots.calibration(predictive, both, target=2)


# -- classes --------------------------------------------------------------------------------------------


def test_a_reliability_diagram_counts_the_true_classes_of_each_group(classes):
    posterior, x, y = classes
    predictive = posterior.predict(x)
    ax = predictive.plot(y=y)
    said, found = ax.lines[1].get_data()
    probs = predictive.probs.astype(float)
    pairs = sorted(zip(probs.max(1), probs.argmax(1) == y, strict=True), key=lambda p: p[0])
    groups = np.array([pairs[i : i + 12] for i in range(0, 120, 12)], float)
    np.testing.assert_allclose(said, groups[:, :, 0].mean(1), rtol=1e-6)
    np.testing.assert_allclose(found, groups[:, :, 1].mean(1), rtol=1e-6)
    ax = cx.plots.calibration(predictive, y, label=2)
    pairs = sorted(zip(probs[:, 2], y == 2, strict=True), key=lambda p: p[0])
    groups = np.array([pairs[i : i + 12] for i in range(0, 120, 12)], float)
    np.testing.assert_allclose(ax.lines[1].get_ydata(), groups[:, :, 1].mean(1), rtol=1e-6)


def test_probabilities_of_classes_are_stacked_to_one(classes):
    posterior, x, y = classes
    predictive = posterior.predict(x)
    ax = predictive.plot(x, y, names=["low", "middle", "high"])
    areas = [vertices(area) for area in ax.collections[:3]]
    smallest = np.argmin(x[:, 0])
    here = [a[np.isclose(a[:, 0], x[smallest, 0]), 1].max() for a in areas]
    np.testing.assert_allclose(here, np.cumsum(predictive.probs[smallest]), rtol=1e-5)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["low", "middle", "high"]
    areas = [vertices(area) for area in cx.plots.probabilities(predictive).collections]
    surest = predictive.probs[predictive.label == 0].max()
    assert areas[0][areas[0][:, 0] == 1, 1].max() == pytest.approx(surest)
    ax = predictive.plot(kind="uncertainty")
    np.testing.assert_allclose(
        np.asarray(ax.collections[0].get_offsets()).sum(1), predictive.entropy, atol=1e-5
    )


def test_many_classes_share_a_colour():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(60, 1)), np.arange(60) % 9
    posterior = fitted(x, y, cx.likelihoods.Categorical(9), cx.MAP(num_steps=5))
    ax = posterior.predict(x).plot(x)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert len(labels) == 6
    assert labels[-1] == "4 other classes"
    assert vertices(ax.collections[-1])[:, 1].max() == pytest.approx(1)


# -- runs -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chains(rows):
    method = cx.HMC(chains=2, num_warmup=20, num_draws=30)
    return fitted(*rows, cx.likelihoods.Gaussian(NOISE), method)


@pytest.mark.filterwarnings("ignore::credax.PosteriorWarning")
def test_a_trace_has_a_line_for_each_chain(chains):
    ax = chains.plot()
    assert ax.get_ylabel() == "log joint"
    recorded = np.asarray(chains.info["log_joint"])
    assert recorded.shape == (2, 50)
    for line, values in zip(ax.lines, recorded, strict=True):
        np.testing.assert_allclose(line.get_ydata(), values, rtol=1e-6)
    lower, upper = ax.get_ylim()
    assert lower < recorded[:, 20:].min()
    assert recorded[:, 20:].max() < upper
    path = next(name for name, leaf in cx_leaves(chains) if leaf.ndim == 4)
    kernel = dict(cx_leaves(chains))[path]
    for index in (0, (0, 0)):
        ax = chains.plot("trace", of=path, index=index)
        np.testing.assert_allclose(ax.lines[1].get_ydata(), kernel[1, :, 0, 0], rtol=1e-6)
    assert ax.get_ylabel().endswith("kernel[0, 0]")


def cx_leaves(posterior):
    from credax.core.trees import named_leaves

    return [(name, np.asarray(leaf)) for name, leaf in named_leaves(posterior.draws)]


@pytest.mark.filterwarnings("ignore::credax.PosteriorWarning")
def test_a_posterior_draws_its_predictions(rows, chains):
    x, y = rows
    assert chains.plot(x=x).get_xlabel() == "x"
    assert chains.plot("predicted", x, y).get_ylabel() == "true"
    with pytest.raises(ValueError, match=r"plot\(x=\.\.\.\) must be the rows to predict"):
        chains.plot("intervals")
    with pytest.raises(
        ValueError, match=r"plot\(kind=\.\.\.\) must be one of 'trace', 'intervals'"
    ):
        chains.plot("picture", x)
    with pytest.raises(ValueError, match=r"trace\(of=\.\.\.\) must be one of 'log_joint'"):
        chains.plot(of="loss of hair")
    with pytest.raises(ValueError, match=r"trace\(index=\.\.\.\) must be an index of an array"):
        chains.plot(of=cx_leaves(chains)[0][0], index=7)


# -- other predictions ----------------------------------------------------------------------------------


def test_a_stacked_posterior_draws_the_average(rows, line):
    x, y = rows
    other = fitted(*rows, cx.likelihoods.Gaussian(2.0), prior=0.1)
    both = cx.StackedPosterior((line, other), (0.75, 0.25))
    order = np.argsort(x[:, 0])
    mean = 0.75 * line.predict(x).mean + 0.25 * other.predict(x).mean
    drawn = both.predict(x).plot(x, y).lines[0].get_ydata()
    np.testing.assert_allclose(drawn, mean[order], rtol=1e-5)
    assert both.plot(x=x, y=y).lines[0].get_ydata() == pytest.approx(drawn)
    recorded = both.plot("trace").lines[0].get_ydata()
    np.testing.assert_array_equal(recorded, np.asarray(line.info["log_joint"])[0])
    assert both.predict(x).plot(y=y, kind="calibration") is not None


def test_a_calibrated_posterior_draws_the_corrected_intervals(rows):
    x, y = rows
    posterior = fitted(x, y, cx.likelihoods.Gaussian(0.05))
    calibrated = posterior.calibrate(x, y)
    assert isinstance(calibrated, Calibrated)
    lower, upper = calibrated.predict(x).interval(0.5)
    drawn = vertices(calibrated.predict(x).plot(x, levels=[0.5]).collections[0])[:, 1]
    assert drawn.min() == pytest.approx(lower.min(), rel=1e-5)
    assert drawn.max() == pytest.approx(upper.max(), rel=1e-5)
    assert posterior.predict(x).interval(0.5)[0].min() > lower.min()


# -- style and errors -----------------------------------------------------------------------------------


def test_plots_draw_on_the_axes_that_they_get_and_change_nothing_else(rows, line):
    before = dict(plt.rcParams)
    figure, ax = plt.subplots()
    assert line.predict(rows[0]).plot(rows[0], ax=ax) is ax
    assert plt.get_fignums() == [figure.number]
    assert dict(plt.rcParams) == before
    assert line.predict(rows[0]).plot().figure is not figure


def test_the_colours_are_those_of_the_report():
    css = (Path(drawing.__file__).parent / "report.css").read_text()
    light = css[: css.index("@media")]
    found = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", light))
    assert tuple(found[name] for name in "abcdef") == drawing.SERIES
    names = (drawing.INK, drawing.SOFT, drawing.LINE, drawing.IDEAL)
    assert names == tuple(found[name] for name in ("ink", "soft", "line", "ideal"))


def test_what_to_install_is_said_if_matplotlib_is_missing(rows, line, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"cx\.plots needs matplotlib: pip install"):
        line.predict(rows[0]).plot()


def test_arguments_are_checked(rows, line, classes):
    x, y = rows
    numbers, labels = line.predict(x), classes[0].predict(classes[1])
    wrong = [
        (
            lambda: numbers.plot(x[:5]),
            r"intervals\(x=\.\.\.\) must be one number for each of the 40",
        ),
        (lambda: numbers.plot(np.full(40, np.nan)), r"intervals\(x=\.\.\.\) must be finite"),
        (lambda: numbers.plot(["a"] * 40), r"intervals\(x=\.\.\.\) must be 40 numbers"),
        (lambda: numbers.plot(y=y[:3]), r"predicted\(y=\.\.\.\) must be one number for each"),
        (lambda: numbers.plot(x, levels=[1.5]), r"intervals\(levels=\.\.\.\) must be between 0"),
        (lambda: numbers.plot(x, levels=[]), r"intervals\(levels=\.\.\.\) must be a list such as"),
        (lambda: numbers.plot(x, levels=0.9), r"must be a list such as \[0.5, 0.9\]; got 0.9"),
        (lambda: numbers.plot(colour="red"), r"has the options levels, target, ax; got 'colour'"),
        (lambda: line.plot(label=1), r"plot\(kind='trace'\) has the options of, index, ax; got"),
        (lambda: cx.plots.intervals(line), r"must be predictions, such as posterior.predict\(x\)"),
        (lambda: cx.plots.uncertainty(x), r"uncertainty\(predictive=\.\.\.\) must be predictions"),
        (lambda: numbers.plot(kind="predicted"), r"plot\(y=\.\.\.\) must be the true values"),
        (lambda: numbers.plot(kind="pie"), r"plot\(kind=\.\.\.\) must be one of 'intervals'"),
        (lambda: numbers.plot(ax="here"), r"plots\(ax=\.\.\.\) must be the Axes"),
        (lambda: cx.plots.probabilities(numbers), r"of classes; got predictions of numbers"),
        (lambda: cx.plots.intervals(labels), r"must be predictions of numbers"),
        (lambda: labels.plot(y=classes[2] + 1), r"calibration\(y=\.\.\.\) must be whole numbers"),
        (lambda: labels.plot(y=classes[2] + 0.5), r"calibration\(y=\.\.\.\) must be whole numbers"),
        (
            lambda: labels.plot(y=classes[2], label=3),
            r"calibration\(label=\.\.\.\) must be the number",
        ),
        (lambda: labels.plot(names=["a"]), r"probabilities\(names=\.\.\.\) must be 3 names"),
    ]
    for call, message in wrong:
        with pytest.raises((TypeError, ValueError), match=message):
            call()
    assert plt.get_fignums() == []
