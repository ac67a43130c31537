#!/usr/bin/env python3
"""Times the page of `regard serve` beside BertViz' pages of the same model and text, in the same headless Chromium.

    python3 bench/peers/viewer.py --folder FOLDER [--tokens 64,512] [--hovers 50]

FOLDER takes a GPT-2 of 12 layers of 12 heads with random weights, the traces, and BertViz' pages (gigabytes at 512 tokens). Needs
Chromium (CHROMIUM names it, if it has another name) and npm: BertViz' pages load require.js, jQuery and D3 from a CDN; `npm pack` gets
them, and they are served from loopback as everything else (jQuery 2.1.0 in place of 2.0.0, which npm does not have).

All times are measured in the page, by its own clock, from the event (or the start of the navigation) to the end of the frame in which
the answer is drawn, the wait for that frame (up to 16 ms) included; what the compositor does after that is not. A hover moves the mouse
to another head, cell or word; it counts only if the page's answer changes.
"""

import argparse
import fcntl
import functools
import http.server
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

from common import PEERS, ROOT, build, interpreter
from viewer_bertviz import words

REQUIREMENTS = {"torch": "torch==2.15.0", "transformers": "transformers==5.23.0", "bertviz": "bertviz==1.4.1"}
# What BertViz' pages load, the package that has it, and the file in it.
LIBRARIES = [
    ("https://cdnjs.cloudflare.com/ajax/libs/require.js/2.3.6/require.min.js", "requirejs@2.3.6", "package/require.js"),
    ("https://cdnjs.cloudflare.com/ajax/libs/d3/5.7.0/d3.min", "d3@5.7.0", "package/dist/d3.min.js"),
    ("https://cdnjs.cloudflare.com/ajax/libs/jquery/2.0.0/jquery.min", "jquery@2.1.0", "package/dist/jquery.min.js"),
]
# In every page before its own scripts: the time of the last event of a kind, and the end of the frame after it.
CLOCK = """
const painted = () => new Promise((done) => requestAnimationFrame(() => {
  const channel = new MessageChannel();
  channel.port1.onmessage = () => done(performance.now());
  channel.port2.postMessage(0);
}));
const until = (ready) => new Promise((done) => {
  const look = () => (ready() ? painted().then(done) : requestAnimationFrame(look));
  look();
});
let began = 0, taken = null;
for (const kind of ["mousemove", "click", "dblclick"]) addEventListener(kind, (event) => {
  began = event.timeStamp;
  taken = painted().then((ended) => ended - began);
}, true);
"""
# For each page: when its first view is drawn; where to click (how often) for one head, and when that is drawn; what hovers point at, and
# what answers them.
REGARD = {
    "drawn": "document.querySelector('.head canvas')",
    "open": ["[data-focus=cell-5-7]", 1, "document.querySelector('.heat canvas')"],
    "hover": {
        "overview": ["view=overview", ".head", "readout.textContent"],
        "head": ["view=head&map=5&heads=7", ".heat canvas", "readout.textContent"],
        "text": ["view=text&map=5&heads=7", "[data-item]", "readout.textContent"],
    },
}
BERTVIZ = {
    # Head 8 alone: a double click on its colour.
    "head": {
        "drawn": "document.querySelector('#vis svg line')",
        "open": ["#vis > svg > g:last-child > rect:nth-child(8)", 2, "true"],
        "hover": {"words": ["", "#left g > text", "document.querySelector(\"#attention line[visibility='visible']\")?.getAttribute('left-token-index')"]},
    },
    # The first layer's head 8: a click on its small picture.
    "model": {
        "drawn": "document.querySelector('#vis svg line')",
        "open": ["#vis > svg > g:nth-of-type(8) > rect:last-child", 1, "document.querySelector('.attn-line-group')"],
        "hover": {"words": ["", "g.detail text.token", "[...document.querySelectorAll('.attn-line-group')].findIndex((line) => line.style.opacity === '1')"]},
    },
}


class Gone(Exception):
    """Why a page gave no answer."""


