"""Several choices of one prompt: n and best_of, over HTTP and gRPC.

The tests find the expected choices with separate requests, whose seeds are derived as
docs/api.md says.
"""

import collections
import json

import grpc
import openai
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from flotilla_server import DATA, MODEL, Server

PROMPT = "Once upon a time"
SEED = 1234567890123456789
SAMPLED = dict(model=MODEL, prompt=PROMPT, temperature=1, max_tokens=24)


def choice_seed(seed, i, m=2**64):
    """The seed with which a separate request gives choice i."""
    x = (seed + i * 0x9E3779B97F4A7C15) % m
    y = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % m
    z = (y ^ y >> 27) * 0x94D049BB133111EB % m
    return z ^ z >> 31 if i else seed


def test_derived_seeds_are_splitmix64s():
    assert [choice_seed(0, i) for i in range(3)] == [0, 0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def single(server, i, **fields):
    """Choice i, from a separate request."""
    answer = server.post("/v1/completions", **{**SAMPLED, "return_token_ids": True, "logprobs": 0,
                                               "seed": choice_seed(SEED, i), **fields})
    return answer["choices"][0]


def mean_logprob(choice):
    logprobs = choice["logprobs"]["token_logprobs"]
    return sum(logprobs) / len(logprobs)


def test_choices_are_requests_of_their_own(server):
    answer = server.post("/v1/completions", **SAMPLED, n=4, seed=SEED, logprobs=0,
                         return_token_ids=True)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    for i, choice in enumerate(answer["choices"]):
        expected = single(server, i)
        for field in ("text", "token_ids", "finish_reason", "logprobs"):
            assert choice[field] == expected[field], (i, field)
        assert "score" not in choice
    texts = {choice["text"] for choice in answer["choices"]}
    assert len(texts) == 4
    tokens = sum(len(choice["token_ids"]) for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == tokens
    assert answer["usage"]["prompt_tokens"] == len(answer["prompt_token_ids"])


@pytest.mark.parametrize("flags", [(), ("--speculation", "draft", "--draft-layers", "30")],
                         ids=["plain", "draft"])
def test_choices_share_a_run_that_is_full(tmp_path, flags):
    """K and V of int4 are encoded by runs of 64 positions. Choices of a prompt that ends with a run
    begin within it, while the first of them goes on into the next one."""
    with Server(tmp_path, "--kv-type", "int4", *flags) as server:
        for length in (64, 100, 128, 192):
            # No prompt begins like another one, so each is computed from its first position.
            fields = {"model": MODEL, "prompt": [10 + (7 * i + length) % 290 for i in range(length)],
                      "temperature": 0, "max_tokens": 12, "ignore_eos": True, "logprobs": 0}
            scores = [choice["logprobs"]["token_logprobs"]
                      for n in (3, 1) for choice in server.post("/v1/completions", **fields, n=n)["choices"]]
            assert scores[1:] == scores[:1] * 3, length


def test_choices_through_openais_client(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Name a colour."}], n=3, seed=7,
        temperature=1, max_tokens=12)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    alone = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Name a colour."}],
        seed=choice_seed(7, 2), temperature=1, max_tokens=12)
    assert answer.choices[2].message.content == alone.choices[0].message.content


def test_choices_over_grpc(server, stub, pb):
    request = pb.messages.GenerateRequest(model=MODEL, text=PROMPT, max_tokens=24, n=4,
                                          return_token_ids=True)
    request.sampling.temperature = 1
    request.sampling.seed = SEED
    tokens, finishes = collections.defaultdict(list), {}
    for response in stub.Generate(request):
        for delta in response.deltas:
            tokens[delta.choice] += delta.token_ids
        for finish in response.finishes:
            assert finish.choice not in finishes and not finish.HasField("score")
            finishes[finish.choice] = finish.reason
    assert sorted(finishes) == [0, 1, 2, 3]
    for i in range(4):
        assert tokens[i] == single(server, i)["token_ids"]
    assert response.usage.output_tokens == sum(map(len, tokens.values()))


def test_the_prompt_is_computed_once(server):
    prompt = json.loads((DATA / "text_gpl3_long.json").read_text())["ids"][:1000]
    before = server.metric("flotilla_scheduler_tokens_total", kind="prompt")
    answer = server.post("/v1/completions", model=MODEL, prompt=prompt, n=4, max_tokens=2,
                         cache_salt="several choices")
    computed = server.metric("flotilla_scheduler_tokens_total", kind="prompt") - before
    assert computed <= len(prompt) + 3 * 16
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    server.wait_idle()


def test_streamed_choices(client):
    fields = dict(**SAMPLED, n=3, seed=SEED)
    whole = client.completions.create(**fields)
    chunks = list(client.completions.create(**fields, stream=True,
                                            stream_options={"include_usage": True}))
    texts, finishes = collections.defaultdict(str), {}
    order = []
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        assert choice.index not in finishes, "a chunk after the choice's last"
        texts[choice.index] += choice.text
        if choice.text:
            order.append(choice.index)
        if choice.finish_reason:
            finishes[choice.index] = choice.finish_reason
    assert [texts[i] for i in range(3)] == [choice.text for choice in whole.choices]
    assert [finishes[i] for i in range(3)] == [choice.finish_reason for choice in whole.choices]
    assert set(order[:6]) == {0, 1, 2}, "choices come interleaved"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_stop_string_ends_its_choice_alone(server):
    text = single(server, 1)["text"]
    stop = text[len(text) // 2:][:3]
    answer = server.post("/v1/completions", **SAMPLED, n=4, seed=SEED, stop=[stop])
    for i, choice in enumerate(answer["choices"]):
        expected = single(server, i, stop=[stop])
        assert choice["text"] == expected["text"]
        assert choice["finish_reason"] == expected["finish_reason"]
    assert answer["choices"][1]["finish_reason"] == "stop"
    server.wait_idle()


def ranked(server, count):
    """(score, choice) of `count` separate requests, best first."""
    choices = [single(server, i) for i in range(count)]
    return sorted(((mean_logprob(choice), choice) for choice in choices),
                  key=lambda pair: -pair[0])


@pytest.mark.parametrize("n", [1, 2])
def test_best_of_is_the_most_likely(server, n):
    answer = server.post("/v1/completions", **SAMPLED, n=n, best_of=5, seed=SEED,
                         return_token_ids=True)
    expected = ranked(server, 5)
    assert len(answer["choices"]) == n
    for i, choice in enumerate(answer["choices"]):
        score, alone = expected[i]
        assert choice["index"] == i
        assert choice["token_ids"] == alone["token_ids"]
        assert choice["score"] == pytest.approx(score, abs=1e-5)
    charged = sum(len(choice["token_ids"]) for _, choice in expected)
    assert answer["usage"]["completion_tokens"] == charged


def test_best_of_over_grpc(server, stub, pb):
    request = pb.messages.GenerateRequest(model=MODEL, text=PROMPT, max_tokens=24, n=2, best_of=5,
                                          return_token_ids=True)
    request.sampling.temperature = 1
    request.sampling.seed = SEED
    tokens, scores = collections.defaultdict(list), {}
    for response in stub.Generate(request):
        for delta in response.deltas:
            tokens[delta.choice] += delta.token_ids
        for finish in response.finishes:
            scores[finish.choice] = finish.score
    expected = ranked(server, 5)
    for i in range(2):
        assert tokens[i] == expected[i][1]["token_ids"]
        assert scores[i] == pytest.approx(expected[i][0], abs=1e-5)


def test_a_disconnect_frees_all_sequences(server):
    body = {**SAMPLED, "n": 4, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()  # a dropped iterator closes the connection
        next(lines)
        assert server.used_blocks() > 0
    server.wait_idle()


BEAMS = {"use_beam_search": True, "n": 2}


@pytest.mark.parametrize("extra, param, said", [
    ({"n": 0}, "n", "from 1 to"),
    ({"n": 1000}, "n", "from 1 to"),
    ({"best_of": 1000}, "best_of", "from 1 to"),
    ({"n": 3, "best_of": 2}, "best_of", "at least n"),
    ({"best_of": 2, "stream": True}, "stream", "best_of"),
    ({"length_penalty": 0.5}, "length_penalty", "beam search"),
    ({"early_stopping": True}, "early_stopping", "beam search"),
    ({**BEAMS, "stop": "x"}, "stop", "beam search"),
    ({**BEAMS, "temperature": 0.5}, "temperature", "beam search"),
    ({**BEAMS, "top_p": 0.5}, "top_p", "beam search"),
    ({**BEAMS, "top_k": 5}, "top_k", "beam search"),
    ({**BEAMS, "seed": 1}, "seed", "beam search"),
    ({**BEAMS, "frequency_penalty": 1}, "frequency_penalty", "beam search"),
    ({**BEAMS, "length_penalty": 11}, "length_penalty", "from -10 to 10"),
    ({**BEAMS, "early_stopping": "soon"}, "early_stopping", "never"),
    ({**BEAMS, "stop_token_ids": list(range(3, 40))}, "n", "at most 64"),
])
def test_refusals_over_http(client, extra, param, said):
    for create, prompt in ((client.completions.create, dict(prompt="x")),
                           (client.chat.completions.create,
                            dict(messages=[{"role": "user", "content": "x"}]))):
        with pytest.raises(openai.BadRequestError) as error:
            create(model=MODEL, **prompt, extra_body=extra)
        assert error.value.param == param
        assert said in error.value.message


@pytest.mark.parametrize("fields, name", [
    (dict(n=1000), "n"),
    (dict(n=2, best_of=1), "best_of"),
    (dict(beam_search=dict(length_penalty=float("nan"))), "beam_search.length_penalty"),
    (dict(beam_search=dict(early_stopping=9)), "beam_search.early_stopping"),
    (dict(beam_search={}, stop=dict(strings=["x"])), "stop.strings"),
    (dict(beam_search={}, sampling=dict(temperature=0.5)), "sampling.temperature"),
    (dict(beam_search={}, sampling=dict(seed=1)), "sampling.seed"),
    (dict(beam_search={}, sampling=dict(logit_bias=[dict(token_id=1)])), "sampling.logit_bias"),
    (dict(sampling=dict(repetition_penalty=0)), "sampling.repetition_penalty"),
    (dict(stop=dict(min_tokens=9), max_tokens=8), "stop.min_tokens"),
])
def test_refusals_over_grpc(stub, pb, fields, name):
    with pytest.raises(grpc.RpcError) as error:
        list(stub.Generate(pb.messages.GenerateRequest(model=MODEL, text="x", **fields)))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    bad = error_details_pb2.BadRequest()
    for detail in rpc_status.from_call(error.value).details:
        detail.Unpack(bad)
    assert [violation.field for violation in bad.field_violations] == [name]
