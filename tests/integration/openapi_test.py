"""docs/openapi.yaml has every route and every field: those of the server's own route table,
and those of the tables in docs/api.md. tests/clients hold the server against it."""

import re

import yaml

from flotilla_server import ROOT

SCHEMA = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text())
MANUAL = (ROOT / "docs" / "api.md").read_text()
OPEN = {"/health", "/ready", "/metrics"}  # to anybody


def test_every_route_is_in_it(server):
    page = server.http.get("/").text
    routes = {tuple(line.split(" ")) for line in page.splitlines()[2:]}
    described = {(method.upper(), path) for path, methods in SCHEMA["paths"].items()
                 for method in methods}
    assert described == {route for route in routes if route[0] != "HEAD"}


def test_it_says_who_may_ask():
    assert {path for path, methods in SCHEMA["paths"].items()
            if all(one.get("security") == [] for one in methods.values())} == OPEN


def fields(schema):
    """Names of its fields, and of the fields of those, `a.b`."""
    for name, one in schema["properties"].items():
        yield name
        yield from (f"{name}.{inner}" for inner in one.get("properties", {}))


def test_every_field_of_the_manual_is_in_it():
    generation = re.search(r"\| field \| meaning \| default \|\n.*?\n\n", MANUAL, re.DOTALL)[0]
    named = set()
    for row in generation.strip().splitlines()[2:]:
        first = row.split("|")[1]
        if "header" not in first:
            named |= set(re.findall(r"`([\w.]+)`", first))
    schemas = SCHEMA["components"]["schemas"]
    described = {one for name in ("ChatRequest", "CompletionRequest")
                 for one in fields(schemas[name])}
    assert len(named) > 30 and named <= described, named - described
    tokenize = re.search(r"`/tokenize` takes `\{([\w, ]+)\}`", MANUAL)[1].split(", ")
    assert set(tokenize) <= set(schemas["TokenizeRequest"]["properties"])


def test_headers_of_the_manual_are_in_it():
    headers = {one["name"] for one in SCHEMA["components"]["parameters"].values()}
    assert headers == set(re.findall(r"\| header `([\w-]+)`", MANUAL))


def test_every_error_of_the_manual_is_in_it():
    table = re.search(r"\| status \| when \|\n.*?\n\n", MANUAL, re.DOTALL)[0]
    named = set(re.findall(r"\b(\d{3})\b", "\n".join(row.split("|")[1]
                                                    for row in table.strip().splitlines()[2:])))
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/models"):
        for method in SCHEMA["paths"][path].values():
            assert named <= set(method["responses"]), path
