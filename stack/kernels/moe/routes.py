"""Which experts rows chose: recorded from running layers, drawn from a rule, kept in one file.

A tuner needs routes as they are, uneven; a uniform router picks the wrong tile. Recording copies to the host in the
middle of a forward, so a recording run measures nothing. Routes are split by request, never by step: neighbouring steps
of one request choose nearly the same experts.

T rows, K choices, E experts, R recorded rows of one layer.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stack.core.errors import ConfigError
from stack.core.forward import ForwardContext

SCHEMA = "moe_routes/1"


@dataclass(frozen=True, slots=True)
class LayerRoutes:
    """Rows of one layer in the order they ran: expert ids int16 [R, K] and the request each row belongs to, [R]."""

    ids_RK: Tensor
    request_R: Tensor


@dataclass(slots=True)
class RouteRecorder:
    """Keeps what the routers of a model choose in decode and verify steps, until `most_steps` were kept.

    `every`: one step in so many is kept, so that moments lie apart.
    """

    num_experts: int
    most_steps: int
    every: int = 1
    layers: dict[int, list[LayerRoutes]] = field(default_factory=dict)
    num_steps: int = 0
    _seen: int = 0
    _request_T: Tensor | None = None

    def begin(self, ctx: ForwardContext) -> None:
        """A forward begins; only steps of decode and verify are kept."""
        self._request_T = None
        if ctx.kind == "prefill" or self.num_steps >= self.most_steps:
            return
        self._seen += 1
        if (self._seen - 1) % self.every == 0:
            self.num_steps += 1
            self._request_T = ctx.slot_R.index_select(0, ctx.request_T).cpu()

    def record(self, layer: int, ids_TK: Tensor) -> None:
        """What layer `layer` chose for the rows of this forward."""
        if self._request_T is None:
            return
        real_T = self._request_T > 0
        kept = LayerRoutes(ids_TK.cpu()[real_T].to(torch.int16), self._request_T[real_T])
        self.layers.setdefault(layer, []).append(kept)

    def save(self, path: Path, notes: dict[str, str]) -> None:
        """Write what was kept. Raises ConfigError when that is nothing."""
        if not self.layers:
            raise ConfigError("no decode step was recorded, so there are no routes to write")
        parts = {
            number: LayerRoutes(torch.cat([p.ids_RK for p in kept]), torch.cat([p.request_R for p in kept]))
            for number, kept in self.layers.items()
        }
        write_routes(path, parts, self.num_experts, {**notes, "num_steps": str(self.num_steps)})


@dataclass(frozen=True, slots=True)
class Routes:
    """A file of routes."""

    layers: dict[int, LayerRoutes]
    num_experts: int
    notes: dict[str, str]

    def split(self, held_out: float = 0.25) -> "tuple[Routes, Routes]":
        """Routes to tune on, and others of other requests to confirm with. Raises ConfigError for one request alone."""
        requests = torch.unique(torch.cat([layer.request_R for layer in self.layers.values()]))
        if len(requests) < 2:
            raise ConfigError("routes of at least two requests are needed: one part of them confirms the other's tiles")
        num_held = max(1, round(held_out * len(requests)))
        order = requests[torch.randperm(len(requests), generator=torch.Generator().manual_seed(len(requests)))]
        return self._of(order[num_held:]), self._of(order[:num_held])

    def batches(self, num_rows: int, count: int) -> list[Tensor]:
        """`count` routes int32 [T, K] of `num_rows` rows, over layers and moments in turn; short recordings repeat."""
        numbers = sorted(self.layers)
        batches = []
        for index in range(count):
            rows_RK = self.layers[numbers[index * len(numbers) // count]].ids_RK
            start = index * 7919 * num_rows % len(rows_RK)
            wrapped = (torch.arange(num_rows) + start) % len(rows_RK)
            batches.append(rows_RK[wrapped].to(torch.int32))
        return batches

    def _of(self, requests: Tensor) -> "Routes":
        chosen = {number: torch.isin(layer.request_R, requests) for number, layer in self.layers.items()}
        layers = {
            number: LayerRoutes(layer.ids_RK[chosen[number]], layer.request_R[chosen[number]])
            for number, layer in self.layers.items()
            if bool(chosen[number].any())
        }
        return Routes(layers, self.num_experts, self.notes)


def write_routes(path: Path, layers: dict[int, LayerRoutes], num_experts: int, notes: dict[str, str]) -> None:
    """One safetensors file: two tensors a layer, and what they are in its header."""
    tensors = {f"layer{n}.ids": layer.ids_RK.contiguous() for n, layer in layers.items()}
    tensors |= {f"layer{n}.request": layer.request_R.to(torch.int32).contiguous() for n, layer in layers.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(path), {"schema": SCHEMA, "num_experts": str(num_experts), "notes": json.dumps(notes)})


def read_routes(path: Path) -> Routes:
    """A file of `write_routes`. Raises ConfigError for anything else."""
    try:
        with safe_open(str(path), "pt") as opened:
            header = opened.metadata() or {}
            if header.get("schema") != SCHEMA:
                raise ConfigError(f"{path} holds no routes of this version ({SCHEMA})")
            numbers = sorted({int(name.split(".")[0].removeprefix("layer")) for name in opened.keys()})  # noqa: SIM118
            layers = {
                n: LayerRoutes(opened.get_tensor(f"layer{n}.ids"), opened.get_tensor(f"layer{n}.request"))
                for n in numbers
            }
    except (FileNotFoundError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read as routes: {error}") from None
    return Routes(layers, int(header["num_experts"]), json.loads(header["notes"]))


def drawn_routes(kind: str, num_experts: int, choices: int, *, num_requests: int = 256, num_rows: int = 64) -> Routes:
    """Synthetic routes of two layers: `balanced`, or `power:S`, where expert number n is chosen as often as n ** -S.

    Rows choose `choices` different experts. Raises ConfigError for another rule.
    """
    name, _, exponent = kind.partition(":")
    try:
        skew = {"balanced": lambda: 0.0, "power": lambda: float(exponent)}[name]()
    except (KeyError, ValueError):
        raise ConfigError(f"synthetic routes are balanced or power:EXPONENT, not {kind!r}") from None
    draw = torch.Generator().manual_seed(1)
    layers = {}
    for layer in range(2):
        order = torch.randperm(num_experts, generator=draw)
        weight_E = torch.empty(num_experts, dtype=torch.float64)
        weight_E[order] = torch.arange(1, num_experts + 1, dtype=torch.float64) ** -skew
        ids = torch.multinomial(weight_E.expand(num_requests * num_rows, -1), choices, generator=draw)
        layers[layer] = LayerRoutes(ids.to(torch.int16), torch.arange(num_requests).repeat(num_rows) + 1)
    return Routes(layers, num_experts, {"source": kind})
