"""Starts and stops `rockdove serve` for the suites in this folder.

* The server listens on a free loopback port and says so on its standard output; a server that does not say so
  in time, or ends first, is an error that carries what it wrote.
* Only processes started here are ever signalled; they end with the suite that started them, however it ends.
* Used by the conformance runner and by the end-to-end suites; needs nothing but Python itself.
"""

import ctypes
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT = 20.0
ADDRESS = re.compile(r"listens on 127\.0\.0\.1:(\d+)")


class ServerError(Exception):
    """The server did not do what the suite needs of any server: start, listen, stop."""


def binary() -> Path:
    """The program under test: $ROCKDOVE_BIN, else the newest build in the workspace's target folder."""
    if os.environ.get("ROCKDOVE_BIN"):
        chosen = [Path(os.environ["ROCKDOVE_BIN"])]
    else:
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        chosen = sorted(
            (p for p in (target / "release/rockdove", target / "debug/rockdove") if p.exists()),
            key=lambda p: p.stat().st_mtime,
            reverse=True,
        )
    if not chosen or not chosen[0].exists():
        raise ServerError("no rockdove program: run `cargo build --release -p rockdove-cli` or set ROCKDOVE_BIN")
    return chosen[0].resolve()


def end_with_parent():
    """In the child: asks Linux to kill it when the suite goes, so that a killed suite leaves no server behind."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """One `rockdove serve` process. `data=None` keeps everything in memory."""

    def __init__(self, data=None, port=0, args=(), log=None, test_commands=True, env=None):
        self.data, self.port, self.args, self.env = data, port, list(args), env
        self.test_commands = test_commands
        self.log = Path(log) if log else Path(tempfile.mkstemp(prefix="rockdove-", suffix=".log")[1])
        self.process = None
        self._reader = None

    @property
    def uri(self):
        return f"mongodb://127.0.0.1:{self.port}/"

    def command(self):
        where = ["--memory"] if self.data is None else ["--data-dir", str(self.data)]
        test = ["--test-commands"] if self.test_commands else []
        return [str(binary()), "serve", *where, *test, "--listen", f"127.0.0.1:{self.port}", *self.args]

    def start(self):
        """Starts the process and waits until it listens. Returns self, so that it can follow the constructor."""
        out = self.log.open("ab")
        self.process = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=out,
            env=self.env,
            preexec_fn=end_with_parent,
        )
        listening = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self.process, out, listening), daemon=True)
        self._reader.start()
        deadline = time.monotonic() + START_LIMIT
        while not listening.wait(0.02):
            if self.process.poll() is not None:
                self._reader.join(2)
                raise ServerError(f"the server ended with {self.process.returncode} at start: {self.tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerError(f"the server did not listen within {START_LIMIT:.0f} s: {self.tail()}")
        return self

    def _read(self, process, out, listening):
        for line in process.stdout:
            out.write(line)
            out.flush()
            found = None if listening.is_set() else ADDRESS.search(line.decode("utf-8", "replace"))
            if found:
                self.port = int(found.group(1))
                listening.set()
        out.close()

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def tail(self, size=1500):
        return self.log.read_text("utf-8", "replace")[-size:].strip()

    def signal(self, number):
        if self.alive():
            self.process.send_signal(number)

    def wait(self, limit=15.0):
        """Waits for the end and returns the exit code (negative: the signal)."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(f"the server did not end within {limit:.0f} s: {self.tail()}") from None
        self._reader.join(2)
        return code

    def stop(self, limit=15.0):
        """Ends the server as an operator does (SIGTERM); returns its exit code."""
        if self.process is None:
            return None
        self.signal(signal.SIGTERM)
        return self.wait(limit)

    def kill(self):
        """Ends the server as a crash does."""
        if self.alive():
            self.process.kill()
        if self.process is not None:
            self.process.wait(10)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()
