"""Limits of the server on a real socket: hosts, tokens, bodies, slow and vanished clients, overload, signals."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest

import pretune as pt
from pretune.cli import main
from pretune.cli.serve import exit_on_early_signals
from pretune.server.capabilities import TextTokenizer
from pretune.server.limits import build_hosts, is_allowed
from tests.inference.speakers import gpt
from tests.server.models import Address, run_server
from tests.server.test_engine import slow_gpt

ASK = {"prompt": "a", "temperature": 0, "max_tokens": 40}
SHORT = {**ASK, "max_tokens": 12}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Address]:
    limits = {"max_body": 4096, "read_seconds": 0.4, "write_seconds": 0.4, "max_rows": 1, "max_queue": 2}
    with run_server({"slow": slow_gpt(0.02), "gpt": gpt()}, token="secret", **limits) as address:
        yield address


@pytest.fixture(scope="module")
def patient_server() -> Iterator[Address]:
    """A server whose clients have time to send a large body."""
    with run_server({"gpt": gpt()}, token="secret", max_body=4096, read_seconds=60) as address:
        yield address


def call(server: Address, body: Any = None, path: str = "/v1/completions", **headers: str) -> tuple[int, Any]:
    """Status and JSON, with the token."""
    return server.call(path, body, **{"authorization": "Bearer secret", **headers})[:2]


def read_reply(connection: socket.socket) -> tuple[int, Any]:
    """Status and JSON of an answer, until the connection ends."""
    data = b""
    while part := connection.recv(65536):
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def head(server: Address, *lines: str, path: str = "/v1/completions") -> bytes:
    names = ("POST " + path + " HTTP/1.1", f"Host: 127.0.0.1:{server.port}", "Authorization: Bearer secret", *lines)
    return "\r\n".join((*names, "", "")).encode()


def post(server: Address, body: Any, path: str = "/v1/completions") -> bytes:
    """A whole request."""
    data = json.dumps(body).encode()
    return head(server, f"Content-Length: {len(data)}", "Content-Type: application/json", path=path) + data


@contextlib.contextmanager
def running(calls: Iterable[Callable[[], Any]], pause: float = 0.0) -> Iterator[None]:
    """Run calls in threads of their own, which have ended after the block."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
        time.sleep(pause)
    yield
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:1"}, 403),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": ""}, 401),
        ({"host": "localhost"}, 200),
        ({}, 200),
    ],
)
def test_hosts_origins_and_tokens(headers: dict[str, str], status: int, server: Address) -> None:
    found, reply = call(server, {**ASK, "model": "gpt", "max_tokens": 1}, **headers)
    assert found == status, reply
    assert status == 200 or reply["error"]["message"]
    same = {"host": "localhost:9", "origin": "http://localhost:9"}
    assert server.call("/health", **same)[0] == 200  # needs no token


@pytest.mark.slow
@pytest.mark.parametrize("size", [40_000, 40_000_000])
@pytest.mark.parametrize("expects", [False, True])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_large_body_gets_the_answer_after_it_is_sent(
    size: int, expects: bool, is_chunked: bool, patient_server: Address
) -> None:
    """Neither a length that is too large, nor chunks without one, end in a reset connection."""
    piece = b"a" * (size // 10)
    lines = ["Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {size}"]
    lines += ["Expect: 100-continue"] if expects else []
    with patient_server.connect() as connection:
        connection.sendall(head(patient_server, *lines))
        if expects and is_chunked:
            assert connection.recv(len(CONTINUE)) == CONTINUE
        for _ in range(10):
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece)
        connection.sendall(b"0\r\n\r\n" if is_chunked else b"")
        assert read_reply(connection)[0] == 413


