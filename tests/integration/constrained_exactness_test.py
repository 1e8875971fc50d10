"""A constrained answer has the same bits alone and among others, preempted, speculated and replayed."""

import concurrent.futures
import json
import os
import re
import signal

import pytest

from flotilla_server import MODEL, SANITIZED, Fleet, Server, wait_until
from fleet_test import Stream

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 16},
                   "age": {"type": "integer", "minimum": 0, "maximum": 120},
                   "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
                   "address": {"$ref": "#/$defs/address"}},
    "required": ["name", "age", "tags", "address"], "additionalProperties": False,
    "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string", "maxLength": 12},
                                                           "number": {"type": "integer"}},
                          "required": ["street", "number"], "additionalProperties": False}}}


def requests():
    """Schemas, a regular expression, a grammar and choices; greedy and sampled."""
    constraints = [{"json": SCHEMA}, {"regex": r"[A-Z][a-z]{2,9}( [A-Z][a-z]{2,9}){1,3}\."},
                   {"grammar": 'root ::= item ("," item){2,5}\nitem ::= [0-9]{1,3}'},
                   {"choice": ["north", "south", "east", "west"]}]
    return [dict(model=MODEL, prompt=f"This is a description of person number {i}:\n",
                 structured_outputs=constraints[i % 4], temperature=(i // 4) / 2, seed=i, max_tokens=64,
                 logprobs=2, return_token_ids=True)
            for i in range(8 if SANITIZED else 12)]


def beams():
    """Beam searches of the first three forms."""
    return [{key: value for key, value in dict(body, use_beam_search=True, n=3, max_tokens=24).items()
             if key not in ("seed", "temperature")} for body in requests()[:3]]


def ask(server, body):
    return [(choice["token_ids"], choice["logprobs"], choice["finish_reason"], choice["text"])
            for choice in server.post("/v1/completions", **body)["choices"]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each answer with nobody beside it."""
    with Server(tmp_path_factory.mktemp("alone")) as server:
        return [ask(server, body) for body in requests() + beams()]


def test_answers_follow_their_constraints(alone):
    for body, choices in zip(requests() + beams(), alone):
        for _, _, reason, text in choices:
            if reason == "length":
                continue
            if "json" in body["structured_outputs"]:
                assert list(json.loads(text)) == ["name", "age", "tags", "address"]
            if "regex" in body["structured_outputs"]:
                assert re.fullmatch(body["structured_outputs"]["regex"], text)
            if "choice" in body["structured_outputs"]:
                assert text in body["structured_outputs"]["choice"]
    reasons = [reason for choices in alone[:len(requests())] for _, _, reason, _ in choices]
    assert reasons.count("stop") >= len(reasons) * 2 // 3


def test_beams_are_distinct_and_the_best_comes_first(alone):
    for choices in alone[len(requests()):]:
        assert len({tuple(tokens) for tokens, _, _, _ in choices}) == 3
    assert any(reason == "stop" for choices in alone[len(requests()):] for _, _, reason, _ in choices)


HOW = {"batch": (), "preempted": ("--kv-blocks", "20", "--max-batch-tokens", "48"),
       "swapped": ("--kv-blocks", "20", "--host-blocks", "400"), "ngram": ("--speculation", "ngram"),
       "draft": ("--speculation", "draft", "--draft-layers", "30"),
       "tensor parallel": ("--tp", "2", "--threads", "1", "--speculation", "draft", "--draft-layers", "30"),
       "pipeline": ("--pp", "2", "--threads", "1", "--speculation", "ngram")}


@pytest.mark.parametrize("how", HOW)
def test_company_changes_no_bit(tmp_path, alone, how):
    with Server(tmp_path, *HOW[how]) as server, concurrent.futures.ThreadPoolExecutor(32) as pool:
        # Each of them twice, and free requests, which take the blocks of those that have begun.
        answers = [pool.submit(ask, server, body) for body in (requests() + beams()) * 2]
        wait_until(lambda: server.metric("flotilla_scheduler_tokens_total", kind="generated") > 16, "tokens")

        def ask_freely(i):
            return server.post("/v1/completions", model=MODEL, prompt=f"Number {i} is", max_tokens=48,
                               ignore_eos=True, priority=5)

        free = [pool.submit(ask_freely, i) for i in range(8)]
        mode = {"preempted": "recompute", "swapped": "swap"}.get(how)

        def preempted():
            return server.metric("flotilla_scheduler_preemptions_total", mode=mode)

        # A victim that has no whole block yet is recomputed. So more come until one was swapped, and
        # when all answers are there they are asked for again, three times at most.
        while mode and not preempted() and len(answers) <= 5 * len(alone):
            if all(one.done() for one in answers):
                answers += [pool.submit(ask, server, body) for body in requests() + beams()]
            ask_freely(8)
        assert [one.result() for one in answers] == alone * (len(answers) // len(alone))
        for one in free:
            assert one.result()["usage"]["completion_tokens"] == 48
        assert mode is None or preempted() > 0
        if how in ("draft", "tensor parallel"):
            assert server.metric("flotilla_scheduler_speculation_tokens_total", kind="accepted") > 0
        server.wait_idle()


def test_choices_go_on_by_themselves(tmp_path):
    body = dict(requests()[4], n=4, temperature=1)
    with Server(tmp_path) as server:
        texts = {choice["text"] for choice in server.post("/v1/completions", **body)["choices"]}
    assert len(texts) == 4


def test_a_replay_goes_on_with_the_same_bits(tmp_path):
    bodies = requests()[:6] + beams()[:2]
    with Fleet(tmp_path) as fleet:
        expected = [Stream(fleet.url, body).run().answer() for body in bodies]
    with Fleet(tmp_path) as fleet, concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        streams = [Stream(fleet.url, body) for body in bodies]
        running = [pool.submit(stream.run) for stream in streams]
        wait_until(lambda: all(stream.token_count() > 3 for stream in streams[:3]), "tokens")
        os.kill(fleet.group.members()[0][0], signal.SIGKILL)
        assert [one.result().answer() for one in running] == expected
        assert fleet.scheduler.metric("flotilla_scheduler_recomputed_requests_total") > 1
