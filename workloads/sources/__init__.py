"""One module for each kind of traffic; `source_for` gives the one that a workload names."""

from workloads.sources.chat import ChatTraffic
from workloads.sources.gsm8k import Gsm8kTraffic
from workloads.sources.mini_gsm import MiniGsmTraffic, RetrievalTraffic
from workloads.sources.natural_text import NaturalTextTraffic
from workloads.sources.random import RandomTraffic
from workloads.sources.shared_prefix import SharedPrefixTraffic
from workloads.sources.trace import TraceTraffic
from workloads.spec import Workload
from workloads.traffic import Source

_KINDS = {
    "random": RandomTraffic,
    "shared_prefix": SharedPrefixTraffic,
    "natural_text": NaturalTextTraffic,
    "chat": ChatTraffic,
    "trace": TraceTraffic,
    "gsm8k": Gsm8kTraffic,
    "mini_gsm": MiniGsmTraffic,
    "retrieval": RetrievalTraffic,
}


def source_for(workload: Workload) -> Source:
    """The traffic of the workload. Raises SpecError when a file it needs is absent or another."""
    return _KINDS[workload.source.kind](workload.source)


__all__ = ["source_for"]
