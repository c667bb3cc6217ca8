"""What runs under compute-sanitizer, the most valuable first: an implementation under a tool is a unit.

Accesses of our own kernels come first, then races and barriers of the CUDA sources whose threads exchange values in
shared memory, then accesses of what libraries bring. The boundary's kernels come last of each tool: their blocks wait
for each other, and where the tool's extra registers keep some from being resident they wait until their time is up.
"""

from dataclasses import dataclass

from tools.gpu.micro.checks import calls_library, checks

SHARING = (
    "index_select", "kda_chunk", "kda_commit", "kda_decode", "kda_verify", "mhc_boundary", "moe", "sample",
    "sparse_mla",
)  # fmt: skip
"""Ops with a CUDA source whose threads exchange values in shared memory."""

ELECTING = {("kda_verify", "cuda_stream_roles"), ("moe", "cuda_grouped")}
"""Implementations in which one lane arrives at a barrier for its warp (`stack/kernels/roles.cuh`)."""
EVERY_LANE = "EVERY_LANE_ARRIVES=1"

WAITING = ("mhc_boundary",)
"""Ops whose blocks wait for each other."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One process under the sanitizer."""

    tool: str
    op: str
    impl: str
    define: str = ""
    """Of its CUDA source, where it is built in another way for the tool."""

    @property
    def name(self) -> str:
        """Of its log."""
        return f"{self.tool}.{self.op}.{self.impl}"


def units(*, follows_election: bool = True) -> list[Unit]:
    """All of them, in order. Where the race checker does not follow one lane's arrival for its warp, it gets kernels in
    which every lane arrives."""
    pairs = list(dict.fromkeys((check.op, impl) for check in checks() for impl in check.impls))
    own = sorted((pair for pair in pairs if not calls_library(*pair)), key=lambda pair: pair[0] in WAITING)
    sharing = [pair for pair in own if shares_memory(*pair)]
    tools = (("memcheck", own), ("racecheck", sharing), ("synccheck", sharing))
    chosen = [
        Unit(tool, *pair, EVERY_LANE if not follows_election and tool == "racecheck" and pair in ELECTING else "")
        for tool, some in tools
        for pair in some
    ]
    return chosen + [Unit("memcheck", *pair) for pair in pairs if calls_library(*pair)]


def shares_memory(op: str, impl: str) -> bool:
    """Whether its CUDA source is looked at for races; a `_fast` form is the same source."""
    is_cuda = impl.startswith(("cuda_", "paged")) and not impl.endswith("_fast")
    return op in SHARING and (is_cuda or (op, impl) == ("moe", "triton_grouped"))
