"""`flotilla top` in a terminal: keys, widths, and that it restores the terminal afterwards."""

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import termios
import time

import httpx
import pytest

from flotilla_server import MODEL, STARTED, Fleet, binary, parse_metrics, wait_until


@pytest.fixture(scope="module", name="fleet")
def a_fleet(tmp_path_factory):
    with Fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


def addresses(fleet):
    return [f"127.0.0.1:{program.ports.get('metrics') or program.ports['http']}"
            for program in (fleet.router, fleet.scheduler, fleet.worker)]


class Top:
    """`flotilla top` on a terminal of its own."""

    def __init__(self, fleet, columns, *flags):
        self.terminal, self.inner = pty.openpty()
        self.resize(columns)
        self.before = termios.tcgetattr(self.inner)
        self.process = subprocess.Popen(
            # Without --wait, and as no leader of a group, it execs the program.
            ["setsid", "--ctty", *self.command(fleet, *flags)],
            stdin=self.inner, stdout=self.inner, stderr=self.inner)
        STARTED.append(self.process)

    def command(self, fleet, *flags):
        return [binary(), "top", "--interval", "0.2", *flags, "--metrics", *addresses(fleet)]

    def resize(self, columns):
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))

    def picture(self, having, seconds=60):
        """The lines of the next whole picture that has these words."""
        text, deadline = "", time.monotonic() + seconds
        decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character
        while time.monotonic() < deadline:
            if select.select([self.terminal], [], [], 0.1)[0]:
                text += decoder.decode(os.read(self.terminal, 1 << 16))
            for one in re.findall(r"\x1b\[2J(?:\x1b\[\?7l)?(.*?)(?:\x1b\[\?7h|(?=\x1b\[H))", text,
                                  re.S):
                if all(word in one for word in having):
                    return one.replace("\r", "").splitlines()
        raise AssertionError(f"no picture with {having}: {text[-2000:]!r}")

    def type(self, keys):
        os.write(self.terminal, keys)

    def wait(self):
        """Returns the exit code and checks that the terminal's settings are restored."""
        deadline = time.monotonic() + 30
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "it goes on"
            if select.select([self.terminal], [], [], 0.05)[0]:
                os.read(self.terminal, 1 << 16)
        assert termios.tcgetattr(self.inner) == self.before
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self.terminal)
        os.close(self.inner)


@pytest.mark.parametrize("columns", [70, 200])
def test_lines_fit_the_terminal(fleet, columns):
    with Top(fleet, columns) as top:
        lines = top.picture(["ROUTER", "REPLICA", "WORKER", "MEMORY"])
        assert max(map(len, lines)) <= columns
        assert ("REFUSED/S" in "".join(lines)) == (columns == 200)
        # Another width takes effect at once.
        top.resize(270 - columns)
        lines = top.picture(["ROUTER", "MEMORY", "REFUSED/S" if columns == 70 else "REQ/S"])
        assert columns == 200 or max(map(len, lines)) > 70


