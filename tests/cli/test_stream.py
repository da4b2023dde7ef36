"""Tables that are read block by block, and hosts, on the command line."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from credax.cli import main
from credax.tables import blocks, streaming
from credax.tables.runs import Run

QUICK = ["--method", "map", "--set", "num_steps=60", "--quiet"]


def frame(rows=240, seed=0):
    generator = np.random.default_rng(seed)
    table = pd.DataFrame(generator.normal(size=(rows, 2)), columns=["a", "b"])
    table.insert(0, "id", [f"{i:04d}" for i in range(rows)])
    table["colour"] = generator.choice(["red", "blue"], rows)
    table.loc[::29, "b"] = np.nan
    table["price"] = (
        np.sin(table["a"]) + (table["colour"] == "red") + generator.normal(size=rows) / 10
    )
    return table


def write(folder, table, kind="csv", files=3):
    folder.mkdir()
    for i, part in enumerate(np.array_split(np.arange(len(table)), files)):
        path = folder / f"part{i}.{kind}"
        if kind == "csv":
            table.iloc[part].to_csv(path, index=False)
        elif kind == "parquet":
            table.iloc[part].reset_index(drop=True).to_parquet(path)
        else:
            table.iloc[part].reset_index(drop=True).to_feather(path, compression="uncompressed")
    return folder


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder of files, a table of them, and a run that was fitted to them block by block."""
    place = tmp_path_factory.mktemp("stream")
    many, run, table = place / "many", place / "run", frame()
    write(many, table)
    found = ["fit", str(many), "--target", "price", "--drop", "id", "--stream", "--out", str(run)]
    assert main([*found, *QUICK]) == 0
    assert sorted(path.name for path in place.iterdir()) == ["many", "run"]  # nothing is left over
    return many, table, run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::credax.PosteriorWarning")
def test_predictions_come_in_order_with_their_ids(fitted, tmp_path, monkeypatch):
    many, table, run = fitted
    monkeypatch.setattr(blocks, "ROWS", 7)
    streamed, whole = tmp_path / "streamed.csv", tmp_path / "whole.csv"
    options = ["predict", str(run), str(many), "--keep", "id", "--quantiles", "0.25"]
    assert main([*options, "--stream", "--out", str(streamed)]) == 0
    assert main([*options, "--out", str(whole)]) == 0
    assert streamed.read_text() == whole.read_text()
    found = pd.read_csv(streamed, dtype={"id": str})
    assert found["id"].tolist() == table["id"].tolist()
    assert np.corrcoef(found["mean"], table["price"])[0, 1] > 0.8
    # Several files instead of their folder, to standard output or to Parquet.
    files = sorted(map(str, many.iterdir()))
    parquet = tmp_path / "streamed.parquet"
    assert (
        main(["predict", str(run), *files, "--stream", "--keep", "id", "--out", str(parquet)]) == 0
    )
    np.testing.assert_allclose(pd.read_parquet(parquet)["mean"], found["mean"], rtol=1e-6)


def test_the_run_says_which_rows_were_held_out(fitted):
    _, table, run = fitted
    about = Run.load(run).about
    assert (about["rows"], about["rows_fitted"], about["rows_held_out"]) == (240, 192, 48)
    numbers = about["held_out_rows"]
    assert len(set(numbers)) == 48
    held = pd.read_csv(run / "held_out.csv")
    expected = table["price"].iloc[[number - 1 for number in numbers]]
    assert sorted(held["price"].round(9)) == sorted(expected.round(9))


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_the_fit_gets_the_rows_that_are_not_held_out(tmp_path, monkeypatch, kind):
    """The sample is smaller than the table here, and the blocks are smaller than the sample."""
    monkeypatch.setattr(streaming, "SAMPLE", 60)
    monkeypatch.setattr(streaming, "HELD_OUT", 20)
    monkeypatch.setattr(blocks, "ROWS", 16)
    table, seen = frame(200, seed=1), {}
    table.loc[[5, 77], "price"] = np.nan

    class Enough(Exception):
        pass

    def capture(model, source, method, **_):
        rows = source.read(np.arange(source.rows))
        seen.update(x=rows.x, y=rows.y, method=method)
        raise Enough

    monkeypatch.setattr(streaming, "fit", capture)
    found = {}
    with pytest.raises(Enough):
        streaming.fit_blocks(
            blocks.Blocks(sorted(write(tmp_path / "many", table, kind).iterdir())),
            "price",
            drop=["id"],
            held_out=0.2,
            report=lambda preprocessor: found.update(preprocessor=preprocessor),
            folder=tmp_path,
        )
    assert [path.name for path in tmp_path.iterdir()] == ["many"]
    preprocessor = found["preprocessor"]
    every = table[table["price"].notna()]
    x, y = preprocessor.encode(every), preprocessor.encode_target(every)
    assert 198 - 20 <= len(seen["x"]) <= 198 - 18  # a held-out row may be one without a target
    at = [int(np.flatnonzero(np.isclose(y, value, rtol=0, atol=1e-12))[0]) for value in seen["y"]]
    assert at == sorted(set(at))
    np.testing.assert_allclose(seen["x"], x[at], rtol=1e-6, atol=1e-6)
    assert 1 < seen["method"].batch_size <= 30  # half of those in the sample


