"""Each failure of set-up gets one sentence that says what to do. The texts are pip's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from allreduce_edu.launcher.failures import Stop, diagnose

DISK = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
RIGHTS = "ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: 'x'"
VENV = "The virtual environment was not created successfully because ensurepip is not available."
NO_NAME = """WARNING: Retrying (Retry(total=2)) after connection broken by 'NewConnectionError('
<HTTPSConnection>: Failed to establish a new connection: [Errno -3] Temporary failure in name
resolution')': /simple/numpy/
ERROR: No matching distribution found for numpy>=2.0"""
NO_PROXY = "WARNING: Retrying after connection broken by 'ProxyError('Cannot connect to proxy.')'"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (DISK, "the disk is full"),
        ("OSError: [Errno 122] Disk quota exceeded", "the disk is full"),
        (NO_NAME, "the network does not answer"),
        (NO_PROXY, "the network does not answer"),
        ("ERROR: No matching distribution found for setuptools>=77", "pip finds no setuptools>=77"),
        (RIGHTS, "cannot be written"),
        (VENV, "sudo apt install python3-venv"),
        ("noise\nERROR: Failed to build wheel\nmore noise", "`ERROR: Failed to build wheel`"),
        ("ValueError: bad\n", "`ValueError: bad`"),
        ("just this", "`just this`"),
        ("", "`no word at all`"),
    ],
)
def test_sentences(output: str, words: str, tmp_path: Path) -> None:
    sentence = diagnose(output, tmp_path)
    assert words in sentence
    assert "\n" not in sentence


def test_a_sentence_keeps_what_led_to_it() -> None:
    stop = Stop("do this", "because of that")
    assert str(stop) == "do this"
    assert stop.output == "because of that"
