"""What programs rely on that start a MongoDB for others: the version that it prints, --fork, and
files in the older form."""

import json
import os
import re
import signal

import pymongo
from pinion_node import free_port, run, wait_until


def test_the_version_is_printed_as_mongods():
    status, printed = run("--version")
    first, _, rest = printed.partition("\n")
    assert status == 0 and re.fullmatch(r"db version v8\.\d+\.\d+", first), printed
    assert rest.startswith("Build Info: {")
    info = json.loads(rest.removeprefix("Build Info: "))
    assert f"db version v{info['version']}" == first and info["pinion"]


def test_another_process_runs_the_server(tmp_path):
    port, log = free_port(), tmp_path / "log"
    options = ["--fork", "--dbpath", str(tmp_path / "data"), "--port", str(port), "--logpath", str(log), "--cpus", "1"]
    status, printed = run(*options)
    assert status == 0 and "child process started successfully, parent exiting" in printed, printed
    process = int(re.search(r"forked process: (\d+)", printed).group(1))
    try:
        with pymongo.MongoClient("127.0.0.1", port) as client:
            assert client.admin.command("serverStatus")["pid"] == process
        # A second one finds the port taken, says why, and its parent ends as it does.
        options[options.index("--dbpath") + 1] = str(tmp_path / "other")
        options[options.index("--logpath") + 1] = str(tmp_path / "other.log")
        status, printed = run(*options)
        assert status == 48 and "ERROR: child process failed, exited with 48" in printed and "in use" in printed, printed
    finally:
        os.kill(process, signal.SIGTERM)
    # It has no parent here, so its end is seen by what it leaves.
    wait_until(lambda: "Now exiting" in log.read_text())


def test_a_file_of_lines_gives_options(tmp_path):
    port, file = free_port(), tmp_path / "mongod.conf"
    file.write_text(f"# older form\nport = {port}\ndbpath={tmp_path / 'data'}\nlogpath = {tmp_path / 'log'}\nfork = true\nquiet = true\ncpus = 1\n")
    status, printed = run("--config", str(file))
    assert status == 0, printed
    with pymongo.MongoClient("127.0.0.1", port) as client:
        parsed = client.admin.command("getCmdLineOpts")["parsed"]
        assert parsed["net"]["port"] == port and parsed["processManagement"]["fork"] is True
        process = client.admin.command("serverStatus")["pid"]
    os.kill(process, signal.SIGTERM)
    wait_until(lambda: "Now exiting" in (tmp_path / "log").read_text())
    file.write_text("port = 1\nnosuch = 1\n")
    assert run("--config", str(file)) == (2, "Unrecognized option: nosuch")
