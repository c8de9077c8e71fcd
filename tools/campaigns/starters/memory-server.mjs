// mongodb-memory-server, unchanged, with Pinion as its binary: a standalone and a set of three. One line for each check.
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.join(process.env.STARTERS_HOME, "package.json"));
const { MongoMemoryServer, MongoMemoryReplSet } = require("mongodb-memory-server-core");
const { MongoClient } = require("mongodb");

const binary = { systemBinary: process.env.PINION_BIN, version: process.env.PINION_AS };

async function uses(uri) {
  const client = await MongoClient.connect(uri);
  try {
    await client.db("test").collection("c").insertOne({ _id: 1 });
    return (await client.db("test").collection("c").countDocuments({})) === 1;
  } finally {
    await client.close();
  }
}

async function check(what, start) {
  try {
    const server = await start();
    const good = await uses(server.getUri());
    await server.stop();
    console.log(`${good ? "passed" : "failed"}: ${what}`);
  } catch (error) {
    console.log(`failed: ${what}: ${error.message.split("\n")[0]}`);
  }
}

await check("MongoMemoryServer", () => MongoMemoryServer.create({ binary }));
await check("MongoMemoryReplSet of one", () => MongoMemoryReplSet.create({ binary, replSet: { count: 1 } }));
await check("MongoMemoryReplSet of three", () => MongoMemoryReplSet.create({ binary, replSet: { count: 3 } }));
console.log("end");
process.exit(0);
