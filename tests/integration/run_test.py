"""`flotilla run`: a file of requests becomes a file of answers. A run that is killed goes on where it
was, and in the end the answers are those of a run that nobody disturbed."""

import json
import os
import random
import re
import signal
import subprocess
import time

import pytest

from flotilla_server import LONG, MODEL, binary, model_path, wait_until

PROMPTS = ["Paris", "Once upon", "def", "1 2 3", "The quick fox"]


def requests(count, tokens=8):
    """Lines of both routes. Most sample, without a seed of their own."""
    for i in range(count):
        text = f"{PROMPTS[i % len(PROMPTS)]} {i}"
        body = {"model": MODEL, "max_tokens": 1 + i % tokens}
        if i % 10 == 0:
            url, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": text}]
        else:
            url, body["prompt"] = "/v1/completions", text
        if i % 4 == 0:
            body |= {"temperature": 0, "logprobs": True if i % 10 == 0 else 2}
        if i % 7 == 0:
            body["n"] = 2
        yield {"custom_id": f"request-{i}", "method": "POST", "url": url, "body": body}


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def command(source, target, *flags):
    return [binary(), "run", "--model", model_path(), "--served-model-name", MODEL, "--kv-blocks",
            "512", "--input", str(source), "--output", str(target), *flags]


def run(source, target, *flags, code=0, **options):
    """Returns what the run says on standard error."""
    done = subprocess.run(command(source, target, *flags), capture_output=True, text=True,
                          timeout=3000, **options)
    assert done.returncode == code, done.stderr
    return done


def read_answers(text):
    """{custom_id: (status, choices, usage)}: all that does not say when a request ran. A custom_id
    that is answered twice fails the test."""
    answers = {}
    for line in text.splitlines():
        answer = json.loads(line)
        assert answer["error"] is None and answer["custom_id"] not in answers
        body = answer["response"]["body"]
        usage = body.get("usage")
        if usage:
            del usage["prompt_tokens_details"]  # what was in the prefix cache
        answers[answer["custom_id"]] = (answer["response"]["status_code"], body.get("choices"),
                                        usage)
    return answers


