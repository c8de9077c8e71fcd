// Sharded collections behind routers with the Node driver, all options left at their defaults. The
// shards s0 and s1 are in the zones `low` and `high`.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(process.env.DRIVER_HOME + "/");
const { MaxKey, MinKey, MongoClient } = require("mongodb");

const uri = process.argv[2];
const hosts = uri.replace("mongodb://", "").replace("/", "").split(",");
const client = new MongoClient(uri);
let topology;
client.on("topologyDescriptionChanged", (event) => { topology = event.newDescription; });
await client.connect();
const admin = client.db("admin");
const db = client.db("node_cluster");
const orders = db.collection("orders");
const users = db.collection("users");
const totals = db.collection("totals");

await db.dropDatabase();
await admin.command({ enableSharding: "node_cluster", primaryShard: "s0" });
for (const [min, max, zone] of [[new MinKey(), 100, "low"], [100, new MaxKey(), "high"]]) {
  const range = { min: { k: min }, max: { k: max }, zone };
  await admin.command({ updateZoneKeyRange: "node_cluster.orders", ...range });
}
await admin.command({ shardCollection: "node_cluster.orders", key: { k: 1 } });
await admin.command({ shardCollection: "node_cluster.users", key: { _id: "hashed" } });
await admin.command({ shardCollection: "node_cluster.totals", key: { _id: "hashed" } });

// Inserts over both shards.
const order = (_, k) => ({ _id: `o${k}`, k, user: k % 10, sum: 1 });
const documents = Array.from({ length: 200 }, order);
assert.equal((await orders.insertMany(documents)).insertedCount, 200);
const names = Array.from({ length: 20 }, (_, _id) => ({ _id, name: `n${_id}` }));
assert.equal((await users.insertMany(names)).insertedCount, 20);
async function placed(collection) {
  const found = await collection.aggregate([{ $collStats: { count: {} } }]).toArray();
  return Object.fromEntries(found.map((part) => [part.shard, part.count]));
}
assert.deepEqual(await placed(orders), { s0: 100, s1: 100 });
const { s0, s1 } = await placed(users);
assert(s0 > 0 && s1 > 0 && s0 + s1 === 20, `${s0} and ${s1}`);

