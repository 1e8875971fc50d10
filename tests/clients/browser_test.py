"""Opens what flotilla makes for people in a real browser (Chromium without a window), and lets web
pages of an allowed origin and of another one talk to a server.

FLOTILLA_BROWSER names the program; `scripts/test --long` installs it. With FLOTILLA_RECORD=1 the
pictures of docs/images are made anew. They have to be when a report has other words or another
style than at that time: each picture has these in a comment.
"""

import contextlib
import http.server
import json
import os
import queue
import re
import signal
import subprocess
import threading
import zlib

import pytest

from flotilla_server import MODEL, ROOT, SANITIZED, Server, binary

BROWSER = os.environ.get("FLOTILLA_BROWSER")
RECORD = os.environ.get("FLOTILLA_RECORD") == "1"

pytestmark = [pytest.mark.skipif(not BROWSER, reason="only with FLOTILLA_BROWSER"),
              pytest.mark.skipif(SANITIZED, reason="a browser's patience")]

# A page that asks for a streamed answer and tells its own server what came of it.
PAGE = """<!DOCTYPE html><title>A page</title><script>
const server = "http://127.0.0.1:" + new URLSearchParams(location.search).get("server");
async function ask() {
  const answer = await fetch(server + "/v1/chat/completions", {
    method: "POST",
    headers: {"content-type": "application/json", "authorization": "Bearer nobody"},
    body: JSON.stringify({model: MODEL, stream: true, max_tokens: 8, temperature: 0,
                          messages: [{role: "user", content: "Hello"}]})});
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", pieces = 0;
  for (let part; !(part = await reader.read()).done; ++pieces) text += part.value;
  return {status: answer.status, pieces, text};
}
ask().catch(error => ({error: String(error)})).then(
  result => fetch("/result", {method: "POST", body: JSON.stringify(result)}));
</script>"""


@pytest.fixture(scope="module")
def browser_home(tmp_path_factory):
    return tmp_path_factory.mktemp("browser")


def command(home, *flags):
    # Its sandbox wants a user of its own, and the pages are ours.
    return [BROWSER, "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}", *map(str, flags)]


def picture(home, page, file, width, height):
    """Makes a picture of a file in the browser and returns the page as the browser has it."""
    subprocess.run(command(home, f"--screenshot={file}", f"--window-size={width},{height}",
                           "--hide-scrollbars", page.as_uri()),
                   check=True, capture_output=True, timeout=60)
    done = subprocess.run(command(home, "--dump-dom", page.as_uri()), check=True,
                          capture_output=True, text=True, timeout=60)
    return done.stdout


def size_of(png):
    """Width and height of a PNG file."""
    head = png.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def outline_of(page):
    """What a report shows whatever was measured: its style, colours and texts, without figures."""
    style, body = re.fullmatch(r".*<style>(.*)</style>(.*)", page, re.DOTALL).groups()
    texts = {text for text in map(str.strip, re.findall(r">([^<>]+)<", body))
             if text and not re.search(r"\d|^none$|^failed: ", text)}
    looks = re.findall(r'(?:fill|stroke|font-size|viewBox)="[^"]*"', body)
    return style.split("\n") + sorted(texts | set(looks))


def chunks_of(png):
    """(kind, data) of each part of a PNG file."""
    at = 8
    while at < len(png):
        size = int.from_bytes(png[at:at + 4], "big")
        yield png[at + 4:at + 8], png[at + 8:at + 8 + size]
        at += size + 12


def commented(png, comment):
    """The PNG file with a comment, behind its head of 25 bytes."""
    data = b"tEXtComment\0" + json.dumps(comment).encode()
    chunk = (len(data) - 4).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")
    return png[:33] + chunk + png[33:]


def comment_of(png):
    [data] = [data for kind, data in chunks_of(png) if kind == b"tEXt"] or [b"Comment\0[]"]
    return json.loads(data.removeprefix(b"Comment\0"))


@pytest.mark.parametrize("name, flags, height", [
    ("loadtest_report", ("--rate", 5, "--duration", 20, "--prompt", "lognormal:100:1",
                         "--output", "10-40"), 1480),
    ("loadtest_sweep", ("--sweep-rate", "8,16,24,32", "--duration", 6, "--prompt", 40, "--output", 12,
                        "--slo-ttft", 1000, "--slo-itl", 100, "--predict", "this-cpu"), 1250),
])
def test_a_report_in_the_browser(browser_home, tmp_path, name, flags, height):
    with Server(tmp_path) as server:
        subprocess.run([binary(), "loadtest", server.url, "--model", MODEL, *map(str, flags),
                        "--report", tmp_path / "report.html"],
                       check=True, capture_output=True, timeout=300)
    file = tmp_path / f"{name}.png"
    page = picture(browser_home, tmp_path / "report.html", file, 1400, height)
    assert size_of(file) == (1400, height)
    # A page of one colour takes a few thousand bytes.
    assert file.stat().st_size > 40_000
    assert len(re.findall(r"<svg", page)) >= 4 and "NaN" not in page and "<h2>Latencies" in page
    in_docs = ROOT / "docs" / "images" / file.name
    if RECORD:
        in_docs.write_bytes(commented(file.read_bytes(), outline_of(page)))
    assert size_of(in_docs) == (1400, height)
    assert comment_of(in_docs.read_bytes()) == outline_of(page), "record it anew"


@contextlib.contextmanager
def pages(results):
    """Serves the page, and puts into `results` what it tells. Yields its origin."""
    text = PAGE.replace("MODEL", json.dumps(MODEL))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode())

        def do_POST(self):
            results.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_address[1]}"
        finally:
            served.shutdown()
            thread.join()


@contextlib.contextmanager
def visiting(home, page):
    """Keeps a page open."""
    process = subprocess.Popen(command(home, "--remote-debugging-port=0", page),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the program may be a script with children
        process.wait()


@pytest.mark.parametrize("is_allowed", [True, False], ids=["allowed", "another"])
def test_a_page_of_an_origin(browser_home, tmp_path, is_allowed):
    results = queue.Queue()
    with contextlib.ExitStack() as stack:
        origin = stack.enter_context(pages(results))
        allowed = origin if is_allowed else "https://chat.example"
        server = stack.enter_context(Server(tmp_path, "--cors-origin", allowed))
        stack.enter_context(visiting(browser_home, f"{origin}/?server={server.ports['http']}"))
        result = results.get(timeout=60)
    if is_allowed:
        assert result["status"] == 200 and result["text"].rstrip().endswith("data: [DONE]")
        assert len(re.findall(r'"content":"[^"]', result["text"])) >= 2
    else:
        assert "Failed to fetch" in result["error"]
