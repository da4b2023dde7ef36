"""The folder of a run: every version is read, and a damaged one is refused or equal."""

import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import credax as cx
from credax.core.errors import CredaxError
from credax.tables import folders
from credax.tables.reading import TableError
from credax.tables.runs import Run

DATA = Path(__file__).parent / "data"
TABLE = pd.DataFrame({"a": [-0.5, 0.1, 0.9], "kind": ["u", "01", "NA"]})


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(DATA / "run-3", tmp_path / "run")


def same(one, other):
    pd.testing.assert_frame_equal(one.predict(TABLE), other.predict(TABLE), check_exact=True)
    pd.testing.assert_frame_equal(one.held_out, other.held_out)
    assert folders.scores_as_json(one.scores) == folders.scores_as_json(other.scores)
    assert one.about == other.about
    assert one.findings == other.findings


# -- versions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_run_of_every_format_is_read(version):
    """The folders were written once and never change."""
    run = Run.load(DATA / f"run-{version}")
    assert run.posterior.method == cx.MAP(num_steps=30)
    assert set(run.held_out["kind"]) == {"NA", "u", "01"}
    assert run.about["rows"] == (60 if version == 4 else 24)
    known = pd.DataFrame(json.loads((DATA / f"run-{version}-predictions.json").read_text()))
    table = pd.DataFrame({"a": [0.126, -0.132, 0.64, 0.105], "kind": ["u", "01", "NA", "u"]})
    found = run.predict(table)
    np.testing.assert_allclose(found, known, rtol=1e-4, atol=1e-6)
    assert json.loads((DATA / f"run-{version}" / "run.json").read_text())["format"] == version


def test_there_is_a_run_of_every_format():
    assert len(list(DATA.glob("run-*/run.json"))) == folders.FORMAT


def test_a_run_is_saved_with_digests(folder, tmp_path):
    run = Run.load(folder)
    run.save(tmp_path / "again")
    same(Run.load(tmp_path / "again"), run)
    Run.load(tmp_path / "again").save(tmp_path / "more")
    first, second = (json.loads((tmp_path / f / "run.json").read_text()) for f in ("again", "more"))
    assert set(second["files"]) == {"posterior.credax", "held_out.csv"}
    assert len(second.pop("sha256")) == len(first.pop("sha256")) == 64
    # The order of the entries in the head of a safetensors file is not fixed, so its digest is not either.
    assert {**first, "files": None} == {**second, "files": None}


def test_rows_that_correct_the_predictions_are_kept_in_the_folder(tmp_path):
    folder = shutil.copytree(DATA / "run-4", tmp_path / "run")
    run = Run.load(folder, held_out=False)
    x = run.preprocessor.encode(run.calibration)
    corrected = run.posterior.calibrate(x, run.preprocessor.encode_target(run.calibration))
    lower, upper = corrected.predict(run.preprocessor.encode(TABLE)).interval(0.8)
    found = run.predict(TABLE, 0.8)
    centre, scale = run.preprocessor.centre, run.preprocessor.scale
    np.testing.assert_allclose(found["lower"], centre + scale * lower)
    np.testing.assert_allclose(found["upper"], centre + scale * upper)
    Run.load(folder).save(tmp_path / "again")
    same(Run.load(tmp_path / "again"), Run.load(folder))
    text = (folder / "calibration.csv").read_text()
    (folder / "calibration.csv").write_text(text.replace("1", "2", 1))
    with pytest.raises(cx.StorageError, match=r"calibration\.csv is damaged"):
        Run.load(folder)
    # A run without them that takes the place of one with them leaves none behind.
    Run.load(DATA / "run-3").save(folder)
    assert not (folder / "calibration.csv").exists()
    assert Run.load(folder).calibration is None


# -- damage ----------------------------------------------------------------------------------------


def test_every_changed_digit_of_the_json_is_refused(folder):
    text = (folder / "run.json").read_text()
    whole, equal = Run.load(folder), 0
    places = [i for i, character in enumerate(text) if character.isdigit()]
    for at in np.random.default_rng(0).choice(places, 150, replace=False):
        other = str((int(text[at]) + 3) % 10)
        (folder / "run.json").write_text(text[:at] + other + text[at + 1 :])
        try:
            same(Run.load(folder), whole)
            equal += 1
        except cx.StorageError:
            pass
    # The last digit of a number can be too small to change it.
    assert equal < 10


def check_mutated(folder, mutated, count, seed):
    """Each of many damaged folders is refused, or equal to the whole one."""
    whole, generator = Run.load(folder), np.random.default_rng(seed)
    files = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    refusals = []
    for i in range(count):
        path = list(files)[i % len(files)]
        path.write_bytes(mutated(files[path], generator))
        try:
            same(Run.load(folder), whole)
        except CredaxError as error:
            refusals.append(str(error))
        path.write_bytes(files[path])
    assert len(refusals) > 0.9 * count
    assert all(str(folder) in refusal for refusal in refusals)


