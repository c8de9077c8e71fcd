// MikroORM, whose unit of work is a transaction on a replica set; prints `passed: what` or `failed: what` for each part.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(process.env.CONSUMER_HOME + "/");
const { EntitySchema, LockMode, MikroORM, OptimisticLockError, UniqueConstraintViolationException } = require("@mikro-orm/mongodb");

async function part(what, run) {
  try {
    await run();
    console.log(`passed: ${what}`);
  } catch (error) {
    console.error(error);
    console.log(`failed: ${what}: ${String(error).replaceAll("\n", " ")}`);
  }
}

const Author = new EntitySchema({
  name: "Author",
  properties: {
    _id: { type: "ObjectId", primary: true }, id: { type: "string", serializedPrimaryKey: true },
    mail: { type: "string", unique: true }, age: { type: "number", nullable: true },
    version: { type: "number", version: true },
    books: { kind: "1:m", entity: () => "Book", mappedBy: "author", orphanRemoval: true },
  },
});
const Book = new EntitySchema({
  name: "Book",
  indexes: [{ properties: ["title", "pages"], name: "title_pages" }],
  properties: {
    _id: { type: "ObjectId", primary: true }, id: { type: "string", serializedPrimaryKey: true },
    title: { type: "string" }, pages: { type: "number", default: 1 },
    author: { kind: "m:1", entity: () => "Author", nullable: true },
    tags: { kind: "m:n", entity: () => "Tag" },
  },
});
const Tag = new EntitySchema({
  name: "Tag",
  properties: { _id: { type: "ObjectId", primary: true }, id: { type: "string", serializedPrimaryKey: true }, name: { type: "string", unique: true } },
});

const orm = await MikroORM.init({ entities: [Author, Book, Tag], clientUrl: process.argv[2], dbName: "mikro", ensureIndexes: false, implicitTransactions: true });
const db = orm.em.getConnection().getDb();
await db.dropDatabase();

await part("collections and indexes are made, and again", async () => {
  for (let times = 0; times < 2; times++) {
    await orm.schema.createSchema();
    await orm.schema.ensureIndexes();
  }
  assert.ok((await db.collection("book").indexes()).some((one) => one.name === "title_pages"));
  assert.ok((await db.collection("author").indexes()).some((one) => one.unique && one.key.mail === 1));
});

await part("a graph of entities is one transaction, with relations both ways", async () => {
  const em = orm.em.fork();
  const author = em.create("Author", { mail: "a@x.org", age: 40 });
  const [sea, land] = ["sea", "land"].map((name) => em.create("Tag", { name }));
  for (const title of ["one", "two", "three"]) {
    const book = em.create("Book", { title, pages: title.length * 10, author });
    book.tags.add(sea, ...(title === "two" ? [land] : []));
  }
  await em.flush();
  const read = await orm.em.fork().findOneOrFail("Author", { mail: "a@x.org" }, { populate: ["books", "books.tags"] });
  assert.deepEqual(read.books.getItems().map((one) => [one.title, one.tags.length]).sort(), [["one", 1], ["three", 1], ["two", 2]]);
  const [some, count] = await orm.em.fork().findAndCount("Book", { pages: { $gte: 30 } }, { orderBy: { title: "desc" }, limit: 2 });
  assert.deepEqual([some.map((one) => one.title), count], [["two", "three"], 3]);
});

await part("changes, removals and orphans are flushed together", async () => {
  const em = orm.em.fork();
  const author = await em.findOneOrFail("Author", { mail: "a@x.org" }, { populate: ["books"] });
  author.age = 41;
  author.books.remove(author.books.getItems().find((one) => one.title === "one"));
  author.books.getItems()[0].pages = 99;
  await em.flush();
  assert.equal(await orm.em.fork().count("Book"), 2);
  assert.equal(await orm.em.fork().count("Book", { pages: 99 }), 1);
});

await part("a unique violation rolls all of a flush back", async () => {
  const em = orm.em.fork();
  em.create("Tag", { name: "never" });
  em.create("Author", { mail: "a@x.org" });
  await assert.rejects(em.flush(), UniqueConstraintViolationException);
  assert.equal(await orm.em.fork().count("Tag", { name: "never" }), 0);
});

await part("transactional commits, and rolls back after an error", async () => {
  await orm.em.fork().transactional(async (em) => {
    em.create("Tag", { name: "kept" });
    await em.flush();
    // Its count would be outside of the transaction.
    assert.equal((await em.find("Tag", { name: "kept" }, { disableIdentityMap: true })).length, 1);
    assert.equal(await orm.em.fork().count("Tag", { name: "kept" }), 0);
  });
  await assert.rejects(orm.em.fork().transactional(async (em) => {
    em.create("Tag", { name: "gone" });
    await em.flush();
    throw new Error("no");
  }), /no/);
  assert.equal(await orm.em.fork().count("Tag", { name: { $in: ["kept", "gone"] } }), 1);
});

await part("optimistic locks by version", async () => {
  const [one, other] = [orm.em.fork(), orm.em.fork()];
  const author = await one.findOneOrFail("Author", { mail: "a@x.org" });
  const same = await other.findOneOrFail("Author", { mail: "a@x.org" });
  author.age += 1;
  await one.flush();
  same.age += 2;
  await assert.rejects(other.flush(), OptimisticLockError);
  await assert.rejects(orm.em.fork().findOneOrFail("Author", author._id, { lockMode: LockMode.OPTIMISTIC, lockVersion: 1 }), OptimisticLockError);
});

await part("many entities, an aggregation, a bulk update", async () => {
  const em = orm.em.fork();
  await em.insertMany("Tag", Array.from({ length: 500 }, (_, at) => ({ name: `t${at}` })));
  assert.equal(await em.nativeUpdate("Book", { pages: { $gt: 0 } }, { pages: 7 }), 2);
  const rows = await em.aggregate("Book", [{ $group: { _id: "$pages", n: { $sum: 1 } } }]);
  assert.deepEqual(rows, [{ _id: 7, n: 2 }]);
  const made = await em.upsert("Tag", { name: "t3" });
  assert.equal(made.name, "t3");
  assert.equal(await em.nativeDelete("Tag", { name: /^t\d/ }), 500);
});

await orm.close();
console.log("end");
