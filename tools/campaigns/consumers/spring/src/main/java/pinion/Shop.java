package pinion;

import com.mongodb.client.model.changestream.FullDocument;
import com.mongodb.client.model.changestream.FullDocumentBeforeChange;
import com.mongodb.client.model.changestream.OperationType;
import java.io.ByteArrayInputStream;
import java.math.BigDecimal;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.bson.BsonDocument;
import org.bson.Document;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.dao.DuplicateKeyException;
import org.springframework.dao.OptimisticLockingFailureException;
import org.springframework.data.domain.Example;
import org.springframework.data.domain.PageRequest;
import org.springframework.data.domain.Sort;
import org.springframework.data.geo.Distance;
import org.springframework.data.geo.Metrics;
import org.springframework.data.geo.Point;
import org.springframework.data.mongodb.ReactiveMongoTransactionManager;
import org.springframework.data.mongodb.core.ChangeStreamOptions;
import org.springframework.data.mongodb.core.CollectionOptions;
import org.springframework.data.mongodb.core.FindAndModifyOptions;
import org.springframework.data.mongodb.core.MongoTemplate;
import org.springframework.data.mongodb.core.BulkOperations.BulkMode;
import org.springframework.data.mongodb.core.ReactiveMongoTemplate;
import org.springframework.data.mongodb.core.SimpleReactiveMongoDatabaseFactory;
import org.springframework.data.mongodb.core.aggregation.Aggregation;
import org.springframework.data.mongodb.core.messaging.ChangeStreamRequest;
import org.springframework.data.mongodb.core.messaging.DefaultMessageListenerContainer;
import org.springframework.data.mongodb.core.messaging.TailableCursorRequest;
import org.springframework.data.mongodb.core.query.Criteria;
import org.springframework.data.mongodb.core.query.Query;
import org.springframework.data.mongodb.core.query.TextCriteria;
import org.springframework.data.mongodb.core.query.TextQuery;
import org.springframework.data.mongodb.core.query.Update;
import org.springframework.data.mongodb.gridfs.GridFsTemplate;
import org.springframework.transaction.reactive.TransactionalOperator;

/** Spring Data MongoDB in the life of a small shop; prints `passed: what` or `failed: what` for each part. */
public final class Shop {
    private interface Part {
        void run() throws Exception;
    }

    private static void part(String what, Part part) {
        try {
            part.run();
            System.out.println("passed: " + what);
        } catch (Throwable error) {
            error.printStackTrace();
            System.out.println("failed: " + what + ": " + String.valueOf(error).replace('\n', ' '));
        }
    }

    private static void equal(Object got, Object want) {
        if (!Objects.equals(got, want)) throw new AssertionError("got " + got + ", want " + want);
    }

    private static <E extends Throwable> E fails(Class<E> kind, Part part) {
        try {
            part.run();
        } catch (Throwable error) {
            if (kind.isInstance(error)) return kind.cast(error);
            throw new AssertionError("another error", error);
        }
        throw new AssertionError("no " + kind.getSimpleName());
    }

    private static <T> T next(BlockingQueue<T> queue) throws InterruptedException {
        T found = queue.poll(20, TimeUnit.SECONDS);
        if (found == null) throw new AssertionError("nothing came");
        return found;
    }

    public static void main(String[] args) throws Exception {
        Config.uri = args[0];
        try (var dropping = com.mongodb.client.MongoClients.create(args[0])) {
            dropping.getDatabase("spring").drop();
        }
        try (var context = new AnnotationConfigApplicationContext("pinion")) {
            new Shop(context).run();
        }
        part("a second start finds its indexes as they are", () -> {
            try (var context = new AnnotationConfigApplicationContext("pinion")) {
                equal(context.getBean(People.class).count() > 0, true);
            }
        });
        System.out.println("end");
        System.exit(0);
    }

    private final AnnotationConfigApplicationContext context;
    private final MongoTemplate template;
    private final People people;
    private final Bank bank;

    private Shop(AnnotationConfigApplicationContext context) {
        this.context = context;
        template = context.getBean(MongoTemplate.class);
        people = context.getBean(People.class);
        bank = context.getBean(Bank.class);
    }

    private void run() {
        indexes();
        repository();
        locking();
        templates();
        transactions();
        streams();
        reactive();
        heartbeats();
    }

