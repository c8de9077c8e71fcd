package pinion;

import static com.mongodb.client.model.Filters.*;
import static com.mongodb.client.model.Updates.*;

import com.mongodb.ReadPreference;
import com.mongodb.client.*;
import com.mongodb.client.model.changestream.ChangeStreamDocument;
import java.util.*;
import org.bson.BsonDocument;
import org.bson.Document;

/** Transactions and change streams of a replica set with the Java driver, all options left at their defaults. */
public final class OnSet {
    private static void equal(Object got, Object want) {
        if (!Objects.equals(got, want)) throw new AssertionError("got " + got + ", want " + want);
    }

    private static String reported(ChangeStreamDocument<Document> event) {
        var id = event.getDocumentKey().get("_id");
        return event.getNamespace().getCollectionName() + " " + event.getOperationType().getValue() + " " + (id.isString() ? id.asString().getValue() : id.asInt32().getValue());
    }

    public static void main(String[] args) {
        try (MongoClient client = MongoClients.create(args[0])) {
            MongoDatabase db = client.getDatabase("java_set");
            db.drop();
            db.createCollection("accounts");
            db.createCollection("notes");
            MongoCollection<Document> accounts = db.getCollection("accounts"), notes = db.getCollection("notes");
            BsonDocument middle = null;
            try (var stream = db.watch().cursor()) {
                equal(stream.tryNext(), null);
                accounts.insertMany(List.of(new Document("_id", "a").append("sum", 10), new Document("_id", "b").append("sum", 0)));
                try (ClientSession session = client.startSession()) {
                    session.withTransaction(() -> {
                        accounts.updateOne(session, eq("_id", "a"), inc("sum", -4));
                        accounts.updateOne(session, eq("_id", "b"), inc("sum", 4));
                        equal(accounts.find(session, eq("_id", "b")).first().getInteger("sum"), 4);
                        return notes.insertOne(session, new Document("_id", 1));
                    });
                    try {
                        session.withTransaction(() -> {
                            accounts.updateOne(session, eq("_id", "a"), inc("sum", -100));
                            throw new IllegalStateException("no");
                        });
                        throw new AssertionError("it was committed");
                    } catch (IllegalStateException e) {
                        equal(e.getMessage(), "no");
                    }
                    equal(accounts.find(eq("_id", "a")).first().getInteger("sum"), 6);
                }
                for (String want : List.of("accounts insert a", "accounts insert b", "accounts update a", "accounts update b", "notes insert 1")) {
                    var event = stream.next();
                    equal(reported(event), want);
                    if (want.equals("accounts update a")) middle = event.getResumeToken();
                }
            }
            try (var stream = db.watch().resumeAfter(middle).cursor()) {
                equal(reported(stream.next()), "accounts update b");
            }
            try (ClientSession causal = client.startSession()) {
                notes.insertOne(causal, new Document("_id", 2));
                equal(notes.withReadPreference(ReadPreference.secondary()).find(causal, eq("_id", 2)).first().getInteger("_id"), 2);
            }
            db.drop();
        }
        System.out.println("ok");
    }
}
