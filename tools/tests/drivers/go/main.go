// Command driver is the life of a small application with the Go driver, all options left at their defaults.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func equal(got, want any) {
	if fmt.Sprint(got) != fmt.Sprint(want) {
		panic(fmt.Sprintf("got %v, want %v", got, want))
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if len(os.Args) > 2 && os.Args[2] == "cluster" {
		onCluster(ctx, os.Args[1])
		fmt.Println("ok")
		return
	}
	client, err := mongo.Connect(options.Client().ApplyURI(os.Args[1]))
	must(err)
	if len(os.Args) > 2 && os.Args[2] == "set" {
		onSet(ctx, client)
		must(client.Disconnect(ctx))
		fmt.Println("ok")
		return
	}
	db := client.Database("go_driver")
	must(db.Drop(ctx))
	c := db.Collection("c")

	one, err := c.InsertOne(ctx, bson.D{{Key: "a", Value: int64(1) << 60}, {Key: "d", Value: bson.D{{Key: "list", Value: bson.A{1, "x", nil}}}}})
	must(err)
	var back bson.M
	must(c.FindOne(ctx, bson.D{{Key: "_id", Value: one.InsertedID}}).Decode(&back))
	equal(back["a"], int64(1)<<60)

	docs := make([]any, 500)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}, {Key: "n", Value: i % 10}}
	}
	many, err := c.InsertMany(ctx, docs)
	must(err)
	equal(len(many.InsertedIDs), 500)
	cursor, err := c.Find(ctx, bson.D{{Key: "n", Value: bson.D{{Key: "$lt", Value: 10}}}}, options.Find().SetBatchSize(7))
	must(err)
	count := 0
	for cursor.Next(ctx) {
		count++
	}
	must(cursor.Err())
	equal(count, 500)

	updated, err := c.UpdateMany(ctx, bson.D{{Key: "n", Value: 2}}, bson.D{{Key: "$set", Value: bson.D{{Key: "x.y", Value: 1}}}})
	must(err)
	equal(updated.ModifiedCount, 50)
	upserted, err := c.UpdateOne(ctx, bson.D{{Key: "_id", Value: "new"}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "k", Value: 1}}}}, options.UpdateOne().SetUpsert(true))
	must(err)
	equal(upserted.UpsertedID, "new")
	must(c.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "x", Value: 5}}}}, options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&back))
	equal(back["x"], 5)
	deleted, err := c.DeleteMany(ctx, bson.D{{Key: "n", Value: 9}})
	must(err)
	equal(deleted.DeletedCount, 50)
	number, err := c.CountDocuments(ctx, bson.D{{Key: "n", Value: bson.D{{Key: "$exists", Value: true}}}})
	must(err)
	equal(number, 450)

	name, err := c.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "u", Value: 1}}, Options: options.Index().SetUnique(true).SetSparse(true)})
	must(err)
	equal(name, "u_1")
	_, err = c.InsertOne(ctx, bson.D{{Key: "u", Value: 1}})
	must(err)
	_, err = c.InsertOne(ctx, bson.D{{Key: "u", Value: 1}})
	equal(mongo.IsDuplicateKeyError(err), true)

	groups, err := c.Aggregate(ctx, mongo.Pipeline{
		{{Key: "$match", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$lt", Value: 3}}}}}},
		{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$n"}, {Key: "sum", Value: bson.D{{Key: "$sum", Value: "$_id"}}}}}},
		{{Key: "$sort", Value: bson.D{{Key: "_id", Value: 1}}}},
	})
	must(err)
	var rows []bson.M
	must(groups.All(ctx, &rows))
	equal(len(rows), 3)
	bulk, err := c.BulkWrite(ctx, []mongo.WriteModel{
		mongo.NewInsertOneModel().SetDocument(bson.D{{Key: "_id", Value: "b"}}),
		mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: "b"}}).SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: 1}}}}),
		mongo.NewDeleteOneModel().SetFilter(bson.D{{Key: "_id", Value: "b"}}),
	})
	must(err)
	equal([]int64{bulk.InsertedCount, bulk.ModifiedCount, bulk.DeletedCount}, []int64{1, 1, 1})
	names, err := db.ListCollectionNames(ctx, bson.D{})
	must(err)
	equal(names, []string{"c"})
	must(db.Drop(ctx))
	must(client.Disconnect(ctx))
	fmt.Println("ok")
}
