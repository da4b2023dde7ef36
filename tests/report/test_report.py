"""The report: all sections are there, the numbers are right, and the page loads and runs nothing."""

import dataclasses
import itertools
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from credax import report
from credax.inference import HMC, MAP, METHODS, DeepEnsemble
from credax.report import write_report
from credax.report.baseline import baseline_scores, gain
from credax.report.effects import accumulated, effects, weighted_quantile
from credax.report.explanations import contributions
from credax.report.page import page
from credax.report.parts import HeldOut
from credax.report.segments import segment_section, segments
from credax.report.thresholds import roc
from credax.report.verdict import verdict
from credax.report.words import (
    documented,
    judged_confidence,
    judged_coverage,
    number,
    percent,
    scatter_of_share,
)
from credax.tables.runs import Run, fit_table

pd = pytest.importorskip("pandas")

EVIL = "<script>alert('x')</script>\"&"
SECTIONS = [
    *("verdict", "fitted", "sure", "calibration", "segments", "predictions", "uncertainty"),
    *("least-sure", "effects", "convergence", "doctor", "preprocessing", "words"),
]
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


def rows(count=120):
    generator = np.random.default_rng(0)
    size, kind = generator.normal(50, 10, count), generator.integers(0, 3, count)
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(generator.integers(0, 300, count), "D")
    table = pd.DataFrame(
        {
            EVIL: size,
            "kind": np.array(["01", "NA", f"{EVIL}2"])[kind],
            "day": day.strftime("%Y-%m-%d"),
            "on": np.where(generator.random(count) < 0.5, "yes", "no"),
            "predicted_mean": generator.normal(size=count),
            "same": 1,
        }
    )
    table.loc[::9, "predicted_mean"] = np.nan
    table["price"] = 1000 + 30 * (size - 50) + 100 * kind + generator.normal(0, 40, count)
    return table


@pytest.fixture(scope="module")
def numbers():
    method = HMC(chains=2, num_warmup=150, num_draws=100, num_leapfrog=16)
    return fit_table(rows(), "price", method=method, hidden=(4,), progress=False, name=EVIL)


@pytest.fixture(scope="module")
def classes():
    table = rows()
    middle = table["price"].rank(pct=True)
    table["price"] = np.array(["cheap", EVIL, "entropy"])[(middle * 2.99).astype(int)]
    method = DeepEnsemble(members=3, num_steps=150)
    return fit_table(table, "price", method=method, hidden=(8,), progress=False, name="prices.csv")


@pytest.fixture(scope="module")
def unjudged():
    method = DeepEnsemble(members=2, num_steps=120)
    return fit_table(rows(60), "price", method=method, hidden=(4,), held_out=0.0, progress=False)


@pytest.fixture(scope="module")
def pages(numbers, classes, unjudged):
    return {"numbers": page(numbers), "classes": page(classes), "unjudged": page(unjudged)}


each_page = pytest.mark.parametrize("name", ["numbers", "classes", "unjudged"])


