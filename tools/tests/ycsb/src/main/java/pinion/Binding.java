package pinion;

import static com.mongodb.client.model.Filters.eq;
import static com.mongodb.client.model.Filters.gte;

import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.model.Projections;
import com.mongodb.client.model.Sorts;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import org.bson.Document;
import org.bson.conversions.Bson;
import org.bson.types.Binary;
import site.ycsb.ByteArrayByteIterator;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.Status;

/**
 * YCSB over MongoDB's Java driver: a record is a document with its key in {@code _id} and a binary value for each field.
 * All threads share one client, as applications do. A write that does not meet exactly one document is an error.
 */
public class Binding extends DB {
  private static MongoClient client;
  private static int users;
  private MongoClient own;

  @Override
  public void init() {
    synchronized (Binding.class) {
      if (users++ == 0) {
        client = MongoClients.create(getProperties().getProperty("pinion.uri"));
      }
      own = client;
    }
  }

  @Override
  public void cleanup() {
    synchronized (Binding.class) {
      if (--users == 0) {
        client.close();
      }
    }
  }

  private MongoCollection<Document> table(String name) {
    return own.getDatabase("ycsb").getCollection(name);
  }

  private static Bson projection(Set<String> fields) {
    return fields == null ? null : Projections.include(new ArrayList<>(fields));
  }

  private static void fill(Map<String, ByteIterator> out, Document document) {
    for (Map.Entry<String, Object> field : document.entrySet()) {
      if (field.getValue() instanceof Binary) {
        out.put(field.getKey(), new ByteArrayByteIterator(((Binary) field.getValue()).getData()));
      }
    }
  }

  private static Document values(Map<String, ByteIterator> fields) {
    Document out = new Document();
    for (Map.Entry<String, ByteIterator> field : fields.entrySet()) {
      out.put(field.getKey(), new Binary(field.getValue().toArray()));
    }
    return out;
  }

  @Override
  public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
    Document found = table(table).find(eq("_id", key)).projection(projection(fields)).first();
    if (found == null) {
      return Status.NOT_FOUND;
    }
    fill(result, found);
    return result.isEmpty() ? Status.UNEXPECTED_STATE : Status.OK;
  }

  @Override
  public Status scan(String table, String from, int count, Set<String> fields, Vector<HashMap<String, ByteIterator>> result) {
    List<Document> found =
        table(table).find(gte("_id", from)).sort(Sorts.ascending("_id")).limit(count).projection(projection(fields)).into(new ArrayList<>());
    for (Document document : found) {
      HashMap<String, ByteIterator> values = new HashMap<>();
      fill(values, document);
      result.add(values);
    }
    return found.isEmpty() ? Status.NOT_FOUND : Status.OK;
  }

  @Override
  public Status update(String table, String key, Map<String, ByteIterator> values) {
    long matched = table(table).updateOne(eq("_id", key), new Document("$set", values(values))).getMatchedCount();
    return matched == 1 ? Status.OK : Status.NOT_FOUND;
  }

  @Override
  public Status insert(String table, String key, Map<String, ByteIterator> values) {
    Document document = new Document("_id", key);
    document.putAll(values(values));
    table(table).insertOne(document);
    return Status.OK;
  }

  @Override
  public Status delete(String table, String key) {
    return table(table).deleteOne(eq("_id", key)).getDeletedCount() == 1 ? Status.OK : Status.NOT_FOUND;
  }
}
