"""What a user of the harness can mend. Each message is one sentence that names the way out."""


class WorkflowError(Exception):
    """Base of every error that the harness raises on purpose."""


class CatalogError(WorkflowError):
    """A row, testbed or setting that cannot be meant; the message begins with file and line."""


class NotApplicableError(WorkflowError):
    """A row that an engine or a testbed cannot express, with the reason. It is reported, never replaced."""


class SessionError(WorkflowError):
    """A session that could not be carried out; `kind` is the machine-readable reason."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
