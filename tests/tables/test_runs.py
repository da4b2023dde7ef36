"""Fits of tables: the held-out rows stay unseen and can hold anything, and one place chooses the method."""

import numpy as np
import pandas as pd
import pytest

import credax as cx
from credax.diagnostics.doctor import Diagnosis
from credax.report.page import page
from credax.tables import runs
from credax.tables.comparison import compare_table
from credax.tables.reading import TableError
from credax.tables.recommended import SMALL, recommended_method, with_settings
from credax.tables.runs import fit_table
from credax.tables.splitting import prepare_table, split_table

ROWS = 20
QUICK = cx.MAP(num_steps=20)


def table(rows=ROWS):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 2))
    return pd.DataFrame(
        {
            "a": np.exp(x[:, 0]),
            "b": x[:, 1],
            "kind": np.resize(["u", "v"], rows),
            "y": np.arange(rows) ** 2.0,
        }
    )


def prepare(frame, target="y", held_out=0.25, **options):
    options = {"task": None, "drop": (), "key": 0, **options}
    return prepare_table(frame, target, held_out=held_out, **options)


def held_out_rows(rows=ROWS, held_out=0.25):
    """The positions of the rows that a split with key 0 holds out."""
    return split_table(pd.DataFrame({"row": range(rows)}), held_out, 0)[1]["row"].to_numpy()


def in_held_out_rows(frame, column, value):
    """The table with another value of a column in the held-out rows."""
    frame = frame.copy()
    frame[column] = frame[column].astype(object)
    frame.loc[held_out_rows(len(frame)), column] = value
    frame[column] = frame[column].infer_objects()
    return frame


def assert_learned_from(preprocessor, fitted):
    assert preprocessor.centre == pytest.approx(fitted["y"].mean())
    assert preprocessor.scale == pytest.approx(fitted["y"].std(ddof=0))
    for column in preprocessor.columns:
        if column.kind == "number":
            assert column.centre == pytest.approx((fitted[column.name].mean(),))
            assert column.scale == pytest.approx((fitted[column.name].std(ddof=0),))


# -- the fitted rows alone decide -----------------------------------------------------------------


def test_a_fit_learns_the_preprocessing_from_the_fitted_rows():
    run = fit_table(table(), "y", method=QUICK, hidden=(3,), held_out=0.25, progress=False)
    fitted = table().drop(index=held_out_rows())
    assert len(fitted) == 15
    assert_learned_from(run.preprocessor, fitted)
    assert set(run.held_out["y"]) == set(table()["y"]) - set(fitted["y"])


def test_a_comparison_learns_the_preprocessing_from_the_fitted_rows():
    methods = {"map": lambda: QUICK}
    found = compare_table(table(), "y", methods, budget=20.0, held_out=0.25)
    assert found.rows == (15, 5)
    assert_learned_from(found.preprocessor, table().drop(index=held_out_rows()))


def test_the_scale_of_held_out_rows_does_not_matter():
    frame = table()
    frame.loc[held_out_rows(), ["a", "b", "y"]] *= 1e6
    assert prepare(frame).preprocessor == prepare(table()).preprocessor


def test_rows_without_a_target_are_neither_fitted_nor_held_out():
    frame = pd.concat([table(), table().assign(a=1e6, kind="w", y=np.nan)], ignore_index=True)
    found = prepare(frame)
    assert found.preprocessor == prepare(table()).preprocessor
    assert len(found.fitted) + len(found.held_out) == ROWS
    assert "y: 20 rows without a target were left out" in found.preprocessor.notes


def test_without_held_out_rows_all_rows_are_fitted():
    found = prepare(table(), held_out=0.0)
    assert found.held_out.empty
    assert_learned_from(found.preprocessor, table())


# -- held-out rows can hold anything --------------------------------------------------------------


@pytest.fixture(scope="module")
def unseen_class():
    """A fit whose held-out rows are all of a class that no fitted row has."""
    frame = in_held_out_rows(table().assign(y=np.resize(["bad", "good"], ROWS)), "y", "rare")
    return fit_table(
        frame, "y", method=cx.MAP(num_steps=200), hidden=(3,), held_out=0.25, progress=False
    )


def test_a_class_of_held_out_rows_only_is_scored_as_a_class(unseen_class):
    assert unseen_class.preprocessor.classes == ("bad", "good", "rare")
    assert "y: only held-out rows have 'rare'" in unseen_class.preprocessor.notes
    assert set(unseen_class.held_out["y"]) == {"rare"}
    # The fit has no reason to expect the class, and the scores say so.
    assert float(unseen_class.scores.accuracy) == 0
    assert -np.inf < float(unseen_class.scores.log_likelihood) < np.log(1 / 3)
    assert unseen_class.held_out["predicted_p(rare)"].max() < 1 / 3


def test_a_class_of_held_out_rows_only_can_be_saved_and_reported(unseen_class, tmp_path):
    unseen_class.save(tmp_path / "run")
    again = runs.Run.load(tmp_path / "run")
    assert page(again) == page(unseen_class)
    assert "only held-out rows have" in page(again)


