"""pinion-admin on the directory of a node that was killed: what it prints, what it refuses, and the
damage it finds."""

import json
import pathlib
import shutil
import struct
import subprocess

import bit_flips
import pymongo
import pytest
from bit_flips import BLOCK, admin, flip_bit
from pinion_node import ADMIN, Node

# What the tests may take that run the program hundreds of times: it stands for no expectation.
LONG_SECS = 3600


@pytest.fixture(scope="module")
def data():
    """A data directory that no test changes for good."""
    node = bit_flips.make()
    yield node.directory / "data"
    node.__exit__()


@pytest.fixture
def broken(data, tmp_path):
    """A copy to be broken."""
    copy = tmp_path / "data"
    subprocess.run(["cp", "-r", "--sparse=always", str(data), str(copy)], check=True)
    return copy


def printed(data, *arguments):
    done = admin(data, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def damage(data, *arguments):
    """The problems that `verify` names; there must be some."""
    done = admin(data, "verify", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    return {(pathlib.Path(problem["file"]), problem["offset"]): problem["what"] for problem in json.loads(done.stdout)["problems"]}


def test_superblocks_and_manifest(data):
    report = json.loads(printed(data, "superblock", "--json"))
    copies = report["superblocks"]
    assert [(copy["slot"], copy["copy"], copy["offset"]) for copy in copies] == [("A", 1, 0), ("B", 1, 4096), ("A", 2, 8192), ("B", 2, 12288)]
    newest = max(copies, key=lambda copy: copy["generation"])
    assert {copy["directory"] for copy in copies} == {newest["directory"]} and newest["partitions"] == 3
    manifest = report["manifest"]
    assert manifest["generation"] == newest["manifestGeneration"] and manifest["base"] == newest["base"]
    assert [partition["partition"] for partition in manifest["partitions"]] == [0, 1, 2]
    for partition in manifest["partitions"]:
        assert (data / f"partition-{partition['partition']:02}" / "pages").stat().st_size >= partition["fileBytes"] > 0
    text = printed(data, "superblock")
    assert f"generation {newest['generation']}" in text and "newest" in text and f"manifest {manifest['generation']}" in text


def entries(data, *arguments):
    return [json.loads(line) for line in printed(data, "ring", *arguments).splitlines()]


def test_ring_entries_are_the_oplog(data):
    everything = entries(data)
    stamps = [(entry["ts"]["$timestamp"]["t"], entry["ts"]["$timestamp"]["i"]) for entry in everything]
    assert stamps == sorted(set(stamps))
    for before, entry in zip(everything, everything[1:]):
        assert entry["predecessor"] == before["ts"]
    documents = [entry["entry"] for entry in everything if entry["entry"]]
    for entry in everything:
        assert entry["entry"] is None or entry["entry"]["ts"] == entry["ts"]
        assert pathlib.Path(entry["file"]).stat().st_size > entry["offset"]
    later = entries(data, "--ns", "admin_test.later")
    assert {entry["ring"] for entry in later} == {0, 1}
    flat = [op for document in (entry["entry"] for entry in later)
            for op in (document["o"].get("applyOps", [document]) if document["op"] == "c" else [document])]
    assert sum(1 for op in flat if op["op"] == "i") == 600 and sum(1 for op in flat if op["op"] == "u") == 100
    assert any(document["op"] == "c" and "drop" in document["o"] for document in documents)


def test_writes_that_are_not_replicated_are_in_a_ring_of_their_own(data):
    own = entries(data, "--own")
    numbers = [entry["number"] for entry in own]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    changes = [change for entry in own for change in entry["changes"]]
    notes = [change for change in changes if isinstance(change["value"], dict) and change["value"].get("text") == "n" * 500]
    assert {note["value"]["_id"] for note in notes} == set(range(200))
    (tree,) = {note["tree"] for note in notes}
    assert tree >= 1 << 62
    gone = {change["key"] for change in changes if change["tree"] == tree and change["value"] is None}
    assert gone == {note["key"] for note in notes if note["value"]["_id"] < 20}
    assert entries(data, "--own", "--limit", "3") == own[:3]
    assert all(pathlib.Path(entry["file"]).parent.name == "ring-own" for entry in own)
    summary = json.loads(printed(data, "ring", "--summary", "--json"))["own"]
    assert [ring["ring"] for ring in summary["rings"]] == ["own"] and summary["last"] == numbers[-1]
    assert 0 < summary["entriesToReplay"] <= len(own)
    assert "ring own" in printed(data, "ring", "--summary") and "ring own" in printed(data, "verify")


def test_a_bit_of_the_own_ring_that_is_flipped_is_named(broken):
    frames = [frame for frame in bit_flips.ring_frames(broken) if "ring-own" in frame[0]]
    assert frames
    path, offset, length = frames[len(frames) // 2]
    for bit in (7, 999, length * 8 - 1):
        flip_bit(path, offset * 8 + bit)
        assert (pathlib.Path(path), offset) in damage(broken), bit
        flip_bit(path, offset * 8 + bit)
    assert admin(broken, "verify").returncode == 0


def test_ring_filters(data):
    everything = entries(data)
    middle = everything[len(everything) // 2]["ts"]["$timestamp"]
    stamp = f"{middle['t']}:{middle['i']}"
    low, high = entries(data, "--to", stamp), entries(data, "--from", stamp)
    assert low + high[1:] == everything and low[-1] == high[0]
    assert entries(data, "--limit", "3") == everything[:3]
    only = entries(data, "--ring", "1")
    assert only == [entry for entry in everything if entry["ring"] == 1] and only
    assert entries(data, "--limit", "1", "--from", stamp, "--canonical")[0]["ts"] == {"$timestamp": middle}
    summary = json.loads(printed(data, "ring", "--summary", "--json"))
    assert sum(ring["entries"] for ring in summary["rings"]) == len(everything)
    assert 0 < summary["entriesToReplay"] <= len(everything) and summary["entriesBehindHole"] == 0
    assert "ring 0" in printed(data, "ring", "--summary")


def test_trees_have_their_names_and_sizes(data):
    report = json.loads(printed(data, "tree", "--json"))
    trees = {(tree["ns"], tree["index"]): tree for tree in report["trees"] if tree["ns"]}
    expected = {
        ("admin_test.people", None): 6_000, ("admin_test.people", "name_1__id_-1"): 6_000, ("admin_test.people", "text_1"): 6_000,
        ("admin_test.large", None): 40, ("admin_test.unique", None): 1_500, ("admin_test.unique", "u_1"): 1_500,
        ("admin.system.version", None): 1, ("local.startup_log", None): 1, ("local.startup_log", "_id_"): 1,
    }
    assert {name: tree["records"] for name, tree in trees.items()} == expected
    for (_, index), tree in trees.items():
        assert tree["ident"] == f"{'index' if index else 'collection'}-{tree['tree']}"
        assert len(tree["levels"]) == tree["height"]
        assert sum(level["pages"] for level in tree["levels"]) == tree["leaves"] + tree["innerPages"] > 0
        assert 0 < tree["levels"][0]["usedBytes"] <= tree["levels"][0]["bytes"]
    assert trees["admin_test.large", None]["overflowValues"] == 40
    assert trees["admin_test.large", None]["valueBytes"] > 40 * 20_000
    assert [partition["partition"] for partition in report["partitions"]] == [0, 1, 2]
    assert sum(partition["freeBytes"] for partition in report["partitions"]) > 0
    one = json.loads(printed(data, "tree", "--json", "--partition", "1"))
    assert [partition["partition"] for partition in one["partitions"]] == [1]
    assert one["partitions"][0] == report["partitions"][1]
    text = printed(data, "tree")
    assert "admin_test.people name_1__id_-1" in text and "partition 2" in text


def test_a_sound_directory_is_sound_and_stays_untouched(data):
    def state():
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(data.rglob("*"))}

    before = state()
    assert "nothing is wrong" in printed(data, "verify")
    for command in ("superblock", "ring", "tree"):
        printed(data, command)
    assert state() == before


@pytest.mark.timeout(LONG_SECS)
def test_every_flipped_bit_is_named_with_file_and_offset(data):
    kinds, missed = bit_flips.run(data, 152, seed=20)
    assert kinds == {"page": 38, "ring frame": 38, "manifest": 38, "superblock": 38}
    assert missed == []


def test_a_directory_in_use_is_one_line():
    with Node() as node:
        for command in ("superblock", "ring", "tree", "verify"):
            done = admin(node.directory / "data", command)
            assert done.returncode == 3 and done.stdout == ""
            assert len(done.stderr.splitlines()) == 1 and "in use" in done.stderr, done.stderr
        assert node.client().admin.command("ping")["ok"] == 1


def test_what_is_no_data_directory_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "WiredTiger.wt").write_bytes(b"\0" * 9000)
    (tmp_path / "odd" / "superblock").mkdir(parents=True)
    for name in ("file", "empty", "foreign", "odd", "missing"):
        for command in ("superblock", "ring", "tree", "verify"):
            done = admin(tmp_path / name, command)
            assert done.returncode == 3, (name, command, done)
            assert len(done.stderr.splitlines()) == 1 and str(tmp_path / name) in done.stderr, done.stderr


def test_help_and_bad_options():
    done = subprocess.run([ADMIN, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and all(word in done.stdout for word in ("superblock", "ring", "tree", "verify"))
    for arguments in ([], ["verify"], ["nosuch"], ["ring", "--dbpath", "x", "--from", "yesterday"], ["ring", "--dbpath", "x", "--limit", "-1"]):
        done = subprocess.run([ADMIN, *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr, (arguments, done)


def test_a_lost_superblock(broken):
    (broken / "superblock").unlink()
    done = admin(broken, "verify")
    assert done.returncode == 3 and "lost its superblock" in done.stderr and len(done.stderr.splitlines()) == 1


def test_truncated_and_empty_files(broken):
    data = broken
    superblock = data / "superblock"
    whole = superblock.read_bytes()
    for length in (0, 5, 4096, 10_000):
        superblock.write_bytes(whole[:length])
        assert (superblock, 8192) in damage(data) or length >= 12_288
        for command in ("superblock", "ring", "tree"):
            assert admin(data, command).returncode in (1, 3)
    superblock.write_bytes(whole)
    for pages in (data / "partition-01" / "pages", data / "partition-00" / "pages"):
        content = pages.read_bytes()
        for length in (len(content) // 3, 4096, 17, 0):
            with open(pages, "r+b") as file:
                file.truncate(length)
            assert any(path == pages for path, _ in damage(data)), length
            assert admin(data, "tree").returncode == 1
        pages.unlink()
        assert any(path == pages for path, _ in damage(data))
        pages.write_bytes(content)
    assert admin(data, "verify").returncode == 0
    newest = sorted(data.glob("manifest-*"))[-1]
    content = newest.read_bytes()
    for length in (100, 0):
        newest.write_bytes(content[:length])
        assert (newest, 0) in damage(data)
    newest.unlink()
    assert (newest, 0) in damage(data)
    newest.write_bytes(content)
    # Frames of the other ring, written later, know that entries were durable which are gone with
    # the end of their segment.
    lost = entries(data, "--ns", "admin_test.later")[0]
    segment, last = pathlib.Path(lost["file"]), lost["offset"]
    with open(segment, "r+b") as file:
        file.truncate(last + 100)
    found = damage(data)
    assert (segment, last) in found and any("were durable" in what for what in found.values()), found
    segment.unlink()
    assert damage(data)
    # What a full disk leaves: a segment that was to be prepared, of any length, with nothing in it.
    empty = data / "ring-00" / f"segment-{77:012}"
    empty.write_bytes(bytes(3 * BLOCK + 512))
    assert not any(path == empty for path, _ in damage(data))


def test_a_newer_version_is_named(broken):
    """A superblock of another version with its right checksum: not damage of the bytes, and not
    understood."""
    path = broken / "superblock"
    content = bytearray(path.read_bytes())
    for at in range(0, len(content), BLOCK):
        struct.pack_into("<I", content, at + 8, 9)
        struct.pack_into("<I", content, at + 12, 0)
        struct.pack_into("<I", content, at + 12, crc32c(content[at : at + BLOCK]))
    path.write_bytes(content)
    found = damage(broken)
    assert all("version is 9" in found[path, at] for at in range(0, len(content), BLOCK)), found


def crc32c(data):
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def test_damage_in_one_file_does_not_hide_that_in_others(broken):
    pages = [(pathlib.Path(file), offset) for file, offset, _ in bit_flips.checksummed(broken)["page"]]
    first = next(place for place in pages if place[0].parent.name == "partition-01" and place[1] > 0)
    second = next(place for place in pages if place[0].parent.name == "partition-02" and place[1] > 0)
    frame = next(iter(bit_flips.ring_frames(broken)))
    flip_bit(first[0], first[1] * 8 + 999)
    flip_bit(second[0], second[1] * 8 + 999)
    flip_bit(frame[0], frame[1] * 8 + 5_000)
    flip_bit(broken / "superblock", 4096 * 8 + 1)
    found = damage(broken)
    for place in (first, second, (pathlib.Path(frame[0]), frame[1]), (broken / "superblock", 4096)):
        assert place in found, (place, found)
    lines = admin(broken, "verify").stdout.splitlines()
    assert len([line for line in lines if line.startswith("damage: ")]) == len(found)


@pytest.mark.timeout(LONG_SECS)
def test_random_bytes_never_make_it_panic(broken):
    """Each file in turn is overwritten with noise, in places and whole."""
    import random

    noise = random.Random(7)
    files = sorted(path for path in broken.rglob("*") if path.is_file())
    for path in files:
        size = path.stat().st_size
        keep = broken.parent / "kept"
        subprocess.run(["cp", "--sparse=always", str(path), str(keep)], check=True)
        for part in (1.0, 0.3):
            with open(path, "r+b") as file:
                for at in range(0, min(size, 1 << 20), BLOCK):
                    if noise.random() <= part:
                        file.seek(at)
                        file.write(noise.randbytes(BLOCK))
            for command in ("superblock", "ring", "tree", "verify"):
                assert admin(broken, command).returncode in (0, 1, 3)
        shutil.move(keep, path)
    assert admin(broken, "verify").returncode == 0


@pytest.fixture(scope="module")
def spilled():
    """A node that was killed while each partition had spilled changes: of a tree, and of one that
    has no page yet."""
    node = Node("--cpus", "2", "--partitions", "3", "--syncdelay", "0")
    node.start()
    try:
        client = node.client()
        database = client.admin_test
        database.sparse.insert_many({"_id": i, "n": i, "text": "x" * 1_000} for i in range(8_000))
        client.admin.command("fsync")
        database.sparse.update_many({"_id": {"$mod": [100, 0]}}, {"$set": {"n": -1}})
        database.sparse.delete_many({"_id": {"$mod": [100, 1]}})
        database.small.insert_many({"_id": i} for i in range(30))
        client.admin.command("fsync")
        # What comes after the checkpoint is in the rings alone.
        journaled = database.sparse.with_options(write_concern=pymongo.WriteConcern(j=True))
        journaled.update_many({"_id": {"$mod": [1_000, 2]}}, {"$set": {"n": -2}})
        node.kill()
        yield node
    finally:
        node.__exit__()


# Flags of a manifest: it has spilled changes; it has what is not replicated.
SPILLED, OWN = 1, 2


def manifest_flags(data):
    newest = sorted(data.glob("manifest-*"))[-1]
    return struct.unpack_from("<I", newest.read_bytes(), 44)[0]


def test_spilled_changes_are_shown_verified_and_opened(spilled):
    data = spilled.directory / "data"
    # By its flags a program that knows nothing of spilled changes, or of what is not replicated,
    # refuses the directory.
    assert manifest_flags(data) == SPILLED | OWN
    assert json.loads(printed(data, "superblock", "--json"))["manifest"]["spilled"] is True
    assert "with spilled changes" in printed(data, "superblock")
    assert "nothing is wrong" in printed(data, "verify")
    report = json.loads(printed(data, "tree", "--json"))
    trees = {tree["ns"] or tree["ident"]: tree for tree in report["trees"]}
    assert (trees["admin_test.sparse"]["records"], trees["admin_test.sparse"]["spilledChanges"]) == (7_920, 160)
    assert (trees["admin_test.small"]["records"], trees["admin_test.small"]["spilledChanges"]) == (30, 30)
    assert trees["admin_test.small"]["pageBytes"] == 0 and trees["_mdb_catalog"]["spilledChanges"] > 0
    # The counts of each tree stand beside its changes.
    assert trees["spilled changes"]["records"] > sum(tree["spilledChanges"] for tree in report["trees"]) > 190
    assert "spilled changes" in printed(data, "tree")

    things = []
    for file, offset, length in bit_flips.checksummed(data)["page"]:
        with open(file, "rb") as pages:
            pages.seek(offset + 24)
            if pages.read(8) == b"\xff" * 8:
                things.append((str(pathlib.Path(file).relative_to(data)), offset, length))
    assert {file for file, _, _ in things} == {f"partition-{number:02}/pages" for number in range(3)}
    flips = bit_flips.choose({"spilled page": things}, 12, seed=7)
    assert bit_flips.find(data, flips) == []
    kind, file, offset, bit = flips[0]
    flip_bit(data / file, bit)
    with pytest.raises(RuntimeError, match=str(data / file)):
        spilled.start()
    flip_bit(data / file, bit)

    spilled.start()
    database = spilled.client().admin_test
    assert database.sparse.count_documents({}) == database.sparse.estimated_document_count() == 7_920
    assert database.sparse.count_documents({"n": -1}) == 80 and database.sparse.count_documents({"n": -2}) == 8
    assert database.sparse.count_documents({"_id": {"$mod": [100, 1]}}) == 0 and database.small.count_documents({}) == 30
    assert spilled.stop() == 0
    # Closing merged them: a program that knows nothing of spilled changes may open it.
    assert manifest_flags(data) == OWN
    trees = {tree["ns"] or tree["ident"]: tree for tree in json.loads(printed(data, "tree", "--json"))["trees"]}
    assert "spilled changes" not in trees and trees["admin_test.sparse"]["spilledChanges"] == 0
    assert trees["admin_test.sparse"]["records"] == 7_920 and "nothing is wrong" in printed(data, "verify")
