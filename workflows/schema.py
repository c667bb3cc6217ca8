"""The shape of the files in `config/`: rows, suites, testbeds, models, engines, mechanisms.

Knows nothing of what a setting does. Unknown keys are errors everywhere. `python -m workflows.schema` writes the JSON
schemas that editors and Snakemake read; a test keeps them equal to these models.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

CONFIG_FOLDER = Path(__file__).parent / "config"

Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
RowName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+/[a-z0-9_]+$")]
Role = Literal["prefill", "decode", "single"]
Scope = Literal["all", "prefill", "decode"]
Settings = dict[Scope, dict[str, Any]]


class Strict(BaseModel):
    """Base of every part: immutable, and a mistyped key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class StackColumn(Strict):
    """How our own engine expresses a row."""

    none: str | None = None
    """The reason why it does not."""
    set: Settings = {}
    """Settings beyond the row's own."""


class SglangColumn(Strict):
    """How the published engine expresses a row: a launch of `launches.yaml` and what differs from it."""

    none: str | None = None
    """The reason why it does not."""
    launch: str | None = None
    """A launch of `launches.yaml`; absent inherits the base's."""
    flags: dict[Scope, dict[str, Any]] = {}
    """Flags that differ; null leaves one out."""
    env: dict[Scope, dict[str, Any]] = {}
    """Environment variables that differ; null leaves one out."""
    note: str = ""
    """What a reader must know, such as that no launch command was published."""


class Expect(Strict):
    """What we expect to see, said before the run."""

    metric: str
    direction: Literal["higher", "lower", "same"]


class Bench(Strict):
    """A kernel timed alone: an implementation beside another one, on one of the shapes of `tools.gpu.micro`."""

    op: str
    shape: str
    impl: str
    base: str


class Row(Strict):
    """One configuration of a ladder."""

    id: Id
    question: str = Field(min_length=10)
    base: RowName | dict[Literal["prefill", "decode"], RowName] | None = None
    """The row that this one changes; by role where the two halves come from different ladders."""
    set: Settings = {}
    """Dotted paths of `stack.config` by role. What the row is, whichever engine runs it."""
    stack: StackColumn = StackColumn()
    sglang: SglangColumn
    expect: Expect | None = None
    published: str | None = None
    """The row's name among the published values."""
    needs: tuple[Id, ...] = ()
    """Mechanisms of `mechanisms.yaml` and abilities of a testbed without which the row means nothing."""
    wants: dict[Id, Settings] = {}
    """Parts of the row, each with its settings, that a testbed may lack; the result then says so."""
    drops: tuple[Id, ...] = ()
    """Parts of its bases that the row takes out again."""
    workloads: tuple[Id, ...] | None = None
    """Workloads of the suite that the row runs; absent: all."""
    concurrency: dict[Id, int] = {}
    """Published client concurrency by workload, before scaling; absent inherits the base's."""
    accept_length: float | None = Field(default=None, ge=1)
    """Mean committed tokens a verify, published or assumed; forced where weights are random. Absent inherits."""
    bench: Bench | None = None
    """What a row of a micro suite times."""
    fixes_running: str | None = None
    """Why this row may set scheduler.max_running, which the memory budget decides everywhere else."""


class SuiteWorkload(Strict):
    """The published shape of one traffic, before a testbed scales it."""

    spec: str
    """Template in `workloads/specs`."""
    input_len: int = Field(ge=1)
    output_len: int = Field(ge=1)
    shared_ratio: float = Field(ge=0, lt=1)
    groups: int = Field(default=1, ge=1)
    """Prefixes that requests share."""
    concurrency: int = Field(ge=1)
    """Client concurrency where no row says another."""
    retuned: bool = False
    """Whether the client's concurrency follows from what the measured instance's memory holds, row by row."""
    point: bool = False
    """Whether a session searches the concurrency at which throughput is highest within the published service levels,
    from the testbed's load up to the published one."""
    natural: bool = False
    """Whether drafts are accepted on their own merit even where random weights make acceptance forced elsewhere."""
    model: Id | None = None
    """Weights without which this traffic says nothing; a testbed that has them names them in `models`."""
    questions: int | None = Field(default=None, ge=1)
    """Questions that a pass asks, where answers are scored. Lengths are the texts' own: no divisor touches them."""
    data: Id | None = None
    """Its file, by name in `data.yaml`."""
    parameters: dict[str, Any] = {}
    """Further parameters of the template."""


