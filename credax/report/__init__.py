"""A report: everything that a run has to say, on one page that opens from disk."""

from credax.report.page import write_report

__all__ = ["write_report"]
