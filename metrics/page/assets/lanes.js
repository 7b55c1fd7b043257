// SPDX-License-Identifier: Apache-2.0

// The table of lanes.
import { Keyed, attr, byId, make, text } from "./dom.js";
import { budget, count, number, share, span } from "./format.js";

// first says which way round an order begins, as the daemon has it.
const falling = { activity: true, lane: false, sent: true, budget: true, use: true, waiting: true, limited: true, closed: true };

export class Lanes {
  /** changed is called when somebody wants another order. */
  constructor(countdowns, changed) {
    this.countdowns = countdowns;
    this.sort = "activity";
    this.order = "desc";
    const table = byId("lanes");
    this.rows = new Keyed(table.tBodies[0], () => this.create());
    this.buttons = [...table.querySelectorAll("button[data-sort]")];
    for (const button of this.buttons) {
      button.addEventListener("click", () => {
        this.by(button.dataset.sort);
        changed();
      });
    }
    byId("sort").addEventListener("change", (event) => {
      this.sort = "";
      this.by(event.target.value);
      changed();
    });
    this.mark();
  }

  // by sorts by a column: the usual way round first, then the other one.
  by(sort) {
    const usual = falling[sort] ? "desc" : "asc";
    if (this.sort !== sort) this.order = usual;
    else this.order = this.order === "desc" ? "asc" : "desc";
    this.sort = sort;
    this.mark();
  }

  mark() {
    for (const button of this.buttons) {
      const on = button.dataset.sort === this.sort;
      attr(button.parentElement, "aria-sort", on ? (this.order === "desc" ? "descending" : "ascending") : null);
    }
    byId("sort").value = this.sort;
  }

  create() {
    const cell = (kind, label, ...children) => {
      const td = make("td", kind, ...children);
      td.setAttribute("role", "cell");
      if (label) td.dataset.label = label;
      return td;
    };
    const destination = make("span", "destination"), more = make("span", "more-of");
    const bar = make("span", "meter"), percent = make("span", "percent");
    bar.setAttribute("aria-hidden", "true");
    const state = make("span", "state-word"), reason = make("span", "reason");
    const row = {
      destination, more, bar, percent, state, reason,
      name: cell("name", "", destination, more),
      sent: cell("number", "sent/s"),
      budget: cell("number", "budget"),
      use: cell("use", "use", bar, percent),
      waiting: cell("number", "waiting"),
      limited: cell("number", "429s"),
      states: cell("state", "", state, reason),
    };
    row.el = make("tr", "", row.name, row.sent, row.budget, row.use, row.waiting, row.limited, row.states);
    row.el.setAttribute("role", "row");
    row.gone = () => this.countdowns.forget(state);
    return row;
  }

  update(state, wanted) {
    this.rows.update(state.lanes, (l) => l.lane, (row, l) => this.fill(row, l));
    const shown = state.lanes.length, all = state.lanes_matched;
    const note = all === state.totals.lanes ? `${count(all)} in all` : `${count(all)} of ${count(state.totals.lanes)} match`;
    text(byId("lanes-note"), shown < all ? `the first ${count(shown)}; ${note}` : note);
    const empty = byId("lanes-empty");
    empty.hidden = shown > 0;
    text(empty, state.totals.lanes > 0 ? "No lane matches." : "No lane yet: no request has met a budget.");
    byId("lanes-more").hidden = shown >= all || wanted >= 500;
  }

  fill(row, l) {
    text(row.destination, (l.destination || "all destinations") + (l.path ?? ""));
    const exit = l.exit || "all exits";
    text(row.more, `${l.budget} · ${exit}` + (l.mode === "enforce" ? "" : ` · ${l.mode}`));
    row.name.title = l.lane;
    text(row.sent, l.per_second === null ? "…" : number(l.per_second));
    text(row.budget, budget(l.base_rate));
    const use = l.base_rate > 0 && l.per_second !== null ? l.per_second / l.base_rate : null;
    text(row.percent, use === null ? "–" : share(use) + (l.over ? " over" : ""));
    row.bar.style.setProperty("--use", use === null ? "0" : Math.min(use, 1).toFixed(3));
    row.el.classList.toggle("over", Boolean(l.over));
    text(row.waiting, count(l.waiting));
    text(row.limited, count(l.limited));
    row.waiting.classList.toggle("some", l.waiting > 0);
    row.limited.classList.toggle("some", l.limited > 0);
    row.el.classList.toggle("closed", !l.open);
    row.el.classList.toggle("slowed", l.open && Boolean(l.slowed || l.stalled_s));
    row.el.classList.toggle("idle", l.open && l.per_second === 0 && !l.waiting && !l.slowed);
    if (l.open) {
      this.countdowns.forget(row.state);
      text(row.state, l.probing ? "one probe" : l.slowed ? `slowed to ${budget(l.rate)}` : "open");
      text(row.reason, about(l));
    } else {
      this.countdowns.set(row.state, l.closed_for_s, (left) => left > 0 ? "closed " + span(left) : "opening");
      text(row.reason, [l.reason, about(l)].filter(Boolean).join(", "));
    }
  }
}

// about is what else there is to say of a lane.
function about(l) {
  const parts = [];
  if (l.stalled_s) parts.push(`no success for ${span(l.stalled_s)}`);
  if (l.concurrency) parts.push(`${count(l.in_flight)} of ${count(l.concurrency)} in flight`);
  if (l.window) parts.push(`${count(l.window.left)} of ${count(l.window.limit)} left` + (l.window.left ? "" : `, more in ${span(l.window.until_s)}`));
  if (l.quota) parts.push(`origin leaves ${count(l.quota.left)} for ${span(l.quota.until_s)}`);
  if (l.refused) parts.push(`${count(l.refused)} refused`);
  return parts.join(", ");
}
