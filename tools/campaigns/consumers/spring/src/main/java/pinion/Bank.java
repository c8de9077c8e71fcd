package pinion;

import java.math.BigDecimal;
import org.springframework.data.mongodb.core.MongoTemplate;
import org.springframework.data.mongodb.core.query.Criteria;
import org.springframework.data.mongodb.core.query.Query;
import org.springframework.data.mongodb.core.query.Update;
import org.springframework.transaction.annotation.Transactional;

/** A service whose methods are transactions by their annotation. */
class Bank {
    private final MongoTemplate template;

    Bank(MongoTemplate template) {
        this.template = template;
    }

    private void add(String id, String sum) {
        template.updateFirst(Query.query(Criteria.where("id").is(id)), new Update().inc("sum", new BigDecimal(sum)).push("log", sum), Model.Account.class);
    }

    BigDecimal sum(String id) {
        return template.findById(id, Model.Account.class).sum;
    }

    @Transactional
    public BigDecimal move(String from, String to, String sum) {
        add(from, "-" + sum);
        add(to, sum);
        return sum(to);
    }

    @Transactional
    public void fail(String from, String to, String sum) {
        move(from, to, sum);
        template.insert(new Model.Account("made", BigDecimal.ONE, java.util.List.of()));
        throw new IllegalStateException("no");
    }

    /** A person whose mail another one has. */
    @Transactional
    public void twice(People people, String mail) {
        add("a", "1");
        people.save(Model.Person.of(mail, "Nowhere", 1));
    }

    /** Makes a collection and an index inside. */
    @Transactional
    public void makes(String name) {
        template.createCollection(name);
        template.getCollection(name).createIndex(new org.bson.Document("x", 1));
        template.insert(new org.bson.Document("_id", 1), name);
    }

    /** Another client writes what this one has read and then writes. */
    @Transactional
    public void conflicts(Runnable other) {
        sum("a");
        other.run();
        add("a", "1");
    }
}
