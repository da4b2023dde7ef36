"""Several processes as one run: how they find each other, agree on what comes next, and notice a failure.

JAX runs the compiled programs over the devices of all processes. What is left to do on the host (whether all
processes were given the same data, how long the next chunk is, whether someone pressed Ctrl-C) is exchanged
here, through the key-value store of the coordinator that JAX starts in host 0.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from credax.core.checks import integer, must, positive
from credax.core.errors import HostsError
from credax.core.version import __version__

HEARTBEAT_SECONDS = 30
"""A host from which nothing is heard for so long is dead; JAX then ends the others."""
LEAVE_SECONDS = 3600
"""How long a host that is done waits for the others, for instance while host 0 writes a report."""
PATIENCE_SECONDS = 600.0
"""How long hosts that are alive wait for each other, for instance while host 0 writes a checkpoint."""
GRACE_SECONDS = 15.0
"""How long a host may stay in a program whose other hosts have failed, before its process is ended."""
LOOK_SECONDS = 1.0
"""The time between two looks at whether another host has failed."""


def use_hosts(
    coordinator: str | None = None,
    hosts: int | None = None,
    index: int | None = None,
    timeout: float = 60,
) -> None:
    """Make this process one of several that run every ``fit`` together, on the devices of all of them.

    Call this in every process before JAX has run anything, with the same ``coordinator`` and ``hosts``. Under
    Slurm, Open MPI and Kubernetes, JAX finds all three by itself. The processes must then call ``fit`` with the
    same arguments, and each of them gets the same posterior.

    Args:
      coordinator: the address of host 0 and a free port on it, such as ``"10.0.0.1:1234"``.
      hosts: the number of processes.
      index: the number of this process, from 0.
      timeout: the seconds within which all hosts must have come.

    Raises:
      HostsError: the coordinator does not answer, not all hosts came in time, or their versions differ.
    """
    timeout = positive("use_hosts", "timeout", timeout)
    if hosts is not None:
        hosts = integer("use_hosts", "hosts", hosts)
    if index is not None:
        index = integer("use_hosts", "index", index, 0)
    if hosts is not None and index is not None and index >= hosts:
        allowed = f"below the number of hosts, {hosts}"
        raise ValueError(must("use_hosts", "index", allowed, index))
    address = None if coordinator is None else _address(coordinator)
    by_hand = [value for value in (coordinator, hosts, index) if value is not None]
    if by_hand and len(by_hand) < 3:
        raise ValueError(
            "use_hosts needs coordinator, hosts and index together, or none of them under Slurm, Open MPI or "
            f"Kubernetes; got coordinator={coordinator!r}, hosts={hosts!r}, index={index!r}."
        )
    if jax.distributed.is_initialized():
        raise RuntimeError("use_hosts must be called once in a process; it was called before.")
    if hosts == 1:
        return
    if address is not None and index:
        _reach(*address, timeout)
    options: dict[str, Any] = {}
    if address is not None:
        options = {"cluster_detection_method": "deactivate"}
        if _is_loopback(address[0]):  # JAX would listen on all addresses of the machine
            options["coordinator_bind_address"] = coordinator
    _set_collectives()
    _connect((coordinator, hosts, index), options, timeout)
    with together(timeout) as group, group.telling():
        group.compare({"the version of credax": __version__, "the version of JAX": jax.__version__})


def _address(coordinator: Any) -> tuple[str, int]:
    allowed = "an address and a port, such as '10.0.0.1:1234'"
    if not isinstance(coordinator, str):
        raise TypeError(must("use_hosts", "coordinator", allowed, coordinator))
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(must("use_hosts", "coordinator", allowed, coordinator))
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reach(host: str, port: int, timeout: float) -> None:
    """Wait until the coordinator listens. JAX would end the process if it never does."""
    end, reason = time.monotonic() + timeout, "no answer"
    while time.monotonic() < end:
        try:
            with socket.create_connection((host, port), timeout=max(0.1, end - time.monotonic())):
                return
        except OSError as error:
            reason = error.strerror or str(error) or reason
        time.sleep(0.1)
    raise HostsError(
        f"No coordinator answers at {host}:{port} within {timeout:g} s ({reason}). Start host 0 with this "
        "address, and check that this machine can reach it; timeout=... waits longer."
    )


def _set_collectives() -> None:
    """On CPUs, let hosts talk by Gloo. Later versions of JAX may know nothing else."""
    with contextlib.suppress(AttributeError, ValueError):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")


def _connect(place: tuple, options: dict[str, Any], timeout: float) -> None:
    """Start the coordinator in host 0, and wait for all hosts.

    If a host does not come in time, JAX ends the process with a message of its own. Here it waits in a thread,
    which is left behind then.
    """
    failed: list[Exception] = []

    def initialize() -> None:
        try:
            jax.distributed.initialize(
                *place,
                initialization_timeout=int(timeout) + 3600,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=LEAVE_SECONDS,
                **options,
            )
        except Exception as error:  # noqa: BLE001 - raised below, in the thread of the caller
            failed.append(error)

    thread = threading.Thread(target=initialize, name="credax-hosts", daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        count = "" if place[1] is None else f" {place[1]}"
        raise HostsError(
            f"Not all{count} hosts came within {timeout:g} s. Start each of them with a number of its own from "
            "0; timeout=... waits longer."
        )
    if not failed:
        return
    if place[0] is None and isinstance(failed[0], ValueError):
        raise HostsError(
            "use_hosts finds neither Slurm nor Open MPI nor Kubernetes here. Give coordinator=..., hosts=... "
            f"and index=... ({failed[0]})."
        ) from failed[0]
    if isinstance(failed[0], RuntimeError) and "before" in str(failed[0]):
        raise RuntimeError(
            "use_hosts must be called before JAX has run anything: put it right after the imports."
        ) from None
    raise HostsError(f"The hosts could not be connected: {failed[0]}.") from failed[0]


def count() -> int:
    """The number of processes of a run; 1 if ``use_hosts`` was not called."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def is_first() -> bool:
    """Whether this process is the one that shows progress and writes files."""
    return count() == 1 or jax.process_index() == 0


