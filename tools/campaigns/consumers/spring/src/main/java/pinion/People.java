package pinion;

import java.util.List;
import java.util.stream.Stream;
import org.springframework.data.domain.Page;
import org.springframework.data.domain.Pageable;
import org.springframework.data.geo.Distance;
import org.springframework.data.geo.GeoResults;
import org.springframework.data.geo.Point;
import org.springframework.data.mongodb.repository.Aggregation;
import org.springframework.data.mongodb.repository.MongoRepository;
import org.springframework.data.mongodb.repository.Query;
import org.springframework.data.mongodb.repository.Update;

/** The repository: its methods are made of their names and annotations. */
interface People extends MongoRepository<Model.Person, String> {
    List<Model.Person> findByTownOrderByAgeDesc(String town);

    Page<Model.Person> findByAgeGreaterThan(int age, Pageable page);

    boolean existsByMailIgnoreCase(String mail);

    long deleteByTown(String town);

    Stream<Model.Person> findByAgeBetween(int from, int to);

    GeoResults<Model.Person> findByHomeNear(Point point, Distance distance);

    @Query("{ 'town': ?0, 'age': { $gte: ?1 } }")
    List<Model.Person> asked(String town, int age);

    @Query("{ 'town': ?0 }")
    @Update("{ '$inc': { 'age': ?1 } }")
    long older(String town, int years);

    @Aggregation({"{ $group: { _id: '$town', age: { $max: '$age' } } }", "{ $sort: { _id: 1 } }", "{ $project: { _id: 0, age: 1 } }"})
    List<Integer> oldest();
}
