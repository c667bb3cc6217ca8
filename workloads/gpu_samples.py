"""Clocks, power, throttle reasons, memory and foreign processes of the GPUs, about once a second, as JSON lines.

    python -m workloads.gpu_samples --out gpu.jsonl [--own PID ...] [--gpu INDEX_OR_UUID ...]

Runs until it is told to stop, and only where nvidia-ml-py and a driver exist: elsewhere it says so and exits with 4. A
sample that a GPU does not offer is null. Knows nothing of workloads.
"""

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import orjson
import psutil

PERIOD_S = 1.0
_REASONS = {
    0x1: "idle", 0x2: "application_clocks", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "hw_power_brake", 0x100: "display_clocks",
}  # fmt: skip
HARMLESS_REASONS = frozenset({"idle", "application_clocks", "sync_boost", "display_clocks"})
POWER_CAP = "sw_power_cap"


class Gpus(Protocol):
    """What is sampled; tests give a recorded trace."""

    def sample(self) -> Iterable[dict[str, Any]]:
        """One dict a GPU: its clocks (MHz), power (W), memory (bytes), throttle reasons and processes."""
        ...


class NvmlGpus:
    """GPUs that the driver shows: those named by index or UUID, or all."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        """Raises RuntimeError where there is no driver, or no GPU of a name."""
        import pynvml

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise RuntimeError(f"no GPU driver: {error}") from error
        self._handles = {}
        for name in names or map(str, range(pynvml.nvmlDeviceGetCount())):
            try:
                by_index = name.isdecimal()
                find = pynvml.nvmlDeviceGetHandleByIndex if by_index else pynvml.nvmlDeviceGetHandleByUUID
                handle = find(int(name) if by_index else name)
                self._handles[pynvml.nvmlDeviceGetIndex(handle)] = handle
            except pynvml.NVMLError as error:
                raise RuntimeError(f"no GPU {name}: {error}") from error

    def sample(self) -> Iterable[dict[str, Any]]:
        """Ask each of them."""
        nvml, ask = self._nvml, self._ask
        for index, handle in self._handles.items():
            bits = ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
            power = ask(nvml.nvmlDeviceGetPowerUsage, handle)
            memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
            processes = ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
            yield {
                "gpu": index,
                "sm_clock_mhz": ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
                "memory_clock_mhz": ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
                "power_w": None if power is None else power / 1000,
                "temperature_c": ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
                "memory_used_bytes": None if memory is None else int(memory.used),
                "reasons": None if bits is None else reasons_of(bits),
                "pids": None if processes is None else [p.pid for p in processes],
            }

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None


def reasons_of(bits: int) -> list[str]:
    """Names of the throttle reasons in a driver's bit set."""
    return [name for bit, name in _REASONS.items() if bits & bit]


def foreign(pids: Sequence[int] | None, own: Sequence[int]) -> list[int] | None:
    """Processes on a GPU that are neither ours nor our descendants."""
    if pids is None:
        return None
    family = set(own)
    for pid in own:
        try:
            family |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
        except psutil.NoSuchProcess:
            continue
    return [pid for pid in pids if pid not in family]


def record(gpus: Gpus, out: Path, own: Sequence[int], stop: threading.Event, period_s: float = PERIOD_S) -> int:
    """Append samples to `out` until `stop` is set; returns how many."""
    count = 0
    with out.open("ab") as file:
        while True:
            for sample in gpus.sample():
                sample = sample | {"t_unix_s": time.time(), "foreign_pids": foreign(sample["pids"], own)}
                file.write(orjson.dumps(sample) + b"\n")
                count += 1
            file.flush()
            if stop.wait(period_s):
                return count


def read_gpu_samples(path: Path) -> list[dict[str, Any]]:
    """The samples; a last line cut short is left out."""
    samples = []
    for line in path.read_bytes().splitlines():
        try:
            samples.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            break
    return samples


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m workloads.gpu_samples", description="Sample the GPUs until stopped."
    )
    parser.add_argument("--out", type=Path, required=True, help="file to append JSON lines to")
    parser.add_argument("--own", type=int, action="append", default=[], help="process that may use the GPUs; repeat")
    parser.add_argument("--gpu", action="append", default=[], help="index or UUID of one to sample; repeat (all)")
    options = parser.parse_args(arguments)
    try:
        gpus = NvmlGpus(options.gpu)
    except (ImportError, RuntimeError) as error:
        sys.stderr.write(f"no GPU samples: {error}\n")
        return 4
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    record(gpus, options.out, options.own, stop)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
