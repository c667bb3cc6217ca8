"""Which devices an implementation serves. Knows no op."""


def cuda_only(device: str) -> str | None:
    """Why a GPU implementation cannot run on `device` ("cpu" or "cuda"), or None."""
    if device != "cuda":
        return "it is a GPU kernel"
    import torch

    return None if torch.cuda.is_available() else "no CUDA device is visible"


def hopper_only(device: str) -> str | None:
    """The same for kernels that need Hopper's own instructions."""
    reason = cuda_only(device)
    if reason:
        return reason
    import torch

    major, minor = torch.cuda.get_device_capability()
    return None if (major, minor) == (9, 0) else f"it is for compute capability 9.0, not {major}.{minor}"


def package_missing(name: str) -> str | None:
    """Why the package `name` cannot be used, or None when it imports."""
    import importlib

    try:
        importlib.import_module(name)
    except ImportError as error:
        return f"it needs the package {name}: {error}"
    except (OSError, RuntimeError) as error:
        return f"the package {name} does not load here: {error}"
    return None
