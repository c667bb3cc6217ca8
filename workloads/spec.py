"""What a workload is: traffic, load, cache protocol, limits. A resolved workload is complete and engine-neutral.

A file in `specs/` is a template: `parameters` with the published values, and a `workload` in which `$name` stands for a
parameter. `resolve` puts in a testbed's values and gives a `Workload`, which goes into `plan.json` as it is. Unknown
keys and unknown parameters are errors.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from workloads.slo import Slo

SPECS_FOLDER = Path(__file__).parent / "specs"
ASKED_ONCE = {"warmup_requests": 0, "handover": False, "keep_full": False, "min_concurrency_share": 0.0}
"""Parameters with which a template of questions asks each of them once in a pass, and nothing beside."""


class SpecError(ValueError):
    """A workload that cannot be run as written; the message says what to write instead."""


def _ordered(band: tuple[float, float] | None) -> tuple[float, float] | None:
    if band is not None and band[0] > band[1]:
        raise ValueError(f"a band is [lowest, highest], not [{band[0]:g}, {band[1]:g}]")
    return band


Band = Annotated[tuple[float, float] | None, AfterValidator(_ordered)]
"""Lowest and highest allowed value, both allowed; null allows all."""


class Model(BaseModel):
    """Base of every part: immutable, and a typing error in a key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Lengths(Model):
    """Exact prompt and answer lengths in tokens."""

    input_len: int = Field(ge=1)
    output_len: int = Field(ge=1)
    vocab_low: int = Field(default=1000, ge=0)
    """Smallest token id drawn: above a tokenizer's special tokens."""
    vocab_high: int = Field(default=30000, ge=1)
    """First token id that is not drawn: at most the vocabulary's size."""

    @model_validator(mode="after")
    def _vocabulary(self) -> "Lengths":
        if self.vocab_high - self.vocab_low < 16:
            raise ValueError("vocab_high must exceed vocab_low by 16 or more, or prompts repeat by chance")
        return self


class RandomSource(Lengths):
    """Prompts of random token ids that share nothing."""

    kind: Literal["random"]


class SharedPrefixSource(Lengths):
    """Prompts of random token ids; the prompts of a group begin with the same `shared_ratio` of their tokens."""

    kind: Literal["shared_prefix"]
    shared_ratio: float = Field(ge=0, lt=1)
    groups: int = Field(default=1, ge=1)


class NaturalTextSource(Lengths):
    """Prompts of plain English sentences from our own templates, cut to exact token counts by the given tokenizer."""

    kind: Literal["natural_text"]
    tokenizer: str
    """Path of a `tokenizer.json`."""
    shared_ratio: float = Field(default=0.0, ge=0, lt=1)
    groups: int = Field(default=1, ge=1)


class ChatSource(Model):
    """Conversations: a system prompt shared by all, then turns; every turn carries all that was said before."""

    kind: Literal["chat"]
    turns: int = Field(ge=1)
    system_len: int = Field(ge=1)
    user_len: int = Field(ge=1)
    reply_len: int = Field(ge=1)
    reply: Literal["scripted", "actual"] = "scripted"
    """What the next turn quotes as the answer: a text known beforehand (exact lengths), or what the server said."""
    vocab_low: int = Field(default=1000, ge=0)
    vocab_high: int = Field(default=30000, ge=1)


class TraceSource(Model):
    """Replay of a request trace: JSON lines with `timestamp` (ms), `input_length`, `output_length`, `hash_ids`."""

    kind: Literal["trace"]
    path: str
    sha256: str | None = None
    block_tokens: int = Field(default=512, ge=1)
    """Tokens that one hash id of the trace stands for."""
    length_scale: float = Field(default=1.0, gt=0, le=1)
    """Shrinks lengths and blocks alike, for a testbed that cannot hold the trace's own."""
    vocab_low: int = Field(default=1000, ge=0)
    vocab_high: int = Field(default=30000, ge=1)


class Gsm8kSource(Model):
    """The GSM8K prompts (worked examples first) as traffic; scoring is `workloads.accuracy`."""

    kind: Literal["gsm8k"]
    path: str
    sha256: str | None = None
    shots: int = Field(default=5, ge=0)
    skip_shots: bool = True
    """Ask only what is no example: 1,314 of 1,319 questions with 5 shots. False asks all."""
    output_len: int = Field(default=512, ge=1)


class MiniGsmSource(Model):
    """Held-out stories of our own corpus in GSM8K's form; nothing is read from a file."""

    kind: Literal["mini_gsm"]
    shots: int = Field(default=5, ge=0)
    items: int = Field(default=200, ge=1)
    """How many stories are asked, before they come again."""
    output_len: int = Field(default=160, ge=1)


class RetrievalSource(Model):
    """Texts of like lines and a question for one of them, at each of several depths."""

    kind: Literal["retrieval"]
    lines_behind: tuple[int, ...] = (2, 10, 20, 30, 40, 50, 64)
    """Lines between needle and question; a line is nine tokens."""
    items_per_depth: int = Field(default=50, ge=1)
    output_len: int = Field(default=8, ge=1)


