"""Runs on several hosts, which are processes of this machine that talk over 127.0.0.1."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import credax as cx
from credax.core.errors import HostsError

SCRIPT = Path(__file__).parent / "over_hosts.py"
TOLERANCE = 1e-9
"""In double precision, after thirty steps: sums over the rows of a batch are added up in another order."""
LIMIT = 300
"""Seconds after which a test gives up on a process; none of them should come near it."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(options):
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    }
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), json.dumps(options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


class Ended:
    """What a process printed, and how it ended."""

    def __init__(self, process):
        try:
            self.output, self.errors = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
        self.code = process.returncode

    @property
    def results(self):
        assert self.code == 0, self.errors
        lines = [line for line in self.output.splitlines() if line.startswith("RESULT ")]
        return [json.loads(line.removeprefix("RESULT ")) for line in lines]


def on_hosts(count, runs, devices=1, **options):
    """The runs on several hosts; one ``Ended`` for each host."""
    port = free_port()
    options = {"hosts": count, "port": port, "devices": devices, "runs": runs, **options}
    processes = [start({**options, "index": index}) for index in range(count)]
    return [Ended(process) for process in processes]


def on_one(devices, runs, **options):
    """The runs on as many devices of one process."""
    return Ended(start({"devices": devices, "index": 0, "runs": runs, **options}))


def assert_same(found, expected, tolerance=TOLERANCE):
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert (one["steps"], one["ended"]) == (other["steps"], other["ended"])
        for name in ("mean", "std"):
            np.testing.assert_allclose(one[name], other[name], rtol=0, atol=tolerance)


# -- the same result -------------------------------------------------------------------------------

QUICK = [{"case": "ensemble", "mesh": {"replica": 2}}, {"case": "rows", "mesh": {"data": 2}}]
SLOW = [
    {"case": "uneven"},
    {"case": "rows"},
    {"case": "all-rows"},
    {"case": "chains"},
    {"case": "laplace"},
    {"case": "model"},
    {"case": "model-over-hosts"},
    {"case": "ensemble", "source": True},
    {"case": "uneven", "source": True},
    {"case": "rows", "source": True},
    {"case": "rows", "function": True},
    {"case": "all-rows", "early": True},
]


@pytest.mark.slow
def test_two_hosts_give_the_result_of_two_devices():
    first, second = on_hosts(2, QUICK)
    assert first.results == second.results
    assert_same(first.results, on_one(2, QUICK).results)


@pytest.mark.slow
@pytest.mark.parametrize("count, devices", [(2, 2), (4, 1)])
def test_hosts_give_the_result_of_as_many_devices(count, devices):
    ended = on_hosts(count, SLOW, devices)
    for host in ended[1:]:
        assert host.results == ended[0].results
    assert_same(ended[0].results, on_one(count * devices, SLOW).results)


@pytest.mark.slow
def test_a_callback_of_any_host_ends_the_run_on_all():
    runs = [{"case": "rows", "stop_at": 3, "victim": 1, "mesh": {"data": 2}}]
    first, second = on_hosts(2, runs)
    assert first.results == second.results
    assert first.results[0]["ended"] == "callback"
    assert 3 <= first.results[0]["steps"] < 30


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "different, message",
    [
        ({"other_data": True}, "host 1 differs from host 0 in data"),
        ({"num_steps": 20, "other_steps": True}, "host 1 differs from host 0 in method"),
        ({"other_version": True}, "host 1 differs from host 0 in the version of credax"),
        ({"mesh": {"data": 3}}, "must have at most as many devices as there are, 2; got 3"),
        ({"mesh": {"data": 1}}, "must have a multiple of 2 devices, as many on each host; got 1"),
    ],
)
def test_hosts_that_were_given_different_things_say_so(different, message):
    began = time.monotonic()
    for host in on_hosts(2, [{"case": "rows", "mesh": {"data": 2}, **different}], **different):
        assert host.code == 1
        assert message in host.errors
    assert time.monotonic() - began < 120


