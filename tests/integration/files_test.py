"""/v1/files and /v1/batches with OpenAI's own client: a batch is answered as `flotilla run` answers
it, a router that is killed goes on, and a key's owner sees and uses only what is its own."""

import json
import pathlib
import secrets
import signal

import httpx
import openai
import pytest

from flotilla_server import MODEL, Program, Server, model_path, wait_until

KEYS = {name: secrets.token_hex(16) for name in ("alice", "bob")}


def lines(count, tokens=8, **more):
    """Requests, most of which sample without a seed of their own."""
    for i in range(count):
        body = {"model": MODEL, "prompt": f"Number {i} is", "max_tokens": 1 + i % tokens} | more
        yield {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": body}


def text(requests):
    return "".join(json.dumps(one) + "\n" for one in requests).encode()


def start(folder, *flags):
    keys = folder / "keys"
    keys.write_text(f"alice {KEYS['alice']} user max-concurrent=1\nbob {KEYS['bob']}\n")
    keys.chmod(0o600)
    one = Server(folder, "--kv-blocks", "512", "--api-keys-file", str(keys), "--files-dir",
                 str(folder / "files"), *flags)
    one.http.headers["Authorization"] = f"Bearer {KEYS['alice']}"
    return one


def client(server, name="alice"):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS[name], max_retries=0)


@pytest.fixture(scope="module", name="served")
def a_server(tmp_path_factory):
    with start(tmp_path_factory.mktemp("files"), "--files-mib", "2", "--files-count", "12",
               "--file-mib", "1") as one:
        yield one


def order(api, requests, endpoint="/v1/completions", **more):
    file = api.files.create(file=("in.jsonl", text(requests)), purpose="batch")
    return api.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h",
                              **more)


def poll(api, batch, *statuses, seconds=60):
    seen = []

    def reached():
        seen.append(api.batches.retrieve(batch.id))
        return seen[-1].status in statuses

    wait_until(reached, f"{statuses}", seconds)
    return seen[-1]


def answers(api, file_id):
    """{custom_id: (status, choices)}. A custom_id that is answered twice fails the test."""
    found = {}
    for line in api.files.content(file_id).text.splitlines():
        answer = json.loads(line)
        assert answer["custom_id"] not in found
        response = answer["response"]
        found[answer["custom_id"]] = (response["status_code"], response["body"].get("choices"))
    return found


def test_a_batch_is_answered_as_the_routes_answer(served):
    api = client(served)
    requests = list(lines(12))
    requests[3]["body"]["temperature"] = -1
    batch = order(api, requests, metadata={"night": "1"})
    assert batch.status == "validating" and batch.output_file_id is None
    batch = poll(api, batch, "completed")
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (12, 11, 1)
    assert batch.metadata == {"night": "1"} and batch.errors is None
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    wrong = json.loads(api.files.content(batch.error_file_id).text)
    assert wrong["custom_id"] == "r3" and wrong["response"]["status_code"] == 400
    good = answers(api, batch.output_file_id)
    assert set(good) == {f"r{i}" for i in range(12)} - {"r3"}
    for i in (0, 7):
        direct = served.http.post("/v1/completions", json=requests[i]["body"],
                                  headers={"X-Request-Id": f"r{i}"})
        assert good[f"r{i}"] == (200, direct.json()["choices"])
    assert [one.id for one in api.batches.list(limit=1)][0] == batch.id
    output = api.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output" and output.filename == f"{batch.id}_output.jsonl"
    for file in api.files.list():
        assert api.files.delete(file.id).deleted
    assert served.metric("flotilla_router_batch_requests_total", result="failed") == 1


def test_a_batch_with_wrong_lines_fails_and_names_them(served):
    api = client(served)
    requests = list(lines(3))
    requests[1]["custom_id"] = "r0"
    batch = poll(api, order(api, requests), "failed")
    assert [(one.line, one.code) for one in batch.errors.data] == [(2, "duplicate_custom_id")]
    assert batch.output_file_id is None
    api.files.delete(batch.input_file_id)


def test_a_batch_is_cancelled(served):
    api = client(served)
    batch = order(api, lines(200, tokens=1, max_tokens=400, ignore_eos=True))
    poll(api, batch, "in_progress")
    with pytest.raises(openai.BadRequestError, match="cancel this batch first"):
        api.files.delete(batch.input_file_id)
    assert api.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    poll(api, batch, "cancelled")
    wait_until(lambda: served.metric("flotilla_router_requests_in_flight") == 0, "no request")
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        api.batches.cancel(batch.id)
    api.files.delete(batch.input_file_id)


