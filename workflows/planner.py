"""From row, workload, testbed and session to a plan.

Knows how a plan is put together and nothing of running it. Whatever cannot be run is refused here with the reason that
`np1d list` shows too.
"""

import dataclasses
import math
from typing import Any, Literal

from workflows.bench import plan_bench
from workflows.catalog import HALVES, Catalog, load_catalog, nearest
from workflows.engines import router, sglang_session, stack
from workflows.errors import CatalogError, NotApplicableError
from workflows.identity import MEASURE_VERSION
from workflows.memory import configuration_of, generating_instance, memory_plan
from workflows.plan import Cell, ClientPlan, DataNeed, Limits, Plan, ProcessPlan
from workflows.resolution import Resolution, measured_as, resolve
from workflows.scaling import Shape, published_shape, retuned, scaled, scaled_settings
from workflows.schema import Model, PairRules, QuestionRules, SuiteWorkload, Testbed
from workloads.spec import ASKED_ONCE, SpecError, load_template, parse
from workloads.spec import resolve as resolve_workload


def plan_session(
    row: str,
    workload: str,
    *,
    testbed_id: str,
    session: int = 0,
    engine: str = "default",
    catalog: Catalog | None = None,
    passes: int = 0,
    requests: int = 0,
    in_turn: dict[str, str] | None = None,
) -> Plan:
    """The plan of one session; `passes` and `requests` of a pass other than 0 stand in place of the testbed's.

    `in_turn` names the side (`side`) of a pair and what the other one is (`other`).
    Raises CatalogError for unknown names, NotApplicableError with the reason otherwise.
    """
    catalog = catalog or load_catalog()
    entry = catalog.row(row)
    resolution = resolve(catalog, entry, testbed_id, engine)
    if resolution.status != "runnable":
        raise NotApplicableError(f"{entry.name} does not run on {testbed_id}: {resolution.reason}")
    if entry.suite.kind == "micro":
        return plan_bench(catalog, resolution, session)
    if workload not in entry.known_workloads:
        raise CatalogError(f"{entry.name} has no workload {workload}{nearest(workload, entry.known_workloads)}")
    wanted = catalog.workloads[workload].model
    if wanted and catalog.testbed(testbed_id).models.get(workload) != wanted:
        raise NotApplicableError(f"{workload} is for the weights {wanted}, which {testbed_id} does not serve")
    return _Planner(catalog, resolution, workload, session, (passes, requests), in_turn).plan()


