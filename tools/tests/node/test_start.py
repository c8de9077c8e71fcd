"""Starting and stopping: data directory, lock, options, log."""

import json
import signal
import socket
import subprocess

import pymongo
import pytest

from pinion_node import BINARY, Node, run, wait_until


def test_the_data_directory_is_made_and_locked(tmp_path):
    folder = tmp_path / "deep" / "er"
    with Node(directory=folder) as node:
        assert (folder / "data").is_dir()
        status, output = run("--dbpath", str(folder / "data"), "--port", "0")
        lines = [line for line in output.splitlines() if not line.startswith("{")]
        assert status != 0 and len(lines) == 1 and "in use" in lines[0], output
        assert node.client().admin.command("ping")["ok"] == 1


@pytest.mark.parametrize("options", [
    ["--auth"], ["--replSet", "rs0/a:1"], ["--configdb", "c/a:1"], ["--keyFile", "x"], ["--tlsMode", "requireTLS"],
    ["--tlsCertificateKeyFile", "x"], ["--storageEngine", "inMemory"], ["--nosuch"], ["--port", "x"], ["--fork"],
])
def test_an_option_that_pinion_lacks_stops_the_start(tmp_path, options):
    status, output = run("--dbpath", str(tmp_path / "data"), "--port", "0", *options)
    assert status != 0
    assert len(output.splitlines()) == 1 and options[0] in output, output


@pytest.mark.parametrize("text,named", [
    ("replication:\n  replSetName: a/b\n", "--replSet"), ("security:\n  authorization: enabled\n", "--authorization"),
    ("net:\n  tls:\n    mode: requireTLS\n", "--tlsMode"), ("sharding:\n  clusterRole: shardsvr\n", "--replSet"),
    ("storage:\n  nosuch: 1\n", "storage.nosuch"), ("storage: [", "YAML"),
])
def test_so_does_the_file(tmp_path, text, named):
    path = tmp_path / "pinion.yaml"
    path.write_text(text)
    status, output = run("--dbpath", str(tmp_path / "data"), "--config", str(path))
    assert status != 0 and len(output.splitlines()) == 1 and named in output, output


def test_the_file_is_read(tmp_path):
    path = tmp_path / "pinion.yaml"
    path.write_text(f"storage:\n  dbPath: {tmp_path}/elsewhere\nsystemLog:\n  destination: file\n  path: {tmp_path}/log\n")
    process = subprocess.Popen([BINARY, "--config", str(path), "--port", "0"])
    try:
        wait_until(lambda: (tmp_path / "log").exists() and "Waiting for connections" in (tmp_path / "log").read_text())
        assert (tmp_path / "elsewhere").is_dir()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def test_a_port_in_use_is_one_clear_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, output = run("--dbpath", str(tmp_path / "data"), "--port", str(port))
        assert status != 0
        assert [line for line in output.splitlines() if str(port) in line and "in use" in line], output


def test_log_lines_are_mongodb_json_and_getlog_has_them():
    with Node() as node:
        client = node.client()
        client.admin.command("ping")
        for message in node.messages():
            assert list(message)[:6] == ["t", "s", "c", "id", "ctx", "msg"]
            assert message["c"] != "-" and message["id"] > 0, message
            assert "$date" in message["t"]
        waiting = [m for m in node.messages() if m["msg"] == "Waiting for connections"]
        assert waiting[0]["c"] == "NETWORK" and waiting[0]["attr"]["port"] == node.port
        lines = [json.loads(line) for line in client.admin.command("getLog", "global")["log"]]
        assert {"Pinion starting", "Recovery complete", "Waiting for connections"} <= {line["msg"] for line in lines}
        warnings = client.admin.command("getLog", "startupWarnings")["log"]
        assert not [line for line in warnings if "authentication" in line]


def test_listening_beyond_localhost_is_warned_about():
    with Node("--bind_ip", "0.0.0.0") as node:
        client = node.client()
        warnings = [json.loads(line) for line in client.admin.command("getLog", "startupWarnings")["log"]]
        assert any("authentication" in warning["msg"] for warning in warnings), warnings
        # As the log has them, with the tag where MongoDB has it.
        tagged = [message for message in node.messages() if "tags" in message]
        assert tagged == warnings
        assert all(message["tags"] == ["startupWarnings"] and message["s"] == "W" for message in tagged)


def test_the_log_file_says_why_a_node_ended(tmp_path):
    with Node() as node:
        status, output = run("--dbpath", str(node.directory / "data"), "--port", "0", "--logpath", str(tmp_path / "log"))
        assert status == 100 and len(output.splitlines()) == 1, output
        last = json.loads((tmp_path / "log").read_text().splitlines()[-1])
        assert last["s"] == "E" and last["attr"]["error"] == output
    status, output = run("--dbpath", str(tmp_path / "data"), "--logpath", str(tmp_path / "none" / "log"))
    assert status != 0 and len(output.splitlines()) == 1 and str(tmp_path / "none" / "log") in output


def test_signals_are_named_and_a_second_one_changes_nothing():
    node = Node()
    node.start()
    try:
        node.client().test.c.insert_one({"_id": 1})
        for _ in range(3):
            node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(120) == 0
        assert [m["attr"]["signal"] for m in node.messages() if m["msg"] == "Received signal"] == [15]
        assert node.messages()[-1]["msg"] == "Now exiting"
    finally:
        node.__exit__()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_clean_stop_ends_with_zero_and_keeps_everything(end):
    node = Node()
    node.start()
    try:
        client = node.client()
        client.test.c.insert_many({"_id": i} for i in range(100))
        node.process.send_signal(end)
        assert node.process.wait(120) == 0
        node.start()
        assert node.client().test.c.count_documents({}) == 100
    finally:
        node.__exit__()


def test_the_shutdown_command_stops_the_node():
    with Node() as node:
        try:
            node.client(retryReads=False).admin.command("shutdown")
        except pymongo.errors.AutoReconnect:
            # The connection may be closed before the reply is read.
            pass
        assert node.process.wait(120) == 0
        node.start()
        assert node.client().admin.command("ping")["ok"] == 1


def test_cores_come_from_the_affinity_mask(tmp_path):
    """With one CPU in the mask there is one core, whatever the machine has."""
    process = subprocess.run(
        ["taskset", "-c", "0", BINARY, "--dbpath", str(tmp_path / "data"), "--cpus", "2", "--port", "0"],
        capture_output=True, text=True, timeout=120,
    )
    assert process.returncode != 0 and "--cpus" in process.stdout + process.stderr