@pytest.mark.filterwarnings("ignore::credax.PosteriorWarning")
def test_a_class_of_one_late_row_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "SAMPLE", 40)
    monkeypatch.setattr(blocks, "ROWS", 16)
    table = frame(150).drop(columns=["id", "price"])
    table["kind"] = np.where(table["a"] > 0, "high", "low")
    table.loc[149, "kind"] = "rare"
    many, run = write(tmp_path / "many", table), tmp_path / "run"
    options = ["--target", "kind", "--stream", "--out", str(run), "--method", "map", "--quiet"]
    assert main(["fit", str(many), *options, "--set", "num_steps=5", "--set", "batch_size=32"]) == 0
    assert Run.load(run).preprocessor.classes == ("high", "low", "rare")


def test_several_files_that_fit_in_memory_are_one_table(tmp_path):
    many = write(tmp_path / "many", frame())
    files = sorted(many.iterdir())
    found = blocks.read_tables(files)
    pd.testing.assert_frame_equal(found.astype(object), frame().astype(object), check_exact=False)
    assert not blocks.is_large(files)


def test_large_files_are_read_block_by_block(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "SHARE", 10**9)
    assert blocks.is_large(sorted(write(tmp_path / "many", frame()).iterdir()))


@pytest.mark.parametrize(
    "options, message",
    [
        (["many", "--stream", "--method", "hmc"], "HMC"),
        (["many", "many", "--stream"], "DATA must be one folder or several files"),
        (["other.csv", "first.csv", "--stream"], "All files must have the same columns"),
        (["other.csv", "first.csv"], "All files must have the same columns"),
        (["-", "--stream", "--out", "x"], "cannot be read block by block"),
        (["empty", "--stream"], "must hold Parquet, CSV or Arrow files"),
        (
            ["many", "--stream", "--held-out", "2"],
            "--held-out must be at least 0 and below 1; got 2",
        ),
        (["many", "--mesh", "replica"], "--mesh must be axes with numbers"),
        (["many", "--method", "map", "--mesh", "rows=2"], "axes among"),
        (["many", "--hosts", "2"], "--hosts needs --method"),
        (["many", "--host-index", "1"], "are of use with --hosts only"),
        (
            ["many", "--hosts", "2", "--method", "map"],
            "needs coordinator, hosts and index together",
        ),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path, monkeypatch, capfd, options, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "many", frame(60))
    (tmp_path / "empty").mkdir()
    frame(20).to_csv("first.csv", index=False)
    frame(20).rename(columns={"a": "z"}).to_csv("other.csv", index=False)
    real = os.dup(1)
    try:
        assert main(["fit", *options, "--target", "price", "--quiet"]) == 2
    finally:
        os.dup2(real, 1)
        os.close(real)
    assert message in " ".join(capfd.readouterr().err.split())


@pytest.mark.slow
def test_two_hosts_write_one_run(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    many = write(tmp_path / "many", frame())
    command = [sys.executable, "-m", "credax.cli", "fit", str(many), "--target", "price"]
    command += ["--drop", "id", *QUICK, "--set", "batch_size=32", "--json"]
    joined = ["--mesh", "data=2", "--hosts", "2", "--coordinator", f"127.0.0.1:{port}"]
    for options in ([], ["--stream"]):
        out = tmp_path / f"run{len(options)}"
        hosts = [
            subprocess.Popen(
                [*command, *options, *joined, "--host-index", str(i), "--out", str(out)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for i in range(2)
        ]
        outputs = [process.communicate(timeout=300) for process in hosts]
        assert [process.returncode for process in hosts] == [0, 0], outputs
        assert json.loads(outputs[0][0])["run"] == str(out)
        assert outputs[1][0] == ""
        alone = tmp_path / f"alone{len(options)}"
        assert main([*command[3:], *options, "--out", str(alone)]) == 0
        found, expected = (Run.load(folder).predict(frame())["mean"] for folder in (out, alone))
        np.testing.assert_allclose(found, expected, atol=1e-3)
