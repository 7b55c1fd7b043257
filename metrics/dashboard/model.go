// SPDX-License-Identifier: Apache-2.0

package dashboard

// Kind is how a panel draws.
type Kind int

// Kinds.
const (
	Lines   Kind = iota // one line for each series
	Stacked             // areas on top of each other
	Heatmap             // buckets over time
	Bands               // 0 and 1 over time: open and closed
	Bars                // one bar for each series, of the time shown as a whole
)

// Row is a headline and the panels below it.
type Row struct {
	Title  string
	Panels []Panel
	// Each, unless empty, is the variable for each of whose values the row is
	// repeated. Such rows are closed at first: a closed row asks for nothing.
	Each string
}

// Panel is one picture.
type Panel struct {
	Title   string
	About   string // what one sees, and what to think of it
	Kind    Kind
	Unit    string // as Grafana names it
	Width   uint32 // of 24
	Mark    float64
	Queries []Query
}

// Query is what a panel asks Prometheus. Its expression may have the
// variables of Grafana and those of Variables.
type Query struct {
	Expr   string
	Legend string
	// Store says with which histograms the query has an answer: a server
	// that scrapes native histograms does not keep the classic buckets of those
	// that have both.
	Store Store
	// Faint draws the series in dashes: it is there to compare with.
	Faint bool
}

// Store is how a server keeps the histograms that have classic and native
// buckets.
type Store int

// Stores.
const (
	AnyStore    Store = iota
	ClassicOnly       // the server keeps classic buckets
	NativeOnly        // the server keeps native ones
)

// Variable is a choice at the top of the dashboard: the values that a label of
// a family has.
type Variable struct{ Name, Title, Family, Label string }

// Names of variables.
const (
	varSource      = "datasource"
	varInstance    = "instance"
	varExit        = "exit"
	varDestination = "destination"
	varPrice       = "price"
)

// Variables are the choices whose values are labels.
func Variables() []Variable {
	return []Variable{
		{varInstance, "Host", "egressd_build_info", "instance"},
		{varExit, "Exit", "egressd_requests_total", "exit"},
		{varDestination, "Destination", "egressd_requests_total", "destination"},
	}
}
