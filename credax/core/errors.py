"""Errors and warnings of credax; bad arguments raise ``ValueError`` or ``TypeError`` instead."""


class CredaxError(Exception):
    """The base class of all errors of credax, for callers who want to catch every one of them."""


class DivergedError(CredaxError, ArithmeticError):
    """A run produced NaN or infinity. The message names the step and suggests what to change."""


class MemoryLimitError(CredaxError, MemoryError):
    """A fit needs more memory than there is. The message says how much, for what, and what to change."""


class StorageError(CredaxError, ValueError):
    """A file is corrupt, not written by credax, in a newer format, or does not match the given model."""


class SourceError(CredaxError, ValueError):
    """A source of data is damaged, ended early, changed, or holds a bad row. The message names the place."""


class HostsError(CredaxError, RuntimeError):
    """The hosts of a run cannot find each other, were given different things, or one of them has failed."""


class StorageWarning(UserWarning):
    """A checkpoint could not be written, or is continued elsewhere than it was begun. The message says more."""


class PosteriorWarning(UserWarning):
    """A run finished, but its posterior should not be trusted. The message says why."""


class DataWarning(PosteriorWarning):
    """The data do not suit the model, for instance in their scale. The message says why and what to change."""
