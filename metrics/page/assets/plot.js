// SPDX-License-Identifier: Apache-2.0

// The plot of an exit: a bar for each second, and a line for its budget.
/* global uPlot */

const seconds = 120; // that a plot has
const pitch = 4; // pixels of a second, of which one stays free, so that each is seen by itself
const height = 92;
const edge = 14; // free at the right, for the half of the word "now"
const reach = 6; // times the highest bar, beyond which a budget is not drawn to scale

// colours are those of the theme that is on.
let colours;
export function readColours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  colours = { bar: of("--bar"), line: of("--line"), text: of("--quiet"), grid: of("--grid"), paper: of("--card") };
}

/** highest is the top of the scale for what a plot has to show. */
function highest(counts, budget) {
  let most = 1;
  for (const n of counts) if (n !== null) most = Math.max(most, n);
  if (budget && budget <= most * reach) most = Math.max(most, budget);
  return most * 1.25;
}

// wholes are the marks of the scale: whole requests, at most three.
function wholes(top) {
  let step = 1;
  for (let i = 0; top / step > 3; i++) step *= i % 3 === 1 ? 2.5 : 2;
  step = Math.max(1, Math.round(step));
  const out = [];
  for (let n = 0; n < top; n += step) out.push(n);
  return out;
}

// ago are the marks of time that have room.
const ago = [[120, "2 min ago"], [60, "1 min ago"], [30, "30 s ago"], [0, "now"]];

export class Plot {
  /** hover is told of the second under the pointer: (counts, seconds ago), or of none. */
  constructor(parent, hover) {
    readColours();
    this.parent = parent;
    this.budget = 0;
    this.data = [[], []];
    this.until = 0;
    const axis = { stroke: () => colours.text, font: "11px system-ui, sans-serif", ticks: { show: false } };
    this.plot = new uPlot({
      width: Math.max(parent.clientWidth, 120),
      height,
      padding: [4, edge, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false, setScale: false }, points: { show: false } },
      scales: {
        x: { time: false, range: (u) => [this.until - this.span(u), this.until] },
        y: { range: () => [0, highest(this.data[1], this.budget)] },
      },
      axes: [
        {
          ...axis, size: 20, gap: 2, grid: { show: false },
          splits: (u) => ago.map(([s]) => this.until - s).filter((at) => at >= u.scales.x.min + 9),
          values: (u, at) => at.map((x) => ago.find(([s]) => Math.abs(this.until - s - x) < 0.5)?.[1] ?? ""),
        },
        {
          ...axis, size: 34, gap: 4, grid: { stroke: () => colours.grid, width: 1 },
          splits: (u) => wholes(u.scales.y.max), values: (u, at) => at.map((n) => n.toLocaleString("en")),
        },
      ],
      series: [{}, {
        fill: () => colours.bar, stroke: () => colours.bar, width: 0,
        paths: uPlot.paths.bars({ size: [1, Infinity], gap: 1, align: -1 }), points: { show: false },
      }],
      hooks: {
        draw: [(u) => this.drawBudget(u)],
        setCursor: [(u) => {
          const i = u.cursor.idx;
          const n = i === null || i === undefined || u.cursor.left < 0 ? null : this.data[1][i];
          hover(n ?? null, this.until - (this.data[0][i] ?? 0));
        }],
      },
    }, this.data, parent);
    // What a pointer can read is also in text beside the plot.
    this.plot.root.setAttribute("aria-hidden", "true");
    this.resized = new ResizeObserver(() => {
      const width = Math.max(parent.clientWidth, 120);
      if (width !== this.plot.width) this.plot.setSize({ width, height });
    });
    this.resized.observe(parent);
  }

  /** show replaces all that is shown: the counts of the last seconds, which end at until. */
  show(counts, until, budget) {
    const x = [], y = [];
    for (let i = 0; i < seconds; i++) {
      const at = counts.length - seconds + i;
      x.push(until - seconds + i + 1); // a bar ends where its second does
      y.push(at < 0 ? null : counts[at]);
    }
    this.until = until;
    this.budget = budget ?? 0;
    this.data = [x, y];
    this.plot.setData(this.data);
  }

  // span is how many seconds have room.
  span(u) {
    const width = u.bbox.width / devicePixelRatio;
    return width > 0 ? Math.min(seconds, width / pitch) : seconds;
  }

  redraw() {
    this.plot.redraw();
  }

  // drawBudget draws the line over the bars, or, if it lies far above them all,
  // says so at the top.
  drawBudget(u) {
    if (!this.budget) return;
    const { ctx, bbox } = u;
    const above = this.budget > u.scales.y.max;
    const y = above ? bbox.top + devicePixelRatio : Math.round(u.valToPos(this.budget, "y", true));
    ctx.save();
    ctx.strokeStyle = colours.line;
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.setLineDash(above ? [2 * devicePixelRatio, 5 * devicePixelRatio] : [7 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.restore();
  }

  destroy() {
    this.resized.disconnect();
    this.plot.destroy();
  }
}