    private void heartbeats() {
        part("the driver's monitors stream, and none of their heartbeats fails", () -> {
            int servers = new com.mongodb.ConnectionString(Config.uri).getHosts().size();
            // One comes by itself every ten seconds while nothing changes.
            for (int waited = 0; waited < 60; waited++) {
                var streamed = Config.STREAMED_HEARTBEATS.values();
                if (!Config.FAILED_HEARTBEATS.isEmpty() || streamed.size() == servers && streamed.stream().allMatch(n -> n >= 3)) break;
                Thread.sleep(1000);
            }
            equal(Config.FAILED_HEARTBEATS.stream().map(Throwable::getMessage).toList(), List.of());
            equal(Config.STREAMED_HEARTBEATS.size(), servers);
        });
    }

    private void indexes() {
        part("indexes are made of annotations", () -> {
            var names = new TreeSet<String>();
            template.indexOps(Model.Person.class).getIndexInfo().forEach(index -> names.add(index.getName()));
            equal(names.toString(), "[Person_TextIndex, _id_, home, mail, town_age]");
            var mail = template.indexOps(Model.Person.class).getIndexInfo().stream().filter(index -> index.getName().equals("mail")).findFirst().get();
            equal(mail.isUnique(), true);
            var gone = template.indexOps(Model.Visit.class).getIndexInfo().stream().filter(index -> index.getName().equals("gone")).findFirst().get();
            equal(gone.getExpireAfter().get(), Duration.ofHours(1));
        });
    }

    private void repository() {
        part("a repository saves and finds by the names of its methods", () -> {
            var all = new ArrayList<Model.Person>();
            for (int at = 0; at < 40; at++) all.add(Model.Person.of("p" + at + "@x.org", List.of("Ulm", "Bonn", "Jena").get(at % 3), 20 + at));
            people.saveAll(all);
            equal(people.count(), 40L);
            equal(people.findByTownOrderByAgeDesc("Ulm").get(0).age, 59);
            var page = people.findByAgeGreaterThan(29, PageRequest.of(1, 7, Sort.by("age")));
            equal(List.of(page.getTotalElements(), page.getTotalPages(), page.getContent().get(0).age), List.of(30L, 5, 37));
            equal(people.existsByMailIgnoreCase("P7@X.ORG"), true);
            try (var stream = people.findByAgeBetween(20, 31)) {
                equal(stream.count(), 10L);
            }
            equal(people.asked("Jena", 50).size(), 3);
            equal(people.oldest(), List.of(57, 58, 59));
            equal(people.findByHomeNear(new Point(2, 50), new Distance(10, Metrics.KILOMETERS)).getContent().size(), 2);
            equal(people.findAll(Example.of(probe("Bonn", 21))).size(), 1);
            equal(people.older("Bonn", 1), 13L);
            equal(people.findById(all.get(0).id).get().mail, "p0@x.org");
            equal(people.deleteByTown("Bonn"), 13L);
        });
        part("a unique index is a DuplicateKeyException", () -> fails(DuplicateKeyException.class, () -> people.save(Model.Person.of("p0@x.org", "Ulm", 1))));
        part("text search with scores", () -> equal(template.find(TextQuery.queryText(TextCriteria.forDefaultLanguage().matching("jena")).sortByScore(), Model.Person.class).size(), 13));
        part("references to other documents", () -> {
            template.save(new Model.Town("Ulm", 7));
            var person = people.findByTownOrderByAgeDesc("Ulm").get(0);
            person.ref = person.other = template.findById("Ulm", Model.Town.class);
            people.save(person);
            var read = people.findById(person.id).get();
            equal(List.of(read.ref.size, read.other.size), List.of(7, 7));
        });
    }

    private static Model.Person probe(String town, int age) {
        var person = new Model.Person();
        person.town = town;
        person.age = age;
        return person;
    }

    private void locking() {
        part("optimistic locking by version", () -> {
            var one = people.findByTownOrderByAgeDesc("Jena").get(0);
            var same = people.findById(one.id).get();
            var old = people.findById(one.id).get();
            long before = one.version;
            one.age += 1;
            equal(people.save(one).version, before + 1);
            same.age += 2;
            fails(OptimisticLockingFailureException.class, () -> people.save(same));
            fails(OptimisticLockingFailureException.class, () -> people.delete(old));
            equal(people.findById(one.id).get().age, one.age);
        });
    }

