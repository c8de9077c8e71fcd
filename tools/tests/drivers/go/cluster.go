package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// topology is the driver's latest view of the servers.
type topology struct {
	sync.Mutex
	latest event.TopologyDescription
}

func (seen *topology) monitor() *event.ServerMonitor {
	changed := func(change *event.TopologyDescriptionChangedEvent) {
		seen.Lock()
		defer seen.Unlock()
		seen.latest = change.NewDescription
	}
	return &event.ServerMonitor{TopologyDescriptionChanged: changed}
}

func (seen *topology) String() string {
	seen.Lock()
	defer seen.Unlock()
	kinds := []string{seen.latest.Kind}
	for _, server := range seen.latest.Servers {
		kinds = append(kinds, server.Kind)
	}
	return strings.Join(kinds, " ")
}

func field(name string, value any) bson.D {
	return bson.D{{Key: name, Value: value}}
}

// onCluster is sharded collections behind routers. The shards s0 and s1 are in the zones `low` and
// `high`.
func onCluster(ctx context.Context, uri string) {
	var seen topology
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerMonitor(seen.monitor()))
	must(err)
	admin, db := client.Database("admin"), client.Database("go_cluster")
	must(db.Drop(ctx))
	run := func(command ...bson.E) { must(admin.RunCommand(ctx, bson.D(command)).Err()) }
	run(bson.E{Key: "enableSharding", Value: "go_cluster"}, bson.E{Key: "primaryShard", Value: "s0"})
	zone := func(min, max any, zone string) {
		run(bson.E{Key: "updateZoneKeyRange", Value: "go_cluster.orders"},
			bson.E{Key: "min", Value: field("k", min)}, bson.E{Key: "max", Value: field("k", max)},
			bson.E{Key: "zone", Value: zone})
	}
	zone(bson.MinKey{}, 100, "low")
	zone(100, bson.MaxKey{}, "high")
	shard := func(name string, key bson.D) {
		run(bson.E{Key: "shardCollection", Value: "go_cluster." + name}, bson.E{Key: "key", Value: key})
	}
	shard("orders", field("k", 1))
	shard("users", field("_id", "hashed"))
	shard("totals", field("_id", "hashed"))
	orders, users := db.Collection("orders"), db.Collection("users")

	documents(ctx, orders, users)
	joins(ctx, orders, db.Collection("totals"))
	batches(ctx, client, orders)
	transactions(ctx, client, orders, users)
	again(ctx, uri, orders)

	equal(seen.String(), "Sharded"+strings.Repeat(" Mongos", strings.Count(uri, ",")+1))
	must(orders.Drop(ctx))
	names, err := db.ListCollectionNames(ctx, bson.D{})
	must(err)
	sort.Strings(names)
	equal(names, []string{"totals", "users"})
	must(db.Drop(ctx))
	must(client.Disconnect(ctx))
}

// placed is how many documents each shard has.
func placed(ctx context.Context, collection *mongo.Collection) map[string]int {
	counting := field("$collStats", field("count", bson.D{}))
	cursor, err := collection.Aggregate(ctx, mongo.Pipeline{counting})
	must(err)
	var parts []struct {
		Shard string
		Count int
	}
	must(cursor.All(ctx, &parts))
	counts := map[string]int{}
	for _, part := range parts {
		counts[part.Shard] = part.Count
	}
	return counts
}