@pytest.mark.slow
def test_a_host_that_fails_ends_the_others():
    began = time.monotonic()
    runs = [{"case": "rows", "mesh": {"data": 2}, "fail_at": 3}]
    first, second = on_hosts(2, runs)
    assert second.code == 1
    assert "KeyError: 'a callback has failed'" in second.errors
    assert first.code != 0
    assert "Host 1 has failed: KeyError" in first.errors
    assert time.monotonic() - began < 120


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_host_that_is_killed_ends_the_others_within_a_minute(victim):
    options = {"hosts": 2, "port": free_port(), "devices": 1}
    options |= {"runs": [{"case": "rows", "mesh": {"data": 2}, "die_at": 3, "victim": victim}]}
    processes = [start({**options, "index": index}) for index in range(2)]
    while "dying" not in processes[victim].stdout.readline():
        assert processes[victim].poll() is None
    processes[victim].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    other = Ended(processes[1 - victim])
    assert time.monotonic() - killed < 60
    assert other.code != 0
    # The sentence of JAX, which ends a process whose coordinator has gone before credax could say anything.
    said = (
        "another host has probably ended",
        "another task died",
        "Host 0, the coordinator, has gone",
    )
    assert any(text in other.errors for text in said), other.errors
    processes[victim].communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    "index, message", [(0, "Not all 2 hosts came within 3 s"), (1, "No coordinator")]
)
def test_a_host_alone_gives_up_in_time(index, message):
    options = {"hosts": 2, "port": free_port(), "index": index, "devices": 1, "timeout": 3}
    began = time.monotonic()
    ended = Ended(start({**options, "runs": [{"case": "rows"}]}))
    assert ended.code == 1
    assert message in ended.errors
    assert "HostsError" in ended.errors
    assert time.monotonic() - began < 60


def test_no_coordinator_is_an_error():
    with pytest.raises(HostsError, match=r"No coordinator answers at 127.0.0.1:\d+ within 0.2 s"):
        cx.use_hosts(f"127.0.0.1:{free_port()}", 2, 1, timeout=0.2)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"hosts": 0}, r"use_hosts\(hosts=...\) must be a whole number, at least 1; got 0"),
        ({"hosts": 2, "index": 2}, r"index=...\) must be below the number of hosts, 2; got 2"),
        ({"hosts": 2, "index": -1}, r"index=...\) must be a whole number, at least 0; got -1"),
        ({"hosts": 2, "index": 1.0}, r"index=...\) must be a whole number"),
        ({"coordinator": 3}, r"coordinator=...\) must be an address and a port"),
        ({"coordinator": "127.0.0.1"}, r"coordinator=...\) must be an address and a port"),
        ({"coordinator": "127.0.0.1:x"}, r"coordinator=...\) must be an address and a port"),
        ({"coordinator": "127.0.0.1:70000"}, r"coordinator=...\) must be an address and a port"),
        (
            {"coordinator": "127.0.0.1:80", "hosts": 2},
            r"needs coordinator, hosts and index together",
        ),
        ({"timeout": 0}, r"timeout=...\) must be positive; got 0"),
    ],
)
def test_bad_arguments_are_refused(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        cx.use_hosts(**given)


def test_one_host_needs_no_coordinator():
    cx.use_hosts("127.0.0.1:1", 1, 0)
    assert not jax.distributed.is_initialized()


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_a_run_goes_on_with_fewer_and_with_more_hosts(tmp_path, sharded):
    if sharded:
        pytest.importorskip("orbax.checkpoint")
    runs = [
        {"case": "uneven", "mesh": {"replica": 2}, "sharded": sharded},
        {"case": "model", "mesh": {"model": 2}, "sharded": sharded},
    ]
    whole = on_one(1, [{**run, "mesh": None} for run in runs]).results
    folders = [{"folder": str(tmp_path / str(i))} for i in range(2)]
    part = [
        {**run, **folder, "stop_at": 10, "victim": 1}
        for run, folder in zip(runs, folders, strict=True)
    ]
    for host in on_hosts(2, part):
        assert [result["ended"] for result in host.results] == ["callback"] * 2
        assert all(10 <= result["steps"] < 20 for result in host.results)
    # One host takes some steps, and two hosts the rest.
    more = [{**run, "mesh": None, "stop_at": 20, "victim": 0} for run in part]
    assert all(20 <= result["steps"] < 30 for result in on_one(1, more).results)
    rest = [{**run, **folder} for run, folder in zip(runs, folders, strict=True)]
    for host in on_hosts(2, rest):
        assert_same(host.results, whole)


@pytest.mark.slow
def test_hosts_must_see_the_same_folder(tmp_path):
    options = {"hosts": 2, "port": free_port(), "devices": 1}
    options |= {"runs": [{"case": "rows", "mesh": {"data": 2}, "stop_at": 5, "victim": 0}]}
    for host in [start({**options, "index": i, "folder": str(tmp_path / "0")}) for i in range(2)]:
        assert Ended(host).results[0]["ended"] == "callback"
    options |= {"port": free_port(), "runs": [{"case": "rows", "mesh": {"data": 2}}]}
    ended = [start({**options, "index": i, "folder": str(tmp_path / str(i))}) for i in range(2)]
    for host in map(Ended, ended):
        assert host.code == 1
        assert "All hosts must see the same folder" in host.errors
