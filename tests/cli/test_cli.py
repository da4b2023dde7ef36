import io
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from credax import cli
from credax.cli.main import leaderboard
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


@pytest.mark.parametrize("options", [[], ["--set", "members=3"]])
def test_settings_do_not_change_which_method_is_recommended(tmp_path, monkeypatch, capsys, options):
    """The number of fitted rows decides, not that of all rows."""
    rows = SMALL * 7 // 6
    x = np.random.default_rng(0).normal(size=rows)
    pd.DataFrame({"a": x, "y": 2 * x}).to_csv(tmp_path / "table.csv", index=False)
    used = []

    def stop(model, data, method, **options):
        used.append(method)
        raise CredaxError("Enough is known.")

    monkeypatch.setattr(runs, "fit", stop)
    code, _, err = run(capsys, "fit", tmp_path / "table.csv", "--target", "y", *options)
    assert (code, "Enough is known." in err) == (2, True)
    assert type(used[0]) is type(recommended_method(round(0.8 * rows)))
    assert type(used[0]) is not type(recommended_method(rows))
    assert not options or used[0].members == 3


def test_an_option_overrides_the_file_of_settings(folder, capsys, tmp_path):
    config = tmp_path / "settings.toml"
    config.write_text('method = "hmc"\nnum_steps = 40\n')
    arguments = ["fit", folder / "numbers.csv", "--target", "y", "--out", tmp_path / "run"]
    assert run(capsys, *arguments, "--config", config, "--method", "map", "--quiet")[0] == 0
    assert Run.load(tmp_path / "run").posterior.info["steps"] == 40


def test_compare(folder, capsys):
    arguments = ["compare", folder / "numbers.csv", "--target", "y", "--budget", "2s"]
    code, out, _ = run(capsys, *arguments, "--methods", "map,enumeration", "--json")
    assert code == 0
    found = json.loads(out)
    assert [entry["method"] for entry in found["entries"]] == ["map"]
    assert "enumeration" in found["refused"]
    assert "Use map" in found["recommendation"]


@pytest.mark.parametrize(
    "width, last", [(120, "MB"), (80, "findings"), (61, "coverage"), (1, "method")]
)
def test_a_narrow_console_shows_fewer_figures_and_cuts_none(width, last):
    figures = {"log_likelihood": "-112.531 ± 0.034", "rmse": 54.12, "crps": 31.34, "coverage": 0.85}
    entry = SimpleNamespace(
        name="microcanonical-ensemble",
        scores=SimpleNamespace(**figures),
        seconds=34.5,
        megabytes=12.0,
        shortened=1,
        findings=[SimpleNamespace(grave=True)],
    )
    task = SimpleNamespace(task="regression")
    found = SimpleNamespace(preprocessor=task, rows=(353, 89), entries=[entry])
    console = Console(width=width, file=io.StringIO())
    table = leaderboard(found, console)
    assert table.columns[-1].header == last
    if width > 1:
        console.print(table)
        text = console.file.getvalue()
        assert "…" not in text
        assert "-112.531 ± 0.034 54.12 31.34" in text


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
