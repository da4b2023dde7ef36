"""The server: the same bits as ``predict``, clear refusals, and nothing lost when there is too much to do."""

import asyncio
import http.client
import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest

import credax as cx
from credax import cli
from credax.tables.runs import BLOCK, Run, fit_table

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")
pa = pytest.importorskip("pyarrow")

from credax.cli.serve import Limits, make_app  # noqa: E402
from credax.cli.serve.batching import Answer, Job, predict_all  # noqa: E402

ROWS = 300
JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"


def table():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, 2))
    return pd.DataFrame(
        {"a": x[:, 0], "b": 3 * x[:, 1], "kind": generator.choice(["u", "v"], ROWS)}
    )


def fitted(y):
    method = cx.DeepEnsemble(members=3, num_steps=20)
    frame = table().assign(y=y(table()))
    return fit_table(frame, "y", method=method, hidden=(5,), held_out=0.0, progress=False)


@pytest.fixture(scope="module")
def numbers():
    return fitted(lambda frame: frame["a"] + 0.1 * frame["b"])


@pytest.fixture(scope="module")
def classes():
    return fitted(lambda frame: np.where(frame["a"] > 0, "good", "bad"))


@contextmanager
def served(run, **limits):
    """A server in a thread, on a port that is free."""
    config = uvicorn.Config(make_app(run, Limits(**limits)), log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def port(numbers):
    with served(numbers, max_rows=300, max_bytes=100_000) as port:
        yield port


def ask(port, method="GET", path="/health", body=None, kind=JSON):
    """The status, the headers and the content of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        headers = {} if body is None else {"content-type": kind}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def as_json(frame):
    rows = frame.astype(object).where(frame.notna(), None)
    return json.dumps({"rows": rows.to_dict("records")})


def as_arrow(frame):
    sink = io.BytesIO()
    found = pa.Table.from_pandas(frame, preserve_index=False)
    with pa.ipc.new_stream(sink, found.schema) as stream:
        stream.write_table(found)
    return sink.getvalue()


def predicted(port, frame, kind=JSON, path="/predict"):
    """The predictions that the server gives, as a table."""
    body = as_json(frame) if kind == JSON else as_arrow(frame)
    status, _, content = ask(port, "POST", path, body, kind)
    assert status == 200, content
    if kind == ARROW:
        with pa.ipc.open_stream(content) as stream:
            return stream.read_all().to_pandas()
    return pd.DataFrame(json.loads(content)["predictions"])


def assert_same_bits(found, expected):
    assert list(found.columns) == list(expected.columns)
    for name in expected.columns:
        values = expected[name].to_numpy()
        np.testing.assert_array_equal(found[name].to_numpy(values.dtype), values, name)


# -- the same bits ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_predictions_do_not_depend_on_the_rows_beside_them(numbers):
    frame = table()
    whole = numbers.predict(frame)
    order = np.random.default_rng(1).permutation(ROWS)
    assert_same_bits(numbers.predict(frame.iloc[order]), whole.iloc[order])
    for rows in (slice(0, 1), slice(7, 10), slice(40, 40 + BLOCK)):
        assert_same_bits(numbers.predict(frame[rows]), whole[rows])


def test_served_predictions_are_those_of_predict(port, numbers):
    frame = table()
    for kind in (JSON, ARROW):
        assert_same_bits(predicted(port, frame[:3], kind), numbers.predict(frame[:3]))
    assert_same_bits(
        predicted(port, frame[:3], path="/predict?level=0.5"), numbers.predict(frame[:3], 0.5)
    )


def test_served_classes_are_those_of_predict(classes):
    with served(classes) as port:
        for kind in (JSON, ARROW):
            assert_same_bits(predicted(port, table()[:5], kind), classes.predict(table()[:5]))


def test_many_clients_at_once_compile_nothing_and_get_their_own_rows(port, numbers, compilations):
    whole = numbers.predict(table())
    parts = [table()[i : i + 1 + i % 4] for i in range(0, 120, 3)]
    predicted(port, table()[:1])
    with compilations() as count, ThreadPoolExecutor(16) as clients:
        found = list(clients.map(lambda part: predicted(port, part), parts))
    assert count() == 0
    for part, each in zip(parts, found, strict=True):
        assert_same_bits(each, whole.loc[part.index])
    text = ask(port, path="/metrics")[2].decode()
    values = dict(re.findall(r"^(\w+) ([\d.]+)$", text, re.MULTILINE))
    assert int(values["credax_batches_total"]) <= int(values["credax_batched_requests_total"])
    assert int(values["credax_rows_total"]) >= sum(map(len, parts))


def test_a_batch_gives_each_request_what_it_would_get_alone(numbers):
    frame = table()
    requests = [
        frame[:2],
        frame[2:3].assign(a="many"),  # is refused
        frame[3:5].assign(b=[None, 1.0]),  # a value is filled in
        frame[5:8].assign(kind="new"),
    ]

    async def answers(tables):
        return predict_all(numbers, [Job(each, 0.9) for each in tables])

    together = asyncio.run(answers(requests))
    assert together[1].status == 422
    for rows, found in zip(requests, together, strict=True):
        alone = asyncio.run(answers([rows]))[0]
        if isinstance(found, Answer):
            assert found.notes == alone.notes == numbers.preprocessor.remarks(rows)
            for name, values in found.columns.items():
                np.testing.assert_array_equal(values, alone.columns[name])
        else:
            assert found.message == alone.message
    clean = asyncio.run(answers([frame[:2], frame[5:8]]))
    for rows, found in zip((frame[:2], frame[5:8]), clean, strict=True):
        assert_same_bits(pd.DataFrame(found.columns), numbers.predict(rows))


# -- refusals --------------------------------------------------------------------------------------


ROW = {"a": 1.0, "b": 2.0, "kind": "u"}
REFUSED = {
    "no JSON": ("{", JSON, 400, "must be JSON"),
    "NaN": ('{"rows": [{"a": NaN, "b": 1, "kind": "u"}]}', JSON, 400, "use null"),
    "no rows": ('{"rows": []}', JSON, 400, "one or more rows"),
    "a list": ("[1]", JSON, 400, "must be {"),
    "no Arrow": (b"no arrow", ARROW, 400, "Arrow IPC stream"),
    "another type": (b"a,b\n1,2", "text/csv", 415, "content type must be"),
    "a missing key": ('{"rows": [{"a": 1, "b": 2}]}', JSON, 422, "Row 0 has no 'kind'"),
    "a list in a field": (json.dumps({"rows": [{**ROW, "a": [1]}]}), JSON, 422, "'a' must be"),
    "many rows": (json.dumps({"rows": [ROW] * 301}), JSON, 413, "at most 300 rows; got 301"),
    "many bytes": (b" " * 100_001, JSON, 413, "at most 100000 bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_requests_are_refused_in_words(case, port):
    body, kind, expected, message = REFUSED[case]
    status, _, content = ask(port, "POST", "/predict", body, kind)
    assert (status, message in json.loads(content)["error"]) == (expected, True), content


def test_the_preprocessing_refuses_in_its_own_words(port, numbers):
    frame = table()[:1].assign(a="many")
    with pytest.raises(ValueError) as own:  # noqa: PT011  (its text is compared below)
        numbers.preprocessor.encode(frame)
    status, _, content = ask(port, "POST", "/predict", as_json(frame))
    assert (status, json.loads(content)["error"]) == (422, str(own.value))


def test_a_missing_value_is_filled_in_with_a_note(port, numbers):
    frame = table()[:2].assign(a=[None, 1.0])
    status, _, content = ask(port, "POST", "/predict", as_json(frame))
    assert status == 200
    assert json.loads(content)["notes"] == numbers.preprocessor.remarks(frame)


@pytest.mark.parametrize("level", ["0", "1", "high", "nan"])
def test_bad_levels_are_refused(level, port):
    body = json.dumps({"rows": [ROW]})
    status, _, content = ask(port, "POST", f"/predict?level={level}", body)
    assert status == 422
    assert "level must be between 0 and 1" in json.loads(content)["error"]


def test_other_paths_and_methods(port):
    assert ask(port, path="/health")[0] == 200
    assert ask(port, path="/nothing")[0] == 404
    assert ask(port, path="/predict")[0] == 405


def test_the_description_names_the_columns(port, numbers):
    found = json.loads(ask(port, path="/openapi.json")[2])
    post = found["paths"]["/predict"]["post"]
    rows = post["requestBody"]["content"][JSON]["schema"]["properties"]["rows"]
    assert rows["items"]["required"] == ["a", "b", "kind"]
    assert rows["maxItems"] == 300
    answer = post["responses"]["200"]["content"][JSON]["schema"]["properties"]["predictions"]
    assert list(answer["items"]["properties"]) == list(numbers.predict(table()[:1]).columns)


# -- overload --------------------------------------------------------------------------------------


def half_sent(port, body):
    """A request of which only the first half has arrived."""
    client = socket.create_connection(("127.0.0.1", port), timeout=120)
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body[: len(body) // 2])
    return client


def in_flight(port):
    return int(
        re.search(
            r"^credax_requests_in_flight (\d+)$", ask(port, path="/metrics")[2].decode(), re.M
        )[1]
    )


def test_a_full_queue_is_answered_with_429_and_nothing_is_lost(numbers):
    body = as_json(table()[:2]).encode()
    with served(numbers, max_queue=2) as port:
        waiting = [half_sent(port, body) for _ in range(2)]
        while in_flight(port) < 2:
            pass
        status, headers, content = ask(port, "POST", "/predict", body)
        assert (status, headers["Retry-After"]) == (429, "1")
        assert "Try again later" in json.loads(content)["error"]
        for client in waiting:
            client.sendall(body[len(body) // 2 :])
            answer = http.client.HTTPResponse(client)
            answer.begin()
            found = pd.DataFrame(json.loads(answer.read())["predictions"])
            assert_same_bits(found, numbers.predict(table()[:2]))
            client.close()
        assert ask(port, "POST", "/predict", body)[0] == 200


def test_a_slow_request_is_given_up(numbers):
    body = as_json(table()[:2]).encode()
    with served(numbers, timeout=0.2) as port:
        client = half_sent(port, body)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert (answer.status, b"0.2 s" in answer.read()) == (408, True)
        client.close()
        assert ask(port)[0] == 200


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_serves_until_it_is_told_to_end(numbers, tmp_path):
    numbers.save(tmp_path / "run")
    command = [sys.executable, "-m", "credax.cli", "serve", str(tmp_path / "run"), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())[1])
        found = predicted(port, table()[:2])
        body = as_json(table()[:2]).encode()
        client = half_sent(port, body)
        while in_flight(port) < 1:
            pass
        process.send_signal(signal.SIGTERM)
        client.sendall(body[len(body) // 2 :])
        answer = http.client.HTTPResponse(client)
        answer.begin()
        last = pd.DataFrame(json.loads(answer.read())["predictions"])
        client.close()
        assert process.wait(60) == -signal.SIGTERM
    finally:
        process.kill()
        process.stdout.close()
        process.wait(60)
    for each in (found, last):
        assert_same_bits(each, Run.load(tmp_path / "run").predict(table()[:2]))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nothing"], "is not a run"),
        (["nothing", "--port", "70000"], "--port must be between 0 and 65535"),
        (["nothing", "--max-rows", "0"], "max_rows"),
        (["nothing", "--timeout", "-1"], "timeout"),
    ],
)
def test_bad_options_are_refused(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    assert cli.main(["serve", *arguments]) == 2
    assert message in capsys.readouterr().err