class Reader(HTMLParser):
    """Collects every tag with its attributes, and the text of the page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(html)
        self.text = re.sub(r"\s+", " ", self.text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.mark.matrix
@each_page
def test_every_section_is_there_and_says_how_to_read_it(pages, name):
    reader = Reader(pages[name])
    assert [attrs["id"] for tag, attrs in reader.tags if tag == "section"] == SECTIONS
    assert len(re.findall('<p class="how">[^<]{20,}', pages[name])) >= len(SECTIONS)
    links = [attrs["href"] for tag, attrs in reader.tags if tag == "a"]
    assert links == [f"#{section}" for section in SECTIONS]


@each_page
def test_names_are_text_and_never_code(pages, name):
    reader = Reader(pages[name])
    assert not {tag for tag, _ in reader.tags} & {"script", "img", "link", "iframe", "object"}
    assert not [key for _, attrs in reader.tags for key in attrs if key.startswith("on")]
    assert EVIL in reader.text


@each_page
def test_the_page_is_small_and_needs_no_other(pages, name):
    html = pages[name]
    assert len(html.encode()) < 500_000
    assert not re.search(r"https?://|\bsrc=|url\(|@import|javascript:", html)
    assert "default-src 'none'" in html


@each_page
def test_every_picture_is_xml_with_a_title_and_a_description(pages, name):
    pictures = re.findall(r'<figure>(<svg role="img".*?</svg></svg>)', pages[name], re.DOTALL)
    assert len(pictures) == pages[name].count("<figure>") > 0
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root.find("title").text
        assert root.find("desc").text
        assert not re.search(r"nan|inf\b", re.sub(r"<(title|desc|text).*?</\1>", "", picture))


@each_page
def test_the_page_can_be_heard(pages, name):
    reader = Reader(pages[name])
    assert ("html", {"lang": "en"}) in reader.tags
    assert all(attrs.get("scope") for tag, attrs in reader.tags if tag == "th")
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    labels = {attrs["aria-labelledby"] for _, attrs in reader.tags if "aria-labelledby" in attrs}
    assert labels <= set(ids)


def test_the_figures_of_numbers_are_the_scores(numbers, pages):
    text, scores = Reader(pages["numbers"]).text, numbers.scores
    inside = round(100 * float(scores.coverage))
    assert f"Of {scores.rows} held-out rows, {inside} % lie inside their 90 % interval." in text
    assert f"off by {number(scores.mae)} on average" in text
    assert f"by {number(scores.rmse)} as a root mean square" in text
    for name, value in scores:
        shown = percent(value) if name in ("coverage", "calibration_error") else number(value, 4)
        assert f"{name.replace('_', ' ')}{shown}".replace("\u00a0", " ") in text
    y, held = numbers.held_out["price"], HeldOut(numbers)
    np.testing.assert_allclose(held.y, y, rtol=1e-6)
    outside = int(((y < held["lower"]) | (y > held["upper"])).sum())
    assert f"{scores.rows} held-out rows, {outside} outside their interval." in text
    assert scores.rows - outside == round(float(scores.coverage) * scores.rows)


def test_the_figures_of_classes_are_the_scores(classes, pages):
    text, scores = Reader(pages["classes"]).text, classes.scores
    right = percent(scores.accuracy).replace("\u00a0", " ")
    assert f"Of {scores.rows} held-out rows, {right} are classified correctly." in text
    sure = percent(scores.sharpness).replace("\u00a0", " ")
    assert f"the most probable class has a probability of {sure}." in text
    matrix = re.search(r'class="matrix".*?</table>', pages["classes"], re.DOTALL).group()
    counts = [int(n) for n in re.findall(r'<td class="number shade-\d">(\d+)</td>', matrix)]
    counts = np.reshape(counts, (3, 3))
    assert counts.sum() == scores.rows
    assert np.trace(counts) == round(float(scores.accuracy) * scores.rows)
    truth = classes.held_out["price"].value_counts()
    assert counts.sum(1).tolist() == [truth.get(label, 0) for label in classes.preprocessor.classes]


def test_chains_are_judged_and_members_are_not(numbers, pages):
    found = numbers.posterior.convergence(numbers.preprocessor.encode(HeldOut(numbers).table))
    text = Reader(pages["numbers"]).text
    assert f"{found.predictions.worst_r_hat:.3f}" in text
    assert "2 chains of 100 draws" in text
    assert "this method runs no chains of draws" in Reader(pages["classes"]).text


def test_where_no_row_was_kept_the_page_says_so(pages):
    text = Reader(pages["unjudged"]).text
    assert text.count("No rows were held out from the fit") == 8
    assert "left out, since it is the same in every row" in text


def test_findings_are_told_with_their_advice(unjudged):
    finding = {"what": "It is <b>broken</b>.", "value": 1.0, "advice": "Mend it.", "grave": True}
    told = Reader(page(dataclasses.replace(unjudged, findings=(finding,)))).text
    assert "Grave. It is <b>broken</b>. What to try: Mend it." in told
    assert "No problem found." in Reader(page(dataclasses.replace(unjudged, findings=()))).text


def test_a_loaded_run_gives_the_same_page(classes, pages, tmp_path):
    classes.save(tmp_path / "run")
    assert page(Run.load(tmp_path / "run")) == pages["classes"]


def test_the_file_goes_where_it_is_told(unjudged, tmp_path):
    assert write_report(unjudged, tmp_path) == tmp_path / "report.html"
    path = write_report(unjudged, str(tmp_path / "new" / "page.html"))
    assert path.read_text(encoding="utf-8") == page(unjudged)


def test_a_page_of_one_row():
    judged = fit_table(
        rows(30).drop(columns="predicted_mean"),
        "price",
        method=DeepEnsemble(members=2, num_steps=120),
        hidden=(4,),
        held_out=0.034,
        progress=False,
    )
    assert judged.scores.rows == 1
    assert "Of 1 held-out row," in Reader(page(judged)).text


def test_a_single_set_of_weights_does_not_claim_to_know_all():
    run = fit_table(rows(), "price", method=MAP(num_steps=150), hidden=(4,), progress=False)
    assert Reader(page(run)).text.count("This method finds a single set of weights") == 2


# -- the verdict, the baseline, and parts of the table --------------------------------------------


def test_the_verdict_follows_the_facts(numbers, unjudged):
    held = HeldOut(numbers)
    good = dataclasses.replace(numbers, findings=())
    levels = np.asarray(numbers.scores.levels)

    def with_coverage(inner, outer):
        at = np.where(levels < 0.7, inner, outer)
        found = dataclasses.replace(numbers.scores, coverage_at=at)
        object.__setattr__(found, "coverage", type(numbers.scores.coverage)(outer, 0.01))
        return verdict(dataclasses.replace(good, scores=found), held)

    chance = float(scatter_of_share(0.9, held.rows))
    assert with_coverage(0.5, 0.9)[0] == "good"
    assert with_coverage(0.5, 0.9 + 1.9 * chance)[0] == "good"
    assert with_coverage(0.5, 0.9 - 2 * chance)[0] == "care"
    kind, reasons = with_coverage(0.9, 0.9)
    assert kind == "care"
    assert "But 90\u00a0% of 50\u00a0% intervals do: these are too wide." in reasons[1]
    note = {"what": "It is so.", "value": 1.0, "advice": "Try.", "grave": False}
    assert verdict(dataclasses.replace(numbers, findings=(note,)), held)[0] == "care"
    grave = dataclasses.replace(numbers, findings=({**note, "grave": True},))
    assert verdict(grave, held)[0] == "bad"
    assert verdict(unjudged, None)[0] in ("open", "bad")
    shuffled = numbers.held_out.copy()
    shuffled["price"] = np.random.default_rng(0).permutation(shuffled["price"])
    useless = dataclasses.replace(good, held_out=shuffled)
    assert verdict(useless, HeldOut(useless))[0] == "bad"


def test_the_baseline_is_the_best_constant(numbers, classes):
    held = HeldOut(numbers)
    found, y = baseline_scores(held), held.y
    assert float(found.rmse) == pytest.approx(np.std(y))
    entropy = 0.5 * np.log(2 * np.pi * np.e * np.var(y))
    assert float(found.log_likelihood) == pytest.approx(-entropy)
    assert gain(held)[0] == pytest.approx(1 - float(numbers.scores.rmse) ** 2 / np.var(y), rel=1e-4)
    held = HeldOut(classes)
    shares = np.bincount(held.y) / held.rows
    found = baseline_scores(held)
    assert float(found.accuracy) == pytest.approx(shares.max())
    assert float(found.log_likelihood) == pytest.approx(np.sum(shares * np.log(shares)))


def test_parts_of_the_table_are_counted(numbers):
    held = HeldOut(numbers)
    found = segments(held, effects(numbers, held.table))
    predicted = [part for part in found if part.name.startswith("predicted: ")]
    assert sum(part.size for part in predicted) == held.rows
    inside = (held.y >= held["lower"]) & (held.y <= held["upper"])
    assert sum(part.hits for part in predicted) == inside.sum()
    for part in found:
        assert part.hits == inside[part.rows].sum()
        assert part.expected == pytest.approx(0.9 * part.size)
        assert part.size >= 10
    # A part in which every interval misses is found, whatever the number of parts.
    worse = numbers.held_out.copy()
    lower = worse.columns[-2]
    worse[lower] = worse[lower].astype(float)
    worse.loc[predicted[0].rows, lower] = worse["price"][predicted[0].rows] + 1
    run = dataclasses.replace(numbers, held_out=worse)
    part = segments(HeldOut(run), [])[0]
    assert part.hits == 0
    assert part.probability == pytest.approx(0.1**part.size, rel=1e-6)
    told = segment_section(HeldOut(run), [], "price").parts
    assert "1 differs by more than chance" in told[0]["text"]
    assert told[1]["rows"][0][-1] == "too sure"


def test_a_roc_curve_is_that_of_its_definition():
    rng = np.random.default_rng(0)
    probability, positive = rng.integers(0, 8, 60) / 8, rng.random(60) < 0.4
    alarms, caught = roc(probability, positive)
    cuts = np.unique(probability)[::-1]
    expected = [[np.mean((probability >= c)[k]) for c in cuts] for k in (~positive, positive)]
    np.testing.assert_allclose(alarms, [0, *expected[0]])
    np.testing.assert_allclose(caught, [0, *expected[1]])


def test_two_classes_have_thresholds():
    table = rows()
    table["price"] = np.where(table["price"] > table["price"].median(), "dear", "cheap")
    method = MAP(num_steps=150)
    run = fit_table(table, "price", method=method, hidden=(4,), progress=False)
    text, held = Reader(page(run)).text, HeldOut(run)
    pairs = [(p, n) for p in held.probs[held.y == 1, 1] for n in held.probs[held.y == 0, 1]]
    area = np.mean([(p > n) + 0.5 * (p == n) for p, n in pairs])
    assert f"Area below the curve: {area:.3f}" in text
    above = held.probs[:, 1] >= 0.5
    caught, right = np.mean(above[held.y == 1]), np.mean(held.y[above] == 1)
    row = f"50 %{above.sum()}{percent(caught)}{percent(right)}".replace("\u00a0", " ")
    assert row in text


def test_a_row_is_explained_by_what_a_typical_value_would_change(numbers):
    held = HeldOut(numbers)
    found = contributions(numbers, held, np.array([3, 5]))
    names = [column.name for column in numbers.preprocessor.columns]
    row = held.table.iloc[[5]]
    middle = np.sort(held.table[EVIL])[(held.rows - 1) // 2]
    change = (
        numbers.predict(row)["mean"].iloc[0]
        - numbers.predict(row.assign(**{EVIL: middle}))["mean"].iloc[0]
    )
    assert found[1, names.index(EVIL)] == pytest.approx(change, rel=1e-3, abs=1e-2)


def test_rows_have_their_numbers_in_the_table_of_the_user(numbers):
    table, numbered = rows(), numbers.about["held_out_rows"]
    assert len(numbered) == len(numbers.held_out)
    original = table["price"].to_numpy()[np.array(numbered) - 1]
    np.testing.assert_allclose(numbers.held_out["price"], original)


# -- effects --------------------------------------------------------------------------------------


def test_accumulated_effects_follow_columns_that_go_together():
    """For f = a b with a = b, the effect of a is the integral of b along a, a^2 / 2."""
    a = np.random.default_rng(0).uniform(0, 2, 2_000)
    edges = np.quantile(a, np.linspace(0, 1, 41))
    bins = np.clip(np.searchsorted(edges, a, side="left"), 1, 40) - 1
    changes = ((edges[bins + 1] - edges[bins]) * a)[None, :, None]
    np.testing.assert_allclose(
        accumulated(changes, bins, 40)[0, :, 0], (edges**2 - edges[0] ** 2) / 2, atol=5e-3
    )


@pytest.mark.matrix
@pytest.mark.parametrize("name", [EVIL, "day", "kind", "on"])
def test_an_effect_adds_up_the_changes_across_its_bins(numbers, name):
    table = HeldOut(numbers).table
    effect = next(e for e in effects(numbers, table) if e.column.name == name)
    mean = effect.mean[:, 0]
    as_value = lambda z: pd.Timestamp(z * 86_400, unit="s") if name == "day" else z  # noqa: E731
    values = effect.names or [as_value(z) for z in effect.places]
    set_to = lambda rows, value: numbers.predict(rows.assign(**{name: value}))["mean"].mean()  # noqa: E731
    if effect.names:
        order = np.argsort(
            [numbers.predict(table[table[name] == v])["mean"].mean() for v in values]
        )
        order = order if name == "kind" else np.arange(len(values))
        for one, other in itertools.pairwise(order):
            rows = table[table[name].isin([values[one], values[other]])]
            change = set_to(rows, values[other]) - set_to(rows, values[one])
            assert mean[other] - mean[one] == pytest.approx(change, rel=2e-3, abs=0.05)
    else:
        at = pd.to_datetime(table[name]) if name == "day" else table[name]
        for k in range(len(values) - 1):
            above = at > values[k] if k else at == at
            rows = table[above & (at <= values[k + 1])] if k < len(values) - 2 else table[above]
            change = set_to(rows, values[k + 1]) - set_to(rows, values[k]) if len(rows) else 0.0
            assert mean[k + 1] - mean[k] == pytest.approx(change, rel=2e-3, abs=0.05)
    assert (effect.lower <= effect.mean).all()
    assert (effect.mean <= effect.upper).all()


def test_the_column_that_matters_comes_first(numbers, classes):
    for run in (numbers, classes):
        found = effects(run, HeldOut(run).table)
        assert found[0].column.name == EVIL
        assert len(found) == 5
        assert [e.importance for e in found] == sorted((e.importance for e in found), reverse=True)


def test_quantiles_by_weight():
    values = np.random.default_rng(0).normal(size=(40, 3))
    for q in (0.05, 0.5, 0.95):
        expected = np.quantile(values, q, axis=0, method="hazen")
        np.testing.assert_allclose(weighted_quantile(values, np.ones(40), q), expected)
    one = np.where(np.arange(40) == 7, 1.0, 0.0)
    np.testing.assert_allclose(weighted_quantile(values, one, 0.5), values[7])


# -- words ----------------------------------------------------------------------------------------


def test_numbers_are_short_and_honest():
    assert [number(v) for v in (0, 12, 0.5, 1234.5, -2.25)] == [
        "0",
        "12",
        "0.500",
        "1\u202f234",
        "\u22122.25",
    ]
    assert number(2.69e-5) == "2.69\u00a0\u00d7\u00a010\u207b\u2075"
    assert [percent(v)[:-2] for v in (0, 0.004, 0.5, 0.996, 1)] == ["0", "0.4", "50", "99.6", "100"]
    assert percent(0.0001) == "less than 0.1\u00a0%"
    assert percent(0.99999) == "more than 99.9\u00a0%"


def test_judgements_follow_chance():
    chance = float(scatter_of_share(0.9, 100))
    assert chance == pytest.approx(0.03)
    assert "agrees with 90" in judged_coverage(0.9 - 1.9 * chance, 100)
    assert "too few" in judged_coverage(0.9 - 2 * chance, 100)
    assert "too many" in judged_coverage(1.0, 100)
    sure = np.full(100, 0.8)
    assert "less often" in judged_confidence(sure, np.arange(100) < 70)
    assert "as often as that" in judged_confidence(sure, np.arange(100) < 75)
    assert "more often" in judged_confidence(np.full(100, 0.8), np.ones(100))


def test_settings_are_told_in_the_words_of_their_docstring():
    class Documented:
        """A class.

        Args:
          first: what the *first* ``setting``
            means, see :class:`~credax.HMC`.
          second: no more.

        Other text: not a setting.
        """

    assert documented(Documented) == {
        "first": "what the *first* setting means, see credax.HMC.",
        "second": "no more.",
    }


@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.__name__)
def test_every_setting_of_a_method_is_documented(kind):
    assert set(documented(kind)) >= {item.name for item in dataclasses.fields(kind) if item.init}


# -- in a browser ---------------------------------------------------------------------------------


def browse(path: Path, *options):
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command = [
        CHROMIUM,
        *flags,
        f"--user-data-dir={path.parent / 'profile'}",
        *options,
        path.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("name", ["numbers", "classes"])
def test_a_browser_shows_it_without_complaint(pages, name, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(pages[name], encoding="utf-8")
    found = browse(path, "--dump-dom")
    shown = Reader(found.stdout)
    assert [attrs["id"] for tag, attrs in shown.tags if tag == "section"] == SECTIONS
    # The browser reports here what the page was not allowed to load or run.
    assert "CONSOLE" not in found.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_what_the_page_may_not_do_a_browser_refuses(pages, tmp_path):
    more = '<script>document.title = "ran"</script><img src="https://example.invalid/a.png"></body>'
    path = tmp_path / "report.html"
    path.write_text(pages["classes"].replace("</body>", more), encoding="utf-8")
    found = browse(path, "--dump-dom")
    assert "<title>ran</title>" not in found.stdout
    assert found.stderr.count("CONSOLE") >= 2


# -- colours --------------------------------------------------------------------------------------


def luminance(colour):
    share = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_colours_have_the_contrast_of_wcag_aa():
    css = (Path(report.__file__).parent / "report.css").read_text(encoding="utf-8")
    themes = [
        dict(re.findall(r"--([\w-]+): (#\w{6})", theme))
        for theme in re.findall(r":root \{([^}]*)\}", css)
    ]
    assert len(themes) == 3
    for theme in themes:
        paper = luminance(theme["paper"])
        for name in ("ink", "soft", "link", "grave", "a", *"bcdef", "ideal"):
            light, dark = sorted([paper, luminance(theme[name])], reverse=True)
            needed = 4.5 if name in ("ink", "soft", "link", "grave", "a") else 3.0
            assert (light + 0.05) / (dark + 0.05) >= needed, name


def test_times_weekdays_durations_and_findings_are_reported():
    rows = 40
    frame = pd.DataFrame(
        {
            "clock": [f"{i % 24}:{i % 60:02d}" for i in range(rows)],
            "day": np.resize(["Mon", "Tue", "Sat"], rows),
            "month": np.resize(["Jan", "May", "Dec", "Jul"], rows),
            "spent": np.resize(["1h 30m", "45 min", "2h"], rows),
            "price": np.resize(["$1,200.50", "$7", "n.a.", "$99", "$5"], rows),
            "sold": pd.date_range("2020-01-01", periods=rows).strftime("%d.%m.%Y"),
            "old": np.resize(["Y", "n", "?"], rows),
            "y": np.random.default_rng(0).normal(size=rows),
        }
    )
    run = fit_table(frame, "y", method=MAP(num_steps=20), hidden=(3,), progress=False)
    assert {column.kind for column in run.preprocessor.columns} == {
        *("time", "weekday", "month", "duration", "number", "date", "boolean")
    }
    mild = {"what": "It is mild.", "value": 1.0, "advice": "Wait.", "grave": False}
    grave = {"what": "It is bad.", "value": 1.0, "advice": "Stop.", "grave": True}
    html = page(dataclasses.replace(run, findings=(mild, grave)))
    assert html.index("It is bad.") < html.index("It is mild."), "the gravest first"
    assert "a point on a circle" in html
    for name in ("clock", "day", "month", "spent", "price", "sold", "old"):
        assert f">{name}<" in html
    assert "Saturday" in html
