// Mongoose in the life of a small blog on a replica set; prints `passed: what` or `failed: what` for each part.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createRequire } from "node:module";

const require = createRequire(process.env.CONSUMER_HOME + "/");
const mongoose = require("mongoose");
const { Schema } = mongoose;

async function part(what, run) {
  try {
    await run();
    console.log(`passed: ${what}`);
  } catch (error) {
    console.error(error);
    console.log(`failed: ${what}: ${String(error).replaceAll("\n", " ")}`);
  }
}

mongoose.set("transactionAsyncLocalStorage", true);
await mongoose.connect(process.argv[2], { dbName: "mongoose" });
await mongoose.connection.dropDatabase();

const Author = mongoose.model("Author", new Schema({ name: { type: String, unique: true, required: true }, born: Number, tags: [String] }, { timestamps: true }));
const postSchema = new Schema({
  title: { type: String, index: true }, author: { type: Schema.Types.ObjectId, ref: "Author" }, price: Schema.Types.Decimal128,
  comments: [{ by: String, text: String }], meta: { type: Map, of: Number }, views: { type: Number, default: 0 }, at: { type: Date, expires: "30d" },
}, { optimisticConcurrency: true, discriminatorKey: "kind" });
postSchema.index({ title: "text" });
const Post = mongoose.model("Post", postSchema);
const Video = Post.discriminator("Video", new Schema({ seconds: Number }));

await part("collections and indexes are made of schemas, and again", async () => {
  await Promise.all([Author.init(), Post.init(), Video.init()]);
  assert.deepEqual((await Post.listIndexes()).map((one) => one.name).sort(), ["_id_", "at_1", "title_1", "title_text"]);
  assert.deepEqual(await Post.syncIndexes(), []);
  assert.deepEqual(await Post.diffIndexes(), { toDrop: [], toCreate: [] });
});

await part("documents are saved, found and populated", async () => {
  const [ada, bob] = await Author.create([{ name: "Ada", born: 1815, tags: ["x", "y"] }, { name: "Bob", born: 1990 }], { ordered: true });
  await Post.insertMany([{ title: "one", author: ada, price: "1.50", meta: { a: 1 } }, { title: "two", author: bob, comments: [{ by: "c", text: "hi" }] }]);
  await Video.create({ title: "three", author: ada, seconds: 12, at: new Date() });
  const found = await Post.find().sort("title").populate("author").lean();
  assert.deepEqual(found.map((one) => [one.title, one.author.name, one.kind]), [["one", "Ada", undefined], ["three", "Ada", "Video"], ["two", "Bob", undefined]]);
  assert.equal((await Video.find({ seconds: { $gt: 5 } })).length, 1);
  assert.equal((await Post.find({ $text: { $search: "two" } })).length, 1);
  const rows = await Post.aggregate([{ $group: { _id: "$author", n: { $sum: 1 } } }, { $lookup: { from: "authors", localField: "_id", foreignField: "_id", as: "by" } }, { $sort: { n: -1 } }]);
  assert.deepEqual(rows.map((one) => [one.n, one.by[0].name]), [[2, "Ada"], [1, "Bob"]]);
  const titles = [];
  for await (const one of Post.find().sort("title").cursor({ batchSize: 1 })) titles.push(one.title);
  assert.deepEqual(titles, ["one", "three", "two"]);
  await assert.rejects(Author.create({ name: "Ada" }), { code: 11000 });
});

await part("changes of parts of documents, and versions that two change at once", async () => {
  const one = await Post.findOne({ title: "two" });
  const same = await Post.findOne({ title: "two" });
  one.comments.push({ by: "d", text: "ho" });
  one.meta = { z: 1 };
  await one.save();
  one.comments.id(one.comments[0]._id).text = "changed";
  one.comments.pull(one.comments[1]._id);
  await one.save();
  same.title = "other";
  await assert.rejects(same.save(), { name: "VersionError" });
  assert.deepEqual((await Post.findOne({ title: "two" })).comments.map((c) => c.text), ["changed"]);
  const counted = await Post.findOneAndUpdate({ title: "two" }, { $inc: { views: 1 } }, { returnDocument: "after" });
  assert.equal(counted.views, 1);
  const done = await Post.bulkWrite([{ updateOne: { filter: { title: "two" }, update: { views: 5 } } }, { insertOne: { document: { title: "four" } } }, { deleteOne: { filter: { title: "four" } } }]);
  assert.deepEqual([done.modifiedCount, done.insertedCount, done.deletedCount], [1, 1, 1]);
  const all = await Post.find();
  for (const each of all) each.views += 1;
  await Post.bulkSave(all);
  assert.equal((await Post.findOne({ title: "two" })).views, 6);
});