class Page:
    """One page of a Chromium of its own, by the DevTools protocol over a pipe."""

    def __init__(self, patience):
        self.patience = patience
        self.folder = tempfile.mkdtemp()
        program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
        if program is None:
            sys.exit("viewer.py: there is no Chromium on this machine (set CHROMIUM to its path)")
        (theirs, ours), (answers, answer) = os.pipe(), os.pipe()
        # Chromium reads from 3 and writes to 4.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs, answer)]
        self.browser = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
             "--remote-debugging-pipe", f"--user-data-dir={self.folder}", "about:blank"],
            preexec_fn=lambda: (os.dup2(high[0], 3), os.dup2(high[1], 4)), close_fds=False,
            start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for end in (theirs, answer, *high):
            os.close(end)
        self.ours = os.fdopen(ours, "wb", 0)
        self.answers, self.rest, self.number, self.session = answers, b"", 0, None
        os.set_blocking(answers, False)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Inspector"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=1280, height=860, deviceScaleFactor=1, mobile=False)
        self.call("Page.addScriptToEvaluateOnNewDocument", source=CLOCK)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters} | ({"sessionId": self.session} if self.session else {})
        self.ours.write(json.dumps(message).encode() + b"\0")
        ends = time.monotonic() + self.patience
        while True:
            while b"\0" not in self.rest:
                if time.monotonic() > ends:
                    raise Gone(f"no answer in {self.patience} s")
                try:
                    self.rest += os.read(self.answers, 1 << 20)
                except BlockingIOError:
                    time.sleep(0.002)
            line, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(line)
            if answer.get("method") in ("Inspector.targetCrashed", "Target.targetCrashed"):
                raise Gone("the page crashed")
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise Gone(answer["error"]["message"])
                return answer["result"]

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise Gone(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def load(self, url, ready):
        """Milliseconds until the view is drawn, and bytes of everything that was loaded."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        drawn = self.value(f"until(() => {ready})")
        size = self.value("performance.getEntries().reduce((sum, entry) => sum + (entry.encodedBodySize ?? 0), 0)")
        return drawn, size

    def mouse(self, kind, place, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], **more)

    def click(self, selector, times, ready):
        """Milliseconds from the last event of the click (or clicks) to the drawn answer."""
        node = f"document.querySelector({json.dumps(selector)})"
        place = self.value(f"(() => {{ const node = {node}; node.scrollIntoView({{ block: 'nearest' }}); const b = node.getBoundingClientRect(); return [b.left + b.width / 2, b.top + Math.min(b.height / 2, 200)]; }})()")
        self.mouse("mouseMoved", place)
        for count in range(1, times + 1):
            self.mouse("mousePressed", place, button="left", clickCount=count)
            self.mouse("mouseReleased", place, button="left", clickCount=count)
        return self.value(f"until(() => {ready}).then((ended) => ended - began)")

    def hovers(self, selector, answer, count):
        """Milliseconds of each hover."""
        # What can be seen of it; of a single one (a map) places anywhere on it.
        boxes = self.value(f"""(() => {{
            const nodes = [...document.querySelectorAll({json.dumps(selector)})];
            if (nodes.length === 1) nodes[0].scrollIntoView({{ block: 'start' }});
            const boxes = nodes.map((node) => node.getBoundingClientRect()).map((b) => [b.left, Math.max(b.top, 0), b.right, Math.min(b.bottom, innerHeight)]);
            return boxes.filter(([a, b, c, d]) => c - a > 2 && d - b > 2);
        }})()""")
        if not boxes:
            raise Gone(f"there is no {selector}")
        draw = random.Random(1)
        before, taken = None, []
        for _ in range(4 * count):
            a, b, c, d = draw.choice(boxes)
            share = (lambda: draw.uniform(0.15, 0.95)) if len(boxes) == 1 else (lambda: 0.5)
            self.mouse("mouseMoved", (a + share() * (c - a), b + share() * (d - b)))
            milliseconds, after = self.value(f"taken.then((taken) => [taken, String({answer})])")
            if after != before:
                taken.append(milliseconds)
            before = after
            if len(taken) == count:
                return taken
        raise Gone(f"only {len(taken)} of {4 * count} hovers were answered")

    def close(self):
        # A renderer that is at work outlives its browser: the whole group ends.
        os.killpg(self.browser.pid, signal.SIGKILL)
        self.browser.wait()
        os.close(self.answers)
        shutil.rmtree(self.folder, ignore_errors=True)


def measured(name, url, about, options):
    """Prints the row of one page."""
    page = Page(options.patience)
    row = [f"{name:30s}"]
    try:
        drawn = []
        while True:
            milliseconds, size = page.load(url, about["drawn"])
            drawn.append(milliseconds)
            # A page that takes so long is loaded once.
            if len(drawn) == options.loads or milliseconds > 10_000:
                break
            page.close()
            page = Page(options.patience)
        row.append(f"{size / 1e6:8.2f} MB  drawn {statistics.median(drawn):8.0f} ms")
        opened = page.click(*about["open"])
        row.append(f"one head {opened:6.0f} ms")
        for what, (view, selector, answer) in about["hover"].items():
            if view:
                page.load(f"{url}#{view}", f"document.body?.dataset.drawn && document.querySelector({json.dumps(selector)})")
            taken = page.hovers(selector, answer, options.hovers)
            row.append(f"hover ({what}) {statistics.median(taken):.0f}, worst {max(taken):.0f} ms")
    except Gone as gone:
        row.append(f"NOTHING FURTHER: {gone}")
    print("  ".join(row), flush=True)
    page.close()


def libraries(folder):
    """The files that BertViz' pages load, in `folder`."""
    for number, (_, package, file) in enumerate(LIBRARIES):
        path = folder / f"library{number}.js"
        if path.exists():
            continue
        packed = subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        with tarfile.open(folder / packed) as archive:
            path.write_bytes(archive.extractfile(file).read())


class Files(http.server.SimpleHTTPRequestHandler):
    """A folder, the addresses of the CDN in its pages replaced by files beside them."""

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        body = path.read_bytes()
        if path.suffix == ".html":
            for number, (address, _, _) in enumerate(LIBRARIES):
                body = body.replace(address.encode(), f"/library{number}{'.js' if address.endswith('.js') else ''}".encode())
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8" if path.suffix == ".html" else "text/javascript")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True  # the page was given up

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--python")
    parser.add_argument("--tokens", default="64,512", help="lengths of texts")
    parser.add_argument("--hovers", type=int, default=50)
    parser.add_argument("--loads", type=int, default=5, help="the median of so many, each in a new browser, is the time until a page is drawn")
    parser.add_argument("--patience", type=int, default=180, help="seconds after which a page is given up")
    parser.add_argument("--only", default="regard,head,model,head-1,model-1", help="pages; -1: of the first layer alone")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    python = interpreter(options.python, REQUIREMENTS)
    regard = build(ROOT, "--workspace", "--bin", "regard")["regard"]
    pages = options.only.split(",")
    libraries(options.folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=options.folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for tokens in map(int, options.tokens.split(",")):
        theirs = [page for page in pages if page != "regard"]
        subprocess.run([python, PEERS / "viewer_bertviz.py", "--folder", options.folder, "--tokens", str(tokens), *theirs], check=True, stdout=subprocess.DEVNULL)
        if "regard" in pages:
            trace = options.folder / f"regard-{tokens}.safetensors"
            subprocess.run([regard, "look", "--model", options.folder, "--trace", trace, words(tokens)], check=True, stdout=subprocess.DEVNULL)
            serving = subprocess.Popen([regard, "serve", "--no-open", "--quiet", trace], stdout=subprocess.PIPE, text=True)
            measured(f"regard, {tokens} tokens", serving.stdout.readline().strip(), REGARD, options)
            serving.terminate()
            serving.wait()
        for page in theirs:
            url = f"http://127.0.0.1:{server.server_port}/bertviz-{page}-{tokens}.html"
            measured(f"bertviz {page}, {tokens} tokens", url, BERTVIZ[page.partition("-")[0]], options)


if __name__ == "__main__":
    main()
