// What a new user types into mongosh.
function equal(got, want) {
  if (EJSON.stringify(got) !== EJSON.stringify(want)) throw new Error(`got ${EJSON.stringify(got)}, want ${EJSON.stringify(want)}`);
}
db = db.getSiblingDB("shell");
db.dropDatabase();
db.people.insertOne({ _id: 1, name: "Ada", born: new Date(0) });
db.people.insertMany(Array.from({ length: 60 }, (_, i) => ({ _id: i + 10, n: i })));
equal(db.people.find({ name: "Ada" }).toArray().length, 1);
const cursor = db.people.find({ n: { $gte: 0 } });
let count = 0;
while (cursor.hasNext()) { cursor.next(); count += 1; }
equal(count, 60);
equal(db.people.createIndex({ n: 1 }), "n_1");
const explained = db.people.find({ n: 5 }).explain("executionStats");
equal(explained.queryPlanner.winningPlan.stage, "FETCH");
equal(explained.queryPlanner.winningPlan.inputStage.stage, "IXSCAN");
equal(explained.executionStats.nReturned, 1);
equal(db.people.updateOne({ _id: 1 }, { $set: { known: true } }).modifiedCount, 1);
equal(db.people.deleteOne({ _id: 10 }).deletedCount, 1);
equal(db.people.countDocuments(), 60);
equal(db.stats().collections, 1);
equal(db.people.stats().count, 60);
equal(db.getCollectionNames(), ["people"]);
if (!db.adminCommand({ listDatabases: 1 }).databases.some((d) => d.name === "shell")) throw new Error("show dbs lacks shell");
equal(db.people.getIndexes().map((i) => i.name), ["_id_", "n_1"]);
equal(db.people.aggregate([{ $group: { _id: null, total: { $sum: "$n" } } }]).toArray()[0].total, 1770);
db.dropDatabase();
print("ok");
