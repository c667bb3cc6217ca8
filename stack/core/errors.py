"""What can go wrong, by who can mend it. Each message is one sentence that names the way out."""


class EngineError(Exception):
    """Base of every error that the engine raises on purpose."""


class ConfigError(EngineError):
    """A setting that the user can fix; the message says what to write instead."""


class CapacityError(EngineError):
    """The budget cannot hold what was asked for; the message carries the largest feasible numbers."""


class MissingImplementationError(EngineError):
    """A named kernel implementation cannot run here; the message says why."""


class RequestError(EngineError):
    """A request that the engine refuses. `status` is the HTTP status it maps to."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class TransferError(EngineError):
    """A peer or a transfer failed; the request ends with an error and its memory returns."""