def test_a_class_of_held_out_rows_only_can_be_compared():
    frame = in_held_out_rows(table().assign(y=np.resize(["bad", "good"], ROWS)), "y", "rare")
    found = compare_table(frame, "y", {"map": lambda: QUICK}, budget=20.0, held_out=0.25)
    assert not found.refused
    assert np.isfinite(float(found.entries[0].scores.log_likelihood))


def test_fitted_rows_of_one_class_can_be_fitted_to():
    frame = in_held_out_rows(table().assign(y="good"), "y", "bad")
    run = fit_table(frame, "y", method=QUICK, hidden=(3,), held_out=0.25, progress=False)
    assert run.preprocessor.classes == ("bad", "good")
    assert np.isfinite(float(run.scores.log_likelihood))


def test_the_task_and_the_classes_do_not_depend_on_the_split():
    frame = in_held_out_rows(table().assign(y=np.resize([0, 1], ROWS)), "y", 2)
    assert prepare(frame).preprocessor.task == "regression"
    frame = frame.assign(y=frame["y"].clip(upper=1))
    assert prepare(frame).preprocessor.classes == ("0", "1")


def test_a_category_of_held_out_rows_only_has_no_indicator():
    found = prepare(in_held_out_rows(table(), "kind", "w"))
    column = next(c for c in found.preprocessor.columns if c.name == "kind")
    assert column.levels == ("u", "v")
    assert "kind: only held-out rows have 'w'" in found.preprocessor.notes
    np.testing.assert_array_equal(column.encode(found.held_out["kind"]), np.zeros((5, 2)))


def test_a_category_of_held_out_rows_only_is_one_of_the_rare_ones():
    frame = table(400).assign(kind=[f"level {i % 40}" for i in range(400)])
    found = prepare(in_held_out_rows(frame, "kind", "new"))
    column = next(c for c in found.preprocessor.columns if c.name == "kind")
    assert "new" not in column.levels
    np.testing.assert_array_equal(column.encode(found.held_out["kind"])[:, -1], np.ones(100))


@pytest.mark.parametrize("name, missing", [("a", np.nan), ("a", np.inf), ("kind", None)])
def test_values_that_only_held_out_rows_lack_are_filled_in(name, missing):
    found = prepare(in_held_out_rows(table(), name, missing))
    x = found.preprocessor.encode(found.held_out)
    assert np.isfinite(x).all()
    marked = found.preprocessor.features.index(f"{name} is missing")
    np.testing.assert_array_equal(x[:, marked], np.ones(5))
    np.testing.assert_array_equal(found.preprocessor.encode(found.fitted)[:, marked], np.zeros(15))
    if name == "a":
        median = (found.fitted["a"].median() - found.fitted["a"].mean()) / found.fitted["a"].std(
            ddof=0
        )
        np.testing.assert_allclose(x[:, found.preprocessor.features.index("a")], median)


@pytest.mark.parametrize(
    "values, other", [(["yes", "no"], "maybe"), (["2020-01-01", "2021-05-01"], "soon")]
)
def test_all_rows_decide_what_kind_of_column_it_is(values, other):
    frame = table().assign(more=np.resize(values, ROWS))
    found = prepare(in_held_out_rows(frame, "more", other))
    column = next(c for c in found.preprocessor.columns if c.name == "more")
    assert column.kind == "category"
    found.preprocessor.encode(found.held_out)


@pytest.mark.parametrize(
    "elsewhere, note", [(np.nan, "no value in any fitted row"), (3, "the same in every fitted row")]
)
def test_columns_that_tell_nothing_in_the_fitted_rows_are_left_out(elsewhere, note):
    found = prepare(in_held_out_rows(table().assign(more=elsewhere), "more", 7.0))
    assert "more" not in {column.name for column in found.preprocessor.columns}
    assert f"more: left out, since it {'has' if 'no value' in note else 'is'} {note}" in (
        found.preprocessor.notes
    )


def test_a_held_out_target_that_is_no_number_is_refused_before_the_fit():
    frame = in_held_out_rows(table(), "y", "many")
    with pytest.raises(TableError, match="must hold finite numbers for a regression; got 'many'"):
        prepare(frame, task="regression")


def test_an_unknown_task_is_refused():
    with pytest.raises(ValueError, match=r"\(task=...\) must be one of 'regression'"):
        fit_table(table(), "y", task="regresion")


# -- the method -----------------------------------------------------------------------------------


class Stop(Exception):
    pass


@pytest.mark.parametrize("rows", [SMALL, SMALL + 1])
def test_the_fitted_rows_decide_what_is_recommended(monkeypatch, rows):
    def stop(recommendation, data, **options):
        assert len(data[0]) == rows
        raise Stop(recommendation)

    monkeypatch.setattr(runs, "fit_recommended", stop)
    with pytest.raises(Stop) as stopped:
        fit_table(table(2 * rows), "y", held_out=0.5, budget=20)
    found = stopped.value.args[0]
    assert found.budget == 20
    assert len(found.candidates) == (3 if rows == SMALL else 1)


