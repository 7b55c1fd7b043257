// SPDX-License-Identifier: Apache-2.0

// What happened last: as a table and, for those who listen to the page, in words.
import { Keyed, byId, make, text } from "./dom.js";
import { clock, span } from "./format.js";

// told are the kinds of events that are said aloud, in the words for it.
const told = {
  cooldown: (e) => `${e.lane} closed for ${span(e.wait_s ?? 0)}`,
  penalty: (e) => `${e.lane} closed for ${span(e.wait_s ?? 0)}, and slowed`,
  reopened: (e) => `${e.lane} open again`,
  stalled: (e) => `${e.lane} has no success`,
  exit_switch: (e) => `${e.lane}: another exit is used`,
  reload: () => "a new policy is in force",
  reload_failed: () => "the new policy is bad; the old one stays",
  canary: (e) => `self-test: ${e.detail}`,
};
const mostTold = 3; // of one state; more are counted

export class Events {
  constructor() {
    this.rows = new Keyed(byId("events").tBodies[0], () => this.create());
    this.epoch = "";
    this.last = 0; // that was told
  }

  create() {
    const cell = (kind) => {
      const td = make("td", kind);
      td.setAttribute("role", "cell");
      return td;
    };
    const row = { time: cell("time"), kind: cell("kind"), lane: cell("lane"), wait: cell("number wait"), detail: cell("detail") };
    row.el = make("tr", "", row.time, row.kind, row.lane, row.wait, row.detail);
    row.el.setAttribute("role", "row");
    return row;
  }

  update(state) {
    this.rows.update(state.events, (e) => state.epoch + e.id, (row, e) => {
      const at = new Date(e.time);
      if (row.filled) return; // events do not change
      row.filled = true;
      text(row.time, clock(at));
      row.time.title = at.toString();
      text(row.kind, e.kind.replaceAll("_", " "));
      row.el.dataset.kind = e.kind;
      text(row.lane, e.lane ?? "");
      text(row.wait, e.wait_s ? span(e.wait_s) : "");
      text(row.detail, e.detail ?? "");
    });
    byId("events-empty").hidden = state.events.length > 0;
    this.tell(state);
  }

  tell(state) {
    const newest = state.events[0]?.id ?? 0;
    const same = this.epoch === state.epoch;
    const news = same ? state.events.filter((e) => e.id > this.last && told[e.kind]).reverse() : [];
    this.epoch = state.epoch;
    this.last = same ? Math.max(this.last, newest) : newest;
    if (news.length === 0) return;
    const words = news.slice(0, mostTold).map((e) => told[e.kind](e));
    if (news.length > mostTold) words.push(`and ${news.length - mostTold} more events`);
    say(words.join("; "));
  }
}

/** say has a screen reader say something when it is free. */
export function say(words) {
  const log = byId("said");
  log.append(make("p", "", words));
  while (log.childElementCount > 10) log.firstElementChild.remove();
}
