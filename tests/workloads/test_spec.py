"""Specs: complete, strict, scaled by parameters, and honest about what a page size does to a share."""

import pytest
from measuring import make_workload

from workloads.sources.shared_prefix import reusable_len, shared_len
from workloads.spec import SpecError, load_template, names, parse, resolve


@pytest.mark.parametrize("name", names())
def test_every_spec_resolves_with_its_published_values(name):
    workload = resolve(name, identity={"suite": "s", "row": "r", "session": 2, "testbed": "t"})
    assert workload.name == name == load_template(name)["name"]
    assert workload.identity.session == 2
    assert parse(workload.model_dump_json()) == workload


@pytest.mark.parametrize("name", names())
def test_every_parameter_of_a_spec_is_used(name):
    template = load_template(name)
    text = str(template["workload"])
    assert [p for p in template["parameters"] if f"${p}'" not in text] == []


def test_published_shapes():
    prefill, decode = resolve("prefill"), resolve("decode")
    assert (prefill.source.input_len, prefill.source.output_len, prefill.concurrency) == (65536, 10, 2)
    assert (decode.source.input_len, decode.source.output_len, decode.concurrency) == (65536, 1024, 140)
    assert decode.source.shared_ratio == 0.999 and decode.num_measured == 700
    shares = {n: resolve(n) for n in ("integrated_0", "integrated_50", "integrated_93_75")}
    assert [getattr(w.source, "shared_ratio", 0) for w in shares.values()] == [0, 0.5, 0.9375]
    assert [str(s) for s in shares["integrated_50"].slo] == ["ttft mean < 6 s", "tpot mean < 25 ms"]


def test_what_a_page_size_does_to_99_9_percent():
    shared = shared_len(65536, 0.999)
    assert shared == 65470
    assert [reusable_len(shared, page) for page in (1, 64, 256)] == [65470, 65408, 65280]
    assert [round(100 * reusable_len(shared, page) / 65536, 2) for page in (64, 256)] == [99.80, 99.61]


def test_lengths_scale_by_parameters():
    workload = resolve("prefill", {"input_len": 1024, "output_len": 4, "concurrency": 3, "min_window_s": 2.0})
    assert (workload.source.input_len, workload.num_measured, workload.num_warmup) == (1024, 20, 3)


def test_mistakes_are_named():
    with pytest.raises(SpecError, match=r"there is no workload nothing; there are chat_multiturn, decode"):
        resolve("nothing")
    with pytest.raises(SpecError, match=r"source\.random\.input_len: Input should be greater than or equal to 1"):
        make_workload(source={"kind": "random", "input_len": 0, "output_len": 1})
    with pytest.raises(SpecError, match="belong together"):
        make_workload(load={"kind": "replay"})
    with pytest.raises(SpecError, match="no prefix to prime"):
        make_workload(cache={"intent": "primed"})
    with pytest.raises(SpecError, match="vocab_high must exceed"):
        make_workload(source={"kind": "random", "input_len": 8, "output_len": 1, "vocab_low": 10, "vocab_high": 12})


def test_a_key_given_twice_is_an_error(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("name: a\nname: b\nquestion: q\nparameters: {}\nworkload: {}\n")
    with pytest.raises(SpecError, match="name is given twice"):
        load_template(str(path))


@pytest.mark.parametrize(
    "text", ["[", "\0", "!!python/name:os.system", "name: a\nquestion: q\nparameters: 3\nworkload: {}\n"]
)
def test_a_file_that_is_no_template_is_one_sentence(tmp_path, text):
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"^odd\.yaml(:| is not YAML:) [^\n]+$"):
        load_template(str(path))


def test_a_band_has_its_lower_end_first():
    with pytest.raises(SpecError, match=r"cache\.band: .*\[lowest, highest\], not \[0.9, 0.1\]"):
        make_workload(cache={"band": [0.9, 0.1]})
    with pytest.raises(SpecError, match=r"limits\.accept_length"):
        make_workload(limits={"accept_length": [5, 4]})


def test_seeds_depend_on_row_session_and_pass_alone():
    one = make_workload(identity={"row": "a", "session": 1})
    assert one.seed("pass", 0) == make_workload(identity={"row": "a", "session": 1}, passes=3).seed("pass", 0)
    assert one.seed("pass", 0) != one.seed("pass", 1)
