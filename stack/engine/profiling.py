"""A trace of the next few steps on request, in the format that chrome://tracing and Perfetto read."""

import os
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


class StepProfiler:
    """At most one trace at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._profile: profile | None = None
        self._folder = Path()
        self._steps_left = 0
        self.call = 0
        """The request for the trace under way."""

    @property
    def is_running(self) -> bool:
        """Whether a trace is under way."""
        return self._profile is not None

    def start(self, call: int, folder: Path, num_steps: int) -> None:
        """Begin. The folder is made when it does not exist; raises OSError when it cannot be."""
        folder.mkdir(parents=True, exist_ok=True)
        self.call, self._folder, self._steps_left = call, folder, num_steps
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])
        self._profile = profile(
            activities=activities, experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        )
        self._profile.start()

    def step(self) -> bool:
        """Count a step; True when it was the last."""
        self._steps_left -= 1
        return self._profile is not None and self._steps_left <= 0

    def stop(self) -> Path:
        """End the trace under way and write it; the file."""
        assert self._profile is not None
        running, self._profile = self._profile, None
        running.stop()
        path = self._folder / f"trace-{os.getpid()}-{time.time_ns() // 1_000_000}.json.gz"
        running.export_chrome_trace(str(path))
        return path
