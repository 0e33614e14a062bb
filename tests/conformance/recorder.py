"""A pytest plugin that writes each outcome at once as a line of JSON to $CONFORMANCE_RECORD.

A run that is killed keeps what it learnt. Started again on the same record it leaves out what has an outcome, and
counts the test that had begun and never ended as failed: it hung until the time limit of its file.

Lines: {"collected": [id…]} once, {"begin": id}, {"id", "outcome", "seconds", "message"}.
"""

import json
import os
from pathlib import Path

MESSAGE_LENGTH_MAX = 600


class Record:
    def __init__(self, path):
        self.settled, self.first, begun = set(), True, None
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self.first = False
                begun = entry.get("begin", begun)
                self.settled.update([entry["id"]] if "id" in entry else [])
        self.file = path.open("a", buffering=1)
        if begun and begun not in self.settled:
            self.settle(begun, "failed", 0.0, "hung until the time limit of its file")

    def write(self, **entry):
        self.file.write(json.dumps(entry) + "\n")

    def settle(self, test, outcome, seconds, message):
        self.settled.add(test)
        self.write(id=test, outcome=outcome, seconds=round(seconds, 3), message=message[:MESSAGE_LENGTH_MAX])


record = Record(Path(os.environ["CONFORMANCE_RECORD"]))
passed_calls = set()


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.nodeid not in record.settled]


def pytest_collection_finish(session):
    if record.first:
        record.write(collected=[item.nodeid for item in session.items])


def pytest_runtest_logstart(nodeid):
    record.write(begin=nodeid)


def pytest_unconfigure():
    record.file.close()


def pytest_runtest_logreport(report):
    outcome = outcome_of(report)
    if outcome:
        record.settle(report.nodeid, outcome, report.duration, message_of(report, outcome))


def outcome_of(report):
    """None for the phases of a test that decide nothing."""
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        if report.outcome == "passed":
            passed_calls.add(report.nodeid)
        if hasattr(report, "wasxfail"):
            return "passed" if report.outcome == "skipped" else "failed"
        return report.outcome
    if report.when == "teardown" and report.outcome == "failed" and report.nodeid in passed_calls:
        return "failed"
    return None


def message_of(report, outcome):
    if outcome == "skipped" and isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    if outcome == "failed":
        crash = getattr(report.longrepr, "reprcrash", None)
        return crash.message if crash else str(report.longrepr)
    return ""
