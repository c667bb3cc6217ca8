"""Our own engine: one `python -m stack.server CONFIG.json` for each instance.

Knows the configuration tree and the command line, nothing of the engine's inside. The configuration that a plan holds
is the whole tree, so that a default that changes later does not change what a plan means.
"""

from typing import Any, Literal

from stack.config import EngineConfig, to_dict, with_settings
from stack.core.errors import ConfigError
from workflows.errors import NotApplicableError
from workflows.plan import ProcessPlan, Ready

ModelFacts = dict[str, Any]


def instance(
    name: str,
    role: Literal["prefill", "decode", "single"],
    settings: dict[str, Any],
    gpus: tuple[int, ...] = (),
) -> ProcessPlan:
    """One instance with these dotted settings. Raises NotApplicableError when they contradict each other."""
    try:
        config = with_settings(EngineConfig(), {"role": role, **settings})
    except ConfigError as error:
        raise NotApplicableError(f"{name}: {error}") from None
    tree = to_dict(config)
    return ProcessPlan(
        name=name,
        role=role,
        command=(
            "{python}", "-m", "stack.server", f"{{dir}}/{name}.json",
            "--set", f"server.port={{port:{name}}}",
            "--set", f"server.engine_log={{dir}}/engine_{name}.jsonl",
        ),
        env={"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {},
        ports=(name,),
        files={f"{name}.json": tree},
        ready=Ready(path="/health"),
        gpus=gpus,
    )  # fmt: skip


def colocated_settings(halves: dict[str, dict[str, Any]], *, measures: Literal["prefill", "decode"]) -> dict[str, Any]:
    """Both halves' settings for one instance: those of the half that is measured come first.

    Where decode is measured, the prompt side still comes from prefill, which has to keep states.
    """
    prefill, decode = halves["prefill"], halves["decode"]
    if measures == "prefill":
        return {**decode, **prefill}
    prompt_side = ("cache.prefix", "scheduler.chunk_tokens", "scheduler.max_prefill_tokens", "scheduler.overlap")
    return {**prefill, **decode, **{path: prefill[path] for path in prompt_side if path in prefill}}