// documents are written to both shards, and read from one and from both.
func documents(ctx context.Context, orders, users *mongo.Collection) {
	docs := make([]any, 200)
	for k := range docs {
		docs[k] = bson.D{
			{Key: "_id", Value: fmt.Sprint("o", k)}, {Key: "k", Value: k},
			{Key: "user", Value: k % 10}, {Key: "sum", Value: 1},
		}
	}
	many, err := orders.InsertMany(ctx, docs)
	must(err)
	equal(len(many.InsertedIDs), 200)
	equal(placed(ctx, orders), map[string]int{"s0": 100, "s1": 100})
	docs = docs[:0]
	for n := range 20 {
		docs = append(docs, append(id(n), bson.E{Key: "name", Value: fmt.Sprint("n", n)}))
	}
	_, err = users.InsertMany(ctx, docs)
	must(err)
	counts := placed(ctx, users)
	equal(counts["s0"] > 0 && counts["s1"] > 0 && counts["s0"]+counts["s1"] == 20, true)

	var one struct{ K, Sum int }
	must(orders.FindOne(ctx, field("k", 150)).Decode(&one))
	equal(one.K, 150)
	sorted := options.Find().SetSort(field("k", -1)).SetSkip(5).SetLimit(150).SetBatchSize(7)
	cursor, err := orders.Find(ctx, bson.D{}, sorted)
	must(err)
	want := 194
	for cursor.Next(ctx) {
		must(cursor.Decode(&one))
		equal(one.K, want)
		want--
	}
	must(cursor.Err())
	equal(want, 44)
	count, err := orders.CountDocuments(ctx, field("user", 3))
	must(err)
	equal(count, 20)

	updated, err := orders.UpdateOne(ctx, field("k", 7), field("$set", field("x", 1)))
	must(err)
	equal(updated.ModifiedCount, 1)
	updated, err = orders.UpdateMany(ctx, field("user", 2), field("$inc", field("sum", 1)))
	must(err)
	equal(updated.ModifiedCount, 20)
	updated, err = orders.UpdateOne(ctx, field("user", 4), field("$set", field("first", true)))
	must(err)
	equal(updated.ModifiedCount, 1)
	last := options.FindOneAndUpdate().SetSort(field("k", -1))
	update := field("$set", field("x", 2))
	must(orders.FindOneAndUpdate(ctx, field("user", 5), update, last).Decode(&one))
	equal(one.K, 195)
	_, err = orders.Indexes().CreateOne(ctx, mongo.IndexModel{
		Keys:    bson.D{{Key: "k", Value: 1}, {Key: "u", Value: 1}},
		Options: options.Index().SetUnique(true),
	})
	must(err)
	_, err = orders.InsertOne(ctx, field("k", 150))
	equal(mongo.IsDuplicateKeyError(err), true)
	must(orders.Indexes().DropOne(ctx, "k_1_u_1"))
}

// joins read one sharded collection from another, and merge into a third.
func joins(ctx context.Context, orders, totals *mongo.Collection) {
	cursor, err := orders.Aggregate(ctx, mongo.Pipeline{
		field("$match", field("user", field("$lt", 4))),
		field("$lookup", bson.D{
			{Key: "from", Value: "users"}, {Key: "localField", Value: "user"},
			{Key: "foreignField", Value: "_id"}, {Key: "as", Value: "of"},
		}),
		field("$group", bson.D{
			{Key: "_id", Value: field("$first", "$of.name")}, {Key: "sum", Value: field("$sum", "$sum")},
		}),
		field("$merge", field("into", "totals")),
	})
	must(err)
	equal(cursor.Next(ctx), false)
	must(cursor.Err())
	cursor, err = totals.Find(ctx, bson.D{}, options.Find().SetSort(field("_id", 1)))
	must(err)
	var rows []struct {
		Name string `bson:"_id"`
		Sum  int
	}
	must(cursor.All(ctx, &rows))
	equal(rows, "[{n0 20} {n1 20} {n2 40} {n3 20}]")
}

// batches reach both shards, and several collections.
func batches(ctx context.Context, client *mongo.Client, orders *mongo.Collection) {
	edges := field("k", field("$in", bson.A{-1, 999}))
	low := append(id("low"), bson.E{Key: "k", Value: -1})
	high := append(id("high"), bson.E{Key: "k", Value: 999})
	bulk, err := orders.BulkWrite(ctx, []mongo.WriteModel{
		mongo.NewInsertOneModel().SetDocument(low), mongo.NewInsertOneModel().SetDocument(high),
		mongo.NewUpdateManyModel().SetFilter(edges).SetUpdate(field("$set", field("edge", true))),
		mongo.NewDeleteManyModel().SetFilter(field("edge", true)),
	})
	must(err)
	equal([]int64{bulk.InsertedCount, bulk.ModifiedCount, bulk.DeletedCount}, []int64{2, 2, 2})
	all := mongo.NewClientUpdateManyModel().SetFilter(bson.D{})
	write := func(collection string, model mongo.ClientWriteModel) mongo.ClientBulkWrite {
		return mongo.ClientBulkWrite{Database: "go_cluster", Collection: collection, Model: model}
	}
	several, err := client.BulkWrite(ctx, []mongo.ClientBulkWrite{
		write("orders", mongo.NewClientInsertOneModel().SetDocument(low)),
		write("users", all.SetUpdate(field("$set", field("x", 1)))),
		write("orders", mongo.NewClientInsertOneModel().SetDocument(high)),
		write("orders", mongo.NewClientDeleteManyModel().SetFilter(edges)),
	})
	must(err)
	counts := []int64{several.InsertedCount, several.ModifiedCount, several.DeletedCount}
	equal(counts, []int64{2, 20, 2})
}