def test_mutated_folders_are_refused(folder, mutated):
    check_mutated(folder, mutated, 150, seed=0)


@pytest.mark.slow
def test_three_thousand_mutated_folders_are_refused(folder, mutated):
    check_mutated(folder, mutated, 3_000, seed=1)


@pytest.mark.slow
def test_a_mutated_folder_without_digests_is_read_or_refused(tmp_path, mutated):
    folder = shutil.copytree(DATA / "run-1", tmp_path / "run")
    content, generator = (folder / "run.json").read_bytes(), np.random.default_rng(2)
    refusals = 0
    for _ in range(1_000):
        (folder / "run.json").write_bytes(mutated(content, generator))
        try:
            Run.load(folder).predict(TABLE)
        except CredaxError:
            refusals += 1
    assert refusals > 500


@pytest.mark.parametrize("name", ["posterior.credax", "held_out.csv"])
def test_a_run_without_one_of_its_files_is_refused(folder, name):
    (folder / name).unlink()
    with pytest.raises(cx.StorageError, match=f"run is damaged: .*{name}"):
        Run.load(folder)


@pytest.mark.parametrize("name", ["posterior.credax", "held_out.csv"])
def test_a_file_of_another_run_is_refused(folder, name):
    path = folder / name
    if name == "held_out.csv":
        path.write_text(path.read_text().replace("u", "v"))
    else:
        shutil.copy(DATA.parents[1] / "storage" / "data" / "format-1.credax", path)
    with pytest.raises(cx.StorageError, match=f"{name} is damaged, or belongs to another run"):
        Run.load(folder)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"format": 1}', '{"format": 1e400}', "[" * 99_999]
)
def test_json_that_describes_no_run_is_refused(folder, text):
    (folder / "run.json").write_text(text)
    with pytest.raises(cx.StorageError, match=str(folder)):
        Run.load(folder)


@pytest.mark.parametrize(
    "name, value",
    [
        ("task", "guess"),
        ("scale", "1.0"),
        ("centre", float("nan")),
        ("classes", "a"),
        ("target", 3),
    ],
)
def test_preprocessing_that_nobody_wrote_is_refused(tmp_path, name, value):
    folder = shutil.copytree(DATA / "run-1", tmp_path / "run")
    found = json.loads((folder / "run.json").read_text())
    found["preprocessor"][name] = value
    (folder / "run.json").write_text(json.dumps(found))
    with pytest.raises(cx.StorageError, match=str(folder)):
        Run.load(folder)


# -- writing ---------------------------------------------------------------------------------------


def test_a_private_run_stays_private_and_a_link_stays_a_link(folder, tmp_path):
    run = Run.load(folder)
    folder.chmod(0o700)
    (folder / "posterior.credax").chmod(0o600)
    (tmp_path / "link").symlink_to(folder)
    run.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "posterior.credax").stat().st_mode) == 0o600
    same(Run.load(folder), run)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "link"}


def test_what_is_no_run_is_not_replaced(folder, tmp_path):
    run = Run.load(folder)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    for name in ("file", "other"):
        with pytest.raises(TableError, match=f"{name} exists and is not a run"):
            run.save(tmp_path / name)


def test_the_users_files_in_the_folder_of_a_run_stay(folder, tmp_path):
    run = Run.load(folder)
    (folder / "thoughts.txt").write_text("mine")
    (folder / "pictures").mkdir()
    (folder / "pictures" / "a.png").write_bytes(b"mine")
    run.save(folder)
    assert (folder / "thoughts.txt").read_text() == "mine"
    assert (folder / "pictures" / "a.png").read_bytes() == b"mine"
    same(Run.load(folder), run)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}, "nothing is left behind"


def test_predictions_need_no_held_out_rows(folder):
    whole = Run.load(folder)
    (folder / "held_out.csv").unlink()
    run = Run.load(folder, held_out=False)
    pd.testing.assert_frame_equal(run.predict(TABLE), whole.predict(TABLE))


def test_the_folder_is_checked_before_it_is_needed(tmp_path):
    (tmp_path / "file").write_text("mine")
    for name in ("file", "file/run"):
        with pytest.raises(TableError, match=r"is not a run|is a file"):
            folders.check_folder(tmp_path / name)
    assert folders.check_folder(tmp_path / "new" / "run") == tmp_path / "new" / "run"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert folders.check_folder(tmp_path / "link") == tmp_path / "elsewhere"
    assert not (tmp_path / "elsewhere").exists()
