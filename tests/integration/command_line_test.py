"""Error messages for a wrong command line. The program says what is wrong, with the names that
the user typed, before it loads a model."""

import re
import socket
import subprocess
import time

import pytest

from flotilla_server import SANITIZED, Program, binary, model_path, wait_until


def say(*words, seconds=60):
    """Returns the program's exit code and its lines on standard error."""
    done = subprocess.run([binary(), *words], capture_output=True, text=True, timeout=seconds)
    assert done.stdout == "", "nothing that is wrong is on standard output"
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize("words, said", [
    ("serve --modle m.gguf", "flotilla serve: unknown flag --modle; did you mean --model?"),
    ("serve m.gguf",
     "flotilla serve: serve takes no argument 'm.gguf'; did you mean --model m.gguf?"),
    ("router --model m.gguf",
     "flotilla router: router has no flag --model; serve, run, scheduler, worker, quantize, loadtest "
     "have it"),
    ("worker --model m --port 1", "flotilla worker: unknown flag --port; did you mean "
     "--listen-port or --metrics-port or --hosts-port?"),
    ("frobnicate", "flotilla: unknown command 'frobnicate' (commands: serve, run, router, scheduler, "
     "worker, node, inspect, quantize, simulate, loadtest, top)"),
    ("serv --model m", "flotilla: unknown command 'serv'; did you mean serve? (commands: serve, "
     "run, router, scheduler, worker, node, inspect, quantize, simulate, loadtest, top)"),
    ("simulate --polices fcfs", "flotilla simulate: unknown flag --polices; did you mean "
     "--policies?"),
    ("serve", "flotilla serve: --model is required"),
    ("help", "flotilla: unknown command 'help'; did you mean --help? (commands: serve, run, router, "
     "scheduler, worker, node, inspect, quantize, simulate, loadtest, top)"),
    ("--versoin", "flotilla: unknown flag --versoin; did you mean --version?"),
    ("run --model m --input i", "flotilla run: --output is required"),
    ("run --model m --http-port 0", "flotilla run: run has no flag --http-port; serve, router have "
     "it"),
    ("worker --model m --model-sampling", "flotilla worker: worker has no flag --model-sampling; "
     "serve, run, router have it"),
    ("run --model m --input i --output o --concurrency -1",
     "flotilla run: --concurrency must be a number from 0 to 65536, not '-1'"),
    ("serve --model a --model b", "flotilla serve: --model is given twice"),
    ("serve --model m --max-seqs", "flotilla serve: --max-seqs needs a number"),
    ("serve --model m --api-tls-cert c", "flotilla serve: --api-tls-cert requires --api-tls-key"),
    ("router --scheduler a:1 --api-tls-ca c",
     "flotilla router: --api-tls-ca requires --api-tls-cert"),
    ("scheduler --worker a:1 --api-tls-cert c", "flotilla scheduler: scheduler has no flag "
     "--api-tls-cert; serve, router have it"),
    ("run --model m --files-dir d", "flotilla run: run has no flag --files-dir; serve, router have "
     "it"),
    ("serve --model m --batch-concurrency 0",
     "flotilla serve: --batch-concurrency must be a number from 1 to 65536, not '0'"),
    ("serve --model m --permissive=foo", "flotilla serve: --permissive takes no value"),
    ("serve --model m --http-port abc",
     "flotilla serve: --http-port must be a number from 0 to 65535, not 'abc'"),
    ("simulate --seed abc",
     "flotilla simulate: --seed must be a number from 0 to 9000000000000000, not 'abc'"),
    ("top --interval", "flotilla top: --interval needs a number"),
    ("quantize --model m --out o --type q3_k", "flotilla quantize: --type must be q4_0, q4_1, "
     "q5_0, q5_1, q8_0, q4_k or q6_k, not 'q3_k'")])
def test_what_is_not_known_is_named(words, said):
    code, lines = say(*words.split())
    assert code not in (0, 1) and lines[0] == said
    assert len(lines) == 2 and "--help" in lines[1]