await part("a transaction commits", async () => {
  await mongoose.connection.transaction(async () => {
    const author = await Author.create({ name: "Cy" });
    await Post.create({ title: "by cy", author });
    assert.equal(await Author.countDocuments({ name: "Cy" }), 1);
    assert.equal((await mongoose.connection.db.collection("authors").findOne({ name: "Cy" })), null);
  });
  assert.equal((await Post.findOne({ title: "by cy" }).populate("author")).author.name, "Cy");
});

await part("a transaction is rolled back, and documents forget what it did", async () => {
  const bob = await Author.findOne({ name: "Bob" });
  await assert.rejects(mongoose.connection.transaction(async (session) => {
    bob.born = 1;
    await bob.save({ session });
    await new Post({ title: "never" }).save({ session });
    throw new Error("no");
  }), /no/);
  assert.equal(await Post.exists({ title: "never" }), null);
  assert.equal((await Author.findOne({ name: "Bob" })).born, 1990);
  assert.equal(bob.isModified("born"), true);
});

await part("a unique index inside rolls it back", async () => {
  const session = await mongoose.startSession();
  await assert.rejects(session.withTransaction(async () => {
    await Post.create([{ title: "never" }], { session });
    await Author.create([{ name: "Ada" }], { session });
  }), { code: 11000 });
  await session.endSession();
  assert.equal(await Post.exists({ title: "never" }), null);
});

await part("transactions that conflict are tried again until each has happened", async () => {
  await Author.updateOne({ name: "Bob" }, { born: 0 });
  await Promise.all(Array.from({ length: 10 }, () => mongoose.connection.transaction(async (session) => {
    const bob = await Author.findOne({ name: "Bob" }).session(session);
    bob.born += 1;
    await bob.save({ session });
  })));
  assert.equal((await Author.findOne({ name: "Bob" })).born, 10);
});

await part("watch hears a model's changes, filtered and hydrated, and goes on at a token", async () => {
  const stream = Author.watch([{ $match: { operationType: { $in: ["insert", "update", "delete"] } } }], { fullDocument: "updateLookup", hydrate: true });
  const heard = [];
  stream.on("change", (change) => heard.push(change));
  await once(stream, "ready");
  // The cursor is opened by its first read.
  while (!heard.length) {
    await Author.updateOne({ name: "Bob" }, { $inc: { born: 1 } });
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  await Author.create({ name: "Dee" });
  await mongoose.connection.transaction(async (session) => {
    await Author.updateOne({ name: "Dee" }, { born: 3 }, { session });
    await Author.deleteOne({ name: "Cy" }, { session });
  });
  const of = () => heard.filter((change) => change.fullDocument?.name !== "Bob");
  for (let waited = 0; of().length < 3 && waited < 200; waited++) await new Promise((resolve) => setTimeout(resolve, 100));
  assert.deepEqual(of().map((change) => change.operationType), ["insert", "update", "delete"]);
  assert.ok(of()[1].fullDocument instanceof Author);
  await stream.close();
  const resumed = mongoose.connection.watch([], { resumeAfter: of()[0]._id });
  const again = [await resumed.next(), await resumed.next()];
  assert.deepEqual(again.map((change) => change.operationType), ["update", "delete"]);
  await resumed.close();
});

await part("reads from secondaries in a session see what was written before", async () => {
  const session = await mongoose.startSession({ causalConsistency: true });
  for (let at = 0; at < 20; at++) {
    await Author.create([{ name: `s${at}` }], { session });
    assert.equal(await Author.countDocuments({ name: `s${at}` }).session(session).read("secondaryPreferred"), 1);
  }
  await session.endSession();
});

await mongoose.disconnect();
console.log("end");