def test_body_is_refused_by_its_header_alone(server: Address) -> None:
    with server.connect() as connection:
        connection.sendall(head(server, "Content-Length: 9000000000", "Expect: 100-continue"))
        assert read_reply(connection)[0] == 413


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["X-Large: " + "a" * 30_000], 200),
        (["X-Large: " + "a" * 70_000], 431),
        (["X-Large: " + "a" * 700_000], 431),
        ([f"X-{number}: a" for number in range(90)], 200),
        ([f"X-{number}: a" for number in range(110)], 431),
        ([f"X-{number}: a" for number in range(10_000)], 431),
    ],
)
@pytest.mark.parametrize("is_slow", [False, True])
def test_headers_are_bounded(lines: list[str], status: int, is_slow: bool, server: Address) -> None:
    """In size and number, whether they come in one piece or in many."""
    body = b'{"model": "gpt", "texts": "a"}'
    lines = [*lines, "Connection: close", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    data = head(server, *lines, path="/tokenize") + body
    with server.connect() as connection:
        for start in range(0, len(data), 10_000 if is_slow else len(data)):
            connection.sendall(data[start : start + (10_000 if is_slow else len(data))])
            time.sleep(0.001 if is_slow else 0)
        assert read_reply(connection)[0] == status
    path = "/card?model=" + "a" * 40_000
    assert call(server, None, path)[0] == 431


def test_slow_clients_are_closed(server: Address) -> None:
    """A body that does not come, headers that do not end, and silence."""
    with server.connect() as body, server.connect() as headers, server.connect() as silent:
        body.sendall(head(server, "Content-Length: 100") + b"{")
        headers.sendall(b"POST / HTTP/1.1\r\n")
        assert read_reply(body)[0] == 408
        for connection in (headers, silent):
            connection.settimeout(3)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""


def test_client_that_does_not_read_costs_nothing(server: Address) -> None:
    """The vanished and the deaf leave the batch; the next request is served."""
    worker = server.engine.workers["slow"]
    for _ in range(2):
        with server.connect() as connection:
            connection.sendall(post(server, {**ASK, "model": "slow"}))
            wait_for(lambda: worker.running_rows == 1)
    wait_for(lambda: worker.running_rows == 0 and server.engine.running_requests == 0)
    assert call(server, {**ASK, "model": "gpt", "max_tokens": 1})[0] == 200


def test_client_that_reads_nothing_is_dropped() -> None:
    """A response and a stream that nobody reads end after `write_seconds`; neither rows nor buffers are left."""
    texts = {"texts": ["a b c d e f g h i j k l m n o p"] * 250}
    stream = {"prompt": ["a"] * 8, "max_tokens": 40, "min_tokens": 40, "stream": True, "logprobs": 20}
    with run_server({"gpt": gpt()}, write_seconds=0.3) as server:
        connections = server.server.server_state.connections
        for path, body in (("/tokenize", texts), ("/v1/completions", stream)):
            with server.connect() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                wait_for(lambda: len(connections) == 1)
                (protocol,) = connections
                protocol.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
                deaf.sendall(post(server, body, path))
                wait_for(lambda transport=protocol.transport: transport.get_write_buffer_size() > 2**16)  # type: ignore[misc]
                wait_for(lambda: not connections and not server.engine.running_requests)
                assert protocol.transport.get_write_buffer_size() == 0
                wait_for(lambda: server.engine.workers["gpt"].running_rows == 0)  # after the step that runs
        assert server.call("/v1/completions", SHORT)[0] == 200


def test_connections_are_bounded() -> None:
    """One too many gets 503 and its reason, also while it sends a body; a free place is taken again."""
    with run_server({"gpt": gpt()}, max_connections=2) as server:
        connections = server.server.server_state.connections
        with server.connect(), server.connect():
            wait_for(lambda: len(connections) == 2)
            status, reply, _ = server.call("/v1/completions", {**SHORT, "stop": ["x" * 200] * 16})
            assert status == 503 and reply["error"]["message"] == "too many connections"
            with server.connect() as sender:
                sender.sendall(head(server, "Content-Length: 300000"))
                for _ in range(100):
                    sender.sendall(b"a" * 3000)
                assert read_reply(sender)[0] == 503
            assert len(connections) == 2
        wait_for(lambda: not connections)
        assert server.call("/v1/completions", SHORT)[0] == 200


def test_full_queue_is_429_and_draining_is_503() -> None:
    """After SIGTERM the running requests get their answers, new ones an error, and the server ends."""
    with run_server({"slow": slow_gpt(0.02)}, max_rows=1, max_queue=2, request_seconds=5) as server:
        statuses: list[int] = []

        def ask() -> None:
            statuses.append(server.call("/v1/completions", SHORT)[0])

        with running([ask] * 5, pause=0.03):
            server.server.handle_exit(signal.SIGTERM, None)
            status, reply, headers = server.call("/v1/completions", SHORT)
            assert status == 503 and reply["error"]["code"] == "unavailable" and headers["retry-after"] == "1"
            assert server.call("/health")[:2] == (503, {"status": "draining"})
        assert sorted(statuses) == [200, 200, 200, 429, 429]
        wait_for(lambda: server.server.should_exit)


def test_requests_that_do_not_end_get_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `drain_seconds` neither a text that is being generated nor a thread keeps the server from its end."""
    is_released = threading.Event()
    with run_server({"slow": slow_gpt(0.05)}, drain_seconds=0.2) as server:
        monkeypatch.setattr(TextTokenizer, "run", lambda self, text: [is_released.wait()])
        replies: list[tuple[int, Any, Any]] = []
        requests = {"/v1/completions": {**ASK, "min_tokens": 40}, "/tokenize": {"texts": ["a"]}}
        with running([lambda item=item: replies.append(server.call(*item)) for item in requests.items()]):  # type: ignore[misc]
            wait_for(lambda: server.engine.workers["slow"].running_rows == 1 and server.engine.running_requests >= 3)
            server.server.handle_exit(signal.SIGTERM, None)
        is_released.set()
    assert [(status, reply["error"]["code"]) for status, reply, _ in replies] == [(503, "unavailable")] * 2


STOPPED = """
import os, signal, sys, time
{preparation}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
from pretune.cli import main
sys.argv[1:] = ["serve", {folder!r}, "--port", "0", "--device", "cpu"]
sys.exit(main())
"""
IN_IMPORT = """
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.{name})
            except BaseException:
                import no_such_module
