"""Fixtures: servers, clients and the generated gRPC stubs."""

import importlib
import sys
import types

import grpc
import openai
import pytest

from flotilla_server import ROOT, Server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server with the defaults, which most tests share."""
    with Server(tmp_path_factory.mktemp("server"), "--admin") as running:
        yield running


@pytest.fixture(scope="module")
def fp32_server(tmp_path_factory):
    """A server that computes as the reference does."""
    with Server(tmp_path_factory.mktemp("fp32"), "--compute", "fp32", "--kv-type", "fp32") as one:
        yield one


@pytest.fixture(scope="session")
def client(server):
    """OpenAI's own client. It does not retry, so that tests see errors."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as one:
        yield one


@pytest.fixture(scope="session")
def pb(tmp_path_factory):
    """flotilla.v1 as generated from proto/: messages and services."""
    from grpc_tools import protoc

    out = tmp_path_factory.mktemp("proto")
    code = protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={out}",
                        f"--grpc_python_out={out}", "flotilla/v1/inference.proto"])
    assert code == 0
    sys.path.append(str(out))
    return types.SimpleNamespace(
        messages=importlib.import_module("flotilla.v1.inference_pb2"),
        services=importlib.import_module("flotilla.v1.inference_pb2_grpc"))


@pytest.fixture(scope="session")
def channel(server):
    with grpc.insecure_channel(server.grpc_address) as one:
        yield one


@pytest.fixture(scope="session")
def stub(channel, pb):
    return pb.services.InferenceStub(channel)