    private void templates() {
        part("bulk writes, findAndModify, upsert and joins", () -> {
            var bulk = template.bulkOps(BulkMode.UNORDERED, "stock");
            for (int at = 0; at < 100; at++) bulk.insert(new Document("_id", at).append("n", at % 5));
            bulk.updateMulti(Query.query(Criteria.where("n").is(4)), Update.update("four", true)).remove(Query.query(Criteria.where("n").is(3)));
            var done = bulk.execute();
            equal(List.of(done.getInsertedCount(), done.getModifiedCount(), done.getDeletedCount()), List.of(100, 20, 20));
            var changed = template.findAndModify(Query.query(Criteria.where("_id").is(1)), new Update().inc("n", 10), FindAndModifyOptions.options().returnNew(true), Document.class, "stock");
            equal(changed.getInteger("n"), 11);
            equal(template.upsert(Query.query(Criteria.where("_id").is(500)), Update.update("n", 1), "stock").getUpsertedId().asInt32().getValue(), 500);
            var joined = template.aggregate(Aggregation.newAggregation(Aggregation.lookup("towns", "town", "_id", "places"), Aggregation.unwind("places"),
                Aggregation.group("places._id").count().as("n").avg("places.size").as("size")), "people", Document.class).getMappedResults();
            equal(joined.size(), 1);
            equal(joined.get(0).getInteger("n"), 14);
        });
        part("a collection with a schema and images is made", () -> {
            template.createCollection("kept", CollectionOptions.empty().changeStream(org.springframework.data.mongodb.core.CollectionOptions.CollectionChangeStreamOptions.preAndPostImages(true))
                .validator(org.springframework.data.mongodb.core.validation.Validator.schema(org.springframework.data.mongodb.core.schema.MongoJsonSchema.builder().required("n").build())));
            fails(org.springframework.dao.DataIntegrityViolationException.class, () -> template.insert(new Document("_id", 1), "kept"));
            template.insert(new Document("_id", 1).append("n", 1), "kept");
        });
        part("files by GridFS", () -> {
            var files = context.getBean(GridFsTemplate.class);
            byte[] bytes = new byte[700_000];
            Arrays.fill(bytes, (byte) 7);
            var id = files.store(new ByteArrayInputStream(bytes), "seven.bin", "application/octet-stream", new Document("a", 1));
            var found = files.findOne(Query.query(Criteria.where("_id").is(id)));
            equal(found.getLength(), 700_000L);
            equal(Arrays.equals(files.getResource(found).getInputStream().readAllBytes(), bytes), true);
        });
    }

    private void transactions() {
        template.insert(new Model.Account("a", new BigDecimal("100.50"), List.of()));
        template.insert(new Model.Account("b", BigDecimal.ZERO, List.of()));
        part("@Transactional commits", () -> {
            equal(bank.move("a", "b", "20.25"), new BigDecimal("20.25"));
            equal(bank.sum("a"), new BigDecimal("80.25"));
        });
        part("@Transactional rolls back after an exception", () -> {
            fails(IllegalStateException.class, () -> bank.fail("a", "b", "5"));
            equal(bank.sum("a"), new BigDecimal("80.25"));
            equal(template.findById("made", Model.Account.class), null);
        });
        part("a unique index inside rolls it back", () -> {
            fails(DuplicateKeyException.class, () -> bank.twice(people, "p0@x.org"));
            equal(bank.sum("a"), new BigDecimal("80.25"));
        });
        part("a collection and an index are made inside", () -> {
            bank.makes("inside");
            equal(template.indexOps("inside").getIndexInfo().size(), 2);
            equal(template.count(new Query(), "inside"), 1L);
        });
        part("a conflict of writes is told as transient", () -> {
            var error = fails(Exception.class, () -> bank.conflicts(() -> {
                var thread = new Thread(() -> template.updateFirst(Query.query(Criteria.where("_id").is("a")), Update.update("by", "other"), "accounts"));
                thread.start();
                try {
                    thread.join();
                } catch (InterruptedException e) {
                    throw new AssertionError(e);
                }
            }));
            var cause = (com.mongodb.MongoException) error.getCause();
            equal(List.of(cause.getCode(), cause.hasErrorLabel("TransientTransactionError")), List.of(112, true));
            equal(bank.sum("a"), new BigDecimal("80.25"));
        });
    }

