// Transactions and change streams of a replica set with the Node driver, all options left at their defaults.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(process.env.DRIVER_HOME + "/");
const { MongoClient } = require("mongodb");

const client = new MongoClient(process.argv[2]);
await client.connect();
const db = client.db("node_set");
await db.dropDatabase();
const accounts = await db.createCollection("accounts");
const notes = await db.createCollection("notes");

const stream = db.watch([{ $match: { operationType: { $in: ["insert", "update"] } } }], { fullDocument: "updateLookup" });
assert.equal(await stream.tryNext(), null);
await accounts.insertMany([{ _id: "a", sum: 10 }, { _id: "b", sum: 0 }]);

await client.withSession((session) => session.withTransaction(async () => {
  await accounts.updateOne({ _id: "a" }, { $inc: { sum: -4 } }, { session });
  await accounts.updateOne({ _id: "b" }, { $inc: { sum: 4 } }, { session });
  await notes.insertOne({ _id: 1, moved: 4 }, { session });
  assert.equal((await accounts.findOne({ _id: "b" }, { session })).sum, 4);
  assert.equal((await accounts.findOne({ _id: "b" })).sum, 0);
}));
await assert.rejects(client.withSession((session) => session.withTransaction(async () => {
  await accounts.updateOne({ _id: "a" }, { $inc: { sum: -100 } }, { session });
  throw new Error("no");
})), /no/);
assert.deepEqual((await accounts.find().sort({ _id: 1 }).toArray()).map((one) => one.sum), [6, 4]);

const seen = [];
let middle;
while (seen.length < 5) {
  const event = await stream.next();
  seen.push(`${event.ns.coll} ${event.operationType} ${event.documentKey._id} ${event.fullDocument.sum ?? ""}`.trim());
  if (seen.length === 3) middle = event._id;
}
assert.deepEqual(seen, ["accounts insert a 10", "accounts insert b 0", "accounts update a 6", "accounts update b 4", "notes insert 1"]);
await stream.close();
const resumed = db.watch([], { resumeAfter: middle });
assert.equal((await resumed.next()).documentKey._id, "b");
await resumed.close();

const secondary = { readPreference: "secondary", readConcern: { level: "majority" } };
const causal = client.startSession({ causalConsistency: true });
await notes.insertOne({ _id: 2 }, { session: causal });
assert.equal((await db.collection("notes", secondary).findOne({ _id: 2 }, { session: causal }))._id, 2);
await causal.endSession();
await db.dropDatabase();
await client.close();
console.log("ok");