def test_a_link_to_the_program_says_so_too(tmp_path):
    (tmp_path / "flotilla-router").symlink_to(binary())
    done = subprocess.run([tmp_path / "flotilla-router", "--schedular", "a:1"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode not in (0, 1)
    assert done.stderr.startswith(
        "flotilla router: unknown flag --schedular; did you mean --scheduler?\n")


def test_help_and_version_are_no_errors():
    for words in (["--help"], ["serve", "--help"], ["--version"]):
        done = subprocess.run([binary(), *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stdout and not done.stderr
        if words[0] == "serve":
            assert "`health=HOST:PORT`" in done.stdout
            assert "ports http, grpc and health" in " ".join(done.stdout.split())


def test_the_command_that_workers_start_is_not_for_others():
    assert say("compile-constraints") == (1, [
        "flotilla: compile-constraints is started by workers, with their socket as standard output"])


# --- Ports -------------------------------------------------------------------


@pytest.fixture(name="busy")
def a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one.getsockname()[1]


PORTS = {"--http-port": "HTTP", "--grpc-port": "gRPC", "--listen-port": "for the fleet",
         "--metrics-port": "metrics", "--health-port": "health"}


@pytest.mark.parametrize("role, flag", [
    ("serve", "--http-port"), ("serve", "--grpc-port"), ("router", "--http-port"),
    ("router", "--grpc-port"), ("serve", "--health-port"), ("router", "--health-port"),
    ("worker", "--listen-port"), ("worker", "--metrics-port"), ("scheduler", "--listen-port"),
    ("scheduler", "--metrics-port"), ("node", "--listen-port"), ("node", "--metrics-port")])
def test_a_port_that_is_taken_is_told_in_one_line(busy, role, flag):
    """The line has the cause and comes before the program loads anything or waits."""
    flags = {"serve": ["--model", model_path()], "worker": ["--model", model_path()],
             "scheduler": ["--worker", "127.0.0.1:1"], "router": ["--scheduler", "127.0.0.1:1"],
             "node": []}[role]
    if role in ("serve", "router"):
        for other in {"--http-port", "--grpc-port"} - {flag}:
            flags += [other, "0"]
    started = time.monotonic()
    assert say(role, *flags, flag, str(busy)) == (1, [
        f"flotilla: cannot listen on 127.0.0.1:{busy} ({PORTS[flag]}): Address already in use; "
        f"choose another by {flag}"])
    assert time.monotonic() - started < (20 if SANITIZED else 5)


@pytest.mark.parametrize("words, said", [
    ("serve --model m --http-port 7001 --grpc-port 7001",
     "--http-port and --grpc-port are both 7001"),
    ("serve --model m --http-port 8099 --health-port 8099",
     "--http-port and --health-port are both 8099"),
    ("router --scheduler a:1 --grpc-port 8099 --health-port 8099",
     "--grpc-port and --health-port are both 8099"),
    ("serve --model m --host localhost",
     "--host localhost: that is not an IP address; for example 127.0.0.1"),
    ("serve --model m --host 192.0.2.1", "cannot listen on 192.0.2.1:8080 (HTTP): Cannot assign "
     "requested address; choose another by --host"),
    ("worker --model m --insecure-internal --host no.such.invalid", "choose another by --host")])
def test_an_address_that_cannot_be_listened_on_is_told(words, said):
    code, lines = say(*words.split())
    assert code == 1 and len(lines) == 1 and said in lines[0]


def test_two_servers_do_not_share_a_port(tmp_path):
    """A second server reports that the first one has the port."""
    first = Program(tmp_path, "serve", "--model", model_path(), "--http-port", "0",
                    "--grpc-port", "0", "--kv-blocks", "64")
    try:
        for name, flag, other in (("grpc", "--grpc-port", "--http-port"),
                                  ("http", "--http-port", "--grpc-port")):
            code, (line,) = say("serve", "--model", model_path(), flag, str(first.ports[name]),
                                other, "0")
            assert code == 1 and "Address already in use" in line and flag in line
    finally:
        first.stop()


# --- Options that the model decides on ---------------------------------------


@pytest.mark.parametrize("role, words, said", [
    ("serve", "--max-model-len 100000", "--max-model-len 100000: the model was trained for 8192 "
     "tokens"),
    ("worker", "--max-model-len 100000", "--max-model-len 100000"),
    ("scheduler", "--max-model-len 100000", "--max-model-len 100000"),
    ("serve", "--speculation draft --draft-layers 31", "--draft-layers 31: the model has 30 "
     "layers"),
    ("worker", "--speculation draft --pp 2", "--speculation draft: it needs all layers on one "
     "stage, --pp 1"),
    ("worker", "--pp 31", "--pp 31: the model has 30 layers"),
    ("worker", "--tp 4", "--tp 4: the model can be cut into 3"),
    ("worker", "--tp 64 --pp 64", "--tp 64 x pp 64: a group has 1 to"),
    ("serve", "--kv-blocks 67108864", "--kv-blocks 67108864: blocks of "),
    ("serve", "--host-blocks 67108864", "--host-blocks 67108864: blocks of "),
    ("worker", "--kv-blocks 67108864", "--kv-blocks 67108864: blocks of "),
    ("serve", "--disk-blocks 1 --disk-dir /no/such", "--disk-dir /no/such: No such file or "
     "directory"),
    ("serve", "--tenant-weights alice", "--tenant-weights"),
    ("serve", "--api-keys-file /no/such", "/no/such"),
    ("serve", "--chat-template /no/such", "--chat-template /no/such: cannot open /no/such"),
    ("serve", "--admin --host 0.0.0.0", "--admin with --host 0.0.0.0: without --api-keys-file it "
     "needs a loopback address"),
    ("serve", "--admin --api-keys-file /no/such", "--admin and --api-keys-file: the keys of the "
     "class admin say who is one"),
    ("serve", "--cors-origin https://chat.example/", "--cors-origin: 'https://chat.example/' is no "
     "origin"),
    ("serve", "--device gpu", "--device: 'gpu' is not auto, cpu, cuda or cuda:N"),
    ("worker", "--device cuda:one", "--device: 'cuda:one' is not auto, cpu, cuda or cuda:N"),
    ("worker", "--tls-cert /no/such", "--tls-cert"),
    ("worker", "--fleet-secret-file /no/such", "/no/such")])
def test_an_option_is_blamed_by_its_flag(role, words, said):
    ports = ["--http-port", "0", "--grpc-port", "0"] if role == "serve" else []
    started = time.monotonic()
    code, lines = say(role, "--model", model_path(), *ports, *words.split())
    assert code == 1 and said in lines[-1], lines
    loaded = (" info model loaded ", " info KV pool ")
    assert len([line for line in lines if not any(one in line for one in loaded)]) == 1, lines
    for name in ("max_context", "kv_blocks", "max_step_tokens", "max_sequences", "draft_layers"):
        assert name not in lines[-1]
    assert time.monotonic() - started < (60 if SANITIZED else 10)


# --- Flags of quantize -------------------------------------------------------


@pytest.mark.parametrize("words, said", [
    ("--type q4_k --method gptq", "--method gptq does not go with --type: a GGUF file is made "
     "without calibration, by --method rtn"),
    ("--type q4_k --bits 4", "--bits does not go with --type: --type q4_k says how weights are "
     "stored"),
    ("--type q4_k --group-size 64", "--group-size does not go with --type: --type q4_k says how "
     "weights are stored"),
    ("--type q4_k --activations int8", "--activations does not go with --type: --type q4_k says how "
     "weights are stored"),
    ("--method awq --activations int8", "--activations int8 does not go with --method awq; it goes "
     "with rtn, gptq and smoothquant"),
    ("--method smoothquant --bits 4", "--bits says something else than 8-bit activations need: "
     "integers of 8 bits without zeros, and --group-size 0"),
    ("--type q4_k", f"{model_path()}: tensor token_embd.weight is Q"),
    ("--method rtn", f"{model_path()} is no Hugging Face folder. --type makes a GGUF file of a "
     "GGUF file")])
def test_flags_that_contradict_each_other_are_named(tmp_path, words, said):
    code, (line,) = say("quantize", "--model", model_path(), "--out", tmp_path / "out",
                        *words.split())
    assert code == 1 and line.startswith("flotilla: " + said), line
    assert not (tmp_path / "out").exists()


# --- GPUs --------------------------------------------------------------------


@pytest.fixture(name="no_gpu")
def without_gpus(monkeypatch):
    """The driver of a machine that has GPUs shows none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("role, words", [
    ("serve", "--device cuda"), ("worker", "--device cuda:1 --launcher none"),
    ("worker", "--device cuda"), ("worker", "--device cuda --tp 2"),
    ("scheduler", "--device cuda --launcher none")])
def test_a_gpu_that_is_not_there_is_told_in_one_line(role, words):
    ports = ["--http-port", "0", "--grpc-port", "0"] if role == "serve" else []
    code, lines = say(role, "--model", model_path(), *ports, *words.split())
    assert code == 1 and len(lines) == 1, lines
    device = words.split()[1]
    assert lines[0].startswith(f"flotilla: --device {device}: no GPU can be used: "), lines
    assert lines[0].endswith("; --device cpu needs no GPU"), lines


def test_the_program_needs_no_library_of_cuda():
    listed = subprocess.run(["ldd", binary()], check=True, capture_output=True, text=True).stdout
    assert "libc.so" in listed
    assert not re.search(r"lib(cuda|nccl|cublas|nvidia)", listed), listed


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("role, words", [
    ("serve", "--http-port 0 --grpc-port 0"), ("worker", "--tp 2"),
    ("worker", "--tp 2 --transport mpi"), ("worker", "--tp 2 --launcher none")])
def test_without_a_gpu_the_cpu_computes_and_the_log_says_why(tmp_path, role, words):
    one = Program(tmp_path, role, "--model", model_path(), "--kv-blocks", "64", "--device", "auto",
                  *words.split())
    one.stop()
    assert re.search(r'model loaded device="CPU \(\w+\)" no_gpu="(rank 0: )?no GPU can be used: ',
                     one.log_text()), one.log_text()


# --- The KV pool -------------------------------------------------------------


def the_pool(program):
    """Returns the fields of the log's line about the KV pool: blocks, tokens, bytes, and of what."""
    def line():  # the thread that writes lines may be later than readiness
        return re.search(r'info KV pool blocks=(\d+) tokens=(\d+) rank_bytes=(\d+) of="?([^"\n]+)"?\n',
                         program.log_text())

    wait_until(line, "the KV pool is told")
    return *(int(number) for number in line().groups()[:3]), line().group(4)


@pytest.mark.parametrize("role, words", [
    ("serve", "--http-port 0 --grpc-port 0"), ("worker", "--tp 2"),
    ("worker", "--tp 2 --launcher none")])
def test_the_pool_is_what_memory_allows_and_is_told(tmp_path, role, words):
    flags = ("--model", model_path(), "--device", "cpu", "--max-model-len", "512", "--max-seqs", "4")
    one = Program(tmp_path, role, *flags, *words.split())
    try:
        blocks, tokens, size, of = the_pool(one)
        # Four sequences of 512 tokens need this much, which every machine has.
        assert (blocks, tokens) == (4 * 512 // 16, 4 * 512)
        heads = 1 if "--tp" in words else 3  # of K and V on one rank, the larger part of three
        assert size >= blocks * 16 * 64 * 2 * 2 * 30 * heads
        assert re.fullmatch(r"50 % of the \d+\.\d GiB that .+ has available", of), of
        assert f'num_blocks="{blocks}"}} 1\n' in one.metrics_page()
    finally:
        one.stop()


def test_a_pool_that_the_operator_names_is_taken(tmp_path):
    one = Program(tmp_path, "serve", "--model", model_path(), "--device", "cpu", "--http-port", "0",
                  "--grpc-port", "0", "--kv-blocks", "64")
    one.stop()
    assert the_pool(one)[0::3] == (64, "--kv-blocks")


def test_inspect_says_what_fits():
    shown = subprocess.run([binary(), "inspect", model_path()], check=True, capture_output=True,
                           text=True, timeout=60).stdout
    assert re.search(r"\nKV pool in bf16 on CPUs, by 50 % of the \d+\.\d GiB that .+ has available, "
                     r"less the matrices: \d+ blocks, \d+ tokens, \d+\.\d sequences of 8192 tokens"
                     r"\n", shown), shown
