"""Prompts that cannot be served run beside prompts that can. Four clients who send nothing
but 4 MB of text do not delay anybody's first token."""

import contextlib
import http.client
import json
import random
import statistics
import string
import threading
import time

import pytest

from flotilla_server import MODEL, Server, wait_until

MEGABYTES = 4_000_000
CLIENTS = 4
SAMPLES = 9


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server"), "--threads", "1") as running:
        yield running


def post(server, body, path="/v1/completions"):
    """The status and body of one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=120)
    with contextlib.closing(connection):
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def first_token_seconds(server):
    """The time of a short completion that asks for one token, so that it ends with its first
    token."""
    begun = time.monotonic()
    status, _ = post(server, json.dumps(dict(model=MODEL, prompt="Say it.", max_tokens=1)))
    assert status == 200
    return time.monotonic() - begun


def median_first_token(server):
    return statistics.median(first_token_seconds(server) for _ in range(SAMPLES))


@contextlib.contextmanager
def beside(server, path, body, wanted):
    """Runs CLIENTS threads that send `body` again and again. It yields the statuses of their
    answers as [status, ...]; each thread has an answer before the block begins."""
    over, statuses = threading.Event(), []
    lock = threading.Lock()

    def client():
        while not over.is_set():
            status, answer = post(server, body, path)
            with lock:
                statuses.append((status, answer[:300]))
    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(statuses) >= CLIENTS, "the long prompts are answered", seconds=120)
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert {status for status, _ in statuses} == {wanted}, statuses[:3]


LETTERS = "".join(random.Random(1).choices(string.ascii_lowercase, k=100_000))
WORDS = "the quick brown fox jumps over it " * (MEGABYTES // 34)
# The text that takes longest to encode as a whole.
TEXTS = {
    "letters": LETTERS * (MEGABYTES // len(LETTERS)),
    "one letter": "a" * MEGABYTES,
    "spaces": " " * MEGABYTES,
}


@pytest.mark.parametrize("what", TEXTS)
def test_prompts_that_are_too_long_delay_nobody(server, what, record_property):
    body = json.dumps(dict(model=MODEL, prompt=TEXTS[what], max_tokens=1))
    quiet = median_first_token(server)
    with beside(server, "/v1/completions", body, wanted=400):
        busy = median_first_token(server)
    record_property("first token quiet and beside four of 4 MB, s", f"{quiet:.3f} {busy:.3f}")
    # The I/O thread still receives and parses each body: about 30 ms for those of four clients.
    # When prompts were encoded whole and in order, this took 9 to 18 s on a busy machine.
    assert busy < 4 * quiet + 2, (quiet, busy)


def test_the_refusal_says_what_is_known(server):
    status, answer = post(server, json.dumps(dict(model=MODEL, prompt=WORDS)))
    error = json.loads(answer)["error"]
    assert status == 400 and error["code"] == "context_length_exceeded"
    assert error["param"] == "prompt"
    assert error["message"] == \
        "the prompt has more than 8192 tokens; the model's context is 8192 tokens"
    status, answer = post(server, json.dumps(dict(
        model=MODEL, messages=[dict(role="user", content=WORDS)])), "/v1/chat/completions")
    assert status == 400 and json.loads(answer)["error"]["code"] == "context_length_exceeded"


def test_long_texts_are_tokenized_beside_short_prompts(server, record_property):
    """/tokenize has no context limit, so its longest texts take seconds, but only on the one
    thread that they may use."""
    body = json.dumps(dict(model=MODEL, prompt=TEXTS["one letter"]))
    quiet = median_first_token(server)
    with beside(server, "/tokenize", body, wanted=200):
        busy = median_first_token(server)
    record_property("first token quiet and beside four /tokenize, s", f"{quiet:.3f} {busy:.3f}")
    assert busy < 4 * quiet + 2, (quiet, busy)
