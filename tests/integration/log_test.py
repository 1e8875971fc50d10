"""The reader of a process's log may stall, and clients can influence what the log contains."""

import os
import pathlib
import re
import signal
import subprocess
import time

import httpx
import pytest

from flotilla_server import MODEL, STARTED, Server, binary, json, model_path, parse_metrics

LINE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (debug|info|warning|error) .+")
# In one HTTP request, each prompt is a separate request with several lines at level debug.
PROMPTS = ["a"] * 32


class Unread:
    """A `flotilla serve` whose standard error is a pipe that nobody reads."""

    def __init__(self, directory):
        self.pipe, writer = os.pipe()
        ready = directory / "unread.json"
        self.process = subprocess.Popen(
            [binary(), "serve", "--model", model_path(), "--served-model-name", MODEL,
             "--http-port", "0", "--grpc-port", "0", "--log-level", "debug",
             "--ready-file", str(ready)], stdout=subprocess.PIPE, stderr=writer)
        STARTED.append(self.process)
        os.close(writer)
        assert self.process.stdout.readline().startswith(b"ready ")
        port = json.loads(ready.read_text())["http"]
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20)

    def complete(self, i):
        answer = self.http.post("/v1/completions", json={
            "model": MODEL, "prompt": PROMPTS, "max_tokens": 1},
            headers={"X-Request-Id": f"{i}-" + "x" * 100})
        assert answer.status_code == 200, answer.text
        assert self.http.get("/health").status_code == 200

    def read(self):
        """Reads until nothing comes for a while; returns the lines."""
        os.set_blocking(self.pipe, False)
        text, quiet_since = b"", time.monotonic()
        while time.monotonic() - quiet_since < 1:
            try:
                some = os.read(self.pipe, 1 << 16)
                assert some
                text, quiet_since = text + some, time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
        assert text.endswith(b"\n")
        return text.decode().splitlines()

    def dropped(self):
        page = parse_metrics(self.http.get("/metrics").text)
        return sum(value for key, value in page.items()
                   if key.startswith("flotilla_log_dropped_lines_total"))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.http.close()
        self.process.kill()
        self.process.wait()
        os.close(self.pipe)


@pytest.fixture
def unread(tmp_path):
    with Unread(tmp_path) as one:
        yield one


def test_a_reader_that_stands_still_stops_nobody_and_loses_lines_that_are_counted(unread):
    """A pipe takes 64 KiB. Requests once waited for ever to write the rest."""
    requests = 0
    while unread.dropped() == 0:
        unread.complete(requests)
        requests += 1
        assert requests < 200, "nothing was dropped"
    for i in range(3):
        unread.complete(requests + i)
    dropped = unread.dropped()

    # The reader continues and gets whole lines, and a line that counts the missing ones.
    lines = unread.read()
    begin = next(i for i, line in enumerate(lines) if LINE.fullmatch(line))
    reported = re.compile(r"\S+ warning log lines dropped lines=(\d+)")
    for line in lines[begin:]:
        assert LINE.fullmatch(line) or "flotilla" in line or line.startswith(("  ", "Try:", "curl")) \
            or not line, line
    missing = sum(int(match[1]) for line in lines if (match := reported.fullmatch(line)))
    assert missing == dropped
    assert sum(map(len, lines)) > 3 << 18  # the queue, and the pipe

    # No later line is missing.
    unread.complete("after")
    over = [line for line in unread.read() if " request ended " in line and "id=after-" in line]
    assert len(over) == len(PROMPTS)
    assert unread.dropped() == dropped


def test_a_reader_that_stands_still_does_not_hold_up_the_end(unread):
    for i in range(8):
        unread.complete(i)
    began = time.monotonic()
    unread.process.send_signal(signal.SIGTERM)
    assert unread.process.wait(timeout=30) == 0
    assert time.monotonic() - began < 15


def test_an_idle_log_costs_nothing(unread):
    """The thread that writes lines sleeps while there are no lines, and while nobody reads."""
    def ticks():
        for task in os.listdir(f"/proc/{unread.process.pid}/task"):
            with open(f"/proc/{unread.process.pid}/task/{task}/stat", encoding="utf-8") as stat:
                name, fields = stat.read().rsplit(")", 1)
            if name.endswith("(log"):
                return sum(int(field) for field in fields.split()[11:13])
        raise AssertionError("no thread of the log")
    unread.complete(0)
    before = ticks()
    time.sleep(1)  # the CPU time of this idle period is measured
    assert ticks() - before <= 1


def test_a_request_id_cannot_turn_hide_or_command_what_stands_in_the_log(tmp_path):
    """The ids contain C1 controls, direction overrides, separators and characters without width."""
    name = "mine\x9b31m\u202e\u2066\u2028\u200b\ufeff-\x85é中"
    with Server(tmp_path) as server:
        server.post("/v1/completions", model=MODEL, prompt="a", max_tokens=1, request_id=name)
    text = pathlib.Path(server.log.name).read_bytes().decode()
    [line] = [line for line in text.split("\n") if "mine" in line]
    assert (r'client_request_id="mine\u{9b}31m\u{202e}\u{2066}\u{2028}\u{200b}\u{feff}-\u{85}é中"'
            in line)
    assert all(c == "\n" or c.isprintable() for c in text)