@pytest.fixture(scope="module", name="batch")
def a_batch(tmp_path_factory):
    """The input, and the answers of a run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("batch")
    source = write_lines(folder / "in.jsonl", requests(60))
    done = run(source, folder / "out.jsonl")
    assert "60 of 60 requests are answered: 60 with 200; " in done.stderr
    assert re.search(r"this run: 60 requests in \S+ s, \S+ requests/s, \S+ completion tokens/s",
                     done.stderr)
    assert done.stdout == ""
    answers = read_answers((folder / "out.jsonl").read_text())
    assert set(answers) == {f"request-{i}" for i in range(60)}
    return source, answers


def kill_often(source, target, times, seed, *flags):
    """Starts runs that are killed, each after some more answers, and then one that is not."""
    chance = random.Random(seed)
    total = len(source.read_text().splitlines())
    kills = 0
    while kills < times:
        before = target.read_bytes().count(b"\n") if target.exists() else 0
        left = (total - before) // (times - kills + 1)
        goal = before + chance.randint(0, max(left, 0))
        process = subprocess.Popen(command(source, target, *flags), stderr=subprocess.PIPE)
        wait_until(lambda: process.poll() is not None or target.exists()
                   and target.read_bytes().count(b"\n") >= goal, "answers", 600)
        time.sleep(chance.random() * 0.05)  # a random moment, which the seed names
        process.kill()
        assert process.wait() == -signal.SIGKILL, "the run ended before it was killed"
        kills += 1
    return run(source, target, *flags)


@pytest.mark.parametrize("seed", [1])
def test_a_run_that_is_killed_goes_on_where_it_was(batch, tmp_path, seed):
    source, answers = batch
    target = tmp_path / "out.jsonl"
    done = kill_often(source, target, 4, seed, "--concurrency", "6")
    assert "60 of 60 requests are answered: 60 with 200; " in done.stderr
    assert read_answers(target.read_text()) == answers
    # One more run has nothing to do, and needs no model.
    whole = target.read_bytes()
    done = subprocess.run([binary(), "run", "--model", "/no/such", "--input", source, "--output",
                           target], capture_output=True, text=True, check=True)
    assert "has 60 of 60 answers" in done.stderr and target.read_bytes() == whole


def test_half_an_answer_is_cut_off(batch, tmp_path):
    source, answers = batch
    target = tmp_path / "out.jsonl"
    run(source, target)
    lines = target.read_bytes().splitlines(keepends=True)
    target.write_bytes(b"".join(lines[:50]) + lines[50][:-20])
    said = run(source, target).stderr
    assert "has 50 of 60 answers; the run goes on with the others" in said
    assert "ended in half an answer, which was cut off" in said
    assert read_answers(target.read_text()) == answers
    assert target.read_bytes().startswith(b"".join(lines[:50]))


def test_pipes_work_too(batch):
    source, answers = batch
    first = "".join(source.read_text().splitlines(keepends=True)[:9])
    done = run("-", "-", input=first)
    assert read_answers(done.stdout) == {f"request-{i}": answers[f"request-{i}"] for i in range(9)}


def test_a_signal_ends_the_run_and_it_goes_on_later(tmp_path):
    """What is in flight ends after the first signal, and a second signal drops it."""
    source = write_lines(tmp_path / "in.jsonl", requests(40))
    target = tmp_path / "out.jsonl"
    process = subprocess.Popen(command(source, target, "--concurrency", "5"), text=True,
                               stderr=subprocess.PIPE)
    wait_until(lambda: target.exists() and target.read_bytes().count(b"\n") >= 3, "3 answers")
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert re.search(r"^stopping: [1-5] requests in flight end first; a second signal drops them$",
                     said, re.MULTILINE)
    assert said.splitlines()[-1] == "the same command goes on with the others"
    first = read_answers(target.read_text())
    assert 3 <= len(first) < 40
    run(source, target)
    assert len(read_answers(target.read_text())) == 40


def test_a_second_signal_drops_what_is_in_flight(tmp_path):
    endless = {"custom_id": "a", "url": "/v1/completions",
               "body": {"model": MODEL, "prompt": "x", "max_tokens": 8000, "ignore_eos": True}}
    source = write_lines(tmp_path / "in.jsonl", [endless])
    target = tmp_path / "out.jsonl"
    process = subprocess.Popen(command(source, target, "--log-level=debug"), text=True,
                               stderr=subprocess.PIPE)
    for line in process.stderr:
        if "sequence opened" in line:
            process.send_signal(signal.SIGTERM)
        if "stopping: 1 requests in flight" in line:
            process.send_signal(signal.SIGTERM)
            break
    process.communicate(timeout=60)
    assert process.returncode == 130 and target.read_bytes() == b""


def test_a_signal_ends_the_run_while_the_model_is_loaded(batch, tmp_path):
    source, _ = batch
    target = tmp_path / "out.jsonl"
    process = subprocess.Popen(command(source, target), text=True, stderr=subprocess.PIPE)
    assert process.stderr.readline() == f"loading {model_path()}\n"
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130 and "the same command goes on" in said, said
    run(source, target)
    assert len(read_answers(target.read_text())) == 60


def test_a_request_that_the_api_refuses_is_answered_so(tmp_path):
    lines = list(requests(4))
    lines[1]["body"]["temperature"] = -1
    lines[2]["body"]["model"] = "another"
    source = write_lines(tmp_path / "in.jsonl", lines)
    target = tmp_path / "out.jsonl"
    said = run(source, target, code=3).stderr
    assert "4 of 4 requests are answered: 2 with 200, 1 with 400, 1 with 404; " in said
    answers = {line["custom_id"]: line for line in map(json.loads, target.open())}
    wrong = answers["request-1"]["response"]
    assert wrong["status_code"] == 400 and wrong["body"]["error"]["param"] == "temperature"
    assert answers["request-2"]["response"]["body"]["error"]["code"] == "model_not_found"
    assert answers["request-1"]["id"] == "batch_req_2"
    run(source, target, code=3)  # an answer stays one


@pytest.mark.parametrize("bad, said", [
    ('{"custom_id": "request-1", "url": "/v1/completions", "body": {}}',
     "line 4: line 2 has the same custom_id 'request-1'"),
    ("{", "line 4: the line is not a JSON object"),
    ("", None),
    ("\n{}", "line 4: the line is empty"),
    ('{"custom_id": "x", "url": "/v1/embeddings", "body": {}}',
     "line 4: 'url' must be /v1/chat/completions or /v1/completions"),
    ('{"custom_id": "x", "url": "/v1/completions", "body": {"stream": true}}',
     "line 4: 'body.stream' must be false"),
    ('{"custom_id": "x", "body": {"prompt": "' + "x" * (4 << 20) + '"}}',
     "line 4 is longer than 4194304 bytes")])
def test_lines_that_are_wrong_are_named_before_anything_runs(tmp_path, bad, said):
    source = write_lines(tmp_path / "in.jsonl", requests(3))
    source.write_text(source.read_text() + bad + "\n")
    target = tmp_path / "out.jsonl"
    if said is None:  # an empty line at the end
        run(source, target)
        return
    done = subprocess.run([binary(), "run", "--model", "/no/such", "--input", source, "--output",
                           target], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and said in done.stderr
    assert len(done.stderr.splitlines()) <= 3 and not target.exists()


def test_an_output_of_another_input_is_left_alone(batch, tmp_path):
    source, _ = batch
    target = tmp_path / "out.jsonl"
    for text, said in (('{"custom_id":"x","response":{"status_code":200}}\n',
                        "line 1: the input has no custom_id 'x'; --output must be a new file"),
                       ("hello\n", "line 1: the line is not an answer of a batch")):
        target.write_text(text)
        assert said in run(source, target, code=1).stderr
        assert target.read_text() == text
    assert "are the same file" in run(source, source, code=1).stderr


def test_two_runs_do_not_share_an_output(batch, tmp_path):
    source, _ = batch
    target = tmp_path / "out.jsonl"
    first = subprocess.Popen(command(source, target), stderr=subprocess.PIPE)
    wait_until(lambda: target.exists() and target.stat().st_size, "an answer")
    first.send_signal(signal.SIGSTOP)
    try:
        said = run(source, target, code=1).stderr
        assert f"another flotilla run writes to {target}" in said
    finally:
        first.kill()
        first.wait()


def test_a_full_disk_is_told(tmp_path):
    source = write_lines(tmp_path / "in.jsonl", requests(3))
    said = run(source, "/dev/full", code=1).stderr
    assert said.splitlines()[-1] == "flotilla: cannot write to /dev/full: No space left on device"


def test_no_port_is_listened_on(tmp_path):
    source = write_lines(tmp_path / "in.jsonl", requests(200))
    target = tmp_path / "out.jsonl"
    process = subprocess.Popen(command(source, target), stderr=subprocess.PIPE)
    try:
        wait_until(lambda: target.exists() and target.stat().st_size, "an answer")
        sockets = {os.readlink(f"/proc/{process.pid}/fd/{fd}")
                   for fd in os.listdir(f"/proc/{process.pid}/fd")}
        assert not [name for name in sockets if name.startswith("socket:")]
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(not LONG, reason="only with FLOTILLA_LONG=1: 10,000 requests, twice")
def test_ten_thousand_lines_are_answered_once_each(tmp_path):
    source = write_lines(tmp_path / "in.jsonl", requests(10_000, tokens=4))
    run(source, tmp_path / "undisturbed.jsonl")
    answers = read_answers((tmp_path / "undisturbed.jsonl").read_text())
    assert len(answers) == 10_000
    kill_often(source, tmp_path / "out.jsonl", 10, 7)
    assert read_answers((tmp_path / "out.jsonl").read_text()) == answers