Source = Annotated[
    RandomSource
    | SharedPrefixSource
    | NaturalTextSource
    | ChatSource
    | TraceSource
    | Gsm8kSource
    | MiniGsmSource
    | RetrievalSource,
    Field(discriminator="kind"),
]


class ClosedLoad(Model):
    """A fixed number of requests in flight; a finished one is replaced at once."""

    kind: Literal["closed"]
    concurrency: int = Field(ge=1)
    handover: bool = True
    """Warm-up requests fill the slots and hand them over to measured ones; false drains them first."""
    keep_full: bool = True
    """Further requests keep the slots busy until the last measured one has ended."""
    cut_cooldown: bool = False
    """In the session's last pass those are ended then and there; false reads their answers to the end."""


class PoissonLoad(Model):
    """Requests arrive at random, on average `rate_per_s`, whatever the server does."""

    kind: Literal["poisson"]
    rate_per_s: float = Field(gt=0)


class ConstantLoad(Model):
    """Requests arrive at equal distances, `rate_per_s`, whatever the server does."""

    kind: Literal["constant"]
    rate_per_s: float = Field(gt=0)


class ReplayLoad(Model):
    """Requests arrive when the trace says, `speed` times as fast."""

    kind: Literal["replay"]
    speed: float = Field(default=1.0, gt=0)


Load = Annotated[ClosedLoad | PoissonLoad | ConstantLoad | ReplayLoad, Field(discriminator="kind")]


class Sampling(Model):
    """How answers are drawn. With `ignore_eos` an answer must have exactly the requested length."""

    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    ignore_eos: bool = True
    stop: tuple[str, ...] = ()


class Cache(Model):
    """The cache state that the workload wants, how it is reached, and how it is verified."""

    intent: Literal["cold", "primed", "natural"]
    """Nothing may be cached; every group's prefix is cached beforehand; whatever happens happens."""
    flush: Literal["before_pass", "before_session", "never"] = "before_pass"
    flush_timeout_s: float = Field(default=60.0, gt=0)
    prime_repeats: int = Field(default=1, ge=1)
    """Times each prefix is sent when priming: the number of prefill instances behind a round-robin router."""
    granularity_tokens: int = Field(default=64, ge=1)
    """A hit ends on a multiple of this: the page size, or the distance of kept recurrent states."""
    band: Band = None
    """Allowed share of cached prompt tokens; null derives it from intent, sharing and granularity."""


class Limits(Model):
    """Where a run stops being a result. Each is one rule of `workloads.validity`."""

    max_error_ratio: float = Field(default=0.0, ge=0, le=1)
    min_window_s: float = Field(default=60.0, ge=0)
    min_concurrency_share: float = Field(default=0.95, ge=0, le=1)
    max_loop_lag_p99_ms: float = Field(default=5.0, gt=0)
    max_start_lag_ratio: float = Field(default=0.01, gt=0)
    """Mean lateness of sending, as a share of the mean end-to-end latency."""
    accept_length: Band = None
    """Allowed acceptance length; null where nothing is speculated."""
    max_noise: float | None = Field(default=None, gt=0)
    """Largest coefficient of variation of throughput between passes of a session."""
    gpu: Literal["required", "absent"] = "absent"
    """Whether GPU samples must exist."""
    max_power_cap_share: float = Field(default=1.0, ge=0, le=1)
    sm_clock_mhz: Band = None
    """Allowed mean SM clock: the baseline's, within 2 %."""


class Timeouts(Model):
    """When the client gives up."""

    ready_s: float = Field(default=600.0, gt=0)
    stall_s: float = Field(default=60.0, gt=0)
    """Longest silence of a running request."""
    deadline_s: float = Field(default=3600.0, gt=0)
    """Longest duration of a pass."""


class Scoring(Model):
    """How answers to questions are counted; see `workloads.scoring`."""

    max_unanswered: float = Field(default=0.005, ge=0, le=1)
    """Largest share of items without an answer; beyond it there is no score."""
    truncated: Literal["unanswered", "last_number"] = "unanswered"
    """What an answer counts as that was cut off at its length limit: nothing, or the last number in it."""


class Identity(Model):
    """The session that a workload belongs to; seeds derive from it."""

    testbed: str = "none"
    suite: str = "none"
    row: str = "none"
    session: int = 0