// Reads of one shard and of both.
async function stage(filter, sort = {}) {
  const { winningPlan } = (await orders.find(filter).sort(sort).explain()).queryPlanner;
  return `${winningPlan.stage} ${winningPlan.shards.map((part) => part.shardName).sort()}`;
}
assert.equal(await stage({ k: 5 }), "SINGLE_SHARD s0");
assert.equal(await stage({ k: { $gt: 100 } }), "SINGLE_SHARD s1");
assert.equal(await stage({ user: 3 }), "SHARD_MERGE s0,s1");
assert.equal(await stage({ user: 3 }, { sum: 1 }), "SHARD_MERGE_SORT s0,s1");
assert.equal((await orders.findOne({ k: 150 }))._id, "o150");
const keys = [];
const backwards = orders.find().sort({ k: -1 }).skip(5).limit(150).batchSize(7);
for await (const one of backwards) keys.push(one.k);
assert.deepEqual(keys, Array.from({ length: 150 }, (_, n) => 194 - n));
assert.equal(await orders.countDocuments({ user: 3 }), 20);
assert.equal(await orders.estimatedDocumentCount(), 200);
assert.deepEqual((await orders.distinct("user")).sort(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);

// Writes of one shard, of both, and of one document wherever it is.
assert.equal((await orders.updateOne({ k: 7 }, { $set: { x: 1 } })).modifiedCount, 1);
assert.equal((await orders.updateMany({ user: 2 }, { $inc: { sum: 1 } })).modifiedCount, 20);
assert.equal((await orders.updateOne({ user: 4 }, { $set: { first: true } })).modifiedCount, 1);
assert.equal(await orders.countDocuments({ first: true }), 1);
const last = await orders.findOneAndUpdate({ user: 5 }, { $set: { x: 2 } }, { sort: { k: -1 } });
assert.equal(last.k, 195);
assert.equal((await orders.replaceOne({ k: 8 }, { k: 8, user: 8, sum: 1 })).modifiedCount, 1);
const upserted = await orders.updateOne({ k: 300 }, { $set: { sum: 0 } }, { upsert: true });
assert.equal(upserted.upsertedCount, 1);
assert.equal((await orders.findOneAndDelete({ k: 300 })).sum, 0);
await assert.rejects(orders.insertOne({ k: [1, 2] }), (error) => error.code === 61);
assert.equal(await orders.createIndex({ k: 1, u: 1 }, { unique: true }), "k_1_u_1");
await assert.rejects(orders.insertOne({ k: 150 }), (error) => error.code === 11000);
assert.deepEqual((await orders.indexes()).map((one) => one.name), ["_id_", "k_1", "k_1_u_1"]);
await orders.dropIndex("k_1_u_1");

// Batches over both shards, and over several collections.
const bulk = await orders.bulkWrite([
  { insertOne: { document: { _id: "low", k: -1 } } },
  { insertOne: { document: { _id: "high", k: 999 } } },
  { updateMany: { filter: { k: { $in: [-1, 999] } }, update: { $set: { edge: true } } } },
  { deleteOne: { filter: { k: -1 } } }, { deleteMany: { filter: { edge: true } } },
]);
assert.deepEqual([bulk.insertedCount, bulk.modifiedCount, bulk.deletedCount], [2, 2, 2]);
const several = await client.bulkWrite([
  { namespace: "node_cluster.orders", name: "insertOne", document: { _id: "low", k: -1 } },
  { namespace: "node_cluster.users", name: "updateMany", filter: {}, update: { $set: { x: 1 } } },
  { namespace: "node_cluster.orders", name: "insertOne", document: { _id: "high", k: 999 } },
  { namespace: "node_cluster.orders", name: "deleteMany", filter: { k: { $in: [-1, 999] } } },
]);
assert.deepEqual([several.insertedCount, several.modifiedCount, several.deletedCount], [2, 20, 2]);

// Sharded collections are joined, and merged into.
await orders.aggregate([
  { $match: { user: { $lt: 4 } } },
  { $lookup: { from: "users", localField: "user", foreignField: "_id", as: "of" } },
  { $group: { _id: { $first: "$of.name" }, sum: { $sum: "$sum" } } },
  { $merge: { into: "totals" } },
]).toArray();
const merged = await totals.find().sort({ _id: 1 }).toArray();
const sums = merged.map((one) => `${one._id} ${one.sum}`);
assert.deepEqual(sums, ["n0 20", "n1 20", "n2 40", "n3 20"]);

// A transaction reads both shards and writes one; the stream on the collection sees it.
const stream = orders.watch([], { fullDocument: "updateLookup" });
assert.equal(await stream.tryNext(), null);
await orders.insertMany([{ _id: "a", k: -10, sum: 10 }, { _id: "b", k: 1000, sum: 0 }]);
await client.withSession((session) => session.withTransaction(async () => {
  assert.equal(await orders.countDocuments({}, { session }), 202);
  await orders.updateOne({ k: 1000 }, { $inc: { sum: 4 } }, { session });
  assert.equal((await users.findOne({ _id: 1 }, { session })).name, "n1");
  await orders.insertOne({ _id: "c", k: 1001 }, { session });
  assert.equal(await orders.countDocuments({ k: { $gte: 1000 } }, { session }), 2);
  assert.equal(await orders.countDocuments({ k: { $gte: 1000 } }), 1);
}));
await assert.rejects(client.withSession((session) => session.withTransaction(async () => {
  await orders.deleteMany({ k: { $gte: 1000 } }, { session });
  throw new Error("no");
})), /no/);
const seen = [];
let middle;
async function see(wanted) {
  while (seen.length < wanted) {
    const event = await stream.next();
    assert.equal(event.fullDocument._id, event.documentKey._id);
    seen.push(`${event.operationType} ${event.documentKey.k} ${event.documentKey._id}`);
    if (seen.length === 3) middle = event._id;
  }
}
// The driver sends on a connection the latest time that it has seen on that one. Without the events
// of the transaction the other shard could write what follows at an earlier time.
await see(4);
await orders.updateOne({ k: -10 }, { $inc: { sum: -4 } });
await see(5);
// The two shards write the documents of one insert at times of their own.
assert.deepEqual(seen.slice(0, 2).sort(), ["insert -10 a", "insert 1000 b"]);
assert.deepEqual(seen.slice(2), ["update 1000 b", "insert 1001 c", "update -10 a"]);
await stream.close();
const resumed = orders.watch([], { resumeAfter: middle });
assert.equal((await resumed.next()).documentKey._id, "c");
await resumed.close();

// What the driver knows of the routers by now.
assert.equal(topology.type, "Sharded");
assert.deepEqual([...topology.servers.keys()].sort(), hosts.sort());
for (const { type } of topology.servers.values()) assert.equal(type, "Mongos");

// A write whose answer says that it may be sent again is sent again, and done once.
const alone = new MongoClient(`mongodb://${hosts[0]}`, { monitorCommands: true });
const numbers = [];
alone.on("commandStarted", (event) => {
  if (event.commandName === "update") numbers.push(String(event.command.txnNumber));
});
await alone.db("admin").command({
  configureFailPoint: "failCommand", mode: { times: 1 },
  data: {
    failCommands: ["update"], errorLabels: ["RetryableWriteError"],
    writeConcernError: { code: 6, errmsg: "the shard is away" },
  },
});
await alone.db("node_cluster").collection("orders").updateOne({ user: 6 }, { $inc: { sum: 100 } });
assert.match(numbers[0], /^\d+$/);
assert.deepEqual(numbers, [numbers[0], numbers[0]]);
assert.deepEqual((await orders.distinct("sum", { user: 6 })).sort(), [1, 101]);
assert.equal(await orders.countDocuments({ user: 6, sum: 101 }), 1);
// One that a router closes its connection on is sent to the other.
const failing = { failCommands: ["insert"], closeConnection: true };
const point = { configureFailPoint: "failCommand" };
await alone.db("admin").command({ ...point, mode: "alwaysOn", data: failing });
for (let n = 0; n < 10; n++) await users.insertOne({ _id: `again${n}` });
await alone.db("admin").command({ ...point, mode: "off" });
await alone.close();
assert.equal(await users.countDocuments({ _id: /^again/ }), 10);

await orders.drop();
const left = await db.listCollections().toArray();
assert.deepEqual(left.map((one) => one.name).sort(), ["totals", "users"]);
await db.dropDatabase();
await client.close();
console.log("ok");
