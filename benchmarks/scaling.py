"""What devices send each other in a step, and what more devices bring on this machine.

The network 784-1200-1200-10 is fitted with batches of 1,024 rows over an axis ``data`` of eight virtual devices
of a CPU. ``bytes`` are those of the collectives in the compiled program of a step: of the results of its
all-reduces, all-gathers and the like. They depend neither on the machine nor on whether the devices are those
of one host. ``plan_64_hosts`` computes from them what a ring over 64 hosts sends: each host sends and receives
2 · 63/64 of the bytes of an all-reduce, here over a network of 100 Gbit/s, without any overlap with the
computation.

``relative_rate`` is strong scaling, the same batch divided among more devices: steps per second relative to one
device, with virtual devices of one process, and with processes that talk over the loopback interface. All of
them share the cores of one machine, so a rate above their number is impossible, and collectives through its
memory say nothing about a network. The cases alternate, and medians are compared. The figures show what the
division itself costs, not what a cluster would do. ``--repeats 0`` leaves them out, as is right on a machine
that is busy with other things.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

import credax as cx

FEATURES, BATCH, ROWS = 784, 1024, 4096
METHODS = {"MAP": cx.MAP, "BayesByBackprop": cx.BayesByBackprop, "IVON": cx.IVON}
HOSTS, GBIT = 64, 100.0
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
LIMIT = 900
"""Seconds after which a process is given up."""


def options(arguments: list[str]) -> dict:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=1200)
    return vars(parser.parse_args(arguments))


def measure(steps: int = 20, repeats: int = 3, hidden: int = 1200) -> dict:
    """The bytes of collectives per step, the plan for 64 hosts, and the relative rates."""
    figures = {"collectives_of_a_step": _child(8, {"count": True, "hidden": hidden})[0]}
    figures["plan_64_hosts"] = {
        name: plan(found["bytes"]) for name, found in figures["collectives_of_a_step"].items()
    }
    times: dict[str, list[float]] = {}
    for _ in range(repeats):
        for devices in (1, 2, 8):
            given = {"steps": steps, "hidden": hidden, "data": devices}
            label = f"{devices} virtual devices"
            times.setdefault(label, []).append(_child(devices, given)[0])
        given = {"steps": steps, "hidden": hidden, "data": 2}
        times.setdefault("2 processes", []).append(max(_child(1, given, hosts=2)))
    if not times:
        return figures
    found = {name: statistics.median(values) for name, values in times.items()}
    alone = found["1 virtual devices"]
    figures["ms_per_step_on_1_device"] = 1e3 * alone
    figures["relative_rate"] = {name: alone / value for name, value in found.items()}
    return figures


def plan(sent: int) -> dict:
    """What a ring all-reduce of so many bytes over 64 hosts takes."""
    each = 2 * (HOSTS - 1) / HOSTS * sent
    return {
        "megabytes_sent_by_each_host": each / 1e6,
        "ms_at_100_gbit_per_second": 1e3 * each * 8 / (GBIT * 1e9),
    }


def collectives(text: str) -> dict[str, int]:
    """The number of collectives in the loops of a compiled program, and the bytes of their results."""
    count = total = 0
    inside = False
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY")) and line.rstrip().endswith("{"):
            inside = not line.startswith("ENTRY")  # what is outside the loops runs once in a chunk
        found = re.match(rf"\s+(?:ROOT )?%?\S+ = (.+?) (?:{'|'.join(KINDS)})(?:-start)?\(", line)
        if inside and found:
            count += 1
            total += sum(map(_bytes, re.findall(r"(\w+)\[([\d,]*)\]", found[1])))
    return {"count": count, "bytes": total}


def _bytes(shape: tuple[str, str]) -> int:
    kind, axes = shape
    width = 1 if kind == "pred" else int(re.sub(r"\D+", "", kind.partition("e")[0])) // 8
    return width * int(np.prod([int(n) for n in axes.split(",") if n], dtype=np.int64))


# -- in a process with the wanted number of devices ----------------------------------------------------------


def _child(devices: int, given: dict, hosts: int = 1) -> list:
    """What a process prints, or each of several that run together."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={devices}"
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": root}
    started = []
    for index in range(hosts):
        text = json.dumps({**given, "hosts": hosts, "index": index, "port": port})
        command = [sys.executable, "-m", "benchmarks.scaling", text]
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        )
    outputs = [process.communicate(timeout=LIMIT)[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"A process of the benchmark ended with an error: {given}")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def _run(given: dict):
    if given["hosts"] > 1:
        cx.use_hosts(f"127.0.0.1:{given['port']}", given["hosts"], given["index"])
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, FEATURES)).astype(np.float32)
    data = (x, np.arange(ROWS) % 10)
    likelihood = cx.likelihoods.Categorical(10)
    hidden = given["hidden"]
    model = cx.Model(cx.networks.mlp([hidden, hidden]), cx.priors.Normal(1.0), likelihood)
    if given.get("count"):
        return {name: _counted(model, data, cls) for name, cls in METHODS.items()}
    method = cx.MAP(num_steps=given["steps"], batch_size=BATCH)
    posterior = cx.fit(model, data, method, mesh={"data": given["data"]}, progress=False)
    return float(posterior.info["seconds"]) / given["steps"]


def _counted(model, data, cls) -> dict[str, int]:
    """The collectives of a step of a method, as ``fit`` compiles it."""
    from credax.fit.run import prepare

    method = replace(cls(), num_steps=10, batch_size=BATCH)
    with ExitStack() as held:
        arguments = (data, method, jax.random.key(0), None, None, None, None)
        run = prepare(model, *arguments, held, mesh={"data": 8})
        bounds = np.int32(0), np.int32(1)
        lowered = run.program.func.lower(*run.program.args, run.states, run.keys, run.data, *bounds)
        return collectives(lowered.compile().as_text())


if __name__ == "__main__":
    print(json.dumps(_run(json.loads(sys.argv[1]))), flush=True)