class _Planner:
    def __init__(
        self,
        catalog: Catalog,
        resolution: Resolution,
        workload: str,
        session: int,
        wanted: tuple[int, int],
        in_turn: dict[str, str] | None,
    ) -> None:
        self._catalog = catalog
        self._resolution = resolution
        self._entry = resolution.entry
        self._testbed: Testbed = catalog.testbed(resolution.testbed_id)
        self._workload_id = workload
        self._questions = self._testbed.questions.get(workload) or QuestionRules()
        self._model_id = self._questions.model or self._testbed.models.get(workload) or self._testbed.model
        self._model: Model = catalog.models[self._model_id]
        self._session = session
        self._in_turn = in_turn
        self._pairs = self._pair_rules() if in_turn else None
        self._passes = wanted[0] or (self._pairs or self._testbed.session).passes
        self._requests = wanted[1]
        concurrency = catalog.concurrency(self._entry.name, workload)
        self._published: Shape = published_shape(catalog.workloads[workload], concurrency)
        self._num_prefill = self._testbed.num_prefill(self._entry.suite_id, self._entry.suite.prefill)
        self._shape: Shape = self._fewer_clients(scaled(self._published, self._testbed, workload))
        self._accept_length = catalog.accept_length(self._entry.name)
        self._settings = {str(half): self._settings_of(half) for half in HALVES}
        if catalog.workloads[workload].retuned:
            self._shape = dataclasses.replace(self._shape, concurrency=self._solved_concurrency())

    def plan(self) -> Plan:
        entry, testbed = self._entry, self._testbed
        processes = self._processes()
        return Plan(
            cell=self._cell(),
            question=entry.row.question,
            metric=entry.suite.metric,
            expect=entry.row.expect.model_dump() if entry.row.expect else None,
            published=entry.row.published,
            measure_version=MEASURE_VERSION,
            settings=self._settings,
            parts=self._resolution.parts,
            left_out=self._left_out(),
            labels=self._labels(),
            conditions={
                "published": _conditions(self._published),
                "scaled": _conditions(self._shape),
                **({"in_turn": self._in_turn} if self._in_turn else {}),
            },
            measured_alone=self._measured_alone(),
            model=self._model_facts(),
            data=self._data(),
            processes=processes,
            client=self._client(processes),
            limits=Limits(
                ready_timeout_s=testbed.session.ready_timeout_s,
                deadline_s=testbed.session.deadline_s,
                port_base=testbed.session.port_base,
                needed_memory_gib=testbed.session.needed_memory_gib,
            ),
        )

    def _pair_rules(self) -> PairRules:
        if self._testbed.pairs is None:
            raise NotApplicableError(f"the testbed {self._resolution.testbed_id} does not say how to measure in turn")
        return self._testbed.pairs

    def _measured_alone(self) -> dict[str, str]:
        bases = self._entry.row.base
        if not isinstance(bases, dict):
            return {}
        return {
            half: measured_as(self._catalog, self._catalog.row(base), self._resolution.testbed_id)
            for half, base in bases.items()
        }

    def _fewer_clients(self, shape: Shape) -> Shape:
        """The load of a topology with fewer prefill instances than published: as much for each."""
        published = self._entry.suite.prefill
        if self._num_prefill == published:
            return shape
        return dataclasses.replace(shape, concurrency=max(1, round(shape.concurrency * self._num_prefill / published)))

    def _solved_concurrency(self) -> int:
        """Just above what the memory of the instance that generates holds."""
        return retuned(self._running_limit(), self._testbed)

    def _running_limit(self) -> int:
        """Requests that the memory of the instance that generates holds."""
        measured = configuration_of(generating_instance(self._processes()))
        return int(memory_plan(measured, self._model_facts(), self._testbed.device_bytes)["max_running"])

    @property
    def _is_decode_alone(self) -> bool:
        return self._testbed.runs_decode_alone(self._entry.suite_id)

    @property
    def _traffic(self) -> SuiteWorkload:
        return self._catalog.workloads[self._workload_id]

    @property
    def _forces_acceptance(self) -> bool:
        """Random weights accept nothing by nature; but a forced answer is not the model's, so none is ever scored."""
        is_own = self._shape.questions is not None or self._traffic.natural
        return self._model.weights_label == "random" and not is_own

    def _cell(self) -> Cell:
        default = self._testbed.engine == self._resolution.engine
        testbed_id = self._resolution.testbed_id
        return Cell(
            testbed=testbed_id if default else f"{testbed_id}_{self._resolution.engine}",
            suite=self._entry.suite_id,
            row=self._entry.row.id,
            workload=self._workload_id,
            session=self._session,
            engine=self._resolution.engine,
        )

    def _settings_of(self, half: Literal["prefill", "decode"]) -> dict[str, Any]:
        model = self._model
        settings = {
            **model.settings.get("all", {}),
            **model.settings.get(half, {}),
            **scaled_settings(self._resolution.settings[half], self._testbed, self._workload_id),
            "model.path": model.path,
            "model.weights": model.weights,
            "cache.expected_context": self._shape.input_len,
            "cache.expected_output": self._shape.output_len,
            "cache.expected_shared": self._shape.shared_len,
        }
        if settings.get("speculation.method", "off") == "dflash2":
            settings["speculation.draft_path"] = model.draft_path
        if self._accept_length and self._forces_acceptance:
            settings["speculation.force_accept_length"] = self._accept_length
        budget = self._testbed.budgets[self._entry.suite_id]
        settings["cache.budget_bytes"] = budget.get(half, budget.get("single"))
        return settings

    def _processes(self) -> tuple[ProcessPlan, ...]:
        suite, per = self._entry.suite, self._testbed.gpus_per_instance
        if self._resolution.engine == "sglang":
            return sglang_session.session_processes(self._catalog, self._entry.name)
        if self._is_decode_alone:
            settings = {**self._settings["decode"], "synthetic_admission": True}
            return (stack.instance("d0", "decode", settings, tuple(range(per))),)
        if self._testbed.placement == "colocated":
            settings = stack.colocated_settings(
                self._settings, measures="prefill" if self._entry.suite_id == "prefill" else "decode"
            )
            return (stack.instance("single", "single", settings, tuple(range(per))),)
        names = [f"p{i}" for i in range(self._num_prefill)] + [f"d{i}" for i in range(suite.decode)]
        instances = [
            stack.instance(name, half, self._settings[half], tuple(range(index * per, (index + 1) * per)))
            for index, name in enumerate(names)
            for half in HALVES
            if half[0] == name[0]
        ]
        prefill, decode = names[: self._num_prefill], names[self._num_prefill :]
        return (*instances, router.router_process(suite.router, prefill, decode))

    def _client(self, processes: tuple[ProcessPlan, ...]) -> ClientPlan:
        servers = [process.name for process in processes if process.role != "router"]
        entrance = "router" if any(process.role == "router" for process in processes) else servers[0]
        module, *more = self._search() if self._traffic.point else ("workloads.client",)
        command = [
            "{python}", "-m", module, "{dir}/workload.json",
            "--url", f"http://127.0.0.1:{{port:{entrance}}}", "--out", "{dir}", *more,
        ]  # fmt: skip
        for name in servers:
            command += ["--flush-url", f"http://127.0.0.1:{{port:{name}}}"]
        return ClientPlan(command=tuple(command), url_port=entrance, workload=self._workload())

    def _search(self) -> tuple[str, ...]:
        """From this testbed's load up to the one published, which its topology may be too small for."""
        low = self._shape.concurrency
        high = max(2 * low, scaled(self._published, self._testbed, self._workload_id).concurrency)
        limit = self._testbed.session.search_s
        return ("workloads.operating_point", "--low", str(low), "--high", str(high), "--repeats", "1",
                "--limit-s", f"{limit:g}", "--no-progress")  # fmt: skip

    def _workload(self) -> dict[str, Any]:
        template = self._catalog.workloads[self._workload_id].spec
        identity = self._cell().model_dump(include={"testbed", "suite", "row", "session"})
        try:
            known = load_template(template)["parameters"]
            given = {name: value for name, value in self._parameters().items() if name in known}
            tree = resolve_workload(template, given, identity).model_dump(mode="json")
            rules = self._testbed.session
            tree["timeouts"] |= {"ready_s": rules.ready_timeout_s, "deadline_s": rules.deadline_s}
            if self._requests and tree["load"]["kind"] == "closed":
                tree["load"]["cut_cooldown"] = True  # a first look waits for nothing that it does not measure
            if self._pairs:
                _take_turns(tree, self._pairs)
            return parse(tree).model_dump(mode="json")
        except SpecError as error:
            raise CatalogError(f"workload {self._workload_id}: {error}") from None

    def _parameters(self) -> dict[str, Any]:
        rules, shape = self._testbed.session, self._shape
        is_single = self._testbed.placement == "colocated" or self._is_decode_alone
        return {
            "input_len": shape.input_len,
            "output_len": shape.output_len,
            "shared_ratio": shape.shared_ratio,
            "groups": self._traffic.groups,
            "concurrency": shape.concurrency,
            "tokenizer": f"{self._model.path}/tokenizer.json",
            "vocab_low": self._model.vocab_low,
            "vocab_high": self._model.vocab_high,
            "passes": self._passes,
            "requests_per_pass": self._requests_per_pass(),
            "prime_repeats": 1 if is_single else self._num_prefill,
            **self._nothing_cached(),
            "page_size": self._settings["prefill"]["cache.page_size"],
            "min_window_s": rules.min_window_s,
            "max_loop_lag_p99_ms": rules.max_loop_lag_p99_ms,
            "max_noise": rules.max_noise,
            "gpu": "required" if self._testbed.platform == "cuda" else "absent",
            "stall_s": rules.stall_s,
            "accept_length": self._accept_band(),
            **(self._scored() if shape.questions else {}),
            **self._traffic.parameters,
            **{name: value for need in self._data() for name, value in (("path", need.path), ("sha256", need.sha256))},
        }

    def _scored(self) -> dict[str, Any]:
        """Every question once in a pass, nothing beside; answers are scored, so nothing is said of throughput."""
        return {
            "requests_per_pass": self._shape.questions,
            "scoring": {"truncated": self._questions.truncated},
            "flush": "before_session",
            "min_window_s": 0.0,
            **ASKED_ONCE,
        }

    def _left_out(self) -> dict[str, str]:
        """What the row lacks here; trained weights only where the model that is asked has none."""
        is_trained = self._model.weights_label == "checkpoint"
        return {
            part: why for part, why in self._resolution.left_out.items() if not (is_trained and part == "trained_model")
        }

    def _data(self) -> tuple[DataNeed, ...]:
        name = self._traffic.data
        if name is None:
            return ()
        file = self._catalog.data[name]
        return (DataNeed(name=name, path=file.path, sha256=file.sha256),)

    def _nothing_cached(self) -> dict[str, Any]:
        """Where decode stands alone and keeps no prefix, nothing is cached: every request's pages are its own."""
        keeps = self._settings["decode"].get("cache.prefix", "none") != "none"
        return {"cached_band": (0.0, 0.0)} if self._is_decode_alone and not keeps else {}

    def _requests_for_window(self) -> int:
        """Full batches of the expected shortest steps that fill the window; warm-up and ramp are not in it."""
        rules, decode = self._testbed.session, self._settings["decode"]
        kind: Literal["decode", "verify"] = "decode" if decode.get("speculation.method", "off") == "off" else "verify"
        steps = self._shape.output_len / (decode.get("speculation.force_accept_length") or 1.0)
        batches = math.ceil(rules.min_window_s / (steps * rules.step_s[kind]))
        return max(rules.least_requests, batches * min(self._shape.concurrency, self._running_limit()))

    def _requests_per_pass(self) -> int | None:
        rules = self._testbed.session
        if self._requests:
            return self._requests
        if self._pairs:
            return self._pairs.requests_per_slot * self._shape.concurrency
        per_slot = rules.requests_per_slot.get(self._workload_id)
        if per_slot is not None:
            return per_slot * self._shape.concurrency
        if self._workload_id in rules.requests_per_pass or not rules.step_s or self._shape.questions:
            return rules.requests_per_pass.get(self._workload_id)
        return self._requests_for_window()

    def _accept_band(self) -> tuple[float, float] | None:
        expected, tolerance = self._accept_length, self._testbed.session.accept_tolerance
        return (
            None
            if expected is None or self._shape.questions or self._traffic.natural
            else (expected * (1 - tolerance), expected * (1 + tolerance))
        )

    def _labels(self) -> dict[str, Any]:
        decode = self._settings["decode"]
        speculates = decode.get("speculation.method", "off") != "off"
        forced = decode.get("speculation.force_accept_length")
        colocated = self._testbed.placement == "colocated"
        suite = self._entry.suite
        admission, topology = (
            ("colocated", "colocated") if colocated else ("transfer", f"{self._num_prefill}p{suite.decode}d")
        )
        if self._is_decode_alone:
            admission, topology = "synthetic", "decode alone"
        return {
            "weights": self._model.weights_label,
            "acceptance": ("forced" if forced else "natural") if speculates else "none",
            "forced_accept_length": forced if speculates else None,
            "admission": admission,
            "topology": topology,
            "lengths": "published" if self._shape == self._published else "scaled",
            "platform": self._testbed.platform,
            **self._testbed.labels,
        }

    def _model_facts(self) -> dict[str, Any]:
        return {
            "name": self._model_id,
            "what": self._model.what,
            "path": self._model.path,
            "weights": self._model.weights,
            "build": list(self._model.build),
        }


def _take_turns(workload: dict[str, Any], rules: PairRules) -> None:
    """A pass is short and begins with an idle engine: what is warmed, flushed and primed once serves the session."""
    workload["load"] |= {"handover": False, "keep_full": False}
    workload["cache"]["flush"] = "before_session"
    workload["limits"]["min_concurrency_share"] = rules.min_concurrency_share
    workload["timeouts"]["deadline_s"] = min(workload["timeouts"]["deadline_s"], rules.max_pass_s)
    warmup = 0 if workload["cache"]["intent"] == "primed" else 1  # priming warms too
    workload |= {"continued": True, "warmup_requests": warmup}


def _conditions(shape: Shape) -> dict[str, Any]:
    return {
        "input_len": shape.input_len,
        "output_len": shape.output_len,
        "shared_ratio": shape.shared_ratio,
        "concurrency": shape.concurrency,
        **({"questions": shape.questions} if shape.questions else {}),
    }
