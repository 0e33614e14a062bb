"""Judges outcomes: counts, thresholds per area, the baseline of tests that passed once, and why tests fail.

Rate = passed ÷ (passed + failed). A skipped test says nothing about the server, so each reason is shown with its
count. The baseline only grows: a test in it that does not pass now fails the run.
"""

import re
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "baseline.txt"


def known():
    """[(part of an id, reason)] of tests that fail here whatever the server does."""
    lines = (HERE / "known.txt").read_text().splitlines()
    pairs = (line.split("|", 1) for line in lines if line.strip() and not line.startswith("#"))
    return [(part.strip(), reason.strip()) for part, reason in pairs]


def settle(result, excuses):
    """Turns the known failures of one file into skips."""
    for test, (outcome, _) in result.outcomes.items():
        reason = next((why for part, why in excuses if part in test), None)
        if outcome == "failed" and reason:
            result.outcomes[test] = ("skipped", f"fails here whatever the server does: {reason}")


def count(results):
    return Counter(outcome for result in results for outcome, _ in result.outcomes.values())


def rate(counts):
    judged = counts["passed"] + counts["failed"]
    return 100.0 * counts["passed"] / judged if judged else 0.0


def thresholds(areas, results):
    """Lines of a table, and what fell below its threshold."""
    lines, low = [], []
    for area in areas:
        counts = count(results[f] for f in area.files if f in results)
        percent = rate(counts)
        lines.append(
            f"{area.name:10s} {counts['passed']:5d} passed {counts['failed']:5d} failed {counts['skipped']:5d} skipped"
            f"  {percent:5.1f} %  (at least {area.pass_percent_min} %)"
        )
        if percent < area.pass_percent_min:
            low.append(f"{area.name}: {percent:.1f} % passed, {area.pass_percent_min} % is the least")
    return lines, low


def read_baseline():
    return set(BASELINE.read_text().split("\n")) - {""} if BASELINE.exists() else set()


def write_baseline(passed):
    BASELINE.write_text("".join(f"{test}\n" for test in sorted(read_baseline() | passed)))


def passed(results):
    return {t for r in results for t, (outcome, _) in r.outcomes.items() if outcome == "passed"}


def lost(results):
    """{file: [tests that are in the baseline and do not pass now]} for the files that ran."""
    ran = {f"test/{r.name}.py": r.name for r in results}
    missing = defaultdict(list)
    for test in sorted(read_baseline() - passed(results)):
        name = ran.get(test.split("::", 1)[0])
        if name:
            missing[name].append(test)
    return missing


def cause(message):
    """The part of a failure's text that is the same for all tests that fail alike."""
    text = re.sub(r"0x[0-9a-f]+|[0-9a-f]{24,32}|\d{4,}", "#", message)
    text = re.sub(r", full error: .*", "", text, flags=re.S)
    return re.sub(r"\s+", " ", text).strip()[:160] or "(no message)"


def reasons(results, outcome):
    """[(cause, [ids])], the most frequent first."""
    groups = defaultdict(list)
    for result in results:
        for test, (got, message) in result.outcomes.items():
            if got == outcome:
                groups[cause(re.sub(r"^Skipped: |^Test\w+ (?=runOnRequirements)", "", message))].append(test)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def markdown(title, areas, results):
    """A report for people who repair: counts per area, then each cause with examples and its full text."""
    lines, low = thresholds(areas, results)
    text = [f"# {title}", "", "```text", *lines, "```", ""]
    text += [f"* below its threshold: {line}" for line in low]
    text += [f"* **{t}**" for r in results.values() for t in r.trouble]
    for area in areas:
        files = [results[f] for f in area.files if f in results]
        groups = reasons(files, "failed")
        if groups:
            text += ["", f"## {area.name}: {sum(len(ids) for _, ids in groups)} failed"]
        messages = {t: m for r in files for t, (_, m) in r.outcomes.items()}
        for why, ids in groups:
            text += [f"* **{len(ids)}×** `{why}`"]
            text += [f"  - {test}" for test in ids[:4]]
            text += ["    ```", *("    " + line for line in messages[ids[0]].splitlines()[:6]), "    ```"]
    return "\n".join(text) + "\n"
