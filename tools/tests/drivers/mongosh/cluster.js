// What an operator types into mongosh to shard collections and to look after a cluster. The shards
// s0 and s1 are in the zones `low` and `high`; `hosts` are the routers.
function equal(got, want) {
  const [seen, wanted] = [EJSON.stringify(got), EJSON.stringify(want)];
  if (seen !== wanted) throw new Error(`got ${seen}, want ${wanted}`);
}
function check(holds, what) {
  if (!holds) throw new Error(what);
}
function fails(act, ...texts) {
  try {
    act();
  } catch (error) {
    const reported = `${error.codeName} ${error.message}`;
    for (const text of texts) check(reported.includes(text), `${reported} lacks ${text}`);
    return;
  }
  throw new Error(`this should have failed: ${act}`);
}
equal(db.hello().msg, "isdbgrid");
const [shop, config] = [db.getSiblingDB("shop"), db.getSiblingDB("config")];
shop.dropDatabase();

// Collections are sharded by ranges and by hashes.
equal(sh.enableSharding("shop", "s0").ok, 1);
equal(sh.updateZoneKeyRange("shop.orders", { k: MinKey }, { k: 100 }, "low").ok, 1);
equal(sh.updateZoneKeyRange("shop.orders", { k: 100 }, { k: MaxKey }, "high").ok, 1);
equal(sh.shardCollection("shop.orders", { k: 1 }).collectionsharded, "shop.orders");
equal(sh.shardCollection("shop.users", { _id: "hashed" }, false, { numInitialChunks: 4 }).ok, 1);
fails(() => sh.shardCollection("shop.users", { name: 1 }), "AlreadyInitialized");
shop.orders.insertMany(Array.from({ length: 200 }, (_, k) => ({ _id: k, k, user: k % 10 })));
shop.users.insertMany(Array.from({ length: 50 }, (_, _id) => ({ _id, name: `n${_id}` })));
shop.plain.insertOne({ _id: 1 });
const last = shop.orders.find({ user: 3 }).sort({ k: -1 }).limit(2);
equal(last.toArray().map((one) => one.k), [193, 183]);
equal(shop.orders.find({ k: 150 }).explain().queryPlanner.winningPlan.stage, "SINGLE_SHARD");
equal(shop.orders.find({ user: 3 }).explain().queryPlanner.winningPlan.stage, "SHARD_MERGE");
equal(shop.orders.countDocuments({ k: { $gte: 50 } }), 150);
const join = { from: "users", localField: "user", foreignField: "_id", as: "of" };
const joined = shop.orders.aggregate([{ $match: { k: 123 } }, { $lookup: join }]).toArray();
equal(joined[0].of[0].name, "n3");

// Where the documents are.
const parts = shop.orders.getShardDistribution().value;
for (const at of ["s0", "s1"]) {
  const name = Object.keys(parts).find((one) => one.startsWith(`Shard ${at} at ${at}/127.0.0.1:`));
  check(name && parts[name].docs === 100 && parts[name].chunks === 1, EJSON.stringify(parts));
}
equal([parts.Totals.docs, parts.Totals.chunks], [200, 2]);
equal(parts.Totals["Shard s1"][1], "50 % docs in cluster");
const stats = shop.orders.stats();
equal([stats.sharded, stats.count], [true, 200]);
equal([stats.shards.s0.count, stats.shards.s1.count], [100, 100]);
equal([shop.plain.stats().sharded, Number(shop.stats().objects)], [false, 251]);
check(shop.orders.getShardVersion().version, "getShardVersion");
const spread = sh.getShardedDataDistribution().toArray().find((one) => one.ns === "shop.orders");
equal(spread.shards.map((part) => part.numOwnedDocuments), [100, 100]);
equal(spread.shards.map((part) => part.shardName).sort(), ["s0", "s1"]);

