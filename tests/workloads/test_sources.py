"""Sources: exact lengths, exact sharing, the same traffic from the same seed."""

import json

import numpy as np
import pytest
from fault_server import Script
from measuring import make_workload
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from workloads.share import tickets_of
from workloads.sources import source_for
from workloads.sources.natural_text import sentence
from workloads.spec import SpecError
from workloads.wire import wire_for

SHARED = {"kind": "shared_prefix", "input_len": 100, "output_len": 5, "shared_ratio": 0.6, "groups": 3}


def traffic(**changes):
    return source_for(make_workload(**changes))


def test_random_prompts_are_exact_and_share_nothing():
    prompts = [c.turns[0].token_ids for c in traffic().conversations(1, 50)]
    assert {len(p) for p in prompts} == {64}
    assert len({tuple(p[:4]) for p in prompts}) == 50
    assert all(p.min() >= 1000 and p.max() < 30000 for p in prompts)


def test_the_same_seed_gives_the_same_traffic_from_any_place():
    one, two = traffic().conversations(7, 10), traffic().conversations(7, 3, first=5)
    assert all(np.array_equal(a.turns[0].token_ids, b.turns[0].token_ids) for a, b in zip(one[5:8], two, strict=True))
    other = traffic().conversations(8, 1)[0].turns[0].token_ids
    assert not np.array_equal(one[0].turns[0].token_ids, other)


def test_a_group_shares_exactly_its_prefix():
    prompts = [c.turns[0] for c in traffic(source=SHARED).conversations(1, 12)]
    by_group = {g: [p.token_ids for p in prompts if p.group == g] for g in range(3)}
    for ids in by_group.values():
        assert len({tuple(i[:60]) for i in ids}) == 1 and len({int(i[60]) for i in ids}) > 1
    assert len({tuple(ids[0][:4]) for ids in by_group.values()}) == 3
    assert {len(p.token_ids) for p in prompts} == {100}


def test_priming_sends_each_prefix_alone():
    source = traffic(source=SHARED)
    prefixes, prompts = source.prefixes(1), source.conversations(1, 3)
    assert [len(p.token_ids) for p in prefixes] == [60] * 3 and {p.output_tokens for p in prefixes} == {1}
    for prefix, prompt in zip(prefixes, prompts, strict=True):
        assert np.array_equal(prefix.token_ids, prompt.turns[0].token_ids[:60])


def test_a_scripted_conversation_quotes_all_that_was_said():
    chat = {"kind": "chat", "turns": 3, "system_len": 20, "user_len": 10, "reply_len": 5}
    turns = traffic(source=chat, cache={"intent": "natural"}).conversations(1, 2)[1].turns
    assert [t.input_tokens for t in turns] == [30, 45, 60] == [len(t.token_ids) for t in turns]
    assert [t.shared_tokens for t in turns] == [20, 30, 45]
    assert np.array_equal(turns[1].token_ids[:30], turns[0].token_ids)


def test_an_actual_conversation_quotes_the_server(measure):
    run = measure(
        source={"kind": "chat", "turns": 3, "system_len": 20, "user_len": 10, "reply_len": 5, "reply": "actual"},
        cache={"intent": "natural"},
        load={"kind": "closed", "concurrency": 1, "keep_full": False},
        warmup_requests=0,
        requests_per_pass=3,
    )
    bodies = [b["input_ids"] for b in run.server.seen.bodies[1:]]
    assert run.verdict == "VALID", run.reasons
    assert [len(b) for b in bodies] == [30, 45, 60]
    assert bodies[1][30:35] == [7] * 5 and bodies[1][:30] == bodies[0]


@pytest.fixture
def tokenizer_path(tmp_path):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    import random

    text = [sentence(random.Random(i)) for i in range(300)]
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


def test_natural_text_has_exact_counts_and_reads_as_text(tokenizer_path):
    natural = {
        "kind": "natural_text",
        "tokenizer": tokenizer_path,
        "input_len": 80,
        "output_len": 4,
        "shared_ratio": 0.5,
    }
    made = traffic(source=natural | {"groups": 2}).conversations(3, 4)
    prompts = [c.turns[0] for c in made]
    assert {len(p.token_ids) for p in prompts} == {80}
    assert np.array_equal(prompts[0].token_ids[:40], prompts[2].token_ids[:40])
    assert not np.array_equal(prompts[0].token_ids[40:], prompts[2].token_ids[40:])
    assert "the" in prompts[0].text


