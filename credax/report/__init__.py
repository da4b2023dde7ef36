"""HTML reports: one page that says what was fitted, how good the predictions are and how far to trust them."""

from credax.report.page import write_report

__all__ = ["write_report"]