// transactions read both shards and write one; the stream on the collection sees them.
func transactions(ctx context.Context, client *mongo.Client, orders, users *mongo.Collection) {
	stream, err := orders.Watch(ctx, mongo.Pipeline{})
	must(err)
	equal(stream.TryNext(ctx), false)
	session, err := client.StartSession()
	must(err)
	defer session.EndSession(ctx)
	_, err = session.WithTransaction(ctx, func(inside context.Context) (any, error) {
		if count, err := orders.CountDocuments(inside, bson.D{}); err != nil || count != 200 {
			return nil, errors.Join(err, fmt.Errorf("%d documents", count))
		}
		if err := users.FindOne(inside, id(1)).Err(); err != nil {
			return nil, err
		}
		_, err := orders.UpdateOne(inside, field("k", 150), field("$inc", field("sum", 4)))
		if err != nil {
			return nil, err
		}
		return orders.InsertOne(inside, append(id("c"), bson.E{Key: "k", Value: 1001}))
	})
	must(err)
	refusal := errors.New("no")
	_, err = session.WithTransaction(ctx, func(inside context.Context) (any, error) {
		_, err := orders.DeleteMany(inside, field("k", field("$gte", 1000)))
		must(err)
		return nil, refusal
	})
	equal(errors.Is(err, refusal), true)
	_, err = orders.UpdateOne(ctx, field("k", 5), field("$inc", field("sum", -4)))
	must(err)

	var middle bson.Raw
	for _, want := range []string{"orders update o150", "orders insert c", "orders update o5"} {
		equal(stream.Next(ctx), true)
		equal(reported(stream), want)
		if middle == nil {
			middle = stream.ResumeToken()
		}
	}
	must(stream.Close(ctx))
	stream, err = orders.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetResumeAfter(middle))
	must(err)
	equal(stream.Next(ctx), true)
	equal(reported(stream), "orders insert c")
	must(stream.Close(ctx))
}

// again has a write sent again whose answer says that it may be; it is done once.
func again(ctx context.Context, uri string, orders *mongo.Collection) {
	first, _, _ := strings.Cut(strings.TrimSuffix(uri, "/"), ",")
	updates := 0
	count := func(_ context.Context, started *event.CommandStartedEvent) {
		if started.CommandName == "update" {
			updates++
		}
	}
	monitor := &event.CommandMonitor{Started: count}
	alone, err := mongo.Connect(options.Client().ApplyURI(first).SetMonitor(monitor))
	must(err)
	must(alone.Database("admin").RunCommand(ctx, bson.D{
		{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: field("times", 1)},
		{Key: "data", Value: bson.D{
			{Key: "failCommands", Value: bson.A{"update"}},
			{Key: "errorLabels", Value: bson.A{"RetryableWriteError"}},
			{Key: "writeConcernError", Value: bson.D{
				{Key: "code", Value: 6}, {Key: "errmsg", Value: "the shard is away"},
			}},
		}},
	}).Err())
	there := alone.Database("go_cluster").Collection("orders")
	_, err = there.UpdateOne(ctx, field("user", 6), field("$inc", field("sum", 100)))
	must(err)
	equal(updates, 2)
	var sums []int
	must(orders.Distinct(ctx, "sum", field("user", 6)).Decode(&sums))
	sort.Ints(sums)
	equal(sums, []int{1, 101})
	must(alone.Disconnect(ctx))
}
