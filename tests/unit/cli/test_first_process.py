"""Tests that `epochmq` as the first process of a container can be stopped before it serves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SLOW = """
import sys
sys.argv = ["epochmq", "broker"]
from epochmq import main
import epochmq.processes as processes
def run_process(verb, arguments):
    print("started", flush=True)
    sys.stdin.read()
processes.run_process = run_process
main.main()
"""


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_sigterm_ends_the_process_while_it_starts() -> None:
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", SLOW]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        assert process.wait(120) == 128 + signal.SIGTERM
