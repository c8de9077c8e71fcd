"""The log file: a new one is started by SIGUSR1 and by logRotate, and no line is lost between the
two."""

import json
import signal

import pytest
from pymongo.errors import OperationFailure

from pinion_node import PATIENCE_SECS, Node, run, wait_until


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def asides(path):
    return sorted(path.parent.glob(path.name + ".*"))


def test_a_new_log_is_started_by_command_and_by_signal(tmp_path):
    path = tmp_path / "log"
    with Node("--logpath", str(path), log_file=path) as node:
        admin = node.client().admin
        for count in range(1, 4):
            assert admin.command("logRotate", 1)["ok"] == 1
            assert len(asides(path)) == count
            # What was asked for before it is in the old file, what comes afterwards in the new one.
            assert lines(asides(path)[-1])[-1]["msg"] == "Log rotation initiated"
        node.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: len(asides(path)) == 4)
        assert admin.command("ping")["ok"] == 1
        assert node.stop() == 0
    assert lines(path)[-1]["msg"] == "Now exiting"
    starts = [line for file in [*asides(path), path] for line in lines(file) if line["msg"] == "Pinion starting"]
    assert len(starts) == 1


def test_reopen_leaves_the_moving_to_others(tmp_path):
    path, moved = tmp_path / "log", tmp_path / "moved"
    with Node("--logpath", str(path), "--logappend", "--logRotate", "reopen", log_file=path) as node:
        path.rename(moved)
        assert node.client().admin.command("logRotate", "server")["ok"] == 1
        assert path.exists() and not asides(path)
        assert node.stop() == 0
    assert lines(moved)[-1]["msg"] == "Log rotation initiated"
    assert lines(path)[-1]["msg"] == "Now exiting"


def test_a_log_that_cannot_be_moved_continues(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "log"
    with Node("--logpath", str(path), log_file=path) as node:
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(OperationFailure) as refused:
            node.client().admin.command("logRotate", 1)
        assert refused.value.code == 96
        assert "failed due to" in refused.value.details["errmsg"]
        assert node.stop() == 0
    assert lines(tmp_path / "elsewhere" / "log")[-1]["msg"] == "Now exiting"


def test_what_there_is_to_rotate():
    with Node() as node:
        admin = node.client().admin
        assert admin.command("logRotate", 1)["ok"] == 1
        with pytest.raises(OperationFailure) as refused:
            admin.command("logRotate", "audit")
        assert refused.value.code == 4
        with pytest.raises(OperationFailure) as refused:
            node.client().test.command("logRotate", 1)
        assert refused.value.code == 13
        node.process.send_signal(signal.SIGHUP)
        assert node.process.wait(PATIENCE_SECS) == 0


def test_options_of_rotation(tmp_path):
    for options, expected in [
        (["--logRotate", "never"], "rename or reopen"),
        (["--logRotate", "reopen"], "--logappend"),
    ]:
        status, output = run("--dbpath", str(tmp_path / "data"), "--logpath", str(tmp_path / "log"), *options)
        assert status == 2 and len(output.splitlines()) == 1 and expected in output
