"""HTML reports and plots: what was fitted, how good the predictions are and how far to trust them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from credax.report.page import write_report as write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    """The page and its templates are imported when a report is written: plots do without them."""
    if name == "write_report":
        from credax.report.page import write_report

        return write_report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
