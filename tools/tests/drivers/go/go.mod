module pinion.invalid/driver

go 1.24

require go.mongodb.org/mongo-driver/v2 v2.3.0
