"""Beam search gives the sequences and scores of HF generate, whatever else runs."""

import collections
import contextlib
import threading

import grpc
import openai
import pytest

from flotilla_server import LONG, MODEL, json_lines

CASES = json_lines("beam.jsonl")
STREAMS = 8
TOLERANCE = 1e-3


@contextlib.contextmanager
def other_requests(server):
    """Runs streams that never end until the block is left; all have begun when it is entered."""
    leave = threading.Event()
    begun = threading.Barrier(STREAMS + 1)
    failures = []

    def stream(seed):
        try:
            body = dict(model=MODEL, prompt=f"Story {seed}:", max_tokens=7000, ignore_eos=True,
                        stream=True, seed=seed)
            with server.http.stream("POST", "/v1/completions", json=body) as response:
                for number, _ in enumerate(response.iter_lines()):
                    if number == 0:
                        begun.wait(60)
                    if leave.is_set():
                        return
            failures.append(f"stream {seed} ended by itself with {last}")
        except Exception as error:  # a thread's exception is lost otherwise
            failures.append(repr(error))
            begun.abort()

    threads = [threading.Thread(target=stream, args=(seed,)) for seed in range(STREAMS)]
    for thread in threads:
        thread.start()
    try:
        begun.wait(60)
        yield
        assert not failures, failures
    finally:
        leave.set()
        for thread in threads:
            thread.join()
    server.wait_idle()


def check(case, choices):
    """`choices`: (tokens, score, stopped), best first."""
    assert [tokens for tokens, _, _ in choices] == case["sequences"]
    for (tokens, score, stopped), expected in zip(choices, case["scores"]):
        assert score == pytest.approx(expected, abs=TOLERANCE)
        assert stopped == (tokens[-1] == 2)


def over_http(server, case, **fields):
    beams = case["num_beams"]
    answer = server.post("/v1/completions", **{
        "model": MODEL, "prompt": case["prompt_ids"], "max_tokens": case["max_new_tokens"],
        "use_beam_search": True, "n": beams, "length_penalty": case["length_penalty"],
        "early_stopping": case["early_stopping"], "return_token_ids": True, **fields})
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [(choice["token_ids"], choice["score"], choice["finish_reason"] == "stop")
            for choice in answer["choices"]]


def over_grpc(stub, pb, case):
    early = {False: "EARLY_STOPPING_UNSPECIFIED", True: "EARLY_STOPPING_ALWAYS",
             "never": "EARLY_STOPPING_NEVER"}[case["early_stopping"]]
    request = pb.messages.GenerateRequest(
        model=MODEL, token_ids=dict(ids=case["prompt_ids"]), max_tokens=case["max_new_tokens"],
        n=case["num_beams"], return_token_ids=True,
        beam_search=dict(length_penalty=case["length_penalty"], early_stopping=early))
    tokens, finishes = collections.defaultdict(list), {}
    for response in stub.Generate(request):
        for delta in response.deltas:
            tokens[delta.choice] += delta.token_ids
        for finish in response.finishes:
            finishes[finish.choice] = finish
    return [(tokens[i], finishes[i].score, finishes[i].reason == pb.messages.FINISH_REASON_STOP)
            for i in sorted(finishes)]


@pytest.fixture(scope="module")
def fp32_stub(fp32_server, pb):
    with grpc.insecure_channel(fp32_server.grpc_address) as channel:
        yield pb.services.InferenceStub(channel)


@pytest.fixture(scope="module")
def fp32_client(fp32_server):
    with openai.OpenAI(base_url=f"{fp32_server.url}/v1", api_key="unused", max_retries=0) as one:
        yield one


def test_golden_beams_in_company(fp32_server, fp32_stub, pb):
    assert len(CASES) == 5
    with other_requests(fp32_server):
        for case in CASES:
            check(case, over_http(fp32_server, case))
        for case in CASES if LONG else CASES[1:4]:  # each kind of early stopping
            check(case, over_grpc(fp32_stub, pb, case))


def test_fewer_come_back_than_there_are_beams(fp32_server):
    case = CASES[0]
    whole = over_http(fp32_server, case)
    assert over_http(fp32_server, case, best_of=case["num_beams"], n=2) == whole[:2]


def test_a_stream_brings_the_same_at_the_end(fp32_server, fp32_client):
    case = CASES[0]
    chunks = fp32_client.completions.create(
        model=MODEL, prompt=case["prompt_ids"], max_tokens=case["max_new_tokens"], stream=True,
        n=case["num_beams"], extra_body={"use_beam_search": True, "return_token_ids": True})
    tokens, scores = collections.defaultdict(list), {}
    for chunk in chunks:
        (choice,) = chunk.choices
        tokens[choice.index] += choice.token_ids
        if choice.finish_reason:
            scores[choice.index] = choice.score
    assert [tokens[i] for i in sorted(tokens)] == case["sequences"]
    assert [scores[i] for i in sorted(scores)] == pytest.approx(case["scores"], abs=TOLERANCE)