class Suite(Strict):
    """A ladder: rows that answer one question on one topology."""

    question: str
    kind: Literal["serving", "accuracy", "micro", "script"] = "serving"
    prefill: int = Field(default=1, ge=0)
    """Prefill instances."""
    decode: int = Field(default=1, ge=0)
    """Decode instances."""
    router: Literal["mini_lb", "rust"] = "rust"
    metric: str = "output_tok_s"
    """What the ladder compares."""
    workloads: tuple[Id, ...] = ()
    on_request: tuple[Id, ...] = ()
    """Workloads that its rows run only where they are named, such as further operating points."""
    leave_one_out: Id | None = None
    """The row with everything on, of which variants without one step each are generated."""
    rows: tuple[Row, ...]


class Ladders(Strict):
    """`ladders.yaml`."""

    workloads: dict[Id, SuiteWorkload]
    suites: dict[Id, Suite]


class Mechanism(Strict):
    """Something that rows switch on: the files that do it, or why nothing does yet."""

    what: str
    files: tuple[str, ...] = ()
    not_built: str | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "Mechanism":
        if bool(self.files) == bool(self.not_built):
            raise ValueError("give either its files or, in not_built, why there are none")
        return self


class Model(Strict):
    """A set of weights that a testbed serves."""

    what: str
    weights: Literal["checkpoint", "random"]
    path: str
    """Folder under the repository, or `$NAME` for a variable that the user sets, or fills in in a rendered script."""
    draft_path: str = ""
    weights_label: Literal["checkpoint", "random"]
    """What a result says of them: `random` for anything that was never trained."""
    build: tuple[str, ...] = ()
    """Command (after the interpreter) that writes it; empty: it is there, or the user brings it."""
    vocab_low: int = 1000
    vocab_high: int = 30000
    settings: Settings = {}


class Divisors(Strict):
    """By how much one workload's lengths and load are divided."""

    input_divisor: int = Field(ge=1)
    output_divisor: int = Field(ge=1)
    concurrency_divisor: int = Field(ge=1)


class Scaling(Strict):
    """How published lengths become this testbed's. A divisor of 1 keeps them."""

    input_divisor: int = Field(default=1, ge=1)
    output_divisor: int = Field(default=1, ge=1)
    concurrency_divisor: int = Field(default=1, ge=1)
    min_output: int = Field(default=2, ge=1)
    min_concurrency: int = Field(default=1, ge=1)
    """Concurrency is never scaled below this, nor raised above the published one."""
    max_concurrency: int | None = None
    scaled_settings: tuple[str, ...] = ()
    """Settings counted in prompt tokens, divided like the prompts."""
    scaled_counts: tuple[str, ...] = ()
    """Settings counted in requests, divided like the concurrency; what was above 0 stays so."""
    workloads: dict[Id, Divisors] = {}
    """Divisors of single workloads in place of the three above."""

    def divisors(self, workload: str) -> Divisors:
        """The divisors of a workload."""
        return self.workloads.get(workload) or Divisors(
            input_divisor=self.input_divisor,
            output_divisor=self.output_divisor,
            concurrency_divisor=self.concurrency_divisor,
        )


class QuestionRules(Strict):
    """How a testbed asks one workload of questions; what is absent is as published."""

    count: int | None = Field(default=None, ge=1)
    """Questions of a pass, the first ones."""
    input_len: int | None = Field(default=None, ge=1)
    """Tokens of the longest prompt by the model's own tokenizer, for the memory solver."""
    output_len: int | None = Field(default=None, ge=1)
    concurrency: int | None = Field(default=None, ge=1)
    truncated: Literal["unanswered", "last_number"] = "unanswered"
    """What an answer counts as that is cut off at its limit."""
    model: Id | None = None
    """Weights that are asked in place of the testbed's."""


