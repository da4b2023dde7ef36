"""The posterior that ``fit`` returns: draw from it, predict with it, diagnose it and save it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import jax
import numpy as np

from credax.core import random
from credax.core.checks import integer, must
from credax.core.display import html_table
from credax.core.trees import named_leaves
from credax.core.typing import Draw, Key, NetworkState, Params
from credax.core.version import __version__
from credax.model import LogDensity, Model
from credax.model.continuation import FromPosterior
from credax.model.likelihoods import Heads
from credax.model.networks.wandering import Wandering
from credax.model.priors import Prior, around_moments
from credax.model.sources import Source
from credax.posterior import display, services
from credax.posterior.approximations import Approximation, Draws, GaussianMixture
from credax.posterior.approximations.families import Family
from credax.posterior.as_prior import as_prior
from credax.posterior.estimate import Estimate
from credax.posterior.heads import HeadsPredictive
from credax.posterior.predictive import Predictive
from credax.posterior.streamed import SourcePredictive, scored_rows
from credax.posterior.training import TrainingRows

if TYPE_CHECKING:
    from credax.diagnostics.convergence import Convergence
    from credax.diagnostics.doctor import Diagnosis


@dataclass(frozen=True, eq=False)
class Posterior:
    """A posterior over the parameters of a model.

    Attributes:
      model: the model, bound to the shapes of its data.
      approximation: the distribution over the parameters that represents the posterior.
      method: the method that computed it. After loading, a stand-in that says why if the method cannot be
        built again, for instance because one of its settings was a function.
      info: what the run recorded: one array of shape ``(replica, step)`` for each figure of the method, and
        ``steps``, ``seconds``, ``compile_seconds``, ``memory`` (the bytes that the fit needed, by name),
        ``ended`` and ``kept`` (the steps after which a draw was kept).
      log_evidence: the :class:`Estimate` of log p(D), a tuple ``(value, standard_error)``; ``None`` if the
        method does not estimate it.
      elbo: the :class:`Estimate` of the evidence lower bound; ``None`` if the method has no such bound.
      training: some rows of the fit, by which a diagnosis judges the posterior; ``None`` for a ``LogDensity``,
        and after loading, since rows are never saved.
      examined: after loading, the ``examination`` that was saved.
    """

    model: Model | LogDensity
    approximation: Approximation
    method: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)
    log_evidence: Estimate | None = None
    elbo: Estimate | None = None
    training: TrainingRows | None = field(default=None, kw_only=True, repr=False)
    examined: Mapping[str, Any] | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        for name in ("log_evidence", "elbo"):
            object.__setattr__(self, name, Estimate.of(getattr(self, name)))

    def __repr__(self) -> str:
        return f"Posterior({', '.join(self._facts().values())})"

    def _repr_html_(self) -> str:
        facts = self._facts()
        for name in ("log_evidence", "elbo"):
            if getattr(self, name) is not None:
                facts[name.replace("_", " ")] = str(getattr(self, name))
        return html_table((), facts.items(), "Posterior")

    def _facts(self) -> dict[str, str]:
        """What ``repr`` shows, by name."""
        approximation, facts = self.approximation, {}
        if self.method is not None:
            facts["method"] = display.method_name(self.method)
        if isinstance(approximation, Draws):
            weighted = approximation.log_weights is not None
            facts["draws"] = display.draws_text(*approximation.shape, self.method, weighted)
        else:
            if isinstance(approximation, GaussianMixture) and approximation.components > 1:
                facts["replicas"] = display.draws_text(approximation.components, 1, self.method)
            facts["distribution"] = type(approximation).__name__
        facts["weights"] = display.count(approximation.num_weights, "weights")
        if "seconds" in self.info:
            facts["time"] = display.duration(float(self.info["seconds"]))
        return facts

    @property
    def draws(self) -> Params:
        """The parameters of the kept draws, with leading axes (replica, draw)."""
        return self._draws("draws").params

    @property
    def log_weights(self) -> np.ndarray | None:
        """The log weight of each draw, ``(replica, draw)``; ``None`` if all draws have the same weight."""
        return self._draws("log_weights").log_weights

    @property
    def prior(self) -> Prior | None:
        """The prior of the weights; ``None`` for a ``LogDensity``.

        Scales that the fit has learned (``LearnedNormal``) are part of it, so that other methods can be fitted
        under them: ``cx.fit(model, data, cx.NUTS(), prior=posterior.prior, start=posterior)``. It knows nothing
        of the rows; :meth:`as_prior` makes the posterior itself the prior for new ones.
        """
        if not isinstance(self.model, Model):
            return None
        prior: Any = self.model.prior
        if prior.learned and isinstance(self.approximation, Family):
            mean, variance = (self.model.split(each)[0] for each in self.approximation.moments())
            prior = around_moments(prior, mean, variance) or prior
        return prior

    def _draws(self, wanted: str) -> Draws:
        if not isinstance(self.approximation, Draws):
            raise AttributeError(
                f"{wanted}: this posterior is a {type(self.approximation).__name__} and keeps no draws. "
                "Use posterior.sample(key, n)."
            )
        return self.approximation

    def sample(self, key: Any, n: int) -> Params:
        """Independent draws of the parameters, stacked along one leading axis.

        Args:
          key: an int or a JAX key.
          n: the number of draws.
        """
        return self.approximation.sample(random.key(key), integer("sample", "n", n)).params

    @overload
    def predict(  # pyright: ignore[reportOverlappingOverload]  (a source is told apart by its type)
        self, x: Source, *, num_samples: int | None = None, key: Any = 0
    ) -> SourcePredictive: ...
    @overload
    def predict(self, x: Any, *, num_samples: int | None = None, key: Any = 0) -> Predictive: ...
    def predict(self, x: Any, *, num_samples: int | None = None, key: Any = 0) -> Any:
        """The predictive distribution of new rows, averaged over the posterior.

        Args:
          x: rows with the same columns as in the fit; or a source from ``cx.sources``, whose rows are read and
            predicted block by block. The result for a source is a ``SourcePredictive``; that of a model with
            several heads is a mapping of their names to the ``Predictive`` of each.
          num_samples: the number of draws to average over. If ``None``: every kept draw if the posterior
            consists of draws; no draws if the average has a closed form (a linearised Laplace approximation
            with Gaussian noise); otherwise 100, or 30 for each component of a mixture.
          key: an int or a JAX key, with which the draws are chosen.
        """
        if not isinstance(self.model, Model):
            raise TypeError(
                "predict needs a Model with a network; this posterior is of a LogDensity."
            )
        if num_samples is not None:
            integer("predict", "num_samples", num_samples)
        if isinstance(x, Source):
            return SourcePredictive(self, x, num_samples, key)
        samples = self.approximation.samples(random.key(key), num_samples)
        closed_form = num_samples is None and samples.centre is not None
        normal = self.approximation if closed_form else None
        inputs = self.model.network_inputs(x)
        if isinstance(self.model.likelihood, Heads):
            return HeadsPredictive(self.model, inputs, samples)
        return Predictive(self.model, inputs, samples, normal)

    def starts(self, key: Key, replicas: int, model: Model | LogDensity) -> Draw:
        """Starting points for the replicas of another run, stacked.

        Args:
          key: a JAX key.
          replicas: the number of replicas.
          model: the model of the other run, whose parameters must have the same shapes.
        """
        draw = self.approximation.starts(key, replicas)
        if isinstance(getattr(self.model, "network", None), Wandering):
            draw = Draw(
                draw.params, draw.state[0]
            )  # another run has its own random functions, or none
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

    def as_prior(
        self,
        structure: str | None = None,
        *,
        forget: float = 0.0,
        scale: float | None = None,
        rank: int = 10,
    ) -> FromPosterior:
        """This posterior as the prior of another fit: ``cx.fit(model, new_rows, method, prior=...)``.

        The prior is the normal distribution that the posterior is, or the one with its mean and covariance. It
        covers the learned parameters of the likelihood too, as independent of the weights. The next fit keeps
        the shapes, the classes and the scales of the columns of this one.

        Args:
          structure: how much of the covariance is kept: ``"diagonal"`` (the standard deviation of each weight),
            ``"low_rank"``, ``"full"`` or ``"kronecker"``, each where the posterior has it; draws can be given a
            ``"low_rank"`` or, if there are more draws than weights, a ``"full"`` covariance. If ``None``, that
            of the distribution itself; ``"diagonal"`` for draws.
          forget: the share of what was learned that is forgotten, from 0 to below 1: all standard deviations
            are divided by the square root of 1 - ``forget``. For data that drift.
          scale: the standard deviation of weights about which the posterior does not say how sure it is, such
            as all of them after ``MAP``.
          rank: the number of directions of a low-rank covariance that is fitted to draws.
        """
        return as_prior(self, structure, forget, scale, rank)

    def single_draw(self) -> tuple[Params, NetworkState] | None:
        """The network's weights and state if the posterior is a single draw, as for ``MAP``; else ``None``."""
        draws = self.approximation
        if (
            not isinstance(draws, Draws)
            or draws.shape != (1, 1)
            or not isinstance(self.model, Model)
        ):
            return None
        params, state = jax.tree.map(lambda leaf: leaf[0, 0], (draws.params, draws.state))
        return self.model.split(params)[0], state

    def evaluate(self, x: Any, y: Any = None, *, weights: Any = None, key: Any = 0) -> Any:
        """Scores of the predictions for rows that were not used in the fit; print it for a table.

        Args:
          x: rows with the same columns as in the fit; or a source from ``cx.sources``, which has the targets
            too. Of a source with more than 100,000 rows, as many random ones are evaluated.
          y: their targets; ``None`` for a source.
          weights: how much each row counts in the scores, ``(rows,)``, or each position of a row,
            ``(rows, positions...)``; zero leaves it out. For several heads, also a dictionary of them.
          key: an int or a JAX key, with which the draws are chosen.

        Returns:
          ``Scores``; for several heads, a dictionary of them. The scores of positions are means over all
          positions that are not left out, and their standard errors are those of resampled rows.
        """
        if isinstance(x, Source):
            if y is not None:
                raise TypeError(must("evaluate", "y", "None for a source, which has targets", y))
            x, y = scored_rows(x)
        return services.evaluate(self, x, y, weights=weights, key=key)

    def calibrate(
        self, x: Any, y: Any, *, method: str | None = None, weights: Any = None, key: Any = 0
    ) -> Any:
        """This posterior with its predictions corrected on rows that were not used in the fit.

        Args:
          x: rows with the same columns as in the fit.
          y: their targets.
          method: for regression, ``"quantile"`` (conformalised quantiles, Romano et al., 2019) or
            ``"residual"`` (split conformal prediction, with residuals in units of the predicted standard
            deviation); corrected intervals contain the target with at least the stated probability. For
            classification, ``"temperature"``: probabilities rescaled by one temperature (Guo et al., 2017),
            and sets of classes that contain the true one. If ``None``, the first of these for the task.
          weights: how much each row counts, ``(rows,)``, or each position of a row, ``(rows, positions...)``;
            zero leaves it out. For several heads, also a dictionary of them. For intervals and sets of classes,
            all that are not left out count alike.
          key: an int or a JAX key, with which the draws are chosen.

        Returns:
          ``cx.diagnostics.Calibrated``; for several heads, a mapping from their names to such, which has the
          methods ``predict`` and ``evaluate`` too. If rows are divided into positions, the stated probability
          is that of a random position of a new row.
        """
        return services.calibrate(self, x, y, method, weights, key)

    def diagnose(self, x: Any = None, y: Any = None) -> Diagnosis:
        """The problems of this posterior in words, each with the number behind it.

        Args:
          x: rows with the same columns as in the fit. If given, the predictions there are examined as well:
            those of several chains should agree, those of the members of an ensemble should differ.
          y: the targets of these rows, if they were not used in the fit. If given, these rows are used to
            examine whether the predictions explain the targets as well as a straight line does, and whether
            intervals contain as many targets as they should. If ``None``, rows of the fit are used.
        """
        return services.diagnose(self, x, y)

    @cached_property
    def examination(self) -> Mapping[str, Any]:
        """What :meth:`diagnose` knows from the rows of the fit: a few numbers, saved with the posterior.

        They are computed when they are first needed.
        """
        return services.examine(self) if self.examined is None else self.examined

    def convergence(self, x: Any = None) -> Convergence:
        """R-hat, effective sample sizes and Monte Carlo errors of chains; print it for a table.

        Args:
          x: rows with the same columns as in the fit. If given, the figures are about the predictions for
            these rows: the weights of a network are not identified, so chains may agree about every
            prediction and about no weight. If ``None``, the figures are about the parameters.
        """
        return services.convergence(self, x)

    def plot(self, kind: str | None = None, x: Any = None, y: Any = None, **options: Any) -> Any:
        """Draw the run, or its predictions, with matplotlib (``pip install 'credax[plot]'``).

        Args:
          kind: ``"trace"`` for what the run recorded and for its draws (:func:`credax.plots.trace`), or a kind
            of :meth:`Predictive.plot`. If ``None``, the trace if there is no ``x``.
          x: rows with the same columns as in the fit, whose predictions are drawn.
          y: the targets of these rows.
          **options: other arguments of the function of ``cx.plots``, such as ``of`` or ``ax``.

        Returns:
          The Axes of matplotlib.
        """
        return services.plot_posterior(self, kind, x, y, **options)

    def save(self, path: str | Path) -> None:
        """Write the posterior to one file, which ``cx.load`` reads.

        A file of the same name is replaced only when the new one is complete.

        Args:
          path: the file.
        """
        services.save(self, path)

    def export(
        self,
        path: str | Path,
        *,
        format: str = "stablehlo",
        level: float = 0.9,
        draws: int = 100,
        num_samples: int | None = None,
        key: Any = 0,
        integers: bool = False,
        platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    ) -> None:
        """Write the predictions to one file that JAX and NumPy run without credax, in your own units.

        The file is a NumPy archive with the weights and two programs in StableHLO, which take any number of
        rows. ``predict`` gives the mean, the standard deviation, the epistemic and the aleatoric variance, and
        the ends of an interval, or the probabilities of classes and their entropies; ``draws`` gives draws
        of y. Both average over the samples of ``predict(x, num_samples=num_samples, key=key)``. Writing needs
        the package ``flatbuffers``: ``pip install 'credax[export]'``.

        With ``format="onnx"``, the file is an ONNX program of the moments, for multilayer perceptrons and
        whatever else ``jax2onnx`` can convert: ``pip install 'credax[onnx]'``.

        Args:
          path: the file, whose name ends in ``.npz``, or in ``.onnx``.
          format: ``"stablehlo"`` or ``"onnx"``, which has no interval and no draws.
          level: the probability of the interval.
          draws: the number of draws of y that ``draws`` gives for each row.
          num_samples: the number of samples to average over, as in :meth:`predict`.
          key: an int or a JAX key, with which the samples are chosen.
          integers: whether ``x`` holds whole numbers that the network needs as such, for instance the numbers
            of words in a vocabulary.
          platforms: those on which the programs can run.
        """
        services.export(
            self,
            path,
            format=format,
            level=level,
            draws=draws,
            num_samples=num_samples,
            key=key,
            integers=integers,
            platforms=platforms,
        )

    def to_arviz(self) -> Any:
        """The draws after warm-up in ArviZ's format, with the groups ``posterior`` and ``sample_stats``.

        Replicas become chains. A leaf ``layer_0/kernel`` of the parameters becomes the variable
        ``layer_0.kernel``, and what the run recorded for each draw gets ArviZ's name (``lp``, ``diverging``,
        ``n_steps``, ...). If the draws are weighted, ``log_weight`` is among the statistics, up to a constant.
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
        # An ensemble may have more members than draws per member, which ArviZ's check takes for a mistake.
        return arviz_base.from_dict(groups, attrs=attrs, check_conventions=False)


_ARVIZ_NAMES = {"log_joint": "lp", "num_leapfrog": "n_steps"}
