"""How other load generators compute their numbers, applied to one request: why two tools differ on the same run.

Read in their sources (sglang bench_serving 0.5.23, vLLM bench serve, guidellm, aiperf 0.13). Ours is beside them.
"""

import dataclasses
import itertools

from workloads.definitions import spread_gaps_ms, tpot_ms


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OneRequest:
    """One answer: when its chunks came, with how many tokens; seconds."""

    start_s: float
    chunk_times_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...]
    end_s: float

    @property
    def output_tokens(self) -> int:
        """All of its tokens."""
        return sum(self.chunk_tokens)


def ours_tpot_ms(request: OneRequest) -> float | None:
    """Time after the first chunk, over the tokens after the first chunk."""
    return tpot_ms(
        first_token_s=request.chunk_times_s[0],
        last_token_s=request.chunk_times_s[-1],
        output_tokens=request.output_tokens,
        first_chunk_tokens=request.chunk_tokens[0],
    )


def sglang_tpot_ms(request: OneRequest) -> float:
    """(latency - TTFT) / (output - 1); the latency ends with the last line received."""
    return 1000 * (request.end_s - request.chunk_times_s[0]) / max(1, request.output_tokens - 1)


def sglang_itl_ms(request: OneRequest) -> list[float]:
    """Each gap spread over its tokens (its native route)."""
    return spread_gaps_ms(request.chunk_times_s, request.chunk_tokens)


def vllm_itl_ms(request: OneRequest) -> list[float]:
    """The gaps between chunks, one value a chunk: our chunk gap."""
    return [1000 * (after - before) for before, after in itertools.pairwise(request.chunk_times_s)]


def guidellm_tpot_ms(request: OneRequest) -> float:
    """The whole latency, first token included, over all tokens."""
    return 1000 * (request.chunk_times_s[-1] - request.start_s) / request.output_tokens


def aiperf_itl_ms(request: OneRequest) -> float:
    """(latency - TTFT) / (output - 1), one value a request."""
    return 1000 * (request.chunk_times_s[-1] - request.chunk_times_s[0]) / max(1, request.output_tokens - 1)
