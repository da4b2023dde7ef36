"""What credax raises beside ``ValueError`` and ``TypeError`` for bad arguments."""


class CredaxError(Exception):
    """The common ancestor, for a caller who wants to catch them all."""


class DivergedError(CredaxError, ArithmeticError):
    """A run met NaN or infinity; its message names the step and what to change."""


class StorageError(CredaxError, ValueError):
    """A file is corrupt, foreign, from a newer format, or does not fit what it is loaded into."""


class PosteriorWarning(UserWarning):
    """A run came to its end, but its posterior should not be trusted; the message says why."""