class Workload(Model):
    """All that the client needs besides a URL."""

    schema_: Literal["workload/1"] = Field(default="workload/1", alias="schema")
    name: str
    identity: Identity = Identity()
    endpoint: Literal["generate", "completions", "chat"] = "generate"
    model: str = "default"
    """Model name sent to the OpenAI endpoints."""
    source: Source
    load: Load
    sampling: Sampling = Sampling()
    passes: int = Field(default=3, ge=1)
    requests_per_pass: int | None = Field(default=None, ge=1)
    """Measured requests in a pass; null means 5 for each slot and at least 20."""
    continued: bool = False
    """A pass goes on with the session's prompts where the one before ended; it warms up and primes once, for all."""
    warmup_requests: int | None = Field(default=None, ge=0)
    """Requests before t0; null means one for each slot."""
    cache: Cache
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    slo: tuple[Slo, ...] = ()
    scoring: Scoring | None = None
    """Answers are scored; null where they are traffic alone."""
    keep_text: bool = False

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    @model_validator(mode="after")
    def _fits(self) -> "Workload":
        if (self.load.kind == "replay") != (self.source.kind == "trace"):
            raise ValueError("load replay and source trace belong together")
        if self.source.kind == "chat" and self.load.kind != "closed":
            raise ValueError("a chat workload needs load closed: a turn waits for the one before")
        if self.endpoint == "chat" and self.source.kind not in ("natural_text", "gsm8k"):
            raise ValueError("endpoint chat takes text; use endpoint generate or completions for token ids")
        if self.cache.intent == "primed" and self.source.kind not in ("shared_prefix", "natural_text", "chat"):
            raise ValueError(f"source {self.source.kind} has no prefix to prime; use cache.intent cold or natural")
        if self.continued and self.cache.flush == "before_pass":
            raise ValueError("a continued workload keeps its prefixes; use cache.flush before_session or never")
        return self

    @property
    def concurrency(self) -> int | None:
        """Declared requests in flight; None where arrivals do not wait for answers."""
        return self.load.concurrency if isinstance(self.load, ClosedLoad) else None

    @property
    def num_measured(self) -> int:
        """Measured requests in one pass."""
        return self.requests_per_pass or max(20, 5 * (self.concurrency or 4))

    @property
    def num_warmup(self) -> int:
        """Warm-up requests before one pass."""
        if self.warmup_requests is not None:
            return self.warmup_requests
        return self.concurrency or 4

    def seed(self, *names: object) -> int:
        """A 63-bit seed that depends on the row, the session and `names`; the same on every machine."""
        key = orjson.dumps([self.identity.row, self.identity.session, self.name, *map(str, names)])
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) >> 1

    def traffic_seed(self, pass_index: int) -> int:
        """The seed of a pass's prompts; a warm-up apart (-1) has its own."""
        return self.seed("pass", min(0, pass_index) if self.continued else pass_index)


def resolve(
    name: str, parameters: Mapping[str, Any] | None = None, identity: Mapping[str, Any] | None = None
) -> Workload:
    """The workload `specs/<name>.yaml` (or a path) with a testbed's parameters. Raises SpecError."""
    template = load_template(name)
    given = dict(parameters or {})
    known = template["parameters"]
    if unknown := sorted(set(given) - set(known)):
        raise SpecError(f"workload {name} has no parameter {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    body = _substitute(template["workload"], known | given, name)
    body |= {"name": template["name"], "identity": dict(identity or {})}
    return parse(body)


def parse(body: Mapping[str, Any] | str | bytes) -> Workload:
    """A workload from its JSON form. Raises SpecError with one line a mistake."""
    text = body if isinstance(body, (str, bytes)) else orjson.dumps(body)
    try:
        return Workload.model_validate_json(text)
    except ValidationError as error:
        lines = [f"{'.'.join(str(p) for p in e['loc']) or 'workload'}: {e['msg']}" for e in error.errors()]
        raise SpecError("; ".join(lines)) from error


def load_template(name: str) -> dict[str, Any]:
    """The template of that name: `name`, `question`, `parameters`, `workload`. Raises SpecError."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else SPECS_FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise SpecError(f"there is no workload {name}; there are {', '.join(names())}")
    try:
        template = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path.name} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(template, dict) or set(template) != {"name", "question", "parameters", "workload"}:
        raise SpecError(f"{path.name} must hold name, question, parameters and workload")
    for key in ("parameters", "workload"):
        if not isinstance(template[key], dict):
            raise SpecError(f"{path.name}: {key} must hold names and values, not {template[key]!r}")
    return template


def names() -> list[str]:
    """The workloads in `specs/`."""
    return sorted(path.stem for path in SPECS_FOLDER.glob("*.yaml"))


def _substitute(value: Any, parameters: Mapping[str, Any], name: str) -> Any:
    if isinstance(value, str) and value.startswith("$"):
        if value[1:] not in parameters:
            raise SpecError(f"workload {name} uses {value}, which is not among its parameters")
        return parameters[value[1:]]
    if isinstance(value, dict):
        return {key: _substitute(child, parameters, name) for key, child in value.items()}
    if isinstance(value, list):
        return [_substitute(child, parameters, name) for child in value]
    return value


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key given twice is an error, not the last one's win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := {key for key in keys if keys.count(key) > 1}:
            line = node.start_mark.line + 1
            raise SpecError(
                f"key {', '.join(map(str, twice))} is given twice in the mapping that begins in line {line}"
            )
        return super().construct_mapping(node, deep)
