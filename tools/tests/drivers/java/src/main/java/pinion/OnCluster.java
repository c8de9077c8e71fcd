package pinion;

import static com.mongodb.client.model.Filters.*;
import static com.mongodb.client.model.Updates.*;

import com.mongodb.ConnectionString;
import com.mongodb.MongoClientSettings;
import com.mongodb.MongoNamespace;
import com.mongodb.MongoWriteException;
import com.mongodb.client.*;
import com.mongodb.client.model.*;
import com.mongodb.client.model.bulk.ClientNamespacedWriteModel;
import com.mongodb.client.model.changestream.ChangeStreamDocument;
import com.mongodb.connection.*;
import com.mongodb.event.*;
import java.util.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.bson.BsonDocument;
import org.bson.Document;
import org.bson.types.*;

/**
 * Sharded collections behind routers with the Java driver, all options left at their defaults. The
 * shards s0 and s1 are in the zones `low` and `high`.
 */
public final class OnCluster {
    private static final String DB = "java_cluster";
    private final MongoClient client;
    private final MongoDatabase admin, db;
    private final MongoCollection<Document> orders, users, totals;

    private OnCluster(MongoClient client) {
        this.client = client;
        admin = client.getDatabase("admin");
        db = client.getDatabase(DB);
        orders = db.getCollection("orders");
        users = db.getCollection("users");
        totals = db.getCollection("totals");
    }

    private static void equal(Object got, Object want) {
        if (!Objects.equals(got, want)) throw new AssertionError("got " + got + ", want " + want);
    }

    private static Document doc(Object... parts) {
        var made = new Document();
        for (int i = 0; i < parts.length; i += 2) made.append((String) parts[i], parts[i + 1]);
        return made;
    }

    private void zone(Object min, Object max, String zone) {
        Document lower = doc("k", min), upper = doc("k", max);
        admin.runCommand(
            doc("updateZoneKeyRange", DB + ".orders", "min", lower, "max", upper, "zone", zone));
    }

    private void shard() {
        admin.runCommand(doc("enableSharding", DB, "primaryShard", "s0"));
        zone(new MinKey(), 100, "low");
        zone(100, new MaxKey(), "high");
        admin.runCommand(doc("shardCollection", DB + ".orders", "key", doc("k", 1)));
        admin.runCommand(doc("shardCollection", DB + ".users", "key", doc("_id", "hashed")));
        admin.runCommand(doc("shardCollection", DB + ".totals", "key", doc("_id", "hashed")));
    }

    /** How many documents each shard has. */
    private static Map<String, Integer> placed(MongoCollection<Document> collection) {
        var counts = new TreeMap<String, Integer>();
        for (Document part : collection.aggregate(List.of(doc("$collStats", doc("count", doc())))))
            counts.put(part.getString("shard"), part.getInteger("count"));
        return counts;
    }

    /** Documents are written to both shards, and read from one and from both. */
    private void documents() {
        List<Document> many = new ArrayList<>();
        for (int k = 0; k < 200; k++)
            many.add(doc("_id", "o" + k, "k", k, "user", k % 10, "sum", 1));
        equal(orders.insertMany(many).getInsertedIds().size(), 200);
        equal(placed(orders), Map.of("s0", 100, "s1", 100));
        many.clear();
        for (int n = 0; n < 20; n++) many.add(doc("_id", n, "name", "n" + n));
        users.insertMany(many);
        var counts = placed(users);
        equal(counts.size(), 2);
        equal(counts.get("s0") > 0 && counts.get("s1") > 0, true);
        equal(counts.get("s0") + counts.get("s1"), 20);

        equal(orders.find(eq("k", 150)).first().getString("_id"), "o150");
        int want = 194;
        var backwards = orders.find().sort(Sorts.descending("k")).skip(5).limit(150);
        for (Document one : backwards.batchSize(7)) equal(one.getInteger("k"), want--);
        equal(want, 44);
        equal(orders.countDocuments(eq("user", 3)), 20L);
        equal(orders.estimatedDocumentCount(), 200L);
        equal(orders.distinct("user", Integer.class).into(new TreeSet<>()).size(), 10);

        equal(orders.updateOne(eq("k", 7), set("x", 1)).getModifiedCount(), 1L);
        equal(orders.updateMany(eq("user", 2), inc("sum", 1)).getModifiedCount(), 20L);
        equal(orders.updateOne(eq("user", 4), set("first", true)).getModifiedCount(), 1L);
        var last = new FindOneAndUpdateOptions().sort(Sorts.descending("k"));
        equal(orders.findOneAndUpdate(eq("user", 5), set("x", 2), last).getInteger("k"), 195);
        orders.createIndex(Indexes.ascending("k", "u"), new IndexOptions().unique(true));
        try {
            orders.insertOne(doc("k", 150));
            throw new AssertionError("a duplicate was accepted");
        } catch (MongoWriteException e) {
            equal(e.getError().getCode(), 11000);
        }
        orders.dropIndex("k_1_u_1");
    }

