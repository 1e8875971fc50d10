"""flotilla.v1 through grpcio, a gRPC stack that shares no code with the server's."""

import random
import struct
import time

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from flotilla_server import MODEL, json_lines


def france(pb):
    golden = json_lines("greedy.jsonl")[0]
    request = pb.messages.GenerateRequest(model=MODEL, return_token_ids=True, max_tokens=64)
    for message in golden["messages"]:
        request.chat.messages.add(**message)
    request.sampling.temperature = 0
    return request, golden


def endless(pb, tokens=4000):
    """A request that would go on for a long time."""
    request = pb.messages.GenerateRequest(model=MODEL, text="Count: 1, 2, 3,", max_tokens=tokens)
    request.stop.ignore_eos = True
    return request


def details(error):
    """{message name: message} of the error's details, as any gRPC client reads them."""
    found = {}
    for any_message in rpc_status.from_call(error).details:
        name = any_message.type_url.rsplit(".", 1)[1]
        found[name] = getattr(error_details_pb2, name)()
        any_message.Unpack(found[name])
    return found


def test_streams_the_golden_answer(stub, pb):
    request, golden = france(pb)
    responses = list(stub.Generate(request))
    accepted = responses[0].accepted
    assert list(accepted.prompt_token_ids) == golden["prompt_ids"]
    assert accepted.prompt_tokens == len(golden["prompt_ids"])
    assert accepted.id
    deltas = [delta for response in responses for delta in response.deltas]
    assert "".join(delta.text for delta in deltas) == "The capital of France is Paris."
    assert [token for delta in deltas for token in delta.token_ids] == golden["greedy_ids"]
    (finish,) = [finish for response in responses for finish in response.finishes]
    assert finish.reason == pb.messages.FINISH_REASON_STOP
    assert responses[-1].usage.output_tokens == len(golden["greedy_ids"])


def test_logprobs_agree_with_the_reference(stub, pb):
    request, golden = france(pb)
    request.logprobs.output_top = 5
    request.logprobs.prompt_top = 0
    responses = list(stub.Generate(request))
    prompt = [p for r in responses for p in r.prompt_logprobs.positions]
    assert [p.chosen.token_id for p in prompt] == golden["prompt_ids"][1:]
    output = [p for r in responses for d in r.deltas for p in d.logprobs]
    assert len(output) == len(golden["greedy_ids"])
    for position, token in zip(output, golden["greedy_ids"]):
        assert position.chosen.token_id == token
        assert position.top[0].token_id == token
        assert len(position.top) == 5


def test_prompt_logprobs_are_those_of_http(server, stub, pb):
    """The same bits, whether the prompt is computed in chunks, again, or beside other work."""
    ids = random.Random(5).choices(range(1000, 40000), k=300)
    request = pb.messages.GenerateRequest(model=MODEL, token_ids=dict(ids=ids), max_tokens=0)
    request.logprobs.prompt_top = 3
    want = [{p.chosen.token_id: p.chosen.logprob, **{top.token_id: top.logprob for top in p.top}}
            for response in stub.Generate(request) for p in response.prompt_logprobs.positions]
    assert len(want) == len(ids) - 1
    for fields in (dict(max_tokens=0, n=2), dict(max_tokens=3, temperature=0)):
        answer = server.post("/v1/completions", model=MODEL, prompt=ids, prompt_logprobs=3, **fields)
        for choice in answer["choices"]:
            first, *rest = choice["prompt_logprobs"]
            assert first is None
            got = [{int(token): entry["logprob"] for token, entry in place.items()}
                   for place in rest]
            # JSON has the shortest decimals that are the same floats.
            as_float = [{token: struct.pack("f", value) for token, value in place.items()}
                        for place in (*want, *got)]
            assert as_float[:len(want)] == as_float[len(want):]
            ranks = [place[str(token)]["rank"] for place, token in zip(rest, ids[1:])]
            assert None in ranks


def test_cancel_frees_everything(server, stub, pb):
    call = stub.Generate(endless(pb))
    for response in call:
        if response.deltas:
            break
    assert server.used_blocks() > 0
    call.cancel()
    server.wait_idle()


def test_deadline(server, stub, pb):
    started = time.monotonic()
    with pytest.raises(grpc.RpcError) as error:
        for _ in stub.Generate(endless(pb), timeout=0.5):
            pass
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - started < 5
    server.wait_idle()


def test_abort_takes_only_the_internal_id(stub, pb):
    request = endless(pb)
    request.request_id = "mine"
    call = stub.Generate(request)
    accepted = next(call).accepted
    assert not stub.Abort(pb.messages.AbortRequest(id="mine")).found
    assert stub.Abort(pb.messages.AbortRequest(id=accepted.id)).found
    (finish,) = [finish for response in call for finish in response.finishes]
    assert finish.reason == pb.messages.FINISH_REASON_CANCELLED
    assert call.code() == grpc.StatusCode.OK


def test_errors_carry_details(stub, pb):
    def refused(request):
        with pytest.raises(grpc.RpcError) as error:
            list(stub.Generate(request))
        return error.value

    hot = pb.messages.GenerateRequest(model=MODEL, text="x")
    hot.sampling.temperature = 5
    error = refused(hot)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert details(error)["BadRequest"].field_violations[0].field == "sampling.temperature"

    error = refused(pb.messages.GenerateRequest(model="gpt-7", text="x"))
    assert error.code() == grpc.StatusCode.NOT_FOUND
    assert details(error)["ErrorInfo"].reason == "model_not_found"

    long = pb.messages.GenerateRequest(model=MODEL)
    long.token_ids.ids.extend([100] * 9000)
    error = refused(long)
    assert error.code() == grpc.StatusCode.OUT_OF_RANGE
    assert details(error)["ErrorInfo"].reason == "context_length_exceeded"


def test_tokenize_and_back(stub, pb):
    for case in json_lines("tokenize.jsonl")[:50]:
        tokens = stub.Tokenize(pb.messages.TokenizeRequest(model=MODEL, text=case["text"],
                                                           add_special_tokens=False)).token_ids
        assert list(tokens) == case["ids"]
        text = stub.Detokenize(pb.messages.DetokenizeRequest(model=MODEL, token_ids=tokens)).text
        assert text == case["text"]


def test_models(stub, pb):
    assert list(stub.ListModels(pb.messages.ListModelsRequest()).models) == [MODEL]
    info = stub.GetModelInfo(pb.messages.GetModelInfoRequest(model=MODEL))
    assert (info.vocab_size, info.bit_exact) == (49152, True)
    assert info.max_context == 8192


def test_health(channel):
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "flotilla.v1.Inference"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
