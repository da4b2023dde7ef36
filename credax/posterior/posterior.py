"""What ``fit`` returns: a posterior to draw from, to predict with, to diagnose and to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from credax.core import random
from credax.core.checks import integer
from credax.core.trees import named_leaves
from credax.core.typing import Draw, Key, NetworkState, Params
from credax.core.version import __version__
from credax.model import LogDensity, Model
from credax.posterior import services
from credax.posterior.approximations import Approximation, Draws
from credax.posterior.predictive import Predictive

if TYPE_CHECKING:
    from credax.diagnostics.calibration import Scores
    from credax.diagnostics.convergence import Convergence
    from credax.diagnostics.doctor import Diagnosis
    from credax.diagnostics.recalibration import Calibrated

Estimate = tuple[float, float]
"""A value and its standard error."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """A posterior over the parameters of a model.

    Attributes:
      model: the model it belongs to, bound to its data's shapes.
      approximation: the distribution that stands for it.
      method: the method that made it (a description of it after loading).
      info: the figures of the run: one array ``(replica, step)`` a figure, and ``steps``, ``seconds``,
        ``compile_seconds``, ``ended``, ``kept`` (the steps after which a draw was kept).
      log_evidence: ``(estimate, standard error)`` of log p(D), or ``None``.
      elbo: ``(estimate, standard error)`` of the evidence lower bound, or ``None``.
    """

    model: Model | LogDensity
    approximation: Approximation
    method: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)
    log_evidence: Estimate | None = None
    elbo: Estimate | None = None

    @property
    def draws(self) -> Params:
        """The kept draws, with leading axes (replica, draw)."""
        return self._draws("draws").params

    @property
    def log_weights(self) -> np.ndarray | None:
        """The log weight of each draw, ``(replica, draw)``; ``None``: all weigh the same."""
        return self._draws("log_weights").log_weights

    def _draws(self, wanted: str) -> Draws:
        if not isinstance(self.approximation, Draws):
            raise AttributeError(
                f"{wanted}: this posterior is a {type(self.approximation).__name__} and keeps no draws. "
                "Use posterior.sample(key, n)."
            )
        return self.approximation

    def sample(self, key: Any, n: int) -> Params:
        """So many draws of the parameters, stacked along one leading axis.

        Args:
          key: an int or a JAX key.
          n: how many.
        """
        return self.approximation.sample(random.key(key), integer("sample", "n", n)).params

    def predict(self, x: Any, *, num_samples: int | None = None, key: Any = 0) -> Predictive:
        """What the model says of new rows, averaged over the posterior.

        Args:
          x: rows as in the fit.
          num_samples: how many draws to average; ``None``: all that were kept, or a number that serves, or
            none, where the average has a closed form.
          key: an int or a JAX key, for the choice of the draws.
        """
        if not isinstance(self.model, Model):
            raise TypeError(
                "predict needs a Model with a network; this posterior is of a LogDensity."
            )
        if num_samples is not None:
            integer("predict", "num_samples", num_samples)
        samples = self.approximation.samples(random.key(key), num_samples)
        closed_form = num_samples is None and samples.centre is not None
        normal = self.approximation if closed_form else None
        return Predictive(self.model, self.model.check_inputs(x), samples, normal)

    def starts(self, key: Key, replicas: int, model: Model | LogDensity) -> Draw:
        """Starting points for the replicas of another run."""
        draw = self.approximation.starts(key, replicas)
        wanted = jax.eval_shape(model.init, key)
        got = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), draw.params
        )
        shapes = [{path: leaf.shape for path, leaf in named_leaves(tree)} for tree in (wanted, got)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"fit(start=...) must have the parameters of the model, {shapes[0]}; got {shapes[1]}."
            )
        return draw

    def single_draw(self) -> tuple[Params, NetworkState] | None:
        """The network's weights and state, where there is one draw alone (of ``MAP``); else ``None``."""
        draws = self.approximation
        if (
            not isinstance(draws, Draws)
            or draws.shape != (1, 1)
            or not isinstance(self.model, Model)
        ):
            return None
        params, state = jax.tree.map(lambda leaf: leaf[0, 0], (draws.params, draws.state))
        return self.model.split(params)[0], state

    def evaluate(self, x: Any, y: Any, *, key: Any = 0) -> Scores:
        """How good the predictions are for rows that the fit has not seen; print it for a table.

        Args:
          x: rows as in the fit.
          y: their targets.
          key: an int or a JAX key, for the choice of the draws.
        """
        return services.evaluate(self, x, y, key=key)

    def calibrate(self, x: Any, y: Any, *, method: str | None = None, key: Any = 0) -> Calibrated:
        """This posterior with its predictions corrected by rows that the fit has not seen.

        Args:
          x: rows as in the fit.
          y: their targets.
          method: for numbers ``"quantile"`` (conformalised quantiles, Romano et al., 2019) or ``"residual"``
            (split conformal, residuals in units of the predicted standard deviation): intervals hold the
            truth with at least the probability that they claim. For classes ``"temperature"``: probabilities
            by one temperature (Guo et al., 2017), and sets of classes that hold the true one. ``None``: the
            first of them.
          key: an int or a JAX key, for the choice of the draws.
        """
        return services.calibrate(self, x, y, method, key)

    def diagnose(self, x: Any = None, y: Any = None) -> Diagnosis:
        """What is wrong, in words, with the number behind it.

        Args:
          x: rows as in the fit, at which chains should agree about the prediction, and members should not.
          y: the targets of these rows, where the fit has not seen them: whether the intervals hold as many as
            they should.
        """
        return services.diagnose(self, x, y)

    def convergence(self, x: Any = None) -> Convergence:
        """R-hat, effective sample sizes and Monte Carlo errors of chains; print it for a table.

        Args:
          x: rows as in the fit: the figures are then those of the predictions there. The weights of a network
            are not identified, so chains may agree about every prediction and about no weight. ``None``: the
            figures of the parameters.
        """
        return services.convergence(self, x)

    def save(self, path: str | Path) -> None:
        """Writes the posterior to one file, which ``cx.load`` reads; an older file is replaced at the end."""
        services.save(self, path)

    def to_arviz(self) -> Any:
        """The draws in ArviZ's standard form: groups ``posterior`` and ``sample_stats``, without the warm-up.

        Replicas are chains. A leaf ``layer_0/kernel`` of the parameters is the variable ``layer_0.kernel``, and
        the figures of the run at each draw have ArviZ's names (``lp``, ``diverging``, ``n_steps``, ...).
        Where the draws are weighted, ``log_weight`` is among them, up to a constant.
        """
        import arviz_base

        leaves = named_leaves(self.draws)
        draws = {path.replace("/", ".") or "parameters": np.asarray(leaf) for path, leaf in leaves}
        kept = np.asarray(self.info.get("kept", ()), int)
        stats = {
            _ARVIZ_NAMES.get(name, name): np.asarray(value)[:, kept]
            for name, value in self.info.items()
            if np.ndim(value) == 2 and name != "held_out_log_likelihood"
        }
        stats = stats if len(kept) == self._draws("draws").shape[1] else {}
        if "diverging" in stats:
            stats["diverging"] = stats["diverging"] > 0
        if self.log_weights is not None:
            stats["log_weight"] = np.asarray(self.log_weights)
        groups = {"posterior": draws, **({"sample_stats": stats} if stats else {})}
        made_by = {"inference_library": "credax", "inference_library_version": __version__}
        attrs = dict.fromkeys(groups, made_by)
        # Members may outnumber their draws, which its check takes for a mistake.
        return arviz_base.from_dict(groups, attrs=attrs, check_conventions=False)


_ARVIZ_NAMES = {"log_joint": "lp", "num_leapfrog": "n_steps"}
