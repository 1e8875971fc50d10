"""A stand-in for a server with the API of OpenAI, whose tokens come at a known pace.

The name of the model says what an answer does: "paced" keeps the pace, and others are
faults. It runs in a process of its own, so that the pace does not depend on the test:

    python paced_server.py TTFT_MS ITL_MS SLOTS [CERTIFICATE KEY]

prints its port. Unless SLOTS is 0, so many requests are served at once, and the others wait. A
connection is kept unless its client wants it closed; the model "forgetful" closes one that was kept
when the next request has come, without an answer."""

import asyncio
import contextlib
import json
import pathlib
import ssl
import subprocess
import sys


# The models after whose answers a connection is kept: the others end an answer with it.
KEPT = ("", "paced", "busy", "forgetful")


def event(data):
    line = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(line), line)


def head(status="200 OK", kind="text/event-stream", rest="Transfer-Encoding: chunked\r\n"):
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{rest}\r\n".encode()


class Server:
    def __init__(self, ttft_s, itl_s, slots):
        self.ttft_s, self.itl_s = ttft_s, itl_s
        self.slots = asyncio.Semaphore(slots) if slots else contextlib.nullcontext()
        self.bodies = []
        self.connections = 0

    async def serve(self, reader, writer):
        self.connections += 1
        served = 0
        try:
            while await self.answer(reader, writer, served):
                served += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def answer(self, reader, writer, served):
        """Whether the connection is kept."""
        received = await reader.readuntil(b"\r\n\r\n")
        lines = received.decode().split("\r\n")
        route = lines[0].split()[1]
        fields = {k.lower(): v for k, v in (x.split(": ", 1) for x in lines[1:] if x)}
        arrived = asyncio.get_running_loop().time()
        body = json.loads(await reader.readexactly(int(fields.get("content-length", 0))) or "{}")
        if route in ("/seen", "/connections"):
            text = json.dumps(self.bodies if route == "/seen" else self.connections).encode()
            writer.write(head(kind="application/json",
                              rest=f"Content-Length: {len(text)}\r\n") + text)
        elif body["model"] == "forgetful" and served > 0:
            return False
        else:
            self.bodies.append({"route": route, "key": fields.get("authorization"), **body})
            await self.model(body, route.endswith("/chat/completions"), arrived, writer)
        await writer.drain()
        return fields.get("connection") != "close" and body.get("model", "") in KEPT

    async def model(self, body, chat, arrived, writer):
        name = body["model"]
        if name == "busy":
            text = json.dumps({"error": {"message": "m", "code": "queue_full"}}).encode()
            writer.write(head("503 Busy", "application/json",
                              f"Content-Length: {len(text)}\r\n") + text)
        elif name == "not_http":
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        else:
            async with self.slots:
                if not isinstance(self.slots, contextlib.nullcontext):
                    arrived = asyncio.get_running_loop().time()
                await self.stream(name, body, chat, arrived, writer)

    async def stream(self, name, body, chat, arrived, writer):
        loop = asyncio.get_running_loop()
        tokens = body["max_tokens"]
        writer.write(head())
        if chat:
            writer.write(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        for i in range(tokens):
            await asyncio.sleep(max(0, arrived + self.ttft_s + i * self.itl_s - loop.time()))
            if i == 2 and name not in KEPT:
                break
            text = {"delta": {"content": f" t{i}"}} if chat else {"text": f" t{i}"}
            reason = "length" if i + 1 == tokens else None
            writer.write(event({"choices": [{"index": 0, "finish_reason": reason, **text}]}))
        if name in KEPT:
            prompt = json.dumps(body.get("messages") or body.get("prompt"))
            writer.write(event({"choices": [], "usage": {
                "prompt_tokens": len(prompt.split()), "completion_tokens": tokens}}))
            writer.write(event("[DONE]") + b"0\r\n\r\n")
        elif name == "stall":
            await asyncio.sleep(60)
        elif name == "garbage":
            writer.write(event('{"choices": ['))
        elif name == "error_event":
            writer.write(event({"error": {"message": "m", "code": "worker_lost"}}))
        elif name == "no_reason":
            writer.write(b"0\r\n\r\n")


async def main(ttft_ms, itl_ms, slots, certificate=None, key=None):
    server = Server(float(ttft_ms) / 1000, float(itl_ms) / 1000, int(slots))
    tls = None
    if certificate:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate, key)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=1000, ssl=tls)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


@contextlib.contextmanager
def paced_server(ttft_ms, itl_ms, slots=0, certificate=None, key=None):
    """The URL of such a server."""
    words = [sys.executable, str(pathlib.Path(__file__)), str(ttft_ms), str(itl_ms), str(slots)]
    if certificate:
        words += [str(certificate), str(key)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