sys.meta_path.insert(0, Stop())
"""
IN_LOADING = """
from pretune.server.served_model import ServedModel
def load(*arguments):
    os.kill(os.getpid(), signal.{name})
    time.sleep(1000)
ServedModel.load = load
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("moment", ["fastapi", "torch", "pretune.server.engine", "uvicorn.protocols.http.h11_impl", ""])
def test_stopped_while_it_starts(name: str, moment: str, tmp_path: Any) -> None:
    """At any moment of the start: one line, exit code 0, and no waiting for what is being loaded."""
    pt.save(gpt(), tmp_path / "gpt")
    preparation = (IN_IMPORT if moment else IN_LOADING).format(module=moment, name=name)
    code = STOPPED.format(preparation=preparation, folder=str(tmp_path / "gpt"))
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    lines = [line for line in process.stderr.splitlines() if not line.startswith("loading")]
    assert (process.returncode, process.stdout, len(lines)) == (0, "", 1) and name in lines[0], process.stderr


def test_signals_of_a_program_stay_as_they_were() -> None:
    """Only default handlers are replaced, and only while the command runs."""
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    handle = lambda number, frame: None  # noqa: E731
    try:
        signal.signal(signal.SIGTERM, handle)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with exit_on_early_signals():
            assert signal.getsignal(signal.SIGTERM) is handle
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)


def test_bug_of_a_route_is_500(server: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*texts: Any) -> Any:
        raise ValueError("a secret of the server")

    monkeypatch.setattr(TextTokenizer, "run", fail)
    status, reply = call(server, {"model": "gpt", "texts": "a"}, "/tokenize")
    assert status == 500 and "secret" not in json.dumps(reply) and reply["error"]["code"] == "internal_error"


