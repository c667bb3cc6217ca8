"""The one tree of knobs. Every ablation is a dotted path in it, such as `cache.kv_dtype`.

Knows nothing of what reads it. A tree is frozen; `with_settings` makes the changed copy and refuses a typo by naming
the nearest path. Sizes are bytes, durations seconds, unless the name says otherwise.
"""

import dataclasses
import difflib
import json
import math
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Union

from stack.core.errors import ConfigError

Dtype = Literal["float32", "bfloat16", "fp8_e4m3"]


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which weights, on which device, in which arithmetic."""

    path: str = ""
    """Checkpoint folder: config.json, safetensors, tokenizer. With `weights: random` only config.json is needed."""
    weights: Literal["checkpoint", "random"] = "checkpoint"
    """`random` draws weights on the device by fixed rules; every result then says so."""
    random_seed: int = 0
    """Seed of `weights: random`."""
    num_layers: int | None = None
    """Keep only the first layers: a truncated model for transfer tests, named as such. None keeps all."""
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Activations and unquantised weights. float32 with fixed row tiles makes greedy tokens bit-identical."""
    device: str = "cpu"
    """`cpu`, `cuda` or `cuda:N`."""
    served_name: str = "llm"
    """The model name that the API reports."""
    num_threads: int = 1
    """Torch threads of the worker process on the CPU."""

    def __post_init__(self) -> None:
        _check(self.num_threads >= 1, f"model.num_threads must be at least 1, not {self.num_threads}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Memory for attention pages and recurrent states, and who may reuse it."""

    all_layers: bool = False
    """With `model.num_layers`: pages and slots still hold every layer of the checkpoint, so that they travel at their
    full size while a truncated model computes. For measuring transfers alone; what comes out is noise."""
    page_size: int = 64
    """Tokens per KV page. A power of two: page arithmetic is shifts. 256 on GPUs, where paged logits need it."""
    kv_dtype: Dtype = "bfloat16"
    """Latent rows: 2,048, 1,024 or 512 bytes a token and layer; FP8 is raw E4M3, saturated at 448, without scales."""
    index_dtype: Dtype = "fp8_e4m3"
    """Pooled index keys: FP8 rows carry one FP32 power-of-two scale (132 bytes per `index_kpool` tokens)."""
    index_layout: Literal["pooled", "per_token"] = "pooled"
    """`per_token`: a page has room for one index row a token, as the published baseline's; our pooled keys fill one in
    `index_kpool`, and the rest is held empty. Both ends of a transfer need the same."""
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    """Recurrent states in their slots; arithmetic is FP32 either way."""
    conv_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Convolution windows in their slots."""
    prefix: Literal["none", "hybrid_radix", "kv_radix"] = "none"
    """Prefix cache: pages and states (prefill, single), or pages alone (decode)."""
    budget_bytes: int | None = None
    """Bytes for pages, slots, rings and workspaces together. None: on a GPU `mem_fraction` of what is free, less
    weights, graphs and activations; on the CPU, whose memory processes share, 256 MiB."""
    mem_fraction: float = 0.85
    """Share of the device's memory that weights, caches and workspaces may take."""
    pool_split: Literal["solved", "auto"] = "solved"
    """`solved` balances pages and slots for the expected load; `auto` is a fixed share, the report's starting point."""
    auto_state_share: float = 0.5
    """With `pool_split: auto`, the share of the budget that goes to state slots."""
    slots_per_request: int = 1
    """State slots a running request holds (the published engine: 3, one live and two tracking)."""
    draft_kv: Literal["ring", "full"] = "ring"
    """DFlash2 context rows: a ring of the draft's window for each slot, or rows for every token in the pages."""
    replay_ring: Literal["per_running", "per_slot"] = "per_running"
    """Replay inputs for running requests alone, or for every slot as the published engine."""
    expected_context: int = 4096
    """Prompt length that the solver plans for, tokens."""
    expected_output: int = 256
    """Output length that the solver plans for, tokens."""
    expected_shared: int = 0
    """Prompt tokens that the planned requests have in common (counted once with a radix cache)."""
    snapshot_slots: int | None = None
    """Slots that `hybrid_radix` may fill with state snapshots. None: a quarter of all."""
    swap_bytes: int = 256 * 2**20
    """Pinned host memory for requests that had to give way on decode."""

    def __post_init__(self) -> None:
        _check(
            self.page_size >= 1 and not self.page_size & (self.page_size - 1),
            f"cache.page_size must be a power of two, not {self.page_size}",
        )
        _check(0.0 < self.mem_fraction <= 1.0, f"cache.mem_fraction must lie in (0, 1], not {self.mem_fraction}")
        _check(self.slots_per_request >= 1, "cache.slots_per_request must be at least 1")
        _check(0.0 < self.auto_state_share < 1.0, "cache.auto_state_share must lie between 0 and 1")
        for name, least in {"expected_context": 1, "expected_output": 1, "expected_shared": 0, "swap_bytes": 0}.items():
            _check(getattr(self, name) >= least, f"cache.{name} must be at least {least}, not {getattr(self, name)}")
        _check(
            self.snapshot_slots is None or self.snapshot_slots >= 0,
            f"cache.snapshot_slots must be at least 0, or null, not {self.snapshot_slots}",
        )
        _check(
            self.budget_bytes is None or self.budget_bytes > 0,
            f"cache.budget_bytes must be more than 0, or null, not {self.budget_bytes}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Who runs in the next step."""

    max_running: int | None = None
    """Upper bound of running requests. None: what the memory solver finds, which is what capacity rows use."""
    chunk_tokens: int = 8192
    """Most prompt tokens of one prefill step."""
    max_prefill_tokens: int = 16384
    """Most tokens that one prefill forward may hold, all requests together."""
    extra_inflight: int = 6
    """Decode: requests beyond the running limit that may hold pages and a slot while their cache arrives."""
    polling_interval: int = 1
    """Decode: steps between two looks at arriving transfers."""
    max_queued: int = 4096
    """Requests that may wait; the next one is answered 503 with a Retry-After."""
    overlap: bool = True
    """Plan and launch step n + 1 while the device runs step n."""
    war_barrier: Literal["early", "deferred"] = "deferred"
    """When the host waits until a launched forward has read its shared inputs: at once, or after other work."""
    request_deadline_s: float = 3600.0
    """A request older than this is ended with an error."""
    reserve_output_tokens: int = 64
    """Output tokens whose pages a request must find free when it is admitted."""

    def __post_init__(self) -> None:
        _check(self.chunk_tokens >= 1, "scheduler.chunk_tokens must be at least 1")
        _check(
            self.max_prefill_tokens >= self.chunk_tokens,
            f"scheduler.max_prefill_tokens ({self.max_prefill_tokens}) must not be below "
            f"scheduler.chunk_tokens ({self.chunk_tokens})",
        )
        _check(self.max_running is None or self.max_running >= 1, "scheduler.max_running must be at least 1, or null")
        _check(self.polling_interval >= 1, "scheduler.polling_interval must be at least 1")
        _check(
            self.request_deadline_s > 0,
            f"scheduler.request_deadline_s must be more than 0 seconds, not {self.request_deadline_s}",
        )
        for name in ("extra_inflight", "max_queued", "reserve_output_tokens"):
            _check(getattr(self, name) >= 0, f"scheduler.{name} must not be negative, as {getattr(self, name)} is")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """How decode guesses ahead, and how it takes a wrong guess back."""

    method: Literal["off", "mtp", "dflash2"] = "off"
    """`mtp`: a chain of the model's own NextN layer; `dflash2`: one block of a draft model."""
    draft_path: str = ""
    """Folder of the DFlash2 draft; unused by `mtp`."""
    num_steps: int = 7
    """Drafted tokens of one MTP chain (MTP516: 5, MTP718: 7)."""
    verify_width: int = 8
    """Rows of one verify: the pending token and the drafts (MTP516: 6, MTP718 and DFlash2: 8)."""
    commit: Literal["replay", "snapshot"] = "replay"
    """Fold the accepted inputs into the state, or keep one state per position and copy the right one."""
    share_index: bool = True
    """MTP: chained steps reuse the index set of the last committed entry."""
    force_accept_length: float | None = None
    """Mean committed tokens per verify, drawn per step instead of compared; for random weights. Always recorded."""

    def __post_init__(self) -> None:
        _check(self.verify_width >= 2, "speculation.verify_width must be at least 2")
        _check(
            self.method != "mtp" or self.verify_width == self.num_steps + 1,
            f"speculation.verify_width must be num_steps + 1 = {self.num_steps + 1} for mtp, not {self.verify_width}",
        )
        forced = self.force_accept_length
        _check(
            forced is None or 1.0 <= forced <= self.verify_width,
            f"speculation.force_accept_length must lie between 1 and verify_width ({self.verify_width})",
        )

    @property
    def width(self) -> int:
        """Rows of a request in one decode step."""
        return 1 if self.method == "off" else self.verify_width


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """Which implementation each op uses. `auto` takes the first that serves the device; what it took is recorded.

    The names an op offers are in `stack.kernels.catalog`; a named one runs, or start-up fails with the reason.
    """

    linear: str = "auto"
    linear_fp8: str = "auto"
    quantize_rows: str = "auto"
    rms_norm: str = "auto"
    mhc_boundary: str = "auto"
    kda_conv: str = "auto"
    kda_chunk: str = "auto"
    kda_decode: str = "auto"
    kda_verify: str = "auto"
    kda_commit: str = "auto"
    gated_norm: str = "auto"
    latent_write: str = "auto"
    index_write: str = "auto"
    index_select: str = "auto"
    sparse_mla: str = "auto"
    router: str = "auto"
    moe: str = "auto"
    swiglu: str = "auto"
    swiglu_quant: str = "auto"
    sample: str = "auto"
    dflash_block: str = "auto"
    kv_tile: Literal[32, 128] = 128
    """Keys per iteration of sparse_mla's triton_partial and tilelang_partial; the others have a tile of their own, 64
    as the instruction has."""
    moe_table: str = ""
    """Table of tuned MoE tiles, by its name in `stack/kernels/moe/configs` or its path; empty uses a built-in rule."""
    moe_routes: str = ""
    """File for the experts that decode steps choose, for `np1d tune moe`; written at the end, and empty for none.
    Recording waits for the device in every layer, so such a run measures nothing."""
    moe_routes_steps: int = 64
    """Steps that `moe_routes` keeps, one in every eight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphConfig:
    """What is captured, on devices that can."""

    decode: bool = True
    """Capture decode, verify, draft and commit for each batch size."""
    decode_batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 88, 96, 104, 112, 116, 120, 128, 132)
    """Batch sizes to capture. Sizes above the running limit are left out, and the limit takes their place; batches
    above the largest size run eagerly."""
    prefill_token_buckets: tuple[int, ...] = ()
    """Token counts of prefill passes to capture; empty runs prefill eagerly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggConfig:
    """How a prefill and a decode instance find and time each other out."""

    bootstrap_timeout_s: float = 30.0
    """Decode: how long to look for the prefill instance of a request. Prefill: how long to wait for decode's word."""
    transfer_timeout_s: float = 60.0
    """Longest wait for a sign of progress: on prefill for a write to end, on decode for prefill's word about a room."""
    abort_ack_timeout_s: float = 10.0
    """How long decode holds an aborted request's pages for prefill's word that no write is under way."""
    heartbeat_interval_s: float = 1.0
    """Time between two signs of life; three missed ones end the peer's requests."""
    backend: Literal["ucx"] = "ucx"
    """NIXL backend."""
    progress_thread: bool = False
    """NIXL's spinning progress thread; off where cores are few."""
    delay_s: float = 0.0
    """Test only: added before each transfer, recorded wherever it is not 0."""

    def __post_init__(self) -> None:
        for name in ("bootstrap_timeout_s", "transfer_timeout_s", "abort_ack_timeout_s"):
            _check(getattr(self, name) > 0, f"disagg.{name} must be more than 0 seconds, not {getattr(self, name)}")
        _check(
            self.heartbeat_interval_s >= 0.05,
            f"disagg.heartbeat_interval_s must be at least 0.05 seconds, not {self.heartbeat_interval_s}: three missed "
            "heartbeats end a peer's requests, and a step of its worker takes longer",
        )
        _check(self.delay_s >= 0, f"disagg.delay_s must not be negative, as {self.delay_s} is")
        _check(
            self.abort_ack_timeout_s >= 4 * self.heartbeat_interval_s,
            f"disagg.abort_ack_timeout_s ({self.abort_ack_timeout_s}) must be at least four times "
            f"disagg.heartbeat_interval_s ({self.heartbeat_interval_s}): writes need a recent heartbeat",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP side of one instance."""

    host: str = "127.0.0.1"
    """Address to listen on; loopback unless told otherwise."""
    port: int = 30000
    """Port to listen on; on prefill also where decode instances register."""
    tokenizer_workers: int = 1
    """Threads that turn text into tokens and back."""
    max_body_bytes: int = 64 * 2**20
    """Largest request body; a larger one is answered 413."""
    worker_timeout_s: float = 20.0
    """Without a sign of life from the worker for so long, /health and new requests get a 503 until it is back."""
    step_timeout_s: float = 120.0
    """The same for one step of the worker that does not end; longer than any step can take."""
    engine_log: str = ""
    """File for one JSON line a step (running, waiting, pages, slots, acceptance); empty writes none."""

    def __post_init__(self) -> None:
        _check(0 <= self.port < 65536, f"server.port must lie between 0 and 65535, not {self.port}")
        for name in ("tokenizer_workers", "max_body_bytes"):
            _check(getattr(self, name) >= 1, f"server.{name} must be at least 1, not {getattr(self, name)}")
        for name in ("worker_timeout_s", "step_timeout_s"):
            _check(getattr(self, name) > 0, f"server.{name} must be more than 0 seconds, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One instance of the engine."""

    role: Literal["single", "prefill", "decode"] = "single"
    """`single` does both; `prefill` and `decode` are the two halves behind a router."""
    synthetic_admission: bool = False
    """Decode alone: fill pages and states with random values instead of a transfer. Recorded in every result."""
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    kernels: KernelConfig = field(default_factory=KernelConfig)
    graphs: GraphConfig = field(default_factory=GraphConfig)
    disagg: DisaggConfig = field(default_factory=DisaggConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    def __post_init__(self) -> None:
        _check(
            self.role != "decode" or self.cache.prefix != "hybrid_radix",
            "cache.prefix: hybrid_radix needs states, which a decode instance does not keep; use kv_radix or none",
        )
        _check(
            not (self.kernels.moe_routes and self.graphs.decode and self.model.device != "cpu"),
            "kernels.moe_routes records in eager steps alone: set graphs.decode to false",
        )
        _check(
            self.role == "decode" or self.cache.prefix != "kv_radix",
            f"cache.prefix: kv_radix keeps no states, so a {self.role} instance could not resume; use hybrid_radix",
        )


def with_settings(config: EngineConfig, settings: dict[str, Any]) -> EngineConfig:
    """The tree with each dotted path set. Raises ConfigError for an unknown path or a value of the wrong type."""
    tree = to_dict(config)
    for path, value in settings.items():
        *parents, leaf = path.split(".")
        node: Any = tree
        for name in parents:
            node = node.get(name) if isinstance(node, dict) else None
        if not isinstance(node, dict) or leaf not in node:
            raise ConfigError(f"unknown setting {path!r}{_nearest(path)}")
        node[leaf] = value
    return from_dict(tree)


def parse_settings(texts: list[str]) -> dict[str, Any]:
    """`PATH=VALUE` arguments of a command line; a value is JSON, or text when it is not. Raises ConfigError."""
    settings: dict[str, Any] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set takes PATH=VALUE, not {text!r}")
        try:
            settings[path] = json.loads(value)
        except json.JSONDecodeError:
            settings[path] = value
    return settings


def setting_paths() -> dict[str, Any]:
    """Every dotted path of the tree with its default."""
    return dict(_leaves(to_dict(EngineConfig()), ""))


def to_dict(config: EngineConfig) -> dict[str, Any]:
    """Plain dicts, lists and scalars, ready for JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return plain


def from_dict(tree: dict[str, Any]) -> EngineConfig:
    """The inverse of `to_dict`; missing fields take their defaults. Raises ConfigError for anything unknown."""
    built: EngineConfig = _build(EngineConfig, tree, "")
    return built


def load(path: Path, settings: dict[str, Any] | None = None) -> EngineConfig:
    """Read a JSON file and apply `settings`. Raises ConfigError with the file named."""
    try:
        tree = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"no configuration file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no readable configuration file: {error}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    return with_settings(from_dict(tree), settings or {})


def _leaves(node: Any, prefix: str) -> list[tuple[str, Any]]:
    if not isinstance(node, dict):
        return [(prefix, node)]
    return [leaf for name, child in node.items() for leaf in _leaves(child, f"{prefix}.{name}" if prefix else name)]


def _nearest(path: str) -> str:
    close = difflib.get_close_matches(path, setting_paths(), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _build(kind: Any, value: Any, path: str) -> Any:
    if not dataclasses.is_dataclass(kind):
        return _convert(kind, value, path)
    if not isinstance(value, dict):
        raise ConfigError(f"{path or 'the configuration'} must be a mapping, not {value!r}")
    hints = typing.get_type_hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    for name in value:
        full = f"{path}.{name}" if path else name
        if name not in names:
            raise ConfigError(f"unknown setting {full!r}{_nearest(full)}")
    parts = {name: _build(hints[name], part, f"{path}.{name}" if path else name) for name, part in value.items()}
    make: Any = kind
    return make(**parts)


def _convert(kind: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is Literal:
        if value in typing.get_args(kind) and not isinstance(value, bool):
            return value
        raise ConfigError(f"{path} must be one of {', '.join(map(str, typing.get_args(kind)))}, not {value!r}")
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (inner,) = (arg for arg in typing.get_args(kind) if arg is not type(None))
        return _convert(inner, value, path)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{path} must be a list, not {value!r}")
        return tuple(_convert(typing.get_args(kind)[0], item, path) for item in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < _LARGEST else math.inf
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path} must be a finite number, not {value}")
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{path} must be {_TYPE_WORDS[kind]}, not {value!r}")
    return value


_LARGEST = 10**300
_TYPE_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
