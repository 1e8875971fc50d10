"""GET /openapi.json has every route and every field: those of the server's own route table, and
those of the tables in docs/api.md. tests/clients hold the server against it."""

import json
import re

import jsonschema
import pytest

from flotilla_server import MODEL, ROOT

MANUAL = (ROOT / "docs" / "api.md").read_text()
OPEN = {"/health", "/ready", "/metrics"}  # to anybody


@pytest.fixture(scope="module")
def described(server):
    """What the server says of its API."""
    return server.http.get("/openapi.json").json()


def test_every_route_is_in_it(server, described):
    page = server.http.get("/").text
    routes = {tuple(line.split(" ")) for line in page.splitlines()[2:]}
    assert routes == {(method.upper(), path) for path, methods in described["paths"].items()
                      for method in methods}


def test_it_says_who_may_ask(described):
    assert {path for path, methods in described["paths"].items()
            if all(one.get("security") == [] for one in methods.values())} == OPEN


def fields(schema):
    """The names of the schema's fields, and of their fields as `a.b`."""
    for name, one in schema["properties"].items():
        yield name
        yield from (f"{name}.{inner}" for inner in one.get("properties", {}))


def test_every_field_of_the_manual_is_in_it(described):
    generation = re.search(r"\| field \| meaning \| range \| default \|\n.*?\n\n", MANUAL, re.DOTALL)[0]
    named = set()
    for row in generation.strip().splitlines()[2:]:
        first = row.split("|")[1]
        if "header" not in first:
            named |= set(re.findall(r"`([\w.]+)`", first))
    schemas = described["components"]["schemas"]
    have = {one for name in ("ChatRequest", "CompletionRequest") for one in fields(schemas[name])}
    assert len(named) > 30 and named <= have, named - have
    tokenize = re.findall(r"\w+", re.search(r"`/tokenize` takes `\{([\w,\s]+)\}`", MANUAL)[1])
    assert set(tokenize) == set(schemas["TokenizeRequest"]["properties"])


def neutral():
    """(endpoint, field, whether it is a field of a message, value that passes) of the manual's
    table."""
    table = re.search(r"\| field of OpenAI's API.*?\n\n", MANUAL, re.DOTALL)[0]
    for row in table.strip().splitlines()[2:]:
        names, values = row.strip("| ").split(" | ")
        endpoints = [one for one in ("chat", "completions") if names.startswith(one + ":")]
        for part in names.removeprefix("chat:").removeprefix("completions:").split(";"):
            for field in re.findall(r"`([\w.]+)`", part):
                for value in ["null"] + re.findall(r"`([^`]+)`", values):
                    for endpoint in endpoints or ["chat", "completions"]:
                        yield endpoint, field, "of a message" in part, json.loads(value)


def test_values_that_ask_for_nothing_pass(server, described):
    """Each value of the manual passes at the server and in the schema; another value does not."""
    base = {"chat": ("ChatRequest", "/v1/chat/completions"),
            "completions": ("CompletionRequest", "/v1/completions")}
    seen = set()
    for endpoint, field, of_message, value in neutral():
        message = {"role": "user", "content": "x"}
        body = dict(model=MODEL, max_tokens=1)
        body |= dict(messages=[message]) if endpoint == "chat" else dict(prompt="x")
        name, url = base[endpoint]
        owner, inner = message if of_message else body, field
        if "." in field:
            outer, inner = field.split(".")
            owner = body[outer] = {}
            body["stream"] = True
        for given, status in ((value, 200), ("something else", 400)):
            owner[inner] = given
            answer = server.http.post(url, json=body)
            assert answer.status_code == status, (field, given, answer.text)
            schema = {"$ref": f"#/components/schemas/{name}", "components": described["components"]}
            valid = jsonschema.Draft202012Validator(schema).is_valid(body)
            assert valid == (status == 200), (field, given)
        seen.add(field)
    assert len(seen) >= 16


def test_headers_of_the_manual_are_in_it(described):
    headers = {one["name"] for one in described["components"]["parameters"].values()
               if one["in"] == "header"}
    assert headers == set(re.findall(r"\| header `([\w-]+)`", MANUAL))


def test_every_error_of_the_manual_is_in_it(described):
    table = re.search(r"\| status \| when \|\n.*?\n\n", MANUAL, re.DOTALL)[0]
    named = set(re.findall(r"\b(\d{3})\b", "\n".join(row.split("|")[1]
                                                    for row in table.strip().splitlines()[2:])))
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/models"):
        for method in described["paths"][path].values():
            assert named <= set(method["responses"]), path
