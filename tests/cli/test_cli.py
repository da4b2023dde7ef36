import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import credax as cx
from credax import cli
from credax.cli import options
from credax.cli.shown import leaderboard
from credax.core.errors import CredaxError
from credax.inference import METHODS
from credax.tables import runs
from credax.tables.recommended import SMALL, recommended_method
from credax.tables.runs import Run

QUICK = ["--method", "map", "--set", "num_steps=40", "--quiet"]


@pytest.fixture(scope="module", autouse=True)
def no_cache():
    """The commands make JAX keep compiled programs on disk, which other tests should not do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", "")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory, no_cache):
    """A folder with a table for regression and one for classification, and a run of each."""
    folder = tmp_path_factory.mktemp("cli")
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "kind": generator.choice(["u", "v"], 60)})
    frame.assign(y=x[:, 0] - x[:, 1]).to_csv(folder / "numbers.csv", index=False)
    labels = np.where(x[:, 0] > 0, "good", "bad")
    frame.assign(y=labels).to_parquet(folder / "classes.parquet")
    for name in ("numbers.csv", "classes.parquet"):
        run = folder / name.split(".")[0]
        assert (
            cli.main(["fit", str(folder / name), "--target", "y", "--out", str(run), *QUICK]) == 0
        )
    return folder


def run(capsys, *arguments):
    """Run a command; return the exit code, standard output and standard error."""
    code = cli.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_fit_leaves_a_run(folder):
    assert {p.name for p in (folder / "numbers").iterdir()} == {
        "posterior.credax",
        "run.json",
        "held_out.csv",
    }
    found = Run.load(folder / "numbers")
    assert found.about["rows"] == 60
    assert found.scores.rows == 12 == len(found.held_out)
    assert {"a", "b", "kind", "y", "predicted_mean"} <= set(found.held_out.columns)


def test_predictions_of_numbers(folder, capsys):
    code, out, _ = run(capsys, "predict", folder / "numbers", folder / "numbers.csv")
    assert code == 0
    lines = out.strip().splitlines()
    assert lines[0] == "mean,std,epistemic,aleatoric,lower,upper"
    assert len(lines) == 61
    values = np.array([line.split(",") for line in lines[1:]], float)
    np.testing.assert_allclose(values[:, 1] ** 2, values[:, 2] + values[:, 3], rtol=1e-4)
    assert np.all((values[:, 4] < values[:, 0]) & (values[:, 0] < values[:, 5]))


def test_predictions_equal_those_of_the_fit(folder):
    """A run that was saved and loaded predicts the same for the held-out rows."""
    found = Run.load(folder / "numbers")
    again = found.predict(found.held_out)
    np.testing.assert_allclose(again["mean"], found.held_out["predicted_mean"], rtol=1e-5)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_predictions_of_classes(folder, capsys, tmp_path, suffix):
    out = tmp_path / f"predictions{suffix}"
    assert (
        run(capsys, "predict", folder / "classes", folder / "classes.parquet", "--out", out)[0] == 0
    )
    found = pd.read_csv(out) if suffix == ".csv" else pd.read_parquet(out)
    assert list(found.columns) == ["label", "p(bad)", "p(good)", "entropy", "mutual_information"]
    np.testing.assert_allclose(found["p(bad)"] + found["p(good)"], 1, rtol=1e-5)


def test_json(folder, capsys):
    arguments = ["fit", folder / "numbers.csv", "--target", "y", "--out", folder / "again", *QUICK]
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["about"]["rows_fitted"] == 48
    assert len(found["scores"]["rmse"]) == 2


def test_a_file_of_settings(folder, capsys, tmp_path):
    config = tmp_path / "settings.toml"
    config.write_text('method = "map"\nnum_steps = 40\n')
    arguments = ["fit", folder / "numbers.csv", "--target", "y", "--out", tmp_path / "run"]
    assert run(capsys, *arguments, "--config", config, "--quiet", "--set", "num_steps=30")[0] == 0
    assert Run.load(tmp_path / "run").posterior.info["steps"] == 30


def test_settings_do_not_change_which_method_is_recommended(tmp_path, monkeypatch, capsys):
    """The number of fitted rows decides, not that of all rows."""
    rows = SMALL * 7 // 6
    x = np.random.default_rng(0).normal(size=rows)
    pd.DataFrame({"a": x, "y": 2 * x}).to_csv(tmp_path / "table.csv", index=False)
    used = []

    def stop(model, data, method, **options):
        used.append(method)
        raise CredaxError("Enough is known.")

    monkeypatch.setattr(runs, "fit", stop)
    monkeypatch.setattr(
        runs, "fit_recommended", lambda found, data, **_: stop(found.model, data, found.method)
    )
    arguments = ["fit", tmp_path / "table.csv", "--target", "y"]
    code, _, err = run(capsys, *arguments, "--set", "members=3")
    assert (code, "Enough is known." in err) == (2, True)
    assert type(used[0]) is type(recommended_method(round(0.8 * rows)))
    assert type(used[0]) is not type(recommended_method(rows))
    assert used[0].members == 3
    # Without any choice, a recommendation is made for these rows and for this time.
    code, _, err = run(capsys, *arguments, "--budget", "20s")
    assert (code, "Enough is known." in err) == (2, True)
    assert isinstance(used[1], cx.CrossFitEnsemble)
    code, _, err = run(capsys, *arguments, "--budget", "1s")
    assert (code, "at least 5 seconds" in err) == (2, True)


def test_an_option_overrides_the_file_of_settings(folder, capsys, tmp_path):
    config = tmp_path / "settings.toml"
    config.write_text('method = "hmc"\nnum_steps = 40\n')
    arguments = ["fit", folder / "numbers.csv", "--target", "y", "--out", tmp_path / "run"]
    assert run(capsys, *arguments, "--config", config, "--method", "map", "--quiet")[0] == 0
    assert Run.load(tmp_path / "run").posterior.info["steps"] == 40


def test_compare(folder, capsys, tmp_path):
    arguments = ["compare", folder / "numbers.csv", "--target", "y", "--budget", "2s"]
    arguments += ["--methods", "MAP,enumeration", "--out", tmp_path / "a b"]
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    found = json.loads(out)
    assert [entry["method"] for entry in found["entries"]] == ["map"]
    assert "enumeration" in found["refused"]
    assert "Use map" in found["recommendation"]
    baselines = found["baselines"]
    assert {entry["baseline"].split(" (")[0] for entry in baselines} == {"linear model", "boosting"}
    assert found["against_baselines"]
    # The second time, the finished run is taken from the folder.
    code, out, err = run(capsys, *arguments)
    assert "map: taken from" in err
    command = shlex.split(out.rpartition("To fit the best one: ")[2])
    assert command == [
        "credax",
        "fit",
        str(folder / "numbers.csv"),
        "--target",
        "y",
        "--method",
        "best",
        "--compared",
        str(tmp_path / "a b"),
    ]
    # The command that is printed fits the method that was best.
    fitted = tmp_path / "fitted"
    code, _, err = run(capsys, *command[1:], "--out", fitted, "--set", "num_steps=30", "--quiet")
    assert code == 0
    assert "map was the best method" in err
    assert Run.load(fitted).posterior.method == cx.MAP(num_steps=30)
    code, out, _ = run(capsys, *arguments, "--json", "--no-baselines")
    assert json.loads(out)["baselines"] == []
    assert json.loads(out)["entries"][0]["behind_the_best"] == [0, 0]


def test_the_best_method_needs_a_comparison_of_the_same_target(folder, capsys, tmp_path):
    arguments = ["fit", folder / "numbers.csv", "--target", "a", "--method", "best"]
    code, _, err = run(capsys, *arguments, "--compared", tmp_path)
    assert code == 2
    assert "needs a comparison: there is none in" in " ".join(err.split())
    (tmp_path / "comparison.json").write_text('{"target": "y", "methods": ["map"]}')
    code, _, err = run(capsys, *arguments, "--compared", tmp_path)
    assert code == 2
    assert "was of column 'y', not 'a'" in " ".join(err.split())
    (tmp_path / "comparison.json").write_text("{")
    assert "is damaged" in " ".join(run(capsys, *arguments, "--compared", tmp_path)[2].split())
    code, _, err = run(capsys, *arguments[:-2], "--compared", tmp_path)
    assert code == 2
    assert "--compared is of use with --method best only" in " ".join(err.split())


@pytest.mark.parametrize(
    "width, last", [(120, "MB"), (80, "seconds"), (71, "coverage"), (1, "method")]
)
def test_a_narrow_console_shows_fewer_figures_and_cuts_none(width, last):
    figures = {"log_likelihood": -112.5, "rmse": 54.12, "crps": 31.34, "coverage": 0.85}
    entry = SimpleNamespace(
        method=cx.MAP(),
        behind=lambda best: "0.3373 ± 0.072",
        name="microcanonical-ensemble",
        scores=SimpleNamespace(**figures),
        seconds=34.5,
        megabytes=12.0,
        shortened=1,
        findings=[SimpleNamespace(grave=True)],
    )
    task = SimpleNamespace(task="regression")
    best = SimpleNamespace(**(vars(entry) | {"name": "map"}))
    found = SimpleNamespace(preprocessor=task, rows=(353, 89), ranked=[best, entry])
    console = Console(width=width, file=io.StringIO())
    table = leaderboard(found, console)
    assert table.columns[-1].header == last
    if width > 1:
        console.print(table)
        text = console.file.getvalue()
        assert "…" not in text
        assert "-112.5 0.3373 ± 0.072 54.12 31.34" in text


def test_methods(capsys):
    code, out, _ = run(capsys, "methods", "--json")
    found = json.loads(out)
    assert code == 0
    assert [row["name"] for row in found] == list(METHODS)
    assert all(row["what"] and row["when"] for row in found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(capsys, shell):
    code, out, _ = run(capsys, "completion", shell)
    assert code == 0
    assert "compare" in out
    assert "held-out" in out
    assert "elliptical-slice" in out, "the names of the methods"
    assert "regression classification" in out, "the values of --task"
    assert "heteroscedastic" in out, "the likelihoods"
    assert "learned-normal" in out, "the priors"


def test_it_runs_as_a_module():
    command = [sys.executable, "-W", "error", "-m", "credax.cli", "completion", "fish"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "complete -c credax" in found.stdout


BAD = [
    ("no such column", ["fit", "{0}/numbers.csv", "--target", "z"], "There is no column 'z'"),
    ("no such file", ["fit", "{0}/number.csv", "--target", "y"], "Did you mean .*numbers.csv"),
    ("no such method", ["fit", "{0}/numbers.csv", "--target", "y", "--method", "nut"], "'nuts'"),
    (
        "no such setting",
        ["fit", "{0}/numbers.csv", "--target", "y", "--method", "map", "--set", "steps=3"],
        "num_steps",
    ),
    ("half a setting", ["fit", "{0}/numbers.csv", "--target", "y", "--set", "steps"], "NAME=VALUE"),
    (
        "bad setting",
        ["fit", "{0}/numbers.csv", "--target", "y", "--method", "map", "--set", "num_steps=0"],
        "at least 1",
    ),
    ("bad share", ["fit", "{0}/numbers.csv", "--target", "y", "--held-out", "1"], "--held-out"),
    ("bad widths", ["fit", "{0}/numbers.csv", "--target", "y", "--hidden", "a"], "--hidden"),
    ("no run", ["predict", "{0}", "{0}/numbers.csv"], "is not a run"),
    ("other columns", ["predict", "{0}/numbers", "{0}/other.csv"], "There is no column 'a'"),
    ("no such prior", ["fit", "{0}/numbers.csv", "--target", "y", "--prior", "norml"], "'normal'"),
    (
        "bad prior",
        ["fit", "{0}/numbers.csv", "--target", "y", "--prior", "normal(scale=-1)"],
        "positive",
    ),
    (
        "bad likelihood",
        ["fit", "{0}/numbers.csv", "--target", "y", "--likelihood", "student-t(("],
        "--likelihood",
    ),
    (
        "half a column",
        ["fit", "{0}/numbers.csv", "--target", "y", "--column", "a"],
        "--column must be COL=KIND",
    ),
    (
        "no such kind",
        ["fit", "{0}/numbers.csv", "--target", "y", "--column", "a=colour"],
        "with a kind among number, boolean",
    ),
    ("no place", ["fit", "{0}/numbers.csv", "--target", "y", "--out", "{0}/numbers.csv"], "--out"),
    ("brackets in a name", ["fit", "{0}/x[kg/m2].csv", "--target", "y"], r"x\[kg/m2\].csv"),
    ("a closing tag", ["fit", "{0}/numbers.csv", "--target", "y[/x]"], r"no column 'y\[/x\]'"),
    ("no name", ["fit", "-", "--target", "y"], "--out must be given"),
    (
        "bad quantiles",
        ["predict", "{0}/numbers", "{0}/numbers.csv", "--quantiles", "5,50"],
        "--quantiles must be numbers between 0 and 1",
    ),
    (
        "quantiles of classes",
        ["predict", "{0}/classes", "{0}/classes.parquet", "--quantiles", "0.5"],
        "--quantiles are those of numbers",
    ),
    (
        "nothing to keep",
        ["predict", "{0}/numbers", "{0}/numbers.csv", "--keep", "id"],
        "There is no column 'id'",
    ),
    ("bad level", ["predict", "{0}/numbers", "{0}/numbers.csv", "--level", "2"], "between 0 and 1"),
    ("bad ending", ["predict", "{0}/numbers", "{0}/numbers.csv", "--out", "{0}/a.txt"], "--out"),
    ("bad budget", ["compare", "{0}/numbers.csv", "--target", "y", "--budget", "soon"], "--budget"),
    ("no report", ["report", "{0}"], "is not a run"),
]


@pytest.mark.parametrize("arguments, words", [c[1:] for c in BAD], ids=[c[0] for c in BAD])
def test_bad_input_is_reported_in_one_line(folder, capsys, arguments, words):
    (folder / "other.csv").write_text("c,d\n1,2\n")
    before = sorted(path.name for path in folder.iterdir())
    code, out, err = run(capsys, *(argument.format(folder) for argument in arguments))
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    assert re.search(words, err)
    assert sorted(path.name for path in folder.iterdir()) == before, "something was left behind"


def test_debug_shows_the_traceback(folder):
    with pytest.raises(ValueError, match="no column 'z'"):
        cli.main(["fit", str(folder / "numbers.csv"), "--target", "z", "--debug"])


def test_a_run_of_a_newer_version_is_refused(folder, capsys, tmp_path):
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "run.json").write_text(json.dumps({"format": 99, "version": "9.0"}))
    code, _, err = run(capsys, "predict", newer, folder / "numbers.csv")
    assert code == 2
    assert "credax 9.0, which is newer" in err


def test_a_folder_that_is_no_run_is_not_overwritten(folder, capsys, tmp_path):
    (tmp_path / "precious.txt").write_text("keep me")
    arguments = ["fit", folder / "numbers.csv", "--target", "y", "--out", tmp_path, *QUICK]
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert "is not a run" in err
    assert (tmp_path / "precious.txt").read_text() == "keep me"


def test_unseen_categories_are_noted(folder, capsys, tmp_path):
    frame = pd.read_csv(folder / "numbers.csv").assign(kind="w")
    frame.to_csv(tmp_path / "new.csv", index=False)
    code, _, err = run(capsys, "predict", folder / "numbers", tmp_path / "new.csv")
    assert code == 0
    assert "has not seen 'w' in column 'kind'" in err


def test_the_version(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"credax {cx.__version__}\n"


@pytest.mark.parametrize("name", ["MAP", "map", "cx.MAP", "Map"])
def test_a_method_is_found_by_its_class_name_too(name):
    assert options.find("method", name, METHODS) == "map"
    assert options.find("method", "MicrocanonicalEnsemble", METHODS) == "microcanonical-ensemble"


def test_the_folder_is_checked_before_the_fit(folder, capsys, tmp_path, monkeypatch):
    (tmp_path / "precious.txt").write_text("keep me")
    monkeypatch.setattr(runs, "fit", lambda *_, **__: pytest.fail("the fit has begun"))
    arguments = ["fit", folder / "numbers.csv", "--target", "y", "--out", tmp_path, *QUICK]
    assert "is not a run" in run(capsys, *arguments)[2]


def test_how_each_column_is_read_is_shown_and_can_be_changed(folder, capsys, tmp_path):
    frame = pd.read_csv(folder / "numbers.csv").assign(code=np.resize([1, 2, 3], 60))
    frame["size [m2]"] = [f"{i % 7} m2" for i in range(60)]
    frame.to_csv(tmp_path / "my table.csv", index=False)
    out = tmp_path / "my run"
    arguments = ["fit", tmp_path / "my table.csv", "--target", "y", "--out", out, *QUICK]
    code, printed, _ = run(capsys, *arguments, "--column", "code=category", "--drop", "b")
    assert code == 0
    lines = {line.split("  ")[0].strip(): line for line in printed.splitlines()}
    assert "category" in lines["code"]
    assert "numbers in m2" in lines["size [m2]"], "a bracket is no markup"
    assert "(target)" in lines["y"]
    assert f"credax report '{out}'" in printed, "a path with a space is quoted"
    assert Run.load(out).preprocessor.columns[-2].levels == ("1", "2", "3")


def test_predictions_with_quantiles_and_kept_columns_from_standard_input(
    folder, capsys, tmp_path, monkeypatch
):
    frame = pd.read_csv(folder / "numbers.csv").assign(id=[f"{i:03d}" for i in range(60)][::-1])
    frame["size, m2"] = np.arange(60)
    content = frame.drop(columns="y").to_csv(index=False).encode()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    arguments = ["predict", folder / "numbers", "-", "--keep", "id,kind", "--keep", "size, m2"]
    code, out, _ = run(capsys, *arguments, "--quantiles", "0.05,0.5,0.95")
    assert code == 0
    found = pd.read_csv(io.StringIO(out), dtype={"id": str})
    assert list(found.columns[:4]) == ["id", "kind", "size, m2", "mean"]
    assert list(found["kind"]) == list(frame["kind"])
    assert list(found.columns[-3:]) == ["q0.05", "q0.5", "q0.95"]
    assert list(found["id"]) == list(frame["id"]), "the order is kept"
    np.testing.assert_allclose(found["q0.05"], found["lower"], rtol=1e-4)
    np.testing.assert_allclose(found["q0.95"], found["upper"], rtol=1e-4)


def test_predictions_without_held_out_rows_and_with_missing_values(folder, capsys, tmp_path):
    copy = shutil.copytree(folder / "numbers", tmp_path / "run")
    (copy / "held_out.csv").unlink()
    frame = pd.read_csv(folder / "numbers.csv")
    frame.loc[3, "a"] = np.nan
    frame.to_csv(tmp_path / "new.csv", index=False)
    code, out, err = run(capsys, "predict", copy, tmp_path / "new.csv")
    assert code == 0
    assert len(out.splitlines()) == 61
    assert "column 'a' had no missing values in the fit; 1 value was replaced" in " ".join(
        err.split()
    )


def test_a_refit_keeps_the_users_files(folder, capsys, tmp_path):
    arguments = ["fit", folder / "numbers.csv", "--target", "y", "--out", tmp_path / "run", *QUICK]
    assert run(capsys, *arguments)[0] == 0
    (tmp_path / "run" / "thoughts.txt").write_text("mine")
    assert run(capsys, *arguments)[0] == 0
    assert (tmp_path / "run" / "thoughts.txt").read_text() == "mine"


def test_the_prior_the_likelihood_and_a_checkpoint(folder, capsys, tmp_path):
    arguments = ["fit", folder / "numbers.csv", "--target", "y", "--out", tmp_path / "run", *QUICK]
    arguments += ["--prior", "Laplace(scale=0.5)", "--likelihood", "student-t", "--hidden", "5"]
    assert run(capsys, *arguments, "--checkpoint", tmp_path / "saved")[0] == 0
    model = Run.load(tmp_path / "run").posterior.model
    assert model.prior == cx.priors.Laplace(0.5)
    assert isinstance(model.likelihood, cx.likelihoods.StudentT)
    assert any((tmp_path / "saved").iterdir())


def test_corrected_predictions(folder, capsys, tmp_path):
    arguments = ["fit", folder / "numbers.csv", "--target", "y", "--out", tmp_path / "run", *QUICK]
    code, out, _ = run(capsys, *arguments, "--calibrate", "0.4")
    assert code == 0
    assert "Its predictions are corrected by 24 further rows." in out
    found = Run.load(tmp_path / "run")
    code, out, _ = run(capsys, "predict", tmp_path / "run", folder / "numbers.csv")
    shown = pd.read_csv(io.StringIO(out))
    known = found.predict(pd.read_csv(folder / "numbers.csv"))
    np.testing.assert_allclose(shown["upper"], known["upper"], rtol=1e-6)
    raw = found.posterior.predict(found.preprocessor.encode(pd.read_csv(folder / "numbers.csv")))
    upper = found.preprocessor.centre + found.preprocessor.scale * raw.interval(0.9)[1]
    assert not np.allclose(shown["upper"], upper, rtol=1e-3)
    code, _, err = run(capsys, *arguments, "--calibrate")
    assert code == 2
    assert "--calibrate must keep back at least 19 rows" in " ".join(err.split())


def test_completion_of_values_in_bash(capsys):
    """The script is run by a real shell, where there is one."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    out = run(capsys, "completion", "bash")[1]

    def completed(*words):
        line = " ".join(shlex.quote(word) for word in words)
        ask = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _credax; echo ${{COMPREPLY[@]}}"
        found = subprocess.run([bash, "-c", out + ask], capture_output=True, text=True, check=True)
        return found.stdout.split()

    assert completed("credax", "comp") == ["compare", "completion"]
    assert completed("credax", "fit", "--task", "") == ["regression", "classification"]
    assert completed("credax", "fit", "--method", "hm") == ["hmc"]
    assert completed("credax", "fit", "--likelihood", "pois") == ["poisson"]
    assert completed("credax", "completion", "f") == ["fish"]
    assert completed("credax", "predict", "--qu") == ["--quantiles"]
