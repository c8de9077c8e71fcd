"""Makes a data directory with a real node, and flips single bits of what has a checksum in it."""

import concurrent.futures
import json
import pathlib
import random
import shutil
import struct
import subprocess

import pymongo
from pinion_node import ADMIN, PATIENCE_SECS, Node

BLOCK = 4096


def make(*options):
    """A node that was killed: three partitions, a checkpoint, and entries in every ring that came
    after it."""
    node = Node("--cpus", "2", "--partitions", "3", "--syncdelay", "0", *options)
    node.start()
    try:
        client = node.client()
        database = client.admin_test
        database.people.insert_many({"_id": i, "name": f"n{i % 97}", "text": "x" * (i % 300)} for i in range(6_000))
        database.people.create_index([("name", 1), ("_id", -1)])
        database.people.create_index("text", sparse=True)
        database.large.insert_many({"_id": i, "blob": random.Random(i).randbytes(20_000)} for i in range(40))
        database.unique.create_index("u", unique=True)
        database.unique.insert_many({"_id": i, "u": i} for i in range(1_500))
        database.gone.insert_many({"_id": i} for i in range(2_000))
        client.admin.command("fsync")
        database.gone.drop()
        client.admin.command("fsync")
        for core in range(2):
            with client_of_core(node, core) as other:
                later = other.admin_test.get_collection("later", write_concern=pymongo.WriteConcern(j=True))
                later.insert_many({"_id": f"{core}-{i}", "n": i} for i in range(300))
                later.update_many({"n": {"$lt": 50}}, {"$set": {"small": True}})
        # What is not replicated has a ring of its own.
        notes = client.local.get_collection("notes", write_concern=pymongo.WriteConcern(j=True))
        notes.insert_many({"_id": i, "text": "n" * 500} for i in range(200))
        notes.delete_many({"_id": {"$lt": 20}})
        node.kill()
        return node
    except BaseException:
        node.__exit__()
        raise


def client_of_core(node, core):
    """A client whose one connection for commands is this core's. Connections are given to the two
    cores in turn, those of drivers' monitors too."""
    while True:
        client = node.client(maxPoolSize=1)
        if client.admin.command("hello")["connectionId"] % 2 == core:
            return client
        client.close()


def admin(data, *arguments, timeout_secs=2 * PATIENCE_SECS):
    """Runs pinion-admin and gives its status and what it printed."""
    command, *rest = arguments
    done = subprocess.run([ADMIN, command, "--dbpath", str(data), *rest], capture_output=True, text=True, timeout=timeout_secs)
    assert "panic" not in done.stderr, done.stderr
    return done


def ring_frames(data):
    """The frames that are live: they say that they belong to the segment they lie in."""
    for path in sorted(data.glob("ring-*/segment-*")):
        generation = int(path.name.split("-")[1])
        with open(path, "rb") as file:
            offset = 0
            while block := file.read(BLOCK):
                if block[:4] == b"PRNG" and struct.unpack_from("<Q", block, 24)[0] == generation:
                    yield str(path), offset, BLOCK
                offset += BLOCK


def checksummed(data):
    """For each kind of thing that has a checksum: file, offset and length of each."""
    report = json.loads(admin(data, "verify", "--json", "--extents").stdout)
    assert report["problems"] == [], report["problems"]
    pages = [(extent["file"], extent["offset"], extent["bytes"]) for extent in report["extents"]]
    # What is neither a page in use nor free does not exist, so no page is missing from the list.
    for partition in report["partitions"]:
        used = sum(length for file, _, length in pages if file == partition["file"])
        assert used + partition["freeBytes"] == partition["fileBytes"], partition
    frames = list(ring_frames(data))
    rings = report["oplog"]["rings"] + (report["own"] or {"rings": []})["rings"]
    assert len(frames) == sum(ring["validFrames"] for ring in rings)
    return {
        "page": pages,
        "ring frame": frames,
        "manifest": [(str(path), 0, path.stat().st_size) for path in sorted(data.glob("manifest-*"))],
        "superblock": [(str(data / "superblock"), copy * BLOCK, BLOCK) for copy in range(4)],
    }


def choose(things, count, seed):
    """Flips, as many of each kind, uniformly over the bytes of a kind: kind, file, start of the
    thing, bit in the file."""
    random_stream = random.Random(seed)
    flips = []
    for number in range(count):
        kind = sorted(things)[number % len(things)]
        file, offset, length = random_stream.choices(things[kind], [length for _, _, length in things[kind]])[0]
        flips.append((kind, file, offset, offset * 8 + random_stream.randrange(length * 8)))
    return flips


def flip_bit(path, bit):
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ (1 << bit % 8)]))


def find(data, flips):
    """Flips one bit after the other, each alone, and gives those that pinion-admin does not name
    with file and offset."""
    missed = []
    for kind, file, offset, bit in flips:
        path = data / pathlib.Path(file)
        flip_bit(path, bit)
        done = admin(data, "verify", "--json")
        named = [(pathlib.Path(problem["file"]), problem["offset"]) for problem in json.loads(done.stdout)["problems"]]
        if done.returncode != 1 or (path, offset) not in named:
            missed.append((kind, file, offset, bit, done.returncode, named))
        flip_bit(path, bit)
    return missed


def run(data, count, seed, workers=2):
    """Flips `count` bits, in several copies of the directory at once. Gives the number of flips by
    kind and those missed."""
    things = {kind: [(str(pathlib.Path(file).relative_to(data)), offset, length) for file, offset, length in found]
              for kind, found in checksummed(data).items()}
    flips = choose(things, count, seed)
    copies = [data.with_name(f"copy-{number}") for number in range(workers)]
    try:
        for copy in copies:
            subprocess.run(["cp", "-r", "--sparse=always", str(data), str(copy)], check=True)
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            missed = sum(pool.map(find, copies, [flips[number::workers] for number in range(workers)]), [])
        for copy in copies:
            assert admin(copy, "verify").returncode == 0, "a bit was not flipped back"
    finally:
        for copy in copies:
            shutil.rmtree(copy, ignore_errors=True)
    kinds = {kind: sum(1 for flip in flips if flip[0] == kind) for kind in things}
    return kinds, missed
