import httpx
import pytest

from tests.support.serving import serving


def test_health_is_200_and_empty(client):
    answer = client.get("/health")
    assert (answer.status_code, answer.content) == (200, b"")
    assert client.get("/health_generate").status_code == 200


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_the_model_is_described_in_both_spellings(client, server, path):
    info = client.get(path).json()
    assert info["model_path"] == info["tokenizer_path"] == str(server.folder)
    assert (info["served_model_name"], info["disaggregation_mode"], info["is_generation"]) == ("llm", "null", True)
    assert (info["model_type"], info["architectures"]) == ("glm5_next", ["Scripted"])


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_the_server_is_described_in_both_spellings(client, path):
    info = client.get(path).json()
    assert (info["tp_size"], info["dp_size"], info["max_total_num_tokens"]) == (1, 1, 8192)
    assert info["config"]["cache"]["page_size"] == 64
    assert info["impls"] == {"linear": "scripted"}
    assert info["internal_states"][0]["last_gen_throughput"] >= 0.0


def test_models_lists_the_one(client):
    (entry,) = client.get("/v1/models").json()["data"]
    assert (entry["id"], entry["root"], entry["max_model_len"]) == ("llm", "llm", 4096)


def test_the_load_is_a_list_with_one_rank(client):
    (load,) = client.get("/get_load").json()
    assert (load["dp_rank"], load["num_reqs"], load["num_waiting_reqs"]) == (0, 0, 0)


def test_metrics_count_requests_under_known_names(client):
    client.post("/generate", json={"input_ids": [905] * 8, "sampling_params": {"max_new_tokens": 4}})
    page = client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    values = dict(line.rsplit(" ", 1) for line in page.text.splitlines() if not line.startswith("#"))
    assert float(values['sglang:generation_tokens_total{model_name="llm"}']) >= 4
    assert float(values['sglang:cached_tokens_total{model_name="llm"}']) >= 5
    assert float(values['sglang:num_running_reqs{model_name="llm"}']) == 0
    assert float(values['sglang:token_usage{model_name="llm"}']) == 0.25
    assert float(values['np1d_pages_used{model_name="llm"}']) == 1
    assert 'sglang:time_to_first_token_seconds_bucket{le="0.25",model_name="llm"}' in values


def test_flushing_is_answered_in_text_and_resets_the_means(client):
    client.post("/generate", json={"input_ids": [904, 5], "sampling_params": {"max_new_tokens": 8}})
    state = client.get("/server_info").json()["internal_states"][0]
    assert state["avg_spec_accept_length"] > 1
    for method in ("GET", "POST"):
        answer = client.request(method, "/flush_cache", params={"timeout": 2})
        assert (answer.status_code, answer.text) == (200, "Cache flushed.\n")
    assert "avg_spec_accept_length" not in client.get("/server_info").json()["internal_states"][0]


def test_flushing_waits_as_long_as_asked_and_five_seconds_without(client, server):
    client.post("/flush_cache")
    client.post("/flush_cache", params={"timeout": 60})
    waits = [m["timeout_s"] for m in server.heard() if m["type"] == "flush"]
    assert waits[-2:] == [5.0, 60.0]
    for wrong in ("-1", "soon", "nan", "1e9"):
        assert client.post("/flush_cache", params={"timeout": wrong}).status_code == 400


def test_profiling_is_passed_on(client, server, tmp_path):
    body = {"output_dir": str(tmp_path), "num_steps": 3, "activities": ["CPU"], "profile_by_stage": False}
    assert client.post("/start_profile", json=body).status_code == 200
    assert client.post("/stop_profile").status_code == 200
    start, stop = [m for m in server.heard() if m["type"] == "profile"][-2:]
    assert (start["folder"], start["num_steps"], stop["num_steps"]) == (str(tmp_path), 3, 0)
    assert client.post("/start_profile", json={"num_steps": -1}).status_code == 400


def test_only_a_prefill_instance_has_an_endpoint(client):
    assert client.get("/disagg/endpoint").status_code == 404


def test_a_busy_worker_makes_flushing_a_400(tmp_path):
    with serving(tmp_path, {"busy_reason": "3 requests are running"}) as running:
        answer = httpx.post(f"{running.url}/flush_cache")
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].endswith("3 requests are running")
