"""Posteriors whose predictions are known: the network is a table of outputs."""

import functools

import jax.numpy as jnp
import numpy as np

import credax as cx
from credax.posterior.approximations import Draws


@functools.cache
def table(rows, outputs):
    """A network whose parameters are a table; row i of the table is its output for input i."""
    return cx.networks.from_function(
        lambda key: {"table": jnp.zeros((rows, outputs))},
        lambda params, x: params["table"][x[:, 0]],
    )


def posterior(likelihood, y, outputs, log_weights=None):
    """A posterior whose draws give these outputs, (draw, row, output), and its rows x."""
    outputs = np.asarray(outputs)[None]
    rows = np.arange(outputs.shape[2])[:, None]
    model = cx.Model(table(*outputs.shape[2:]), likelihood=likelihood).bind((rows, y))
    params = {"table": outputs.astype(jnp.result_type(float))}
    weights = None if log_weights is None else np.asarray(log_weights)[None]
    return cx.Posterior(model, Draws(params, (), weights)), rows
