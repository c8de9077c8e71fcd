package pinion;

import java.math.BigDecimal;
import java.time.Instant;
import java.util.List;
import org.springframework.data.annotation.Id;
import org.springframework.data.annotation.Version;
import org.springframework.data.geo.Point;
import org.springframework.data.mongodb.core.geo.GeoJsonPoint;
import org.springframework.data.mongodb.core.index.CompoundIndex;
import org.springframework.data.mongodb.core.index.GeoSpatialIndexType;
import org.springframework.data.mongodb.core.index.GeoSpatialIndexed;
import org.springframework.data.mongodb.core.index.Indexed;
import org.springframework.data.mongodb.core.index.TextIndexed;
import org.springframework.data.mongodb.core.mapping.DBRef;
import org.springframework.data.mongodb.core.mapping.Document;
import org.springframework.data.mongodb.core.mapping.DocumentReference;
import org.springframework.data.mongodb.core.mapping.Field;
import org.springframework.data.mongodb.core.mapping.FieldType;

/** The documents of a small shop. */
final class Model {
    private Model() {}

    @Document("people")
    @CompoundIndex(name = "town_age", def = "{'town': 1, 'age': -1}")
    static class Person {
        @Id String id;
        @Indexed(unique = true) String mail;
        String town;
        int age;
        @TextIndexed String about;
        @GeoSpatialIndexed(type = GeoSpatialIndexType.GEO_2DSPHERE) GeoJsonPoint home;
        @Version Long version;
        @DBRef Town ref;
        @DocumentReference Town other;

        static Person of(String mail, String town, int age) {
            Person person = new Person();
            person.mail = mail;
            person.town = town;
            person.age = age;
            person.about = mail + " lives in " + town;
            person.home = new GeoJsonPoint(new Point(age / 10.0, 50));
            return person;
        }
    }

    @Document("towns")
    static class Town {
        @Id String name;
        int size;

        Town(String name, int size) {
            this.name = name;
            this.size = size;
        }
    }

    @Document("accounts")
    static class Account {
        @Id String id;
        @Field(targetType = FieldType.DECIMAL128) BigDecimal sum;
        List<String> log;

        Account(String id, BigDecimal sum, List<String> log) {
            this.id = id;
            this.sum = sum;
            this.log = log;
        }
    }

    @Document("visits")
    static class Visit {
        @Id String id;
        @Indexed(name = "gone", expireAfter = "1h") Instant at;
    }
}
