"""fla's chunked KDA in Triton, launch choices pinned; the state runs through each sequence serially."""

from torch import Tensor

from stack.kernels.devices import hopper_only, package_missing
from stack.kernels.kda_chunk.fla_configs import chunk_kda_fwd
from stack.kernels.kda_chunk.segments import CHUNK, begin_pass, entering_states


def missing(device: str) -> str | None:
    """Needs Hopper and fla-core."""
    return hopper_only(device) or package_missing("fla.ops.kda")


def kda_chunk(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    f_THD: Tensor,
    b_TH: Tensor,
    A_log_H: Tensor,
    dt_bias_HD: Tensor,
    state_SHKV: Tensor,
    slot_R: Tensor,
    start_R1: Tensor,
    has_state_R: Tensor,
    *,
    lower_bound: float,
    extend_lens: tuple[int, ...],
) -> Tensor:
    """See the op's contract. Requests with rows come first in `slot_R`."""
    cut, o_THD = begin_pass(v_THD, extend_lens)
    if not cut.rows:
        return o_THD
    real = slice(0, cut.rows)
    slots, state = entering_states(state_SHKV, slot_R, has_state_R, cut)
    o, final, *_ = chunk_kda_fwd()(
        q=q_THD[None, real], k=k_THD[None, real], v=v_THD[None, real], g=f_THD[None, real].contiguous(),
        beta=b_TH[None, real].float().sigmoid(), scale=1.0, initial_state=state, output_final_state=True,
        cu_seqlens=cut.cu_seqlens, chunk_indices=cut.chunk_indices, chunk_size=CHUNK, safe_gate=True,
        lower_bound=lower_bound, use_gate_in_kernel=True, A_log=A_log_H, dt_bias=dt_bias_HD,
    )  # fmt: skip
    o_THD[real] = o[0]
    state_SHKV[slots] = final.to(state_SHKV.dtype)
    return o_THD
