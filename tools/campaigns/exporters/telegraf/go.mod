module pinion/exporters/telegraf

go 1.26

require github.com/influxdata/telegraf v1.36.4