    private void streams() {
        part("a MessageListenerContainer hears changes, and goes on at a token", () -> {
            var container = new DefaultMessageListenerContainer(template);
            container.start();
            var heard = new LinkedBlockingQueue<String>();
            var tokens = new LinkedBlockingQueue<BsonDocument>();
            ChangeStreamRequest<Model.Account> request = ChangeStreamRequest.<Model.Account>builder(message -> {
                var raw = message.getRaw();
                tokens.add(raw.getResumeToken());
                heard.add(raw.getOperationType().getValue() + " " + (message.getBody() == null ? "" : message.getBody().id + " " + message.getBody().sum));
            }).collection("accounts").filter(Aggregation.newAggregation(Aggregation.match(Criteria.where("operationType").in("insert", "update", "delete"))))
                .fullDocumentLookup(FullDocument.UPDATE_LOOKUP).build();
            var subscription = container.register(request, Model.Account.class);
            equal(subscription.await(Duration.ofSeconds(20)), true);
            template.insert(new Model.Account("c", BigDecimal.ONE, List.of()));
            bank.move("a", "c", "3");
            template.remove(Query.query(Criteria.where("_id").is("c")), "accounts");
            var found = new ArrayList<String>();
            for (int at = 0; at < 4; at++) found.add(next(heard));
            equal(found.get(0) + ", " + found.get(1).split(" ")[1] + ", " + found.get(3), "insert c 1, a, delete ");
            container.remove(subscription);
            var again = new LinkedBlockingQueue<OperationType>();
            var resumed = container.register(ChangeStreamRequest.<Document>builder(message -> again.add(message.getRaw().getOperationType())).collection("accounts")
                .resumeAfter(tokens.peek()).build(), Document.class);
            for (var want : List.of(OperationType.UPDATE, OperationType.UPDATE, OperationType.DELETE)) equal(next(again), want);
            container.remove(resumed);
            container.stop();
        });
        part("a listener gets images from before", () -> {
            var container = new DefaultMessageListenerContainer(template);
            container.start();
            var heard = new LinkedBlockingQueue<Document>();
            var subscription = container.register(ChangeStreamRequest.<Document>builder(message -> heard.add(message.getBodyBeforeChange())).collection("kept")
                .fullDocumentBeforeChangeLookup(FullDocumentBeforeChange.REQUIRED).build(), Document.class);
            equal(subscription.await(Duration.ofSeconds(20)), true);
            template.updateFirst(Query.query(Criteria.where("_id").is(1)), new Update().inc("n", 1), "kept");
            equal(next(heard).getInteger("n"), 1);
            container.stop();
        });
        part("a listener tails a capped collection", () -> {
            template.createCollection("capped", CollectionOptions.empty().capped().size(1 << 20));
            template.insert(new Document("_id", 0), "capped");
            var container = new DefaultMessageListenerContainer(template);
            container.start();
            var heard = new LinkedBlockingQueue<Document>();
            container.register(TailableCursorRequest.<Document>builder(message -> heard.add(message.getBody())).collection("capped").build(), Document.class).await(Duration.ofSeconds(20));
            for (int at = 1; at < 5; at++) template.insert(new Document("_id", at), "capped");
            for (int at = 0; at < 5; at++) equal(next(heard).getInteger("_id"), at);
            container.stop();
        });
    }

    private void reactive() {
        var reactive = context.getBean(ReactiveMongoTemplate.class);
        part("reactive: a change stream, a commit and a rollback", () -> {
            var heard = new LinkedBlockingQueue<Object>();
            var stream = reactive.changeStream("spring", "reactive", ChangeStreamOptions.builder().build(), Document.class)
                .subscribe(event -> heard.add(event.getRaw().getDocumentKey().getInt32("_id").getValue()), error -> heard.add(error));
            // Until the stream is open nothing is heard: probes are written till one is.
            int probe = 1000;
            while (heard.isEmpty()) {
                reactive.insert(new Document("_id", probe++), "reactive").block();
                Thread.sleep(100);
            }
            var manager = new ReactiveMongoTransactionManager(context.getBean(SimpleReactiveMongoDatabaseFactory.class));
            var operator = TransactionalOperator.create(manager);
            var failing = reactive.insert(new Document("_id", 1), "reactive").then(reactive.insert(new Document("_id", 1), "reactive")).as(operator::transactional);
            fails(DuplicateKeyException.class, failing::block);
            reactive.insert(new Document("_id", 2), "reactive").then(reactive.insert(new Document("_id", 3), "reactive")).as(operator::transactional).block();
            operator.execute(status -> reactive.insert(new Document("_id", 4), "reactive")).blockLast();
            var found = new ArrayList<Object>();
            while (found.size() < 3) {
                Object key = next(heard);
                if (!(key instanceof Integer number && number >= 1000)) found.add(key);
            }
            equal(found, List.of(2, 3, 4));
            stream.dispose();
        });
    }
}