def test_a_missing_tokenizer_is_named():
    natural = {"kind": "natural_text", "tokenizer": "absent.json", "input_len": 80, "output_len": 4}
    with pytest.raises(SpecError, match=r"no tokenizer absent\.json"):
        traffic(source=natural)


def make_trace(tmp_path, lines):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


TRACE = [
    {"timestamp": 1000, "input_length": 25, "output_length": 3, "hash_ids": [1, 2, 3]},
    {"timestamp": 1200, "input_length": 30, "output_length": 2, "hash_ids": [1, 2, 9]},
]


def test_a_trace_keeps_times_lengths_and_sharing(tmp_path, measure):
    source = {"kind": "trace", "path": make_trace(tmp_path, TRACE), "block_tokens": 10}
    changes = {"source": source, "load": {"kind": "replay", "speed": 2.0}, "cache": {"intent": "natural"}}
    one, two = traffic(**changes).conversations(5, 2)
    assert [len(one.turns[0].token_ids), len(two.turns[0].token_ids)] == [25, 30]
    assert np.array_equal(one.turns[0].token_ids[:20], two.turns[0].token_ids[:20])
    assert one.turns[0].token_ids[20] != two.turns[0].token_ids[20]
    limits = {"max_start_lag_ratio": 0.2}
    run = measure(Script(ttft_s=0.3), **changes, requests_per_pass=2, warmup_requests=0, limits=limits)
    assert run.requests["intended_start_s"].tolist() == pytest.approx([0, 0.1], abs=1e-6)
    assert run.verdict == "VALID", run.reasons


def test_a_trace_that_is_wrong_is_named(tmp_path):
    source = {"kind": "trace", "path": make_trace(tmp_path, [{"timestamp": 1}]), "block_tokens": 10}
    changes = {"load": {"kind": "replay"}, "cache": {"intent": "natural"}}
    with pytest.raises(SpecError, match="line 1: input_length: Field required; output_length: Field required"):
        traffic(source=source, **changes)
    source["path"] = make_trace(tmp_path, TRACE)
    with pytest.raises(SpecError, match="not the declared"):
        traffic(source=source | {"sha256": "0" * 64}, **changes)
    with pytest.raises(SpecError, match="fewer than the 3"):
        traffic(source=source, **changes).conversations(1, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"input_length": "many"}, "line 2: input_length"),
        ({"input_length": 0}, "line 2: input_length"),
        ({"output_length": None}, "line 2: output_length"),
        ({"timestamp": -50}, "line 2: timestamp"),
        ({"hash_ids": ["a", "b"]}, "line 2: hash_ids.0"),
        ({"timestamp": 5}, "earlier than the one before"),
        ({"hash_ids": [1]}, "set block_tokens"),
        ({"hash_ids": [1, 2, 3, 4, 5]}, "set block_tokens"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_value_of_a_trace_that_cannot_be_is_named(tmp_path, wrong, message):
    line = {"timestamp": 10, "input_length": 30, "output_length": 4, "hash_ids": [1, 2, 3]}
    source = {"kind": "trace", "path": make_trace(tmp_path, [line, line | wrong]), "block_tokens": 10}
    with pytest.raises(SpecError, match=message):
        traffic(source=source, load={"kind": "replay"}, cache={"intent": "natural"})


def test_a_scaled_trace_has_scaled_lengths_whatever_its_blocks_round_to(tmp_path):
    line = {"timestamp": 0, "input_length": 6955, "output_length": 40, "hash_ids": list(range(14))}
    source = {"kind": "trace", "path": make_trace(tmp_path, [line]), "length_scale": 0.0048}
    (one,) = traffic(source=source, load={"kind": "replay"}, cache={"intent": "natural"}).conversations(1, 1)
    assert len(one.turns[0].token_ids) == one.turns[0].input_tokens == 33


def test_poisson_arrivals_have_their_rate_and_are_the_same_each_time():
    workload = make_workload(load={"kind": "poisson", "rate_per_s": 40.0}, requests_per_pass=2000, warmup_requests=0)
    source, wire = source_for(workload), wire_for(workload)
    times = [talk[0].intended_s for talk in tickets_of(workload, source, wire, 0, ("measured",))]
    gaps = np.diff(times)
    assert np.mean(gaps) == pytest.approx(1 / 40, rel=0.08) and np.std(gaps) == pytest.approx(1 / 40, rel=0.1)
    assert times == [talk[0].intended_s for talk in tickets_of(workload, source, wire, 0, ("measured",))]
