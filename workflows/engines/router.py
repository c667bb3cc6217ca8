"""The router's command: the real `sglang-router`, in its Rust form or as mini-lb.

Knows nothing of rows. The Rust router asks for each worker again at growing distances, up to five seconds, so it is
started once they are ready; mini-lb asks for none and starts beside them. Every router gets its own Prometheus port,
since the default one is taken by the first router of a machine; retries and the circuit breaker are off, so that a
failed request is seen and not hidden.
"""

from collections.abc import Sequence
from typing import Literal

from workflows.plan import ProcessPlan, Ready


def router_process(
    kind: Literal["mini_lb", "rust"],
    prefill: Sequence[str],
    decode: Sequence[str],
    *,
    has_bootstrap_ports: bool = False,
) -> ProcessPlan:
    """The router before the named instances. The bootstrap port of a prefill instance is its API's port, or one of its
    own, `NAME_bootstrap`."""
    end = "_bootstrap" if has_bootstrap_ports else ""
    command = ["{python}", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
    if kind == "mini_lb":
        command.append("--mini-lb")
    else:
        command += ["--policy", "round_robin", "--disable-circuit-breaker", "--disable-retries"]
    for name in prefill:
        command += ["--prefill", f"http://127.0.0.1:{{port:{name}}}", f"{{port:{name}{end}}}"]
    for name in decode:
        command += ["--decode", f"http://127.0.0.1:{{port:{name}}}"]
    command += ["--host", "127.0.0.1", "--port", "{port:router}"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", "{port:router_metrics}"]
    ready = (
        Ready(path="/readiness", healthy_workers=len(prefill) + len(decode))
        if kind == "rust"
        else Ready(path="/health")
    )
    return ProcessPlan(
        name="router",
        role="router",
        command=tuple(command),
        ports=("router", "router_metrics"),
        ready=ready,
        after=(*prefill, *decode) if kind == "rust" else (),
    )
