"""The Python of the tests' own environment, which lies below target/ and has the packages that
tests, campaigns and benchmarks need.

A program that needs them begins with `pinion_python.enter()`: from then on it runs in that
environment, whatever the machine's own Python has.
"""

import fcntl
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
VENV = TARGET / "venv"
PACKAGES = ["pymongo==4.20.1", "pytest==8.4.2", "pytest-timeout==2.4.0", "pytest-xdist==3.8.0", "python-snappy==0.7.3", "zstandard==0.25.0"]


def python():
    """Its interpreter; the environment is made where it is not there yet."""
    binary, stamp, wanted = VENV / "bin" / "python", VENV / ".packages", "\n".join(PACKAGES)
    TARGET.mkdir(parents=True, exist_ok=True)
    # Programs that start at the same time make it once.
    with open(TARGET / ".venv-lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            # What is said here is no part of what the program prints.
            subprocess.run([sys.executable, "-m", "venv", VENV], check=True, stdout=sys.stderr)
            subprocess.run([binary, "-m", "pip", "install", "-q", *PACKAGES], check=True, stdout=sys.stderr)
            stamp.write_text(wanted)
    return binary


def enter():
    """Runs this program from its beginning by that interpreter, unless it already does."""
    if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
        binary = str(python())
        os.execv(binary, [binary, *sys.argv])
