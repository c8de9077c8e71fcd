package main

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

func id(value any) bson.D {
	return bson.D{{Key: "_id", Value: value}}
}

func add(sum int) bson.D {
	return bson.D{{Key: "$inc", Value: bson.D{{Key: "sum", Value: sum}}}}
}

// onSet is transactions and change streams of a replica set.
func onSet(ctx context.Context, client *mongo.Client) {
	db := client.Database("go_set")
	must(db.Drop(ctx))
	must(db.CreateCollection(ctx, "accounts"))
	must(db.CreateCollection(ctx, "notes"))
	accounts, notes := db.Collection("accounts"), db.Collection("notes")
	stream, err := db.Watch(ctx, mongo.Pipeline{})
	must(err)
	equal(stream.TryNext(ctx), false)
	_, err = accounts.InsertMany(ctx, []any{append(id("a"), bson.E{Key: "sum", Value: 10}), append(id("b"), bson.E{Key: "sum", Value: 0})})
	must(err)

	session, err := client.StartSession()
	must(err)
	defer session.EndSession(ctx)
	_, err = session.WithTransaction(ctx, func(inside context.Context) (any, error) {
		if _, err := accounts.UpdateOne(inside, id("a"), add(-4)); err != nil {
			return nil, err
		}
		if _, err := accounts.UpdateOne(inside, id("b"), add(4)); err != nil {
			return nil, err
		}
		return notes.InsertOne(inside, id(1))
	})
	must(err)
	refusal := errors.New("no")
	_, err = session.WithTransaction(ctx, func(inside context.Context) (any, error) {
		_, err := accounts.UpdateOne(inside, id("a"), add(-100))
		must(err)
		return nil, refusal
	})
	equal(errors.Is(err, refusal), true)
	var found struct{ Sum int }
	must(accounts.FindOne(ctx, id("a")).Decode(&found))
	equal(found.Sum, 6)

	var middle bson.Raw
	for _, want := range []string{"accounts insert a", "accounts insert b", "accounts update a", "accounts update b", "notes insert 1"} {
		equal(stream.Next(ctx), true)
		equal(reported(stream), want)
		if want == "accounts update a" {
			middle = stream.ResumeToken()
		}
	}
	must(stream.Close(ctx))
	stream, err = db.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetResumeAfter(middle))
	must(err)
	equal(stream.Next(ctx), true)
	equal(reported(stream), "accounts update b")
	must(stream.Close(ctx))

	causal := mongo.NewSessionContext(ctx, session)
	_, err = notes.InsertOne(causal, id(2))
	must(err)
	secondary := db.Collection("notes", options.Collection().SetReadPreference(readpref.Secondary()))
	must(secondary.FindOne(causal, id(2)).Err())
	must(db.Drop(ctx))
}

func reported(stream *mongo.ChangeStream) string {
	var event struct {
		OperationType string `bson:"operationType"`
		Ns            struct{ Coll string }
		DocumentKey   bson.M `bson:"documentKey"`
	}
	must(stream.Decode(&event))
	return fmt.Sprint(event.Ns.Coll, " ", event.OperationType, " ", event.DocumentKey["_id"])
}
