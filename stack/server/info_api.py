"""What an instance says about itself: health, model, configuration, load and metrics."""

import json
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from stack.config import to_dict
from stack.core import messages
from stack.core.errors import RequestError
from stack.server.bodies import SamplingBody
from stack.server.instance import Instance
from stack.server.intake import Task
from stack.server.link import LinkError
from stack.server.requests import instance_of
from stack.server.responses import json_response, wait_for_all

_STATS_TIMEOUT_S = 10.0


async def health(request: Request) -> Response:
    """200 while requests are taken, else 503."""
    instance_of(request).check_serving()
    return Response()


async def health_generate(request: Request) -> Response:
    """200 after a token was made: just now, or for this call. One half of a pair answers for its worker's loop."""
    instance = instance_of(request)
    instance.check_serving()
    if instance.metrics.is_active:
        return Response()
    if instance.config.role != "single":
        await _stats(instance)
        return Response()
    sampling = SamplingBody(max_new_tokens=1, temperature=0.0, ignore_eos=True)
    task = Task(rid="health", prompt=[0], sampling=sampling, default_max_tokens=1, bootstrap=None)
    await wait_for_all(await instance.submit([task]), request, instance)
    return Response()


async def models(request: Request) -> Response:
    """GET /v1/models: the one model."""
    instance = instance_of(request)
    name = instance.config.model.served_name
    entry = {
        "id": name,
        "object": "model",
        "created": int(instance.started_s),
        "owned_by": "np1d",
        "root": name,
        "parent": None,
        "max_model_len": instance.ready.max_context if instance.ready else instance.geometry.max_context,
    }
    return json_response({"object": "list", "data": [entry]})


async def model_info(request: Request) -> Response:
    """GET /model_info: where the model and its tokenizer lie, and what it is."""
    instance = instance_of(request)
    model_type, architectures = _model_names(instance.config.model.path)
    info = _names(instance) | {
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "model_type": model_type,
        "architectures": architectures,
        "has_image_understanding": False,
        "has_audio_understanding": False,
    }
    return json_response(info)


async def server_info(request: Request) -> Response:
    """GET /server_info: configuration, plan, and the running means. Asks no other process, so it answers at once."""
    instance = instance_of(request)
    ready, metrics = instance.ready, instance.metrics
    state: dict[str, Any] = {"last_gen_throughput": metrics.throughput, "num_running": len(instance.generations)}
    if metrics.accept_length is not None:
        state["avg_spec_accept_length"] = metrics.accept_length
        state["num_verify"] = metrics.num_verify
        state["num_accepted_drafts"] = metrics.num_accepted_drafts
    info = _names(instance) | {
        "status": instance.phase,
        "tp_size": 1,
        "dp_size": 1,
        "version": _version(),
        "max_total_num_tokens": ready.max_total_tokens if ready else None,
        "max_running_requests": ready.max_running if ready else None,
        "context_length": ready.max_context if ready else None,
        "plan": ready.plan if ready else None,
        "impls": ready.impls if ready else None,
        "config": to_dict(instance.config),
        "internal_states": [state],
    }
    return json_response(info)


async def load(request: Request) -> Response:
    """GET /get_load: requests and tokens held, one object as there is one rank."""
    instance = instance_of(request)
    instance.check_serving()
    stats = await _stats(instance)
    waiting = int(stats.get("waiting", 0))
    num_tokens = sum(g.num_prompt_tokens + len(g.token_ids) for g in instance.generations.values())
    entry = {"dp_rank": 0, "num_reqs": len(instance.generations), "num_waiting_reqs": waiting}
    return json_response([entry | {"num_tokens": num_tokens, "ts_tic": time.monotonic()}])


async def metrics(request: Request) -> Response:
    """GET /metrics: the Prometheus page; without the worker's part while it loads."""
    instance = instance_of(request)
    stats = await _stats(instance) if instance.phase in ("serving", "draining") else {}
    return PlainTextResponse(instance.metrics.page(stats), media_type="text/plain; version=0.0.4")


async def _stats(instance: Instance) -> dict[str, float]:
    try:
        answer = await instance.link.call(lambda call: messages.GetStats(call=call), _STATS_TIMEOUT_S)
    except LinkError as error:
        raise RequestError(str(error), status=503) from None
    stats: dict[str, float] = answer.values
    return stats


def _names(instance: Instance) -> dict[str, Any]:
    config = instance.config
    path = str(Path(config.model.path).resolve())
    return {
        "model_path": path,
        "tokenizer_path": path if instance.tokenizer else None,
        "served_model_name": config.model.served_name,
        "disaggregation_mode": {"single": "null"}.get(config.role, config.role),
    }


@cache
def _model_names(path: str) -> tuple[str, list[str]]:
    config = json.loads((Path(path) / "config.json").read_bytes())
    return config.get("model_type", ""), config.get("architectures") or []


def _version() -> str:
    try:
        return version("np1d")
    except PackageNotFoundError:  # run from a checkout
        return "unreleased"