@pytest.mark.parametrize("end", ["q", "^C", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_it_ends_and_leaves_the_terminal_as_it_was(fleet, end):
    with Top(fleet, 100) as top:
        top.picture(["WORKER"])
        assert termios.tcgetattr(top.inner) != top.before  # keys are read one by one
        if end.startswith("SIG"):
            top.process.send_signal(getattr(signal, end))
        else:
            top.type(b"\x03" if end == "^C" else b"xyq")
        assert top.wait() == 0


def test_a_stopped_job_lends_the_terminal(fleet):
    with Top(fleet, 100) as top:
        top.picture(["WORKER"])
        os.kill(top.process.pid, signal.SIGTSTP)
        wait_until(lambda: termios.tcgetattr(top.inner) == top.before, "the terminal is back")
        os.kill(top.process.pid, signal.SIGCONT)
        top.picture(["WORKER"])
        top.type(b"q")
        assert top.wait() == 0


class TopOfShell(Top):
    """A shell on a terminal of its own, which runs `flotilla top`."""

    def command(self, fleet, *flags):
        self.line = shlex.join(super().command(fleet, *flags))
        return ["bash", "--norc", "--noprofile", "--noediting", "-i"]

    def reads_keys(self):
        return not termios.tcgetattr(self.inner)[3] & termios.ICANON


def test_a_job_that_comes_back_from_the_background_reads_keys(fleet):
    with TopOfShell(fleet, 100) as shell:
        shell.type(f"{shell.line}\n".encode())
        shell.picture(["WORKER"])
        shell.type(b"\x1a")
        wait_until(lambda: not shell.reads_keys(), "the terminal is the shell's")
        shell.type(b"bg\n")
        shell.picture(["WORKER"])
        shell.type(b"fg\n")
        shell.picture(["WORKER"])
        wait_until(shell.reads_keys, "keys are read again")
        shell.type(b"q")
        wait_until(lambda: not shell.reads_keys(), "it ends")
        shell.type(b"exit\n")
        assert shell.wait() == 0


def test_without_a_terminal_it_reads_no_keys(fleet):
    """If standard input is not a terminal, its end or a q in it is not a key."""
    for text in (b"", b"q" * 100):
        done = subprocess.run([binary(), "top", "--once", "--interval", "0.2", "--metrics",
                               *addresses(fleet)], input=text, capture_output=True, timeout=60,
                              env={**os.environ, "COLUMNS": "60"}, check=True)
        assert max(map(len, done.stdout.decode().splitlines())) <= 60
        assert "WORKER" in done.stdout.decode()


def test_ranks_are_in_the_metrics_and_in_top(tmp_path):
    """A worker of two ranks and a scheduler with ranks of its own report processor time and memory
    as the kernel does. The counter continues when a rank is started again."""
    for colocate in (False, True):
        folder = tmp_path / str(colocate)
        folder.mkdir()
        role = "scheduler" if colocate else "worker"
        with Fleet(folder, extra={role: ["--tp", "3", "--threads", "1"]},
                   colocate=colocate) as fleet:
            check_ranks(fleet)


def usage(pid):
    """Processor seconds and resident bytes."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK"),
            int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))


def check_ranks(fleet):
    def work(tokens):
        answer = fleet.http.post("/v1/completions", json={
            "model": MODEL, "prompt": "Once", "max_tokens": tokens, "ignore_eos": True})
        assert answer.status_code == 200, answer.text

    def metric(name):
        page = httpx.get(f"http://127.0.0.1:{fleet.group.ports['metrics']}/metrics").text
        series = {re.search(r'rank="(\d+)"', key)[1]: value
                  for key, value in parse_metrics(page).items() if key.startswith(name + "{")}
        return [series[str(rank)] for rank in range(3)]

    cpu, memory = (f"flotilla_worker_rank_{name}" for name in
                   ("cpu_seconds_total", "resident_memory_bytes"))
    work(50)
    pids, _ = fleet.group.members()
    assert len(pids) == 3

    def agrees():
        found = zip(map(usage, pids), metric(cpu), metric(memory), strict=True)
        return all(abs(kernels[0] - seconds) < 0.5 and kernels[0] > 0.05
                   and abs(kernels[1] - resident) < 0.2 * resident
                   for kernels, seconds, resident in found)
    wait_until(agrees, "the metrics are the kernel's")

    # In `top`, the agent's and its ranks' together.
    shown = subprocess.run([binary(), "top", "--once", "--interval", "0.2", "--metrics",
                            f"127.0.0.1:{fleet.group.ports['metrics']}"],
                           capture_output=True, text=True, timeout=60, check=True).stdout
    [mib] = re.findall(r"(\d+)MiB", shown)
    assert int(mib) * (1 << 20) > 0.8 * sum(usage(pid)[1] for pid in pids)

    before = metric(cpu)
    os.kill(pids[1], signal.SIGKILL)
    wait_until(lambda: fleet.group.members()[0] != pids, "the group is there again")
    work(1)
    wait_until(lambda: all(usage(pid)[0] * 0.5 + was <= now for pid, was, now in
                           zip(fleet.group.members()[0], before, metric(cpu), strict=True)),
               "the new ranks' time is added")
