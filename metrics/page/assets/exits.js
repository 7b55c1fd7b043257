// SPDX-License-Identifier: Apache-2.0

// The exits: a card for each.
import { Keyed, attr, byId, make, text } from "./dom.js";
import { budget, count, number, span } from "./format.js";
import { Plot, readColours } from "./plot.js";

export class Exits {
  constructor(countdowns) {
    this.countdowns = countdowns;
    this.cards = new Keyed(byId("exits"), () => this.create());
  }

  create() {
    const name = make("h3", "name");
    const closed = make("span", "tag closed");
    const rate = make("span", "big");
    const of = make("span", "of");
    const facts = make("p", "facts");
    const hover = make("p", "hover");
    hover.setAttribute("aria-hidden", "true");
    const box = make("div", "plot");
    box.setAttribute("role", "img");
    const el = make("li", "exit", make("div", "head", name, closed, make("p", "rate", rate, of)), box, make("div", "below", facts, hover));
    const plot = new Plot(box, (n, ago) => {
      text(hover, n === null ? "" : `${count(n)} ${n === 1 ? "request" : "requests"}, ${ago < 1 ? "last second" : Math.round(ago) + " s ago"}`);
    });
    const row = { el, name, closed, rate, of, facts, box, plot };
    row.gone = () => {
      plot.destroy();
      this.countdowns.forget(closed);
    };
    return row;
  }

  update(state) {
    this.cards.update(state.exits, (e) => e.exit, (row, e) => this.fill(row, e, state.until));
    text(byId("exits-note"), state.exits_matched > state.exits.length
      ? `the ${state.exits.length} busiest of ${count(state.exits_matched)}` : "");
    const empty = byId("exits-empty");
    empty.hidden = state.exits.length > 0;
    text(empty, state.totals.exits > 0 ? "No exit matches." : "No exit yet: no request has been sent.");
    byId("exits-more").hidden = state.exits_matched <= state.exits.length;
  }

  fill(row, e, until) {
    text(row.name, e.exit === "all" ? "all exits" : e.exit);
    row.name.title = e.exit;
    text(row.rate, number(e.per_second));
    text(row.of, e.budget ? `/s of ${budget(e.budget)}` : "/s, no budget");
    const slowed = e.budget && e.rate && e.rate < e.budget * 0.999;
    const most = Math.max(0, ...e.counts);
    const facts = [`${count(e.lanes)} ${e.lanes === 1 ? "lane" : "lanes"}`];
    if (slowed) facts.push(`slowed to ${budget(e.rate)}`);
    if (e.waiting) facts.push(`${count(e.waiting)} waiting`);
    facts.push(`most in 1s: ${count(most)}`);
    if (e.answers_429) facts.push(`429s: ${count(e.answers_429)}`);
    if (e.lockstep_score >= 0.5) facts.push("clients in lockstep");
    text(row.facts, facts.join(" · "));
    row.el.classList.toggle("is-closed", e.lanes_closed > 0);
    row.closed.hidden = !e.lanes_closed;
    if (e.lanes_closed) {
      const of = e.lanes > 1 ? `${count(e.lanes_closed)} of ${count(e.lanes)} closed, ` : "closed, ";
      this.countdowns.set(row.closed, e.longest_cooldown_s, (left) => left > 0 ? of + span(left) : "opening");
    } else {
      this.countdowns.forget(row.closed);
    }
    attr(row.box, "aria-label", "Requests in each of the last seconds: " +
      `${number(e.per_second)} per second now, at most ${count(most)}` + (e.budget ? `, budget ${budget(e.budget)}` : ""));
    row.plot.show(e.counts, until, e.budget);
  }

  /** theme draws all plots in the colours of the theme that is on. */
  theme() {
    readColours();
    for (const row of this.cards.rows.values()) row.plot.redraw();
  }
}
