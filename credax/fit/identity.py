"""What makes a run the same run: its arguments, and the program that JAX made of them.

The names and settings of the arguments come first, because a difference among them can be named in a message.
They do not tell two functions of one name apart, nor two optimisers or schedules with other numbers inside; the
digest of the traced program does. The program is compared only between processes with the same versions of JAX
and credax and the same backend, since each of these may trace another program of the same arithmetic.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core import hosts
from credax.core.devices import usable_cores
from credax.core.errors import StorageError
from credax.core.version import __version__
from credax.fit.mesh import model_size, sizes
from credax.fit.stopping import EarlyStopping
from credax.model.inputs import leaves_of
from credax.model.sources.streamed import SourceData
from credax.storage.describe import describe_or_name
from credax.tracing.digest import program_digest

VERSIONS = ("jax", "credax", "backend")
OLD_SHAPES = ("type", "input_shape", "targets", "outputs")
"""The shapes of a model that a checkpoint always holds; others only if the model has them."""


@dataclass(frozen=True)
class Identity:
    """The identity of a run.

    Attributes:
      arguments: the arguments of ``fit`` as JSON; arrays as digests, functions by name.
      place: where this process runs it: the versions of JAX and credax, the backend, and the numbers of cores,
        devices and hosts.
      program: the digest of the program of one step, on one device.
    """

    arguments: dict[str, Any]
    place: dict[str, Any]
    program: str

    @classmethod
    def of(cls, model, method, data, key, mesh, starts, stopping, programs) -> Identity:
        """The identity of a run with these arguments of ``fit``, and with these traced programs.

        The programs are those for one device, so that a run can go on on any number of them.
        """
        arguments = arguments_of(model, method, data, key, starts, stopping)
        return cls(arguments, _place(mesh), program_digest(*programs))

    @property
    def here(self) -> dict[str, Any]:
        """The place and the program, as a checkpoint lists them for every place where its run went on."""
        return {**self.place, "program": self.program}

    def check(self, arguments: dict[str, Any], places: list[dict[str, Any]]) -> None:
        """Refuse a run with other arguments or another program.

        Args:
          arguments: those of the stored run.
          places: where the stored run went on so far, each as in ``here``.
        """
        different = [k for k, v in self.arguments.items() if arguments.get(k) != v]
        if different:
            verb = "differs" if len(different) == 1 else "differ"
            raise StorageError(f"its {' and '.join(different)} {verb}")
        for place in places:
            same = all(place[name] == self.place[name] for name in VERSIONS)
            if same and place["program"] != self.program:
                raise StorageError(
                    "its steps differ, although its arguments have the same names and settings: a function of "
                    "the model, an optimiser or a schedule has changed"
                )

    def moved(self, places: list[dict[str, Any]]) -> str:
        """In what the place differs from those where the run went on so far; empty if in nothing."""
        texts = []
        for name, now in self.place.items():
            # A place of an older version names neither devices nor hosts.
            others = dict.fromkeys(str(p[name]) for p in places if p.get(name, now) != now)
            if others:
                texts.append(f"{name} {now} instead of {' and '.join(others)}")
        return ", ".join(texts)


def arguments_of(model, method, data, key, starts, stopping) -> dict[str, Any]:
    """The arguments of ``fit`` as JSON; arrays as digests, functions by name."""
    return {
        "model": _describe_model(model),
        "method": describe_or_name(method),
        "data": None if data is None else _digest(data),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "start": None if starts is None else _digest(starts),
        "early_stopping": None if stopping is None else _describe_stopping(stopping),
        "float": str(jnp.result_type(float)),
    }


def _describe_model(model: Any) -> Any:
    """The model as JSON; what it does not use is left out, as in checkpoints from before it existed."""
    found = describe_or_name(model)
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema:
        found["schema"] = {k: v for k, v in schema.items() if k in OLD_SHAPES or v}
        found = {k: v for k, v in found.items() if k != "_head"}
    return {k: v for k, v in found.items() if k != "compute" or v is not None}


def _devices(mesh: Any) -> Any:
    """The number of devices for the replicas; with those for rows or arrays too, the number along each axis."""
    replica, rows = sizes(mesh)
    more = {"data": rows, "model": model_size(mesh)}
    return replica if rows * more["model"] == 1 else {"replica": replica, **more}


def _place(mesh: Any) -> dict[str, Any]:
    device = jax.devices()[0]
    return {
        "jax": jax.__version__,
        "credax": __version__,
        "backend": f"{device.platform} ({device.device_kind})",
        # Only programs on the CPU are split over its cores, each split with its own rounding.
        "cores": usable_cores() if device.platform == "cpu" else None,
        # Replicas that are batched in other sizes round differently.
        "devices": _devices(mesh),
        "hosts": hosts.count(),
    }


def _digest(data: Any) -> str:
    if isinstance(data, SourceData):
        return data.source.fingerprint()
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(data):
        digest.update(f"{leaf.dtype}{leaf.shape}".encode())
        digest.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _describe_stopping(stopping: EarlyStopping) -> list[Any]:
    rows = [*(stopping.validation or ()), *([] if stopping.weights is None else [stopping.weights])]
    arrays = [np.asarray(leaf) for part in rows for leaf in leaves_of(part)]
    return [stopping.every, stopping.patience, _digest(arrays)]
