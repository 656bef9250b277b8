"""The exceptions of this package. Each names what went wrong and what to do about it."""

from __future__ import annotations

from typing import Optional


class Error(RuntimeError):
    """The base of all exceptions of this package.

    Attributes:
        final: Session.rejoin does not try again after it, whatever its kind.
    """

    final = False


class ConfigError(Error, ValueError):
    """A setting is missing or cannot be used; the message names it and its remedy."""


class TensorError(Error, ValueError):
    """A tensor cannot be exchanged: its type, layout or size; the message names the tensor."""


class LibraryError(Error, ImportError):
    """The native library is missing, cannot be loaded, or is of another version."""


class RefusedError(Error):
    """The aggregator does not take the request, for example because the ranks' models differ.

    Attributes:
        code: the service's code for it; empty if it gave none.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class OutOfRangeError(RefusedError):
    """The aggregator has not so many of what is asked for."""


class ServerLostError(Error, ConnectionError):
    """The aggregator, or every path to it, is gone."""


class WaitTimeoutError(Error, TimeoutError):
    """A deadline passed. The message names the tensors and the ranks that are missing, as far as the aggregator knows."""


class JobFailedError(Error):
    """The job failed at every rank.

    Attributes:
        rank: the worker that caused it; None if none did.
    """

    def __init__(self, message: str, rank: Optional[int] = None) -> None:
        super().__init__(message)
        self.rank = rank


class NonFiniteError(Error, ArithmeticError):
    """A gradient holds NaN or infinity; the message names tensor and rank."""


class ForkedError(Error):
    """A session is used in a forked child of the process that opened it."""


class ClosedError(Error):
    """A session is used after it was closed."""