// Chunks are split.
equal(sh.splitAt("shop.orders", { k: 50 }).ok, 1);
equal(sh.splitFind("shop.orders", { k: 150 }).ok, 1);
fails(() => sh.splitAt("shop.orders", { user: 50 }), "shard key");
const status = sh.status().value;
const { collections } = status.databases.find((one) => one.database._id === "shop");
const orders = collections["shop.orders"];
equal(orders.chunkMetadata.map((part) => part.nChunks), [2, 2]);
equal(orders.chunks.map((chunk) => chunk["on shard"]), ["s0", "s0", "s1", "s1"]);
equal(orders.chunks[1].min, { k: 50 });
equal(orders.tags.map((one) => one.tag), ["low", "high"]);
equal([orders.shardKey, orders.unique], [{ k: 1 }, false]);
equal([orders.balancing, orders.allowMigrations], [true, true]);
equal(shop.adminCommand({ mergeChunks: "shop.orders", bounds: [{ k: MinKey }, { k: 100 }] }).ok, 1);

// What the cluster is.
equal(status.shards.map((shard) => shard._id), ["s0", "s1"]);
equal(status.shards.map((shard) => shard.tags), [["low"], ["high"]]);
check(status.shardingVersion.clusterId instanceof ObjectId, "clusterId");
const routers = Object.entries(status).find(([name]) => name.endsWith("active mongoses"))[1];
equal(routers, [{ [db.version()]: hosts.length }]);
const shown = db.printShardingStatus(true).value;
const active = Object.entries(shown).find(([name]) => name.endsWith("active mongoses"))[1];
const ports = (names) => names.map((name) => name.split(":")[1]).sort();
equal(ports(active.map((router) => router._id)), ports(hosts));
equal(shown.shards.length, 2);
equal(shown.databases.find((one) => one.database._id === "shop").database.primary, "s0");
equal(sh.listShards().map((shard) => `${shard._id} ${shard.tags}`).sort(), ["s0 low", "s1 high"]);
equal(sh.isConfigShardEnabled(), { enabled: false });
equal(sh.checkMetadataConsistency().toArray(), []);
const { databases } = db.adminCommand({ listDatabases: 1 });
equal(databases.find((one) => one.name === "shop").empty, false);
check(shop.getCollectionNames().includes("orders"), "getCollectionNames");

// Zones, by their older names and the newer ones.
const [min, max] = [{ _id: NumberLong("0") }, { _id: NumberLong("10") }];
equal(sh.addShardTag("s0", "old").ok, 1);
equal(sh.addTagRange("shop.users", min, max, "old").ok, 1);
equal(config.tags.findOne({ ns: "shop.users" }).tag, "old");
equal(sh.removeTagRange("shop.users", min, max).ok, 1);
equal(sh.removeShardTag("s0", "old").ok, 1);
equal(sh.addShardToZone("s1", "new").ok, 1);
equal(sh.updateZoneKeyRange("shop.users", min, max, "new").ok, 1);
fails(() => sh.removeShardFromZone("s1", "new"), "zone");
equal(sh.removeRangeFromZone("shop.users", min, max).ok, 1);
equal(sh.removeShardFromZone("s1", "new").ok, 1);
equal(config.tags.countDocuments({ ns: "shop.users" }), 0);

// The balancer's settings.
equal(sh.getBalancerState(), true);
equal(sh.stopBalancer().ok, 1);
equal(sh.getBalancerState(), false);
equal(sh.status().value.balancer["Currently enabled"], "no");
equal(sh.setBalancerState(true).ok, 1);
equal(sh.getBalancerState(), true);
equal(sh.isBalancerRunning().inBalancerRound, false);
equal(sh.balancerCollectionStatus("shop.orders").balancerCompliant, true);
equal(sh.disableBalancing("shop.users").modifiedCount, 1);
equal(sh.enableBalancing("shop.users").modifiedCount, 1);
equal(sh.disableMigrations("shop.users").ok, 1);
equal(sh.enableMigrations("shop.users").ok, 1);
sh.stopAutoMerger();
equal(sh.isAutoMergerEnabled(), false);
sh.startAutoMerger();
equal(sh.isAutoMergerEnabled(), true);
equal(sh.disableAutoMerger("shop.users").modifiedCount, 1);
equal(sh.enableAutoMerger("shop.users").modifiedCount, 1);

// What is of sets alone, and of nodes.
fails(() => rs.status(), "replSetGetStatus");
check(db.serverStatus().process === "mongos" && db.serverStatus().sharding, "serverStatus");
check(db.currentOp().inprog.some((op) => op.shard), "currentOp");
equal(shop.orders.drop(), true);
equal(config.collections.find({ _id: /^shop/ }).toArray().map((one) => one._id), ["shop.users"]);
shop.dropDatabase();
print("ok");
