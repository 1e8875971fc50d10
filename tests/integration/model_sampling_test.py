"""--model-sampling: what a request leaves out is what the model's files recommend."""

import json
import pathlib
import subprocess

import pytest

from flotilla_server import MODEL, Fleet, Server, binary

FLAGS = "--kv-blocks", "24", "--max-model-len", "128", "--threads", "1"
BODY = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 12, "return_token_ids": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Hugging Face folder that recommends to be greedy, and something that nobody can do."""
    root = tmp_path_factory.mktemp("models")
    tool = pathlib.Path(binary()).parents[1] / "tests/support/write_models"
    subprocess.run([tool, "tiny", root], check=True)
    (root / "folder/generation_config.json").write_text(json.dumps(
        {"temperature": 0, "top_k": 7, "top_p": 1.5, "min_p": "x", "do_sample": True}))
    return root / "folder"


def ask(http, **more):
    answer = http.post("/v1/completions", json=BODY | more)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


def model_of(http):
    model, = http.get("/v1/models").json()["data"]
    return model["model_sampling"], model["model_sampling_used"]


@pytest.mark.parametrize("flags", [(), ("--model-sampling",)])
def test_serve(folder, tmp_path, monkeypatch, flags):
    monkeypatch.setenv("FLOTILLA_MODEL", str(folder))
    with Server(tmp_path, *FLAGS, *flags) as server:
        assert model_of(server.http) == ({"temperature": 0, "top_k": 7}, bool(flags))
        greedy = ask(server.http, temperature=0)
        answers = [ask(server.http, seed=seed) for seed in range(4)]
        assert (answers == [greedy] * 4) == bool(flags)
        # A client's own value counts.
        assert [ask(server.http, seed=seed, temperature=1, top_k=0) for seed in range(4)] != [greedy] * 4
        log = server.log_text()
    assert "top_p is 1.5; it must be greater than 0 and at most 1" in log
    assert "min_p is not a number" in log


def test_a_router_gets_it_from_the_worker(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FLOTILLA_MODEL", str(folder))
    with Fleet(tmp_path, extra={"worker": FLAGS, "router": ["--model-sampling"]}) as fleet:
        assert model_of(fleet.http) == ({"temperature": 0, "top_k": 7}, True)
        assert ask(fleet.http, seed=1) == ask(fleet.http, temperature=0)


def test_run(folder, tmp_path):
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": BODY | more}
             for i, more in enumerate([{"temperature": 0}, {"seed": 1}, {"seed": 2}])]
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    subprocess.run([binary(), "run", "--model", folder, "--served-model-name", MODEL, *FLAGS,
                    "--input", tmp_path / "in", "--output", tmp_path / "out", "--model-sampling"],
                   check=True, capture_output=True)
    answers = [json.loads(line)["response"]["body"]["choices"][0]["token_ids"]
               for line in (tmp_path / "out").read_text().splitlines()]
    assert len(answers) == 3 and answers[0] == answers[1] == answers[2]