    /** One sharded collection is read from another, and the result merged into a third. */
    private void joins() {
        orders.aggregate(List.of(
            Aggregates.match(lt("user", 4)), Aggregates.lookup("users", "user", "_id", "of"),
            Aggregates.group(doc("$first", "$of.name"), Accumulators.sum("sum", "$sum")),
            Aggregates.merge("totals"))).toCollection();
        List<String> rows = new ArrayList<>();
        for (Document one : totals.find().sort(Sorts.ascending("_id")))
            rows.add(one.get("_id") + " " + one.get("sum"));
        equal(rows, List.of("n0 20", "n1 20", "n2 40", "n3 20"));
    }

    /** Batches reach both shards, and several collections. */
    private void batches() {
        Document low = doc("_id", "low", "k", -1), high = doc("_id", "high", "k", 999);
        var edges = in("k", -1, 999);
        var bulk = orders.bulkWrite(List.of(
            new InsertOneModel<>(low), new InsertOneModel<>(high),
            new UpdateManyModel<>(edges, set("edge", true)),
            new DeleteManyModel<>(eq("edge", true))));
        equal(bulk.getInsertedCount(), 2);
        equal(bulk.getModifiedCount(), 2);
        equal(bulk.getDeletedCount(), 2);
        var there = new MongoNamespace(DB, "orders");
        var other = new MongoNamespace(DB, "users");
        var several = client.bulkWrite(List.of(
            ClientNamespacedWriteModel.insertOne(there, low),
            ClientNamespacedWriteModel.updateMany(other, doc(), set("x", 1)),
            ClientNamespacedWriteModel.insertOne(there, high),
            ClientNamespacedWriteModel.deleteMany(there, edges)));
        equal(several.getInsertedCount(), 2L);
        equal(several.getModifiedCount(), 20L);
        equal(several.getDeletedCount(), 2L);
    }

    private static String reported(ChangeStreamDocument<Document> event) {
        String id = event.getDocumentKey().getString("_id").getValue();
        return event.getOperationType().getValue() + " " + id;
    }

    /** Transactions read both shards and write one; the stream on the collection sees them. */
    private void transactions() {
        BsonDocument middle = null;
        try (var stream = orders.watch().cursor(); ClientSession session = client.startSession()) {
            equal(stream.tryNext(), null);
            session.withTransaction(() -> {
                equal(orders.countDocuments(session), 200L);
                equal(users.find(session, eq("_id", 1)).first().getString("name"), "n1");
                orders.updateOne(session, eq("k", 150), inc("sum", 4));
                return orders.insertOne(session, doc("_id", "c", "k", 1001));
            });
            try {
                session.withTransaction(() -> {
                    orders.deleteMany(session, gte("k", 1000));
                    throw new IllegalStateException("no");
                });
                throw new AssertionError("it was committed");
            } catch (IllegalStateException e) {
                equal(e.getMessage(), "no");
            }
            orders.updateOne(eq("k", 5), inc("sum", -4));
            for (String want : List.of("update o150", "insert c", "update o5")) {
                var event = stream.next();
                equal(reported(event), want);
                if (middle == null) middle = event.getResumeToken();
            }
        }
        try (var stream = orders.watch().resumeAfter(middle).cursor()) {
            equal(reported(stream.next()), "insert c");
        }
    }

    /** A write is sent again whose answer says that it may be; it is done once. */
    private void again(ConnectionString uri) {
        var attempts = new AtomicInteger();
        var first = new ConnectionString("mongodb://" + uri.getHosts().get(0));
        var settings = MongoClientSettings.builder().applyConnectionString(first);
        settings.addCommandListener(new CommandListener() {
            @Override
            public void commandStarted(CommandStartedEvent event) {
                if (event.getCommandName().equals("findAndModify")) attempts.incrementAndGet();
            }
        });
        try (MongoClient alone = MongoClients.create(settings.build())) {
            var data = doc("failCommands", List.of("findAndModify"));
            data.append("errorLabels", List.of("RetryableWriteError"));
            data.append("writeConcernError", doc("code", 6, "errmsg", "the shard is away"));
            var point = doc("configureFailPoint", "failCommand", "mode", doc("times", 1));
            point.append("data", data);
            alone.getDatabase("admin").runCommand(point);
            var there = alone.getDatabase(DB).getCollection("orders");
            there.findOneAndUpdate(eq("user", 6), inc("sum", 100));
        }
        equal(attempts.get(), 2);
        var sums = orders.distinct("sum", eq("user", 6), Integer.class);
        equal(sums.into(new TreeSet<>()), Set.of(1, 101));
        equal(orders.countDocuments(and(eq("user", 6), eq("sum", 101))), 1L);
    }

    private void run(ConnectionString uri) {
        db.drop();
        shard();
        documents();
        joins();
        batches();
        transactions();
        again(uri);
        var topology = client.getClusterDescription();
        equal(topology.getType(), ClusterType.SHARDED);
        equal(topology.getServerDescriptions().size(), uri.getHosts().size());
        for (ServerDescription server : topology.getServerDescriptions())
            equal(server.getType(), ServerType.SHARD_ROUTER);
        orders.drop();
        equal(db.listCollectionNames().into(new TreeSet<>()), Set.of("totals", "users"));
        db.drop();
    }

    public static void main(String[] args) {
        var uri = new ConnectionString(args[0]);
        try (MongoClient client = MongoClients.create(uri)) {
            new OnCluster(client).run(uri);
        }
        System.out.println("ok");
    }
}
