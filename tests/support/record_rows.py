"""Rows of records from a short notation: when it was sent, which chunks came with how many tokens."""

import dataclasses

from workloads.records import ChunkRecord, RequestRecord


def request_row(index, phase, start_s, arrivals, **changes):
    """A request that ended well with its last chunk; `arrivals` is a list of (time, tokens)."""
    total = sum(n for _, n in arrivals)
    values = {f.name: None for f in dataclasses.fields(RequestRecord)} | {
        "pass_index": 0, "phase": phase, "request_index": index, "rid": f"r{index}", "process": 0, "turn": 0,
        "conversation": index, "intended_start_s": start_s, "start_s": start_s, "headers_s": start_s,
        "first_token_s": arrivals[0][0], "first_answer_s": arrivals[0][0], "last_token_s": arrivals[-1][0],
        "end_s": arrivals[-1][0], "input_tokens_requested": changes.get("input_tokens"),
        "output_tokens_requested": total, "output_tokens": total, "num_chunks": len(arrivals),
        "first_chunk_tokens": arrivals[0][1], "finish_reason": "length", "http_status": 200, "ok": True,
    }  # fmt: skip
    return RequestRecord(**(values | changes))


def chunk_rows(index, phase, arrivals):
    """The chunks of that request."""
    return [
        ChunkRecord(pass_index=0, phase=phase, request_index=index, chunk_index=i, t_s=t, num_tokens=n)
        for i, (t, n) in enumerate(arrivals)
    ]
