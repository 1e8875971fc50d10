"""--chat-template: a file takes the place of the model's own templates."""

import json
import pathlib
import subprocess

import pytest

from flotilla_server import MODEL, Fleet, Server, binary, model_path
from tool_model import TEMPLATE

FLAGS = "--kv-blocks", "24", "--max-model-len", "128"
PROMPT = "Once upon a time"
BODY = {"model": MODEL, "max_tokens": 8, "temperature": 0}
CHAT = BODY | {"messages": [{"role": "user", "content": "upon a"}]}


@pytest.fixture
def template(tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text("Once {{ messages[0].content }} time")
    return str(path)


def chat_and_completion(http):
    """The answers of a chat that the template makes into PROMPT, and of PROMPT."""
    chat = http.post("/v1/chat/completions", json=CHAT)
    completion = http.post("/v1/completions", json=BODY | {"prompt": PROMPT})
    assert chat.status_code == completion.status_code == 200, (chat.text, completion.text)
    chat, completion = chat.json(), completion.json()
    assert chat["usage"]["prompt_tokens"] == completion["usage"]["prompt_tokens"]
    return chat["choices"][0]["message"]["content"], completion["choices"][0]["text"]


def test_serve(tmp_path, template):
    with Server(tmp_path, *FLAGS, "--chat-template", template) as server:
        chat, completion = chat_and_completion(server.http)
        assert chat == completion != ""


def test_routers_get_it_from_the_worker(tmp_path, template):
    with Fleet(tmp_path, extra={"worker": [*FLAGS, "--chat-template", template]}) as fleet:
        chat, completion = chat_and_completion(fleet.http)
        assert chat == completion != ""


def test_a_scheduler_with_a_worker_group_has_it(tmp_path, template):
    with Fleet(tmp_path, extra={"scheduler": [*FLAGS, "--chat-template", template]},
               colocate=True) as fleet:
        chat, completion = chat_and_completion(fleet.http)
        assert chat == completion != ""


def test_run(tmp_path, template):
    lines = [{"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": CHAT},
             {"custom_id": "text", "method": "POST", "url": "/v1/completions",
              "body": BODY | {"prompt": PROMPT}}]
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    subprocess.run([binary(), "run", "--model", model_path(), "--served-model-name", MODEL, *FLAGS,
                    "--input", tmp_path / "in", "--output", tmp_path / "out",
                    "--chat-template", template], check=True, capture_output=True)
    answers = {line["custom_id"]: line["response"]["body"]["choices"][0]
               for line in map(json.loads, (tmp_path / "out").read_text().splitlines())}
    assert answers["chat"]["message"]["content"] == answers["text"]["text"] != ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Hugging Face folder that has templates, but none called default."""
    root = tmp_path_factory.mktemp("models")
    tool = pathlib.Path(binary()).parents[1] / "tests/support/write_models"
    subprocess.run([tool, "tiny", root], check=True)
    config = root / "folder/tokenizer_config.json"
    settings = json.loads(config.read_text())
    settings.pop("chat_template", None)
    config.write_text(json.dumps(settings))
    (root / "folder/additional_chat_templates").mkdir()
    (root / "folder/additional_chat_templates/tool_use.jinja").write_text(TEMPLATE)
    return root / "folder"


TOOLS = {"tools": [{"type": "function", "function": {"name": "lamp", "parameters": {
    "type": "object", "properties": {}}}}]}


def ask(server, **more):
    answer = server.http.post("/v1/chat/completions", json=CHAT | {"max_tokens": 1} | more)
    return answer.status_code, answer.text


def test_a_model_without_a_default_template_cannot_chat(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FLOTILLA_MODEL", str(folder))
    with Server(tmp_path, *FLAGS) as server:
        assert ask(server)[0] == 400
        assert server.http.post("/v1/completions", json=BODY | {"prompt": PROMPT}).status_code == 200
        assert "none of the chat templates is called default" in server.log_text()
        assert "templates=tool_use" in server.log_text()


def test_all_templates_of_the_model_are_replaced(folder, tmp_path, template, monkeypatch):
    monkeypatch.setenv("FLOTILLA_MODEL", str(folder))
    with Server(tmp_path, *FLAGS, "--chat-template", template) as server:
        assert ask(server)[0] == 200
        code, text = ask(server, **TOOLS)  # the file shows no tools, though the model's tool_use does
        assert code == 400 and "tools" in text, text
        assert "none of the chat templates" not in server.log_text()


@pytest.mark.parametrize("role", ["serve", "worker", "scheduler", "run"])
def test_a_template_that_cannot_be_used_is_refused_at_start(tmp_path, role):
    path = tmp_path / "chat.jinja"
    path.write_text("{% if messages %}never closed")
    (tmp_path / "in").write_text(json.dumps({"custom_id": "chat", "method": "POST",
                                             "url": "/v1/chat/completions", "body": CHAT}) + "\n")
    flags = ["--input", tmp_path / "in", "--output", tmp_path / "out"] if role == "run" else []
    done = subprocess.run([binary(), role, "--model", model_path(), "--chat-template", path, *flags],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"--chat-template {path}: template line 1: 'endif' is missing" in done.stderr.splitlines()[-1], done.stderr