def test_owners_of_keys_do_not_see_each_other(served):
    alice, bob = client(served), client(served, "bob")
    batch = order(alice, lines(1))
    poll(alice, batch, "completed")
    for ask in (lambda: bob.files.retrieve(batch.input_file_id),
                lambda: bob.files.content(batch.input_file_id),
                lambda: bob.files.delete(batch.input_file_id),
                lambda: bob.batches.retrieve(batch.id), lambda: bob.batches.cancel(batch.id),
                lambda: bob.batches.create(input_file_id=batch.input_file_id,
                                           endpoint="/v1/completions", completion_window="24h")):
        with pytest.raises(openai.NotFoundError):
            ask()
    assert not list(bob.files.list()) and not list(bob.batches.list())
    assert httpx.get(f"{served.url}/v1/files").status_code == 401
    for file in alice.files.list():
        alice.files.delete(file.id)


def test_an_owner_has_a_quota(served):
    api = client(served, "bob")
    with pytest.raises(openai.APIStatusError) as large:
        api.files.create(file=("a", b"x" * (1 << 20) + b"xx"), purpose="batch")
    assert large.value.status_code in (400, 413)
    files = [api.files.create(file=("a", b"x" * (1 << 20)), purpose="batch") for _ in range(2)]
    with pytest.raises(openai.RateLimitError) as full:
        api.files.create(file=("a", b"x"), purpose="batch")
    assert full.value.code == "quota_exceeded" and "2097152 bytes" in full.value.message
    api.files.delete(files[0].id)
    few = [api.files.create(file=("a", b"x"), purpose="batch") for _ in range(11)]
    with pytest.raises(openai.RateLimitError, match="12 files"):
        api.files.create(file=("a", b"x"), purpose="batch")
    for file in [files[1], *few]:
        api.files.delete(file.id)
    life = api.files.create(file=("a", b"x"), purpose="batch",
                            expires_after={"anchor": "created_at", "seconds": 3600})
    assert life.expires_at == life.created_at + 3600
    api.files.delete(life.id)


def test_a_batch_does_not_take_its_owners_places(served):
    """Alice may have one request at a time. Her batch has several, and she can still ask."""
    api = client(served)
    batch = order(api, lines(200, tokens=1, max_tokens=200, ignore_eos=True))
    poll(api, batch, "in_progress")
    wait_until(lambda: served.metric("flotilla_router_requests_in_flight") > 1, "requests")
    assert api.completions.create(model=MODEL, prompt="x", max_tokens=2).choices
    api.batches.cancel(batch.id)
    poll(api, batch, "cancelled")
    api.files.delete(batch.input_file_id)


def test_a_router_that_is_killed_goes_on_with_its_batches(tmp_path):
    requests = list(lines(60))
    server = start(tmp_path)
    api = client(server)
    whole = poll(api, order(api, requests), "completed")
    expected = answers(api, whole.output_file_id)
    batch, late = order(api, requests), order(api, requests[:3])
    wait_until(lambda: api.batches.retrieve(batch.id).request_counts.completed >= 10, "answers")
    server.kill(signal.SIGKILL)
    # What is in flight when an operator stops the server is computed again, too.
    with start(tmp_path) as server:
        api = client(server)
        wait_until(lambda: api.batches.retrieve(batch.id).request_counts.completed >= 10, "answers")
    with start(tmp_path) as server:
        api = client(server)
        batch = poll(api, batch, "completed")
        assert batch.request_counts.completed == 60 and batch.error_file_id is None
        assert answers(api, batch.output_file_id) == expected
        late = poll(api, late, "completed")
        assert answers(api, late.output_file_id) == {f"r{i}": expected[f"r{i}"] for i in range(3)}


def test_two_servers_do_not_share_a_folder(served):
    folder = pathlib.Path(served.log.name).parent
    second = Program(folder, "serve", "--model", model_path(), "--http-port", "0", "--grpc-port",
                     "0", "--files-dir", str(folder / "files"), wait=False, name="second")
    assert second.process.wait(timeout=60) == 1
    assert "--files-dir: another process keeps files in " in second.log_text()
