// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"encoding/json"
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

// File is where the dashboard is committed, from the root of the repository.
const File = "metrics/dashboard/node-egress.json"

// JSON is the dashboard as Grafana imports it.
func JSON() ([]byte, error) {
	//lint:ignore SA1019 the model that is to follow is read by Grafana 12 and later alone
	b := dashboard.NewDashboardBuilder("Node egress by exit").
		Uid("egressd-node-egress").
		Description("Outbound traffic of hosts with egressd: what each exit sends, beside its budgets, and what origins said to it.").
		Tags([]string{"egressd"}).
		Editable().
		Tooltip(dashboard.DashboardCursorSyncCrosshair).
		Time("now-1h", "now").
		Refresh("10s").
		Annotation(reloads()).
		WithVariable(dashboard.NewDatasourceVariableBuilder(varSource).Label("Prometheus").Type("prometheus"))
	for _, v := range Variables() {
		b.WithVariable(choice(v))
	}
	b.WithVariable(dashboard.NewTextBoxVariableBuilder(varPrice).
		Label("Price of 10^9 bytes, of exits without one").
		DefaultValue(dashboard.StringOrMap{String: cog.ToPtr("1")}).
		Current(option("1")))
	var id uint32
	next := func() uint32 { id++; return id }
	for _, r := range Rows() {
		row := dashboard.NewRowBuilder(r.Title).Id(next())
		if r.Each == "" {
			b.WithRow(row) // an open row has its panels beside it, a closed one in it
			for _, p := range r.Panels {
				b.WithPanel(panel(p, next()))
			}
			continue
		}
		row.Repeat(r.Each).Collapsed(true)
		for _, p := range r.Panels {
			row.WithPanel(panel(p, next()))
		}
		b.WithRow(row)
	}
	d, err := b.Build()
	if err != nil {
		return nil, fmt.Errorf("build dashboard: %w", err)
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write dashboard: %w", err)
	}
	return append(text, '\n'), nil
}

// source is the Prometheus that is chosen at the top.
func source() common.DataSourceRef {
	return common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${" + varSource + "}")}
}

// option is a choice with one value.
func option(value string) dashboard.VariableOption {
	s := dashboard.StringOrArrayOfString{String: cog.ToPtr(value)}
	return dashboard.VariableOption{Selected: cog.ToPtr(true), Text: s, Value: s}
}

func choice(v Variable) cog.Builder[dashboard.VariableModel] {
	all := option("$__all")
	all.Text = dashboard.StringOrArrayOfString{String: cog.ToPtr("All")}
	return dashboard.NewQueryVariableBuilder(v.Name).
		Label(v.Title).
		Datasource(source()).
		Query(dashboard.StringOrMap{String: cog.ToPtr(fmt.Sprintf("label_values(%s, %s)", v.Family, v.Label))}).
		Refresh(dashboard.VariableRefreshOnTimeRangeChanged).
		Sort(dashboard.VariableSortAlphabeticalAsc).
		Multi(true).
		IncludeAll(true).
		AllValue(".*").
		Current(all)
}

// Reloads is the query of the marks that new policies leave in all panels.
const Reloads = `changes(egressd_config_last_reload_success_timestamp_seconds{` + onHost + `}[$__rate_interval]) > 0`

func reloads() cog.Builder[dashboard.AnnotationQuery] {
	return dashboard.NewAnnotationQueryBuilder().
		Name("New policies").
		Datasource(source()).
		Enable(true).
		IconColor("blue").
		Expr(Reloads).
		TitleFormat("new policy at {{instance}}")
}

// targets are the queries of a panel as Grafana sends them.
func targets(p Panel) []cog.Builder[variants.Dataquery] {
	out := make([]cog.Builder[variants.Dataquery], len(p.Queries))
	for i, q := range p.Queries {
		t := prometheus.NewDataqueryBuilder().
			RefId(string(rune('A' + i))).
			Datasource(source()).
			EditorMode(prometheus.QueryEditorModeCode).
			Expr(q.Expr).
			LegendFormat(q.Legend)
		switch p.Kind {
		case Heatmap:
			t.Range().Format(prometheus.PromQueryFormatHeatmap)
		case Bars:
			t.Instant().Format(prometheus.PromQueryFormatTimeSeries)
		default:
			t.Range().Format(prometheus.PromQueryFormatTimeSeries)
		}
		out[i] = t
	}
	return out
}
