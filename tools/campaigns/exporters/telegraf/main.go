// Gathers a server's metrics with Telegraf's mongodb input, unchanged. One JSON object a line for each metric: its measurement, tags and fields.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/plugins/inputs/mongodb"
)

const pause = 3 * time.Second

type line struct {
	Round  int                    `json:"round"`
	Name   string                 `json:"name,omitempty"`
	Tags   map[string]string      `json:"tags,omitempty"`
	Fields map[string]interface{} `json:"fields,omitempty"`
	Error  string                 `json:"error,omitempty"`
}

// printer is an accumulator that prints what is added to it.
type printer struct {
	round int
	out   *json.Encoder
}

func (p *printer) print(l line) {
	l.Round = p.round
	if err := p.out.Encode(l); err != nil {
		panic(err)
	}
}

func (p *printer) AddFields(name string, fields map[string]interface{}, tags map[string]string, _ ...time.Time) {
	p.print(line{Name: name, Fields: fields, Tags: tags})
}

func (p *printer) AddGauge(name string, fields map[string]interface{}, tags map[string]string, t ...time.Time) {
	p.AddFields(name, fields, tags, t...)
}

func (p *printer) AddCounter(name string, fields map[string]interface{}, tags map[string]string, t ...time.Time) {
	p.AddFields(name, fields, tags, t...)
}

func (p *printer) AddSummary(name string, fields map[string]interface{}, tags map[string]string, t ...time.Time) {
	p.AddFields(name, fields, tags, t...)
}

func (p *printer) AddHistogram(name string, fields map[string]interface{}, tags map[string]string, t ...time.Time) {
	p.AddFields(name, fields, tags, t...)
}

func (p *printer) AddMetric(m telegraf.Metric)                   { p.AddFields(m.Name(), m.Fields(), m.Tags()) }
func (p *printer) SetPrecision(time.Duration)                    {}
func (p *printer) AddError(err error)                            { p.addError(err) }
func (p *printer) WithTracking(int) telegraf.TrackingAccumulator { panic("this input tracks nothing") }

func (p *printer) addError(err error) {
	if err != nil {
		p.print(line{Error: err.Error()})
	}
}

// log prints warnings and errors as lines of their own.
type log struct {
	telegraf.Logger
	to *printer
}

func (l log) Errorf(format string, args ...interface{}) {
	l.to.print(line{Error: fmt.Sprintf(format, args...)})
}
func (l log) Error(args ...interface{}) { l.to.print(line{Error: fmt.Sprint(args...)}) }
func (l log) Warnf(format string, args ...interface{}) {
	l.to.print(line{Error: fmt.Sprintf(format, args...)})
}
func (l log) Warn(args ...interface{})    { l.to.print(line{Error: fmt.Sprint(args...)}) }
func (log) Debugf(string, ...interface{}) {}
func (log) Debug(...interface{})          {}
func (log) Infof(string, ...interface{})  {}
func (log) Info(...interface{})           {}

func main() {
	to := &printer{out: json.NewEncoder(os.Stdout)}
	plugin := &mongodb.MongoDB{
		Servers: os.Args[1:], Log: log{to: to}, DisconnectedServersBehavior: "error",
		GatherClusterStatus: true, GatherPerDBStats: true, GatherColStats: true, GatherTopStat: true, ColStatsDBs: []string{"test", "local"},
	}
	to.addError(plugin.Init())
	to.addError(plugin.Start(to))
	// What the first gathers is where the rates of the next begin.
	for to.round = 0; to.round < 3; to.round++ {
		to.addError(plugin.Gather(to))
		time.Sleep(pause)
	}
	plugin.Stop()
}
