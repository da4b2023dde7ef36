"""``credax serve``: predictions of a run over HTTP."""

from credax.cli.serve.limits import Limits
from credax.cli.serve.server import make_app, serve

__all__ = ["Limits", "make_app", "serve"]
