"""Runs clients that others wrote for the OpenAI API against a server: benchmarks (GuideLLM,
AIPerf), LangChain, and schemathesis, which compares the server with its /openapi.json.

The clients are in an environment of their own, which `scripts/test --long` makes.
FLOTILLA_CLIENTS names its bin folder. None of them reaches any other host. The tests make the
benchmarks' tokenizer, whose tokens are bytes, in the place of Hugging Face's cache.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from flotilla_server import MODEL, SANITIZED, Server
from tool_model import server_of_tools

HERE = pathlib.Path(__file__).parent
CLIENTS = os.environ.get("FLOTILLA_CLIENTS")

pytestmark = [pytest.mark.skipif(not CLIENTS, reason="only with FLOTILLA_CLIENTS"),
              pytest.mark.skipif(SANITIZED, reason="other people's patience")]

TOKENIZER = "tests/bytes"
MAKE_TOKENIZER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
one = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
one.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
one.decoder = decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=one).save_pretrained(sys.argv[1])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server"), "--admin") as one:
        yield one


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home of Hugging Face with one tokenizer."""
    folder = tmp_path_factory.mktemp("huggingface")
    model = folder / "hub" / f"models--{TOKENIZER.replace('/', '--')}"
    revision = "0" * 39 + "1"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(revision)
    run(["python", "-c", MAKE_TOKENIZER, model / "snapshots" / revision], folder, folder)
    return folder


def run(command, home, folder, seconds=300, **environment):
    """Runs a program of the clients' environment and returns its output."""
    command = [pathlib.Path(CLIENTS) / command[0], *command[1:]]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=folder,
                          timeout=seconds, env={
                              **os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1",
                              "NO_COLOR": "1", "COLUMNS": "200", **environment})
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


def snapshot(home):
    """The folder of the tokenizer."""
    return next(home.glob("hub/*/snapshots/*"))


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
def test_guidellm(server, home, tmp_path, chat, record_property):
    """GuideLLM streams with `continuous_usage_stats`, and counts tokens by the server's usage."""
    prompts = [dict(prompt=f"Tell me story {i}.", output_tokens_count=8) for i in range(8)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in prompts))
    path = "/v1/chat/completions" if chat else "/v1/completions"
    run(["guidellm", "run",
         "--backend", f"kind=openai_http,target={server.url},model={MODEL},request_format={path}",
         "--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6",
         "--data", "kind=json_file,path=prompts.jsonl",
         "--tokenizer", f"kind=hf_auto,model={snapshot(home)}",
         "--output", "kind=json,path=out.json", "--disable-console-interactive"],
        home, tmp_path, PYTHONPATH=str(HERE / "stand_ins"))
    [benchmark] = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    errors = [one.get("error") for one in benchmark["requests"]["errored"]]
    assert totals["successful"] == 6 and not totals["errored"], errors[:2]
    served = benchmark["requests"]["successful"]
    record_property("GuideLLM: output tokens of each request",
                    str([one["output_metrics"]["text_tokens"] for one in served]))
    assert all(one["output_metrics"]["text_tokens"] == 8 for one in served)


def test_aiperf(server, home, tmp_path):
    """AIPerf asks for /metrics by HEAD and then, on the same connection, by GET. Only if both
    succeed does its report have the server's own figures."""
    run(["aiperf", "profile", "-m", MODEL, "--url", server.url, "--endpoint-type", "chat",
         "--streaming", "--tokenizer", TOKENIZER, "--use-server-token-count",
         "--request-count", "8", "--concurrency", "2", "--isl", "64", "--osl", "8",
         "--extra-inputs", "ignore_eos:true", "--ui", "simple", "--artifact-dir", tmp_path / "out"],
        home, tmp_path)
    result = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert result["request_count"]["avg"] == 8 and not result.get("error_summary"), result
    assert result["usage_completion_tokens"]["avg"] == 8
    log = (tmp_path / "out" / "logs" / "aiperf.log").read_text()
    assert "no Prometheus endpoints reachable" not in log
    [metrics] = (tmp_path / "out").glob("server_metrics*.json")
    assert "flotilla_router_requests" in metrics.read_text()


def test_langchain(home, tmp_path):
    with server_of_tools(tmp_path) as server:
        check_langchain(server, home, tmp_path)


def check_langchain(server, home, tmp_path):
    result = json.loads(run(["python", HERE / "langchain_use.py", f"{server.url}/v1", MODEL],
                          home, tmp_path))
    assert result["stream"] == result["invoke"] and result["chunks"] > 3
    for usage in (result["usage"], result["stream_usage"]):
        assert 0 < usage["output_tokens"] <= 12
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert result["usage"]["input_tokens"] == result["stream_usage"]["input_tokens"]
    assert len(result["batch"]) == 3 and all(result["batch"]) and result["text"]
    assert "".join(one["token"] for one in result["logprobs"]).startswith(result["invoke"])
    assert all(len(one["top_logprobs"]) == 2 for one in result["logprobs"])
    assert result["stopped"] == result["invoke"].split(".")[0]
    (name, arguments), = result["calls"]
    assert name == "weather" and set(arguments) == {"city"}
    assert result["streamed_calls"] == result["calls"]
    assert result["results"] == [f"It rains in {arguments['city']}."] and result["after"]
    assert set(result["place"]) == {"city", "people"}


CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_headers_conformance", "response_schema_conformance",
          "negative_data_rejection", "unsupported_method")


def description_of(server, vocabulary, headers):
    """The server's own description, with its model and the size of its vocabulary."""
    token = {"type": "integer", "minimum": 0}
    bounded = {**token, "maximum": vocabulary - 1}
    description = json.loads(
        server.http.get("/openapi.json", headers=headers).text,
        object_hook=lambda one: {**one, "items": bounded} if one.get("items") == token else one)
    schemas = description["components"]["schemas"]
    assert schemas["TokenIds"]["items"] == bounded and "minLength" in schemas["ModelName"]
    schemas["ModelName"] = {"enum": [MODEL]}
    return json.dumps(description)


@pytest.mark.parametrize("keyed", [False, True], ids=["open", "without a key"])
def test_schemathesis(home, tmp_path, keyed, record_property):
    """Makes valid and invalid requests from the schema. The server refuses the invalid ones, and
    each answer has a status, a type and a form that the schema lists."""
    key = "a-key-that-no-request-has-0123456789"
    keys = tmp_path / "keys"
    keys.write_text(f"alice {key} admin\n")
    keys.chmod(0o600)
    # A deadline of 1 ms is a good value, and passes.
    (tmp_path / "schemathesis.toml").write_text(
        '[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "504"]\n')
    # A short context: some requests go on to its end.
    with Server(tmp_path, "--kv-blocks", "8", "--files-dir", str(tmp_path / "files"),
                *(["--api-keys-file", str(keys)] if keyed else ["--admin"])) as server:
        (tmp_path / "openapi.json").write_text(
            description_of(server, 49152, {"authorization": f"Bearer {key}"}))
        result = run(["schemathesis", "--config-file", "schemathesis.toml", "run", "openapi.json",
                    "--url", server.url, "--seed", "1",
                    "--max-examples", "10" if keyed else "60", "--checks", ",".join(CHECKS),
                    "--continue-on-failure", "--generation-database", "none",
                    "--request-timeout", "60", "--suppress-health-check", "all", "--no-color"],
                   home, tmp_path, seconds=1200)
        server.wait_idle()
    print(result)
    record_property("schemathesis", re.search(r"\d+ generated, \d+ passed", result)[0])
    shutil.rmtree(tmp_path / ".hypothesis", ignore_errors=True)