class SessionRules(Strict):
    """How long things may take, and how much is measured."""

    passes: int = Field(ge=1)
    min_window_s: float = Field(ge=0)
    requests_per_pass: dict[Id, int] = {}
    """By workload; absent: 5 for each slot and at least 20."""
    requests_per_slot: dict[Id, int] = {}
    """By workload whose concurrency is worked out: requests of a pass for each of the client's slots."""
    least_requests: int = Field(default=0, ge=0)
    """Requests of a pass at least where `step_s` decides: a P95 needs 200."""
    step_s: dict[Literal["decode", "verify"], float] = {}
    """Shortest plain and verify steps expected here. Workloads with no other rule, whose answers are what takes time,
    get as many requests as full batches of such steps need for the shortest allowed window."""
    search_s: float = Field(default=1500.0, gt=0)
    """Time for all probes of a search for an operating point; none begins that would not end in it."""
    ready_timeout_s: float = Field(gt=0)
    deadline_s: float = Field(gt=0)
    stall_s: float = Field(default=60.0, gt=0)
    port_base: int = Field(default=31000, ge=1024, le=60000)
    max_loop_lag_p99_ms: float = Field(default=5.0, gt=0)
    max_noise: float | None = None
    accept_tolerance: float = Field(default=0.1, gt=0, lt=1)
    """Allowed relative distance from the expected acceptance length; short answers end inside a verify."""
    needed_memory_gib: float = Field(default=0.0, ge=0)
    """Host memory that must be free before anything starts."""


class PairRules(Strict):
    """How two engines are measured in turn, both up at once, where a machine's speed drifts more than a gate tolerates.

    A pass is one turn: its requests fill the slots and leave them empty again, and nothing else is sent, so filling and
    emptying are part of its window.
    """

    passes: int = Field(ge=2)
    """Turns of each side in a pair."""
    requests_per_slot: int = Field(ge=1)
    """Requests of a turn for each of the client's slots."""
    min_concurrency_share: float = Field(gt=0, le=1)
    """Share of a turn in which the declared requests are in flight, in place of a steady window's."""
    max_pass_s: float = Field(gt=0)
    """Longest turn, its preparation included."""


class DecodeAlone(Strict):
    """Decode measured by itself where both instances do not fit: pages and states are made up, not transferred."""

    suites: tuple[Id, ...]
    """Ladders that are measured so; every result of theirs says so."""
    has: tuple[Id, ...] = ()
    """What the testbed lacks elsewhere, and a decode instance by itself has."""


class Testbed(Strict):
    """Where rows run, and at what scale."""

    __test__ = False
    title: str
    platform: Literal["cpu", "cuda", "ascend"]
    engine: Literal["stack", "sglang"]
    """The engine that runs unless another is asked for."""
    engines: tuple[Literal["stack", "sglang"], ...]
    model: Id
    placement: Literal["local", "colocated", "two_nodes", "published_script"] = "local"
    """`colocated`: one instance does both halves, and every result says so."""
    hosts: int = Field(default=1, ge=1)
    gpus_per_host: int = Field(default=0, ge=0)
    gpus_per_instance: int = Field(default=0, ge=0)
    device_bytes: int | None = Field(default=None, ge=1)
    """Memory that one GPU has free before anything is loaded; budgets, weights and the rest must fit there."""
    max_instances: int = Field(default=64, ge=1)
    lacks: dict[Id, str] = {}
    """Abilities that rows may need and this testbed has not, each with its reason."""
    decode_alone: DecodeAlone | None = None
    prefill_instances: dict[Id, int] = {}
    """By ladder, where this testbed holds fewer prefill instances than published. The client's concurrency shrinks
    alike, and results name the topology."""
    settings: Settings = {}
    models: dict[Id, Id] = {}
    """Weights of single workloads in place of the testbed's."""
    budgets: dict[Id, dict[Literal["prefill", "decode", "single"], int]] = {}
    """Bytes for caches, one number for a ladder and role: rows differ in what they do with the same memory."""
    scaling: Scaling = Scaling()
    questions: dict[Id, QuestionRules] = {}
    """By workload of scored questions."""
    session: SessionRules
    pairs: PairRules | None = None
    """How a gate measures a commit and its base; absent: whole sessions in turn, one after the other."""
    labels: dict[str, str] = {}

    def num_prefill(self, suite_id: str, published: int) -> int:
        """Prefill instances of a ladder here."""
        return min(published, self.prefill_instances.get(suite_id, published))

    def runs_decode_alone(self, suite: str) -> bool:
        """Whether a ladder is measured on one decode instance with synthetic admission."""
        return self.decode_alone is not None and suite in self.decode_alone.suites

    def lacks_for(self, suite: str) -> dict[str, str]:
        """What rows of a ladder cannot have here, with the reasons."""
        has = self.decode_alone.has if self.decode_alone and self.runs_decode_alone(suite) else ()
        return {need: reason for need, reason in self.lacks.items() if need not in has}

    @model_validator(mode="after")
    def _engine_is_offered(self) -> "Testbed":
        if self.engine not in self.engines:
            raise ValueError(f"engine {self.engine} must be among engines")
        return self


