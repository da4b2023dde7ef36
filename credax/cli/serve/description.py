"""The interface of a server in the format of OpenAPI, with the columns of its run."""

from __future__ import annotations

from typing import Any

from credax.cli.serve.formats import ARROW, JSON
from credax.cli.serve.limits import Limits
from credax.core.version import __version__
from credax.tables.runs import Run

REASONS = {
    400: "The body is no JSON or Arrow stream of rows.",
    408: "The body did not arrive in time.",
    413: "The request has too many bytes or rows.",
    415: "The body is neither JSON nor an Arrow stream.",
    422: "The preprocessing of the run refuses a row; the message says which and why.",
    429: "Too many requests wait. Try again after the seconds that Retry-After says.",
    503: "The answer was not ready in time.",
}


def describe(run: Run, limits: Limits, predicted: dict[str, Any]) -> dict[str, Any]:
    """The description.

    Args:
      run: the run that predicts.
      limits: the limits of the server.
      predicted: the columns of some predictions.
    """
    columns = {column.name: _column(column.kind) for column in run.preprocessor.columns}
    row = {"type": "object", "required": list(columns), "properties": columns}
    answer = {
        name: {"type": "string"} if values.dtype.kind in "OU" else {"type": ["number", "null"]}
        for name, values in predicted.items()
    }
    numbers = run.preprocessor.task == "regression"
    level = {
        "name": "level",
        "in": "query",
        "description": "The probability of the interval from lower to upper.",
        "schema": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": 0.9},
    }
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    stream = {"schema": {"type": "string", "format": "binary"}}
    predict = {
        "summary": f"Predict {run.preprocessor.target}",
        "parameters": [level] if numbers else [],
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": _object(rows=_list(row, limits.max_rows))},
                ARROW: stream,
            },
        },
        "responses": {
            "200": {
                "description": "A prediction for each row, in their order, in the format of the request.",
                "content": {
                    JSON: {
                        "schema": _object(
                            predictions=_list({"type": "object", "properties": answer}),
                            notes=_list({"type": "string"}),
                        )
                    },
                    ARROW: stream,
                },
            },
            **{
                str(status): {"description": text, "content": {JSON: {"schema": error}}}
                for status, text in REASONS.items()
            },
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Predictions of {run.preprocessor.target}", "version": __version__},
        "paths": {
            "/predict": {"post": predict},
            "/health": {"get": _plain("Whether the server takes requests", JSON)},
            "/metrics": {"get": _plain("Counts and times for Prometheus", "text/plain")},
        },
    }


def _column(kind: str) -> dict[str, Any]:
    types = ["number", "string", "boolean", "null"] if kind in ("number", "boolean") else None
    return {"type": types or ["string", "number", "boolean", "null"], "description": kind}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: dict[str, Any], most: int | None = None) -> dict[str, Any]:
    bounds = {} if most is None else {"minItems": 1, "maxItems": most}
    return {"type": "array", "items": items, **bounds}


def _plain(summary: str, kind: str) -> dict[str, Any]:
    schema = {"schema": {"type": "object" if kind == JSON else "string"}}
    return {
        "summary": summary,
        "responses": {"200": {"description": "OK", "content": {kind: schema}}},
    }
