// The life of a small application with the Node driver, all options left at their defaults.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(process.env.DRIVER_HOME + "/");
const { MongoClient, Long, Decimal128, ObjectId } = require("mongodb");

const client = new MongoClient(process.argv[2]);
await client.connect();
const db = client.db("node_driver");
await db.dropDatabase();
const c = await db.createCollection("c");

const one = await c.insertOne({ a: 1, nested: { b: [1, 2, { c: 3 }] }, long: Long.fromString("9007199254740993"), price: Decimal128.fromString("1.10"), when: new Date(0), blob: Buffer.from("xyz") });
assert(one.insertedId instanceof ObjectId);
const back = await c.findOne({ _id: one.insertedId }, { promoteLongs: false });
assert.equal(back.price.toString(), "1.10");
assert.equal(back.long.toString(), "9007199254740993");
assert.deepEqual(back.nested, { b: [1, 2, { c: 3 }] });

const many = await c.insertMany(Array.from({ length: 500 }, (_, i) => ({ _id: i, n: i % 10, text: "t" + i })));
assert.equal(many.insertedCount, 500);
assert.equal((await c.find({ n: 3 }).toArray()).length, 50);
let seen = 0;
for await (const doc of c.find({ text: { $exists: true } }).batchSize(7)) { seen += 1; assert(doc.text); }
assert.equal(seen, 500);
assert.deepEqual((await c.find({ n: { $gte: 8 } }).sort({ n: -1, _id: 1 }).skip(1).limit(2).project({ _id: 1 }).toArray()), [{ _id: 19 }, { _id: 29 }]);

assert.equal((await c.updateOne({ _id: 1 }, { $set: { x: 1 }, $inc: { n: 100 } })).modifiedCount, 1);
assert.equal((await c.updateMany({ n: 2 }, { $push: { list: { $each: [1, 2, 3] } } })).modifiedCount, 50);
assert.equal((await c.replaceOne({ _id: 5 }, { replaced: true })).modifiedCount, 1);
const upserted = await c.updateOne({ _id: "new" }, { $setOnInsert: { fresh: true }, $set: { k: 1 } }, { upsert: true });
assert.equal(upserted.upsertedId, "new");
const found = await c.findOneAndUpdate({ _id: 1 }, { $inc: { x: 1 } }, { returnDocument: "after" });
assert.equal(found.x, 2);
assert.equal((await c.findOneAndDelete({ _id: 499 }))._id, 499);
assert.equal((await c.deleteMany({ n: 9 })).deletedCount, 49);
assert.equal(await c.countDocuments({ n: 2 }), 50);
assert.equal(await c.estimatedDocumentCount(), await c.countDocuments({}));
assert.deepEqual((await c.distinct("n", { n: { $lt: 4 } })).sort(), [0, 1, 2, 3].filter((n) => n !== 9));
const groups = await c.aggregate([{ $match: { n: { $lt: 3 } } }, { $group: { _id: "$n", count: { $sum: 1 } } }, { $sort: { _id: 1 } }]).toArray();
assert.deepEqual(groups.map((g) => g._id), [0, 1, 2]);

assert.equal(await c.createIndex({ u: 1 }, { unique: true, sparse: true }), "u_1");
await c.insertOne({ u: "taken" });
await assert.rejects(c.insertOne({ u: "taken" }), (e) => e.code === 11000 && e.keyPattern.u === 1 && e.keyValue.u === "taken");
const bulk = await c.bulkWrite([
  { insertOne: { document: { _id: "b1" } } }, { updateOne: { filter: { _id: "b1" }, update: { $set: { v: 1 } } } },
  { deleteOne: { filter: { _id: "b1" } } }, { replaceOne: { filter: { _id: "b2" }, replacement: { v: 2 }, upsert: true } },
]);
assert.deepEqual([bulk.insertedCount, bulk.modifiedCount, bulk.deletedCount, bulk.upsertedCount], [1, 1, 1, 1]);
assert.deepEqual((await c.indexes()).map((i) => i.name), ["_id_", "u_1"]);
assert((await db.listCollections().toArray()).some((x) => x.name === "c" && x.type === "collection"));
assert((await client.db().admin().listDatabases()).databases.some((x) => x.name === "node_driver"));

await Promise.all(Array.from({ length: 40 }, (_, i) => c.updateOne({ _id: "counter" }, { $inc: { n: 1 } }, { upsert: true }).catch((e) => { if (e.code !== 11000) throw e; return c.updateOne({ _id: "counter" }, { $inc: { n: 1 } }); })));
assert.equal((await c.findOne({ _id: "counter" })).n, 40);
const session = client.startSession();
assert.equal((await c.findOne({ _id: 1 }, { session }))._id, 1);
await session.endSession();
await db.dropDatabase();
await client.close();
console.log("ok");