class Group:
    """The hosts of one run, which exchange values in the same order on all of them.

    A process alone is a group of one, for which nothing is exchanged.

    Attributes:
      count: the number of hosts.
      index: the number of this one.
    """

    def __init__(self, name: str, patience: float = PATIENCE_SECONDS):
        self.count = count()
        self.index = jax.process_index() if self.count > 1 else 0
        self._place, self._number, self._patience = f"credax/{name}", 0, patience
        self._left = threading.Event()

    @property
    def first(self) -> bool:
        """Whether this is host 0."""
        return self.index == 0

    def exchange(self, what: str, value: Any) -> list[Any]:
        """The values of all hosts, in the order of their numbers. All hosts must call this.

        Args:
          what: what is exchanged, for messages; the same on all hosts.
          value: what JSON can hold.

        Raises:
          HostsError: another host has failed, does not come, or is at another place of the program.
        """
        if self.count == 1:
            return [value]
        self._number += 1
        here = f"{self._place}/{self._number}"
        _store().key_value_set(f"{here}/{self.index}", json.dumps([what, value]))
        if self.first:
            found = [self._wait(f"{here}/{i}", what, i) for i in range(self.count)]
            _store().key_value_set(f"{here}/all", f"[{','.join(found)}]")
            if (
                self._number > 2
            ):  # whoever takes part in this exchange has completed the last but one
                _store().key_value_delete(f"{self._place}/{self._number - 2}/")
        values = json.loads(self._wait(f"{here}/all", what, 0))
        for i, (name, _) in enumerate(values):
            if name != values[self.index][0]:
                raise HostsError(
                    f"The hosts run different programs: host {self.index} is at {what!r}, host {i} at {name!r}."
                )
        return [value for _, value in values]

    def compare(self, values: dict[str, Any]) -> None:
        """Refuse, on every host, values that are not the same on all of them."""
        everyone = self.exchange("what the hosts were given", values)
        for i, others in enumerate(everyone):
            different = [name for name in everyone[0] if others.get(name) != everyone[0][name]]
            if different:
                raise HostsError(
                    f"All hosts must be given the same; host {i} differs from host 0 in "
                    f"{' and '.join(different)}."
                )

    def from_first(self, what: str, value: Any) -> Any:
        """The value of host 0."""
        return self.exchange(what, value)[0]

    def _wait(self, key: str, what: str, host: int) -> str:
        end = time.monotonic() + self._patience
        while time.monotonic() < end:
            try:
                return _store().blocking_key_value_get(key, int(1000 * LOOK_SECONDS))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise HostsError(f"Host 0, the coordinator, has gone: {error}.") from error
            failure = self._failure()
            if failure is not None:
                raise HostsError(failure)
        raise HostsError(f"Host {host} did not come to {what!r} within {self._patience:g} s.")

    # -- failures -----------------------------------------------------------------------------------

    def _failure(self) -> str | None:
        """What another host said before it gave up."""
        own = f"{self._place}/failed/{self.index}"
        found = _store().key_value_dir_get(f"{self._place}/failed/")
        texts = [(key.rpartition("/")[2], text) for key, text in found if key != own]
        return f"Host {texts[0][0]} has failed: {texts[0][1]}" if texts else None

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """A context whose errors are told to the other hosts at once, before anything is closed."""
        try:
            yield
        except BaseException as error:
            if self.count > 1:
                self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"[:500]
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the coordinator has gone as well
            _store().key_value_set(f"{self._place}/failed/{self.index}", text, allow_overwrite=True)

    def watch(self) -> None:
        """Look for failures of other hosts, and end this process if it waits for one of them in a program."""
        while not self._left.wait(LOOK_SECONDS):
            try:
                failure = self._failure()
            except jax.errors.JaxRuntimeError:  # JAX notices this too, and ends the process
                return
            if failure is None:
                continue
            if not self._left.wait(GRACE_SECONDS):
                text = f"credax: {failure}. Host {self.index} ends, since it cannot go on without it.\n"
                os.write(2, text.encode())
                os._exit(1)
            return

    def leave(self) -> None:
        """End the thread of :meth:`watch`."""
        self._left.set()


_groups = 0


@contextlib.contextmanager
def together(patience: float = PATIENCE_SECONDS) -> Iterator[Group]:
    """The group of all hosts, for as long as the context lasts."""
    global _groups  # noqa: PLW0603
    _groups += 1
    group = Group(str(_groups), patience)
    if group.count == 1:
        yield group
        return
    threading.Thread(target=group.watch, name="credax-watch", daemon=True).start()
    try:
        yield group
    except jax.errors.JaxRuntimeError as error:
        lost = HostsError(
            f"A program over {group.count} hosts could not go on; another host has probably ended: {error}"
        )
        raise lost from error
    finally:
        group.leave()


def _store() -> Any:
    """The key-value store of the coordinator, for which JAX has no public name; Orbax uses it in this way."""
    from jax._src import distributed

    return distributed.global_state.client
