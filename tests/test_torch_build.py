"""Which build of torch is taken, on every system and for every wish."""

from __future__ import annotations

import contextlib
import http.server
import platform
import shutil
import socket
import threading
from collections.abc import Iterator

import pytest

from allreduce_edu.launcher import torch_build
from allreduce_edu.launcher.failures import Stop
from allreduce_edu.launcher.torch_build import answers, lacks_torch, pip_has_orders, settle

PIN = "torch==2.13.0"
CPU = ["--index-url", torch_build.INDEX + "cpu", "--no-deps", f"{PIN}+cpu"]
WINDOWS_CUDA = ["--index-url", torch_build.INDEX + "cu130", "--no-deps", f"{PIN}+cu130"]
AGAIN = ["--force-reinstall", "--no-deps", PIN]


@pytest.mark.parametrize(
    ("system", "build", "driver", "answering", "switch", "expected"),
    [
        ("Linux", "auto", False, True, False, (CPU, False)),
        ("Linux", "auto", False, False, False, None),  # goes on without that index
        ("Linux", "auto", True, True, False, None),  # what pip takes by itself has CUDA
        ("Linux", "cpu", True, True, True, (CPU, True)),
        ("Linux", "cpu", False, False, True, (["--no-deps", f"{PIN}+cpu"], True)),
        ("Linux", "cuda", False, True, True, (AGAIN, True)),
        ("Linux", "cuda", False, True, False, None),
        ("Darwin", "auto", False, True, False, None),
        ("Darwin", "cpu", False, True, True, None),
        ("Windows", "auto", False, True, False, None),
        ("Windows", "auto", True, True, False, None),
        ("Windows", "cpu", False, True, True, (AGAIN, True)),
        ("Windows", "cuda", True, True, True, (WINDOWS_CUDA, True)),
    ],
)
def test_builds(
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    build: str,
    driver: bool,
    answering: bool,
    switch: bool,
    expected: tuple[list[str], bool] | None,
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(torch_build, "has_nvidia_driver", lambda: driver)
    monkeypatch.setattr(torch_build, "pip_has_orders", lambda: False)
    monkeypatch.setattr(torch_build, "answers", lambda _: answering)
    step = settle(build, PIN, switch=switch)
    assert (step and (step.arguments, step.must)) == expected


def test_there_is_no_cuda_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(Stop, match="leave out --cuda"):
        settle("cuda", PIN, switch=True)


@pytest.mark.parametrize("name", ["PIP_NO_INDEX", "PIP_INDEX_URL", "PIP_FIND_LINKS"])
def test_where_pip_was_told_to_look_nobody_else_is_asked(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for other in ("PIP_NO_INDEX", "PIP_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(other, raising=False)
    assert not pip_has_orders()
    monkeypatch.setenv(name, "there")
    assert pip_has_orders()
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(torch_build, "has_nvidia_driver", lambda: False)
    monkeypatch.setattr(torch_build, "answers", pytest.fail)
    assert settle("auto", PIN, switch=False) is None


@contextlib.contextmanager
def serving(status: int) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("status", "heard"), [(200, True), (404, False)])
def test_an_index_answers_or_not(monkeypatch: pytest.MonkeyPatch, status: int, heard: bool) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with serving(status) as url:
        assert answers(url, 20.0 if heard else 1.0) is heard


def test_a_server_that_says_nothing_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert not answers(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.2)


def test_a_driver_is_seen_by_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert torch_build.has_nvidia_driver()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(torch_build.os.path, "exists", lambda _: False)
    assert not torch_build.has_nvidia_driver()


OLD_ONES = """The conflict is caused by:
    allreduce-edu[torch] 0.1.0 depends on torch>=2.8; extra == "torch"
    The user requested (constraint) torch==2.13.0"""


@pytest.mark.parametrize(
    ("output", "lacks"),
    [
        ("ERROR: Could not find a version that satisfies the requirement torch>=2.8", True),
        ("ERROR: No matching distribution found for torch==2.13.0", True),
        (OLD_ONES, True),
        ("ERROR: No matching distribution found for torchvision", False),
        ("ERROR: No matching distribution found for numpy", False),
        ("NewConnectionError(...)\nERROR: No matching distribution found for torch", False),
    ],
)
def test_no_torch_wheel_is_told_from_no_network(output: str, lacks: bool) -> None:
    assert lacks_torch(output) is lacks
