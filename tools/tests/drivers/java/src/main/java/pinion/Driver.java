package pinion;

import static com.mongodb.client.model.Filters.*;
import static com.mongodb.client.model.Updates.*;

import com.mongodb.MongoWriteException;
import com.mongodb.client.*;
import com.mongodb.client.model.*;
import java.util.*;
import org.bson.Document;

/** The life of a small application with the Java driver, all options left at their defaults. */
public final class Driver {
    private static void equal(Object got, Object want) {
        if (!Objects.equals(got, want)) throw new AssertionError("got " + got + ", want " + want);
    }

    public static void main(String[] args) {
        try (MongoClient client = MongoClients.create(args[0])) {
            MongoDatabase db = client.getDatabase("java_driver");
            db.drop();
            db.createCollection("c");
            MongoCollection<Document> c = db.getCollection("c");
            var id = c.insertOne(new Document("a", 1L << 60).append("list", List.of(1, "x", new Document("y", 2.5)))).getInsertedId();
            equal(c.find(eq("_id", id)).first().getLong("a"), 1L << 60);
            List<Document> many = new ArrayList<>();
            for (int i = 0; i < 500; i++) many.add(new Document("_id", i).append("n", i % 10));
            equal(c.insertMany(many).getInsertedIds().size(), 500);
            int seen = 0;
            for (Document d : c.find(lt("n", 10)).batchSize(7)) seen++;
            equal(seen, 500);
            equal(c.find(eq("n", 3)).sort(Sorts.descending("_id")).limit(1).first().getInteger("_id"), 493);
            equal(c.updateMany(eq("n", 2), combine(set("x.y", 1), push("l", 3))).getModifiedCount(), 50L);
            equal(c.updateOne(eq("_id", "new"), inc("k", 1), new UpdateOptions().upsert(true)).getUpsertedId().asString().getValue(), "new");
            equal(c.replaceOne(eq("_id", 5), new Document("r", true)).getModifiedCount(), 1L);
            equal(c.findOneAndUpdate(eq("_id", 1), inc("x", 5), new FindOneAndUpdateOptions().returnDocument(ReturnDocument.AFTER)).getInteger("x"), 5);
            equal(c.deleteMany(eq("n", 9)).getDeletedCount(), 50L);
            equal(c.countDocuments(exists("n")), 449L);
            equal(c.estimatedDocumentCount(), c.countDocuments());
            equal(c.createIndex(Indexes.ascending("u"), new IndexOptions().unique(true).sparse(true)), "u_1");
            c.insertOne(new Document("u", 1));
            try {
                c.insertOne(new Document("u", 1));
                throw new AssertionError("a duplicate was accepted");
            } catch (MongoWriteException e) {
                equal(e.getError().getCode(), 11000);
            }
            List<Document> groups = c.aggregate(List.of(Aggregates.match(lt("n", 3)), Aggregates.group("$n", Accumulators.sum("s", "$_id")), Aggregates.sort(Sorts.ascending("_id")))).into(new ArrayList<>());
            equal(groups.size(), 3);
            equal(c.distinct("n", Integer.class).into(new TreeSet<>()).size(), 9);
            var bulk = c.bulkWrite(List.of(new InsertOneModel<>(new Document("_id", "b")), new UpdateOneModel<>(eq("_id", "b"), set("v", 1)), new DeleteOneModel<>(eq("_id", "b"))));
            equal(bulk.getInsertedCount() + bulk.getModifiedCount() + bulk.getDeletedCount(), 3);
            try (ClientSession session = client.startSession()) {
                equal(c.find(session, eq("_id", 1)).first().getInteger("_id"), 1);
            }
            equal(db.listCollectionNames().into(new ArrayList<>()), List.of("c"));
            db.drop();
        }
        System.out.println("ok");
    }
}