@pytest.mark.parametrize("rows", [SMALL, SMALL + 1])
def test_the_number_of_fitted_rows_chooses_the_method(monkeypatch, rows):
    settings = {"members": 3}

    def stop(model, data, method, **options):
        assert len(data[0]) == rows
        raise Stop(method)

    monkeypatch.setattr(runs, "fit", stop)
    with pytest.raises(Stop) as stopped:
        fit_table(table(2 * rows), "y", settings=settings, held_out=0.5)
    assert stopped.value.args[0] == with_settings(recommended_method(rows), settings)


def test_settings_are_checked():
    assert with_settings(QUICK, {"num_steps": 30}) == cx.MAP(num_steps=30)
    with pytest.raises(ValueError, match=r"MAP has no setting 'steps'\. Did you mean 'num_steps'"):
        with_settings(QUICK, {"steps": 30})
    with pytest.raises(ValueError, match=r"MAP\(num_steps=...\) must be"):
        with_settings(QUICK, {"num_steps": 0})


def test_the_doctor_sees_the_held_out_targets(monkeypatch):
    seen = []
    monkeypatch.setattr(runs, "diagnose", lambda *case: seen.append(case) or Diagnosis([]))
    run = fit_table(table(), "y", method=QUICK, hidden=(3,), held_out=0.25, progress=False)
    _, x, y = seen[0]
    assert len(x) == len(y) == 5
    np.testing.assert_allclose(y, run.preprocessor.encode_target(run.held_out))
    fit_table(table(), "y", method=QUICK, hidden=(3,), held_out=0.0, progress=False)
    assert len(seen[1]) == 2, "the targets of fitted rows are no test of the predictions"


def test_the_prior_and_the_likelihood_can_be_chosen(tmp_path):
    counts = table().assign(y=np.random.default_rng(0).poisson(5.0, ROWS))
    run = fit_table(
        counts,
        "y",
        method=QUICK,
        hidden=(3,),
        prior=cx.priors.Laplace(0.5),
        likelihood=cx.likelihoods.Poisson(),
        progress=False,
    )
    assert run.posterior.model.prior == cx.priors.Laplace(0.5)
    assert (run.preprocessor.centre, run.preprocessor.scale) == (0, 1)
    np.testing.assert_array_equal(run.held_out["predicted_lower"] % 1, 0)
    run.save(tmp_path / "run")
    assert "<html" in page(runs.Run.load(tmp_path / "run"))
    with pytest.raises(TableError, match="--likelihood must be left out for classes"):
        fit_table(table(), "kind", likelihood=cx.likelihoods.StudentT(), progress=False)


def test_a_fit_goes_on_from_its_checkpoint(tmp_path):
    options = {"method": QUICK, "hidden": (3,), "progress": False, "checkpoint": tmp_path / "saved"}
    first = fit_table(table(), "y", **options)
    assert any((tmp_path / "saved").iterdir())
    again = fit_table(table(), "y", **options)
    pd.testing.assert_frame_equal(first.held_out, again.held_out)


def test_the_preprocessing_is_reported_before_the_fit(monkeypatch):
    seen = []

    def stop(*arguments, **options):
        assert seen[0].target == "y"
        raise TableError("Enough is known.")

    monkeypatch.setattr(runs, "fit_recommended", stop)
    with pytest.raises(TableError, match="Enough"):
        fit_table(table(), "y", report=seen.append)


@pytest.mark.matrix
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_predictions_are_corrected_by_rows_that_nothing_else_has_seen(task):
    """A posterior that is far too sure: the noise is a tenth of the true one."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(500, 2))
    noisy = x[:, 0] + generator.normal(size=500)
    y = noisy if task == "regression" else np.where(noisy > 0, "yes", "no")
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "row": np.arange(500), "y": y})
    likelihood = cx.likelihoods.Gaussian(0.05) if task == "regression" else None
    options = {"method": cx.MaximumLikelihood(num_steps=100), "hidden": (32,), "drop": ("row",)}
    options |= {"likelihood": likelihood, "progress": False, "held_out": 0.3}
    plain = fit_table(frame, "y", **options)
    run = fit_table(frame, "y", **options, calibrate=0.3)
    rows = [set(run.calibration["row"]), set(run.held_out["row"])]
    assert (len(rows[0]), len(rows[1]), run.about["rows_fitted"]) == (150, 150, 200)
    assert not rows[0] & rows[1]
    assert run.about["rows"] == 500
    if task == "regression":
        assert plain.scores.coverage < 0.3
        # Of 150 rows, given 150 others: the standard deviation of the coverage is that of two binomials.
        assert abs(run.scores.coverage - 0.9) < 4 * np.sqrt(2 * 0.09 / 150)
    else:
        assert run.scores.log_likelihood > plain.scores.log_likelihood


def test_too_few_rows_to_correct_by_are_refused():
    with pytest.raises(TableError, match=r"--calibrate must keep back at least 19 rows.* got 2 of"):
        prepare(table(), calibrate=0.1)
    with pytest.raises(TableError, match=r"--calibrate must be above 0 and below 1; got 2\.0"):
        prepare(table(), calibrate=2.0)