class DataFile(Strict):
    """A file that a workload reads and that is not part of the repository."""

    what: str
    path: str
    """Where it is kept, under the repository."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    url: str = Field(pattern=r"^https://")
    licence: str


class Engine(Strict):
    """An engine that rows can run on."""

    what: str
    lock: str
    """Its lock in `envs/`, or how it is installed."""
    builds: dict[str, str] = {}
    environments: dict[str, str] = {}
    """By build, the variable that says where its environment is: `np1d run` needs it, and the user sets it."""
    install: dict[str, tuple[str, ...]] = {}
    """By build, the commands that make its environment, shown by `np1d plan --commands`."""


class GateMetric(Strict):
    """How much worse a metric may get, and how noisy it may be."""

    direction: Literal["higher", "lower"]
    max_regression: float = Field(gt=0, lt=1)
    max_noise: float = Field(gt=0, lt=1)
    min_sessions: int = Field(default=3, ge=2)
    max_sessions: int = Field(default=8, ge=2)
    confirm: int = Field(default=1, ge=0)


class Demo(Strict):
    """What `make demo` measures on a testbed."""

    rows: tuple[str, ...]
    """Rows and suites."""
    passes: int | None = Field(default=None, ge=1)
    """Passes of a session in place of the testbed's. A session is one start of the servers however many it has."""
    requests_per_pass: dict[Id, int] = {}
    """Measured requests of a pass, by workload, in place of the testbed's."""


class Config(Strict):
    """`config.yaml`: the experiment that a plain `snakemake` runs."""

    testbed: Id
    engine: Literal["default", "stack", "sglang"] = "default"
    rows: tuple[str, ...] = ()
    """Rows or suites; empty: the ones that a demo shows."""
    demo: dict[Id, Demo] = {}
    """By testbed."""
    workloads: tuple[Id, ...] = ()
    """Workloads to run in place of the rows' own; those on request must be named here."""
    sessions: int = Field(default=1, ge=1)
    seed: int = 0
    on_failure: Literal["record", "stop"] = "record"
    gate: dict[Id, dict[Id, Annotated[dict[str, GateMetric], Field(max_length=1)]]] = {}
    """The gated metric by testbed (or `default`) and suite."""


FILES: dict[str, type[BaseModel]] = {
    "config": Config,
    "ladders": Ladders,
    "testbed": Testbed,
}


def schema_text(model: type[BaseModel]) -> str:
    """The JSON schema of one kind of file."""
    body = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    return json.dumps(body, indent=1, sort_keys=True) + "\n"


def main() -> None:
    """Write one JSON schema for each kind of file."""
    for name, model in FILES.items():
        (CONFIG_FOLDER / "schemas" / f"{name}.schema.json").write_text(schema_text(model))


if __name__ == "__main__":
    main()
