"""Training descends, stops and goes on exactly, and exports what the engine serves; asked by the real engine."""

import json
import math
import subprocess
import sys
from itertools import islice

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from stack.training.__main__ import UNFINISHED, main
from stack.training.asking import respondent
from stack.training.export import read_target, write_draft, write_target
from stack.training.faults import FAULTS
from stack.training.fp8_form import write_fp8
from stack.training.sizes import DRAFT_CONFIG, TEXT_CONFIG
from stack.training.tokenizer import VOCAB_SIZE, trained_tokenizer, write_tokenizer
from tests.support.checkpoints import variant
from tests.support.drafts import watch_drafts
from tests.support.target_session import TargetSession, engine_config
from workloads.corpus import stories
from workloads.corpus.files import write_lines, write_training_text

MOST_BYTES = 4 * 2**20
EXACT = {"model.compute_dtype": "float32", "cache.kv_dtype": "float32", "cache.index_dtype": "float32"}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A small corpus with its tokenizer and questions."""
    folder = tmp_path_factory.mktemp("text")
    write_training_text(folder / "corpus", count=600, processes=1, seed="7")
    documents = [json.loads(line)["text"] for line in (folder / "corpus" / "000.jsonl").open()]
    write_tokenizer(trained_tokenizer(documents), folder / "tokenizer")
    told = stories("0", "held_out")
    write_lines(folder / "questions.jsonl", ({"question": s.question, "answer": s.answer} for s in islice(told, 45)))
    return folder


def arguments(text, work, out, *more):
    return [
        str(work), "--corpus", str(text / "corpus"), "--questions", str(text / "questions.jsonl"), "--out", str(out),
        "--tokenizer", str(text / "tokenizer" / "tokenizer.json"), "--recipe", "smoke", *more,
    ]  # fmt: skip


def lines_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").open()]


STEPS = ("--target-steps", "20", "--draft-steps", "4")


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """A run from text to export without a break."""
    work, out = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("whole")
    assert main(arguments(text, work, out, *STEPS)) == 0
    return out


@pytest.mark.slow
def test_the_losses_fall_from_text_to_drafts(whole):
    target = [line["loss"] for line in lines_of(whole) if line.get("stage") == "target" and "loss" in line]
    assert max(target) < 0.8 * math.log(VOCAB_SIZE), "far below a uniform guess, though steps of 128 tokens are noisy"
    assert any("mini_gsm" in line for line in lines_of(whole))
    kept_back = [line for line in lines_of(whole) if line.get("kept_back")]
    assert kept_back and all(line["mtp_length"] >= 1 and line["dflash2_length"] >= 1 for line in kept_back)


@pytest.mark.slow
def test_an_interrupted_run_ends_where_an_unbroken_one_does(text, whole, tmp_path):
    work, out = tmp_path / "work", tmp_path / "out"
    assert main(arguments(text, work, out, *STEPS, "--seconds", "1")) == UNFINISHED
    assert json.loads((work / "target" / "state.json").read_text())["step"] < 20
    assert main(arguments(text, work, out, *STEPS)) == 0
    for name in ("model.safetensors", "draft/model.safetensors"):
        one, other = load_file(whole / name), load_file(out / name)
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.slow
def test_what_was_exported_is_served(whole):
    with respondent(whole, {"speculation.method": "dflash2", "speculation.draft_path": str(whole / "draft")}) as one:
        answers = one.answers([[5, 6, 7]], limit=8, end=1)
    assert 1 <= len(answers[0].tokens) <= 8


def test_the_release_layout_fits_in_four_mebibytes_and_reads_back(written, tensors, draft, tmp_path):
    write_target(tmp_path, tensors, TEXT_CONFIG)
    write_draft(tmp_path / "draft", draft, DRAFT_CONFIG)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors")) <= MOST_BYTES
    back = read_target(tmp_path)
    assert set(back) == set(tensors)
    for name, tensor in tensors.items():
        torch.testing.assert_close(back[name], tensor, atol=0, rtol=2**-8)


def test_the_fp8_form_stays_within_fp8_noise_where_nothing_is_chosen(written, tmp_path):
    plain = variant(written, tmp_path / "plain", num_experts_per_tok=8, index_topk=4096)
    write_fp8(plain, tmp_path / "fp8")
    tokens = torch.randint(2, 500, (100,), generator=torch.Generator().manual_seed(3)).tolist()
    logits = []
    for folder in (plain, tmp_path / "fp8"):
        session = TargetSession(engine_config(folder))
        logits.append(session.logits(session.prefill({0: tokens})))
    noise = (logits[1] - logits[0]).square().mean().sqrt() / logits[0].square().mean().sqrt()
    assert 1e-4 < noise < 0.3


@pytest.fixture(scope="module")
def prompts():
    draw = torch.Generator().manual_seed(11)
    return [torch.randint(2, 500, (length,), generator=draw).tolist() for length in (40, 150, 260)]


def asked(checkpoint, prompts, **settings):
    with respondent(checkpoint, EXACT | settings) as one:
        return one.answers(prompts, limit=24, end=1)


@pytest.mark.parametrize("method", ["mtp", "dflash2"])
def test_drafters_leave_the_text_alone(written, prompts, method):
    plain = asked(written, prompts)
    path = {"speculation.draft_path": str(written / "draft")} if method == "dflash2" else {}
    drafted = asked(written, prompts, **{"speculation.method": method, **path})
    assert [a.tokens for a in drafted] == [a.tokens for a in plain]
    assert all(a.num_verify > 0 for a in drafted)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_planted_fault_changes_what_the_engine_does(written, prompts, tmp_path, monkeypatch, fault):
    """On noise a fault cannot cost accuracy; it has to change tokens, or what is drafted."""
    drafts = watch_drafts(monkeypatch)

    def run(checkpoint):
        method = {"speculation.method": fault.shows_in, "speculation.draft_path": str(checkpoint / "draft")}
        drafts.clear()
        return asked(checkpoint, prompts[2:], **({} if fault.shows_in == "accuracy" else method)), dict(drafts)

    honest = run(written)
    with fault.plant(written, tmp_path) as checkpoint:
        spoilt = run(checkpoint)
    assert run(written) == honest, "the fault must end with its context"
    assert spoilt != honest


def test_the_committed_tokenizer_keeps_digits_apart_and_returns_every_text():
    tokenizer = Tokenizer.from_file("workloads/checkpoints/tiny_trained/tokenizer.json")
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    text = "Ada has 1234 apples.\n#### 98\n\nzażółć 50 %"
    encoded = tokenizer.encode(text)
    assert tokenizer.decode(encoded.ids) == text
    assert [token for token in encoded.tokens if set(token) & set("0123456789")] == list("12349850")


def test_training_needs_no_package_that_a_bare_gpu_machine_lacks():
    """PyTorch, tokenizers, safetensors and numpy are there; what the engine and the client need besides is not."""
    code = (
        "import sys\n"
        "for name in ('msgspec', 'zmq', 'pydantic', 'orjson', 'pandas', 'nixl'): sys.modules[name] = None\n"
        "import stack.training.__main__, workloads.corpus.__main__\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
