// What an operator types into mongosh to make a replica set and to look after it: `hosts` are four nodes that are none yet.
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
function until(holds, what) {
  for (let tries = 0; tries < 1200; tries++) {
    if (holds()) return;
    sleep(100);
  }
  throw new Error(`in vain: ${what}`);
}
// A change of the configuration is refused while what the one before has committed is not with a majority, as in MongoDB.
function changes(act, what) {
  until(() => {
    try {
      return act().ok === 1;
    } catch (error) {
      if (error.codeName !== "CurrentConfigNotCommittedYet") throw error;
      return false;
    }
  }, what);
}
const states = () => rs.status().members.map((member) => member.stateStr).join();
const settled = (wanted) => until(() => states() === wanted, `${wanted}, but ${states()}`);

fails(() => rs.status(), "NotYetInitialized");
fails(() => rs.conf(), "NotYetInitialized");
check(rs.initiate({ _id: "rs0", settings: { electionTimeoutMillis: 10000 }, members: [{ _id: 0, host: hosts[0], priority: 3 }] }).ok === 1, "initiate");
until(() => db.hello().isWritablePrimary, "a primary");
fails(() => rs.initiate(), "AlreadyInitialized");
check(rs.conf().members.length === 1 && rs.config().version === 1, "conf");
check(rs.hello().me === hosts[0] && rs.isMaster().ismaster, "hello");

changes(() => rs.add(hosts[1]), "add");
settled("PRIMARY,SECONDARY");
changes(() => rs.add({ host: hosts[2], priority: 0.5, tags: { dc: "west" } }), "add with options");
settled("PRIMARY,SECONDARY,SECONDARY");
fails(() => rs.addArb(hosts[3]), "NewReplicaSetConfigurationIncompatible", "implicit default write concern");
db.adminCommand({ setDefaultRWConcern: 1, defaultWriteConcern: { w: 1 } });
changes(() => rs.addArb(hosts[3]), "addArb");
settled("PRIMARY,SECONDARY,SECONDARY,ARBITER");
check(db.hello().arbiters[0] === hosts[3], "hello has_version the arbiter");
changes(() => rs.remove(hosts[3]), "remove");
settled("PRIMARY,SECONDARY,SECONDARY");
const removed = new Mongo(`mongodb://${hosts[3]}/?directConnection=true`).getDB("admin");
until(() => !removed.hello().arbiterOnly && !removed.hello().secondary, "the removed member knows");
const changed = rs.conf();
changed.members[1].tags = { dc: "east" };
changes(() => rs.reconfig(changed), "reconfig");
check(rs.conf().members[1].tags.dc === "east", "the configuration is the new one");
fails(() => rs.reconfig({ ...rs.conf(), protocolVersion: 2 }), "protocolVersion");

db.getSiblingDB("shell").c.insertOne({ _id: 1 }, { writeConcern: { w: 3, wtimeout: 120000 } });
const info = db.getReplicationInfo();
check(info.configuredLogSizeMB > 100 && info.usedMB >= 0 && info.timeDiff >= 0, EJSON.stringify(info));
check(rs.printReplicationInfo().value["log length start to end"], "printReplicationInfo");
const lag = rs.printSecondaryReplicationInfo().value;
check(lag[`source: ${hosts[1]}`].replLag.endsWith("behind the primary ") && Object.keys(lag).length === 2, EJSON.stringify(lag));
check(db.getSiblingDB("shell").printCollectionStats().value.c.count === 1, "printCollectionStats");
fails(() => sh.status(), "sharding");
fails(() => rs.syncFrom(hosts[1]), "NotSecondary");
fails(() => rs.freeze(10), "NotSecondary");

const second = new Mongo(`mongodb://${hosts[1]}/?directConnection=true`);
const third = new Mongo(`mongodb://${hosts[2]}/?directConnection=true`).getDB("admin");
check(third.adminCommand({ replSetSyncFrom: hosts[1] }).syncFromRequested === hosts[1], "syncFrom");
until(() => third.adminCommand({ replSetGetStatus: 1 }).syncSourceHost === hosts[1], "another source");
check(third.adminCommand({ replSetFreeze: 60 }).ok === 1 && third.adminCommand({ replSetFreeze: 0 }).info === "unfreezing", "freeze");
check(second.getDB("admin").serverStatus().repl.secondary, "serverStatus().repl");
check(db.serverStatus().metrics.repl && db.serverStatus({ oplog: 1 }).oplog.latestOptime, "serverStatus");
check(rs.stepDown(12, 11).ok === 1, "stepDown");
until(() => second.getDB("admin").hello().primary && second.getDB("admin").hello().primary !== hosts[0], "another primary");
// The one with the highest priority takes over again.
until(() => db.hello().isWritablePrimary, "the first primary again");
print("ok");
