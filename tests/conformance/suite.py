"""Where the tests come from: PyMongo and its tests in a cache folder, and the areas they are grouped in.

The tests are taken out of PyMongo's source distribution, without its pymongo/ folder, which would hide the
installed package and its C extensions.
"""

import os
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYMONGO = "4.20.1"
TOOLS = ["pytest>=8.2,<10", "pytest-asyncio>=0.24", "pytest-timeout>=2.3", "simplejson"]
COMPRESSION = ["python-snappy", "backports.zstd; python_version < '3.14'"]


class SetupError(Exception):
    """The suite cannot be run here at all."""


@dataclass(frozen=True)
class Area:
    name: str
    files: tuple
    pass_percent_min: float
    default: bool
    usual_port: tuple = ()


def areas():
    parsed = tomllib.loads((HERE / "areas.toml").read_text())
    return {
        name: Area(name, tuple(a["files"]), a["pass_percent_min"], a.get("default", False), tuple(a.get("usual_port", ())))
        for name, a in parsed.items()
    }


def select(names):
    """The areas to run, each with its files. A name is an area or one file of an area; no name: the defaults."""
    known = areas()
    if not names:
        return [a for a in known.values() if a.default]
    chosen = []
    for name in names:
        hits = [a for a in known.values() if name == a.name]
        hits += [Area(a.name, (name,), 0, False, a.usual_port) for a in known.values() if name in a.files]
        if not hits:
            raise SetupError(f"no area or file named {name}; areas: {', '.join(known)}")
        chosen += hits
    return chosen


def cache():
    return Path(os.environ.get("ROCKDOVE_TEST_CACHE", Path.home() / ".cache/rockdove-tests"))


def run_quietly(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise SetupError(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-1500:]}")


def prepare(say):
    """Makes (once) the folder with PyMongo and its tests; returns (python, folder of the tests)."""
    home = cache() / f"pymongo-{PYMONGO}"
    python, tests, ready = home / "venv/bin/python", home / "suite", home / "ready"
    wanted = "\n".join([f"pymongo=={PYMONGO}", *TOOLS, *COMPRESSION])
    if ready.exists() and ready.read_text() == wanted and python.exists():
        return python, tests
    say(f"installing PyMongo {PYMONGO} and its tests into {home}")
    home.mkdir(parents=True, exist_ok=True)
    run_quietly(sys.executable, "-m", "venv", "--clear", home / "venv")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run_quietly(*pip, "install", "--only-binary", ":all:", f"pymongo=={PYMONGO}", *TOOLS, *COMPRESSION)
    run_quietly(*pip, "download", "--no-binary", ":all:", "--no-deps", "-d", home, f"pymongo=={PYMONGO}")
    unpack(home / f"pymongo-{PYMONGO}.tar.gz", tests)
    ready.write_text(wanted)
    return python, tests


def unpack(sdist, into):
    top = f"pymongo-{PYMONGO}/"
    wanted = (top + "test/", top + "pyproject.toml")
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            if member.name.startswith(wanted):
                member.name = member.name.removeprefix(top)
                archive.extract(member, into, filter="data")


PREFLIGHT = """
import sys, pymongo
client = pymongo.MongoClient(sys.argv[1], serverSelectionTimeoutMS=5000)
hello = client.admin.command("hello")
version = client.admin.command("buildinfo")["version"]
for needed in ({"getCmdLineOpts": 1}, {"serverStatus": 1}):
    client.admin.command(needed)
tests = client.admin.command({"getParameter": "*"})["enableTestCommands"]
print(f"version {version}, wire {hello['maxWireVersion']}, set {hello.get('setName')}, test commands {tests}")
"""


def preflight(python, uri):
    """Fails unless the server answers what the suite's set-up asks: without it every test would be *skipped*."""
    done = subprocess.run([python, "-c", PREFLIGHT, uri], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise SetupError(f"the server at {uri} does not answer as needed: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip()