def test_names_of_a_server_on_all_addresses() -> None:
    hosts = build_hosts("0.0.0.0", ["models.example"])
    assert all(is_allowed(host, hosts) for host in ("192.0.2.7:80", "[2001:db8::1]:80", "models.example"))
    assert not any(is_allowed(host, hosts) for host in ("evil.example", "*address*", ""))


def test_invalid_http_and_websockets(server: Address) -> None:
    with server.connect() as connection:
        connection.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        assert read_reply(connection)[0] == 400
    upgrade = {"connection": "upgrade", "upgrade": "websocket"}
    assert call(server, path="/health", **upgrade)[0] == 200


def wait_for(condition: Any, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_sigterm_drains(tmp_path: Any) -> None:
    """`pretune serve` as a process: 200 when loaded, finishes a running stream after SIGTERM, exit code 0."""
    pt.save(gpt(), tmp_path / "gpt")
    command = [sys.executable, "-m", "pretune", "serve", f"tiny={tmp_path / 'gpt'}", "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("serving tiny at http://127.0.0.1:"), process.stderr.read() if process.stderr else ""
        port = int(line.rpartition(":")[2].split()[0])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            data = json.dumps({"prompt": "a", "max_tokens": 40, "stream": True}).encode()
            lines = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
            connection.sendall(f"{lines}Content-Type: application/json\r\n\r\n".encode() + data)
            text = connection.recv(65536)
            process.send_signal(signal.SIGTERM)
            while part := connection.recv(65536):
                text += part
        assert b"data: [DONE]" in text
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_200_clients_with_slow_and_vanishing_ones() -> None:
    """Every honest client gets its own answer or 429, others get errors; memory stays bounded."""
    import resource

    from tests.server.test_engine import PROMPTS, alone

    texts = {prompt: alone(gpt(), [prompt], {"temperature": 0, "max_new_tokens": 8})[0][0].new for prompt in PROMPTS}
    outcomes: list[str] = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with run_server({"gpt": gpt()}, max_body=2**16, read_seconds=2.0, write_seconds=2.0) as server:

        def behave(number: int) -> None:
            kind = number % 5
            if kind < 3:
                prompt = PROMPTS[number % len(PROMPTS)]
                status, reply, _ = server.call("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 8})
                is_right = status == 200 and reply["choices"][0]["text"] == texts[prompt]
                outcomes.append("right" if is_right else str(status))
                return
            with server.connect() as connection, contextlib.suppress(ConnectionError):
                if kind == 3:  # sends a request and goes, or sends half of one
                    request = post(server, {"prompt": "a", "stream": True, "max_tokens": 40})
                    connection.sendall(request[: len(request) // (1 + number % 2)])
                    outcomes.append("gone")
                else:
                    connection.sendall(head(server, "Content-Length: 500000") + b"[" * 500_000)
                    outcomes.append(str(read_reply(connection)[0]))

        with running(partial(behave, number) for number in range(200)):
            pass
        wait_for(lambda: server.engine.running_requests == 0 and len(server.server.server_state.connections) == 0)
        assert server.call("/health")[0] == 200
    assert sorted(outcomes) == ["413"] * 40 + ["gone"] * 40 + ["right"] * 120
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_command_refuses(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path / "no-such-run")]) == 4
    assert main(["serve", "a=x", "a=y"]) == 2
    folder = str(tmp_path)
    assert main(["serve", folder, "--set", "max_row=3"]) == 2 and "max_rows" in capsys.readouterr().err
    assert main(["serve", folder, "--port", "70000"]) == 2
    assert main(["serve", folder, "--port", "0", "--device", "cpu"]) == 4  # loading fails, and ends the server
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert main(["serve", folder, "--port", port, "--device", "cpu"]) == 6
    assert "address" in capsys.readouterr().err.lower()


def test_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["serve", "somewhere"]) == 2
    assert "pip install 'pretune[serve]'" in capsys.readouterr().err
