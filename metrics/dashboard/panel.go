// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"github.com/grafana/grafana-foundation-sdk/go/bargauge"
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// height is that of every panel, in rows of the grid.
const height = 8

// panel draws p.
func panel(p Panel, id uint32) cog.Builder[dashboard.Panel] {
	switch p.Kind {
	case Heatmap:
		return heatmap.NewPanelBuilder().
			Id(id).Title(p.Title).Description(p.About).Height(height).Span(p.Width).
			Datasource(source()).Targets(targets(p)).
			Color(heatmap.NewHeatmapColorOptionsBuilder().
				Mode(heatmap.HeatmapColorModeScheme).Scheme("Oranges").Fill("dark-orange").
				Scale(heatmap.HeatmapColorScaleExponential).Exponent(0.5).Steps(64)).
			YAxis(heatmap.NewYAxisConfigBuilder().Unit(p.Unit).AxisPlacement(common.AxisPlacementLeft)).
			RowsFrame(heatmap.NewRowsHeatmapOptionsBuilder().Layout(common.HeatmapCellLayoutAuto)).
			CellGap(1).
			FilterValues(heatmap.NewFilterValueRangeBuilder().Le(1e-9)).
			Tooltip(heatmap.NewHeatmapTooltipBuilder().Mode(common.TooltipDisplayModeSingle).YHistogram(true)).
			ShowLegend()
	case Bands:
		return statetimeline.NewPanelBuilder().
			Id(id).Title(p.Title).Description(p.About).Height(height).Span(p.Width).
			Datasource(source()).Targets(targets(p)).
			ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdThresholds)).
			Mappings([]dashboard.ValueMapping{{ValueMap: &dashboard.ValueMap{
				Type: dashboard.MappingTypeValueToText,
				Options: map[string]dashboard.ValueMappingResult{
					"0": {Text: cog.ToPtr("open"), Color: cog.ToPtr("green")},
					"1": {Text: cog.ToPtr("closed"), Color: cog.ToPtr("red")},
				},
			}}}).
			ShowValue(common.VisibilityModeNever).
			MergeValues(true).
			RowHeight(0.8).
			FillOpacity(80).
			LineWidth(0).
			Legend(legend()).
			Tooltip(tooltip())
	case Bars:
		return bargauge.NewPanelBuilder().
			Id(id).Title(p.Title).Description(p.About).Height(height).Span(p.Width).
			Datasource(source()).Targets(targets(p)).
			Unit(p.Unit).Min(0).
			ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdPaletteClassicByName)).
			DisplayMode(common.BarGaugeDisplayModeBasic).
			Orientation(common.VizOrientationHorizontal).
			ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"}))
	}
	return lines(p, id)
}

// lines draws p over time, its series as lines or as a stack.
func lines(p Panel, id uint32) cog.Builder[dashboard.Panel] {
	b := timeseries.NewPanelBuilder().
		Id(id).Title(p.Title).Description(p.About).Height(height).Span(p.Width).
		Datasource(source()).Targets(targets(p)).
		Unit(p.Unit).Min(0).
		ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdPaletteClassicByName)).
		DrawStyle(common.GraphDrawStyleLine).
		LineInterpolation(common.LineInterpolationLinear).
		LineWidth(1).
		ShowPoints(common.VisibilityModeNever).
		Legend(legend()).
		Tooltip(tooltip())
	if p.Kind == Stacked {
		b.FillOpacity(30).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal).Group("A"))
	}
	if p.Mark > 0 {
		b.Max(1).
			Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps([]dashboard.Threshold{
				{Color: "green"}, {Value: cog.ToPtr(p.Mark), Color: "red"},
			})).
			ThresholdsStyle(common.NewGraphThresholdsStyleConfigBuilder().Mode(common.GraphThresholdsStyleModeDashed))
	}
	for i, q := range p.Queries {
		if !q.Faint {
			continue
		}
		// The first of them has the longest dashes.
		b.OverrideByQuery(string(rune('A'+i)), []dashboard.DynamicConfigValue{
			{Id: "custom.lineStyle", Value: map[string]any{"fill": "dash", "dash": dashes(i)}},
			{Id: "custom.fillOpacity", Value: 0},
			{Id: "custom.stacking", Value: map[string]any{"mode": "none"}},
		})
	}
	return b
}

// dashes are lengths of strokes and gaps.
func dashes(query int) []int {
	if query <= 1 {
		return []int{12, 6}
	}
	return []int{3, 5}
}

func legend() *common.VizLegendOptionsBuilder {
	return common.NewVizLegendOptionsBuilder().
		DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).ShowLegend(true).Calcs([]string{})
}

func tooltip() *common.VizTooltipOptionsBuilder {
	return common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)
}
