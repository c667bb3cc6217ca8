"""A model without a tokenizer, such as one with random weights at full size, is served in token ids."""

import httpx
import pytest

from tests.support.serving import SCRIPTED, Server, write_model


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("model"))
    (folder / "tokenizer.json").unlink()
    server = Server(folder, {}, SCRIPTED)
    try:
        with httpx.Client(base_url=server.wait_ready().url) as made:
            yield made
    finally:
        server.stop()


def test_token_ids_come_and_go_without_text(client):
    body = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3}}
    answer = client.post("/generate", json=body).json()
    assert (answer["text"], answer["output_ids"]) == ("", [5, 6, 5])
    assert client.get("/model_info").json()["tokenizer_path"] is None


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/generate", {"text": "a"}, "send input_ids instead of text"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "has no tokenizer.json"),
        ("/generate", {"input_ids": [5], "sampling_params": {"stop": "x"}}, "use stop_token_ids"),
    ],
)
def test_what_needs_text_says_so(client, path, body, sentence):
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]["message"]
