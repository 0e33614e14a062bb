"""Runs the files of the suite, several at a time, each against its own server.

A file has a time limit. When it is reached the file is started again behind the test that hung (that test failed),
a bounded number of times; what then has not run counts as failed. A server that ended while a file ran is reported
as such and is a failure of the run, whatever the tests said.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

USUAL_PORT = 27017
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

from rockdove_server import Server, ServerError  # noqa: E402


@dataclass(frozen=True)
class Limits:
    test_seconds: float
    file_seconds: float
    resumes: int


@dataclass
class FileResult:
    name: str
    outcomes: dict = field(default_factory=dict)
    """id → (passed | failed | skipped, message)"""
    trouble: list = field(default_factory=list)
    """What went wrong beside the tests: a crashed server, a file that cannot be loaded."""
    seconds: float = 0.0


class Runner:
    def __init__(self, python, tests, out, limits, uri=None, on_usual_port=()):
        self.python, self.tests, self.out, self.limits, self.uri = python, tests, out, limits, uri
        self.on_usual_port, self.usual_port = set(on_usual_port), threading.Lock()

    def run_all(self, names, jobs, done):
        """Runs the files, `jobs` at a time; calls done(FileResult) for each as it ends."""
        waiting, results = queue.SimpleQueue(), {}
        for name in names:
            waiting.put(name)
        lock = threading.Lock()

        def work():
            while True:
                try:
                    name = waiting.get_nowait()
                except queue.Empty:
                    return
                result = self.run_file(name)
                with lock:
                    results[name] = result
                    done(result)

        threads = [threading.Thread(target=work) for _ in range(1 if self.uri else jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def run_file(self, name, only=(), label=""):
        """Runs one file, or only the given tests of it, on a fresh server (or on the foreign one)."""
        stem = name + label
        record = self.out / f"{stem}.jsonl"
        record.unlink(missing_ok=True)
        result, begun = FileResult(name), time.monotonic()
        for _ in range(self.limits.resumes + 1):
            try:
                finished = self.attempt(stem, record, list(only) or [f"test/{name}.py"], result)
            except ServerError as error:
                result.trouble.append(str(error))
                break
            if finished:
                break
        result.seconds = time.monotonic() - begun
        self.read(record, result)
        return result

    def attempt(self, stem, record, what, result):
        """One pytest process. False: it was ended by the time limit and can be resumed."""
        if self.uri:
            return self.pytest(stem, record, what, urlsplit(self.uri).netloc, result)
        if result.name in self.on_usual_port:
            with self.usual_port:
                return self.on_own_server(stem, record, what, result, USUAL_PORT)
        return self.on_own_server(stem, record, what, result, 0)

    def on_own_server(self, stem, record, what, result, port):
        with Server(port=port, log=self.out / f"{stem}.server.log") as server:
            finished = self.pytest(stem, record, what, f"127.0.0.1:{server.port}", result)
            if not server.alive():
                code = server.process.returncode
                result.trouble.append(f"the server ended with {code} while {stem} ran: {server.tail(600)}")
            return finished

    def pytest(self, stem, record, what, address, result):
        host, _, port = address.rpartition("@")[2].partition(":")
        env = dict(os.environ, DB_IP=host, DB_PORT=port or "27017", CONFORMANCE_RECORD=str(record))
        env["PYTHONPATH"] = str(HERE)
        command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "recorder", "-o", "addopts="]
        command += ["-o", "faulthandler_timeout=0", "-m", "default or auth", "--tb=short"]
        command += [f"--timeout={self.limits.test_seconds}", "--timeout-method=signal", *what]
        with (self.out / f"{stem}.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self.tests, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )
            try:
                code = process.wait(self.limits.file_seconds)
            except subprocess.TimeoutExpired:
                return False
            finally:
                end_group(process)
        if code not in (0, 1, 5) and not broken_off(code):
            tail = (self.out / f"{stem}.log").read_text("utf-8", "replace")[-600:]
            result.trouble.append(f"pytest could not run {stem} (exit {code}): {tail}")
        return not broken_off(code)

    def read(self, record, result):
        collected = []
        for line in record.read_text().splitlines() if record.exists() else []:
            entry = json.loads(line)
            collected += entry.get("collected", [])
            if "id" in entry:
                result.outcomes[entry["id"]] = (entry["outcome"], entry["message"])
        for test in collected:
            result.outcomes.setdefault(test, ("failed", "not run: the time limit of its file was reached"))
        if not collected and not result.trouble:
            result.trouble.append(f"{result.name}: no test was found")


def broken_off(code):
    """Ended by a signal, or by a time limit inside pytest's own code (3): resumed like a file that hung."""
    return code < 0 or code == 3


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
