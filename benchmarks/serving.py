"""``credax serve`` under load: requests per second, times, and what happens when there is too much to do.

64 clients send one request after the other, of one row each, to a server in a process of its own. In the
overload, 256 clients send requests of 100 rows to a server that lets 32 of them in: each request must be
answered, with predictions or with 429. Server and clients share the cores of the machine.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

import credax as cx
from credax.tables.runs import Run, fit_table

CLIENTS, SECONDS, LIMIT = 64, 10.0, 60.0
COLUMNS = 8


def measure() -> dict:
    """The load of one model with 64 clients, and the overload."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        frame = _table(500)
        made = fit_table(
            frame, "y", method=cx.DeepEnsemble(members=5, num_steps=500), progress=False
        )
        made.save(run)
        expected = Run.load(run).predict(frame)["mean"].to_numpy()
        load = _load(run, [], CLIENTS, [frame[i : i + 1] for i in range(100)], expected)
        many = [frame[i : i + 100] for i in range(0, 400, 20)]
        over = _load(run, ["--max-queue", "32"], 256, many, expected)
    return {"load": load, "overload": over}


def _table(rows: int) -> pd.DataFrame:
    x = np.random.default_rng(0).normal(size=(rows, COLUMNS))
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(COLUMNS)])
    return frame.assign(y=np.sin(x[:, 0]) + 0.1 * x[:, 1])


def _load(run: Path, options: list[str], clients: int, parts: list, expected: np.ndarray) -> dict:
    command = [sys.executable, "-m", "credax.cli", "serve", str(run), "--port", "0", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = int(re.search(r":(\d+) ", server.stdout.readline().split("http", 1)[1])[1])
        found = _clients(port, clients, parts, expected)
        found["server_alive"] = server.poll() is None
    finally:
        server.terminate()
        server.wait(60)
    return found


def _clients(port: int, clients: int, parts: list, expected: np.ndarray) -> dict:
    """What all clients saw: statuses, times, and whether each prediction was the right one."""
    bodies = [json.dumps({"rows": part.drop(columns="y").to_dict("records")}) for part in parts]
    statuses: Counter = Counter()
    times, wrong, lock = [], [0], threading.Lock()
    begin = time.perf_counter()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        which = number
        while time.perf_counter() - begin < SECONDS:
            which = (which + 1) % len(parts)
            start = time.perf_counter()
            try:
                connection.request(
                    "POST", "/predict", bodies[which], {"content-type": "application/json"}
                )
                answer = connection.getresponse()
                content, status = answer.read(), answer.status
            except (OSError, http.client.HTTPException) as error:
                status, content = type(error).__name__, b""
                connection.close()
            seconds = time.perf_counter() - start
            right = True
            if status == 200:
                means = [row["mean"] for row in json.loads(content)["predictions"]]
                right = np.array_equal(means, expected[parts[which].index])
            with lock:
                statuses[status] += 1
                wrong[0] += not right
                if status == 200:
                    times.append(seconds)
            if status == 429:
                time.sleep(0.05)
        connection.close()

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    lost = sum(count for status, count in statuses.items() if status not in (200, 429))
    return {
        "clients": clients,
        "rows_per_request": len(parts[0]),
        "requests_per_second": statuses[200] / seconds,
        "p50_ms": 1e3 * float(np.percentile(times, 50)),
        "p99_ms": 1e3 * float(np.percentile(times, 99)),
        "answered_200": statuses[200],
        "answered_429": statuses[429],
        "lost_or_failed": lost,
        "wrong_bits": wrong[0],
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
