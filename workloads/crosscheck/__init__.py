"""The same cell measured by another project's load generator: both numbers, side by side."""

from workloads.crosscheck.compare import crosscheck
from workloads.crosscheck.peers import PEERS, NotInstalledError, Peer, PeerNumbers

__all__ = ["PEERS", "NotInstalledError", "Peer", "PeerNumbers", "crosscheck"]
