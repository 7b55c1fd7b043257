// SPDX-License-Identifier: Apache-2.0

// Joins the parts of the page.
import { attr, byId, make, text } from "./dom.js";
import { Countdowns } from "./countdown.js";
import { Events, say } from "./events.js";
import { Exits } from "./exits.js";
import { clock, count, number, span } from "./format.js";
import { Lanes } from "./lanes.js";
import { Stream } from "./stream.js";

const countdowns = new Countdowns();
const exits = new Exits(countdowns);
const lanes = new Lanes(countdowns, change);
const events = new Events();
const stream = new Stream({ state: took, lost, skipped });

const wanted = { lanes: 100, exits: 12 };
let last = null; // state
let paused = null; // since when
let missed = 0;

// ask asks for what the controls say.
function ask() {
  const query = new URLSearchParams({ sort: lanes.sort, order: lanes.order, lanes: wanted.lanes, exits: wanted.exits });
  const words = byId("search").value.trim(), show = byId("show").value;
  if (words) query.set("q", words);
  if (show !== "all") query.set("show", show);
  missed = 0;
  if (!document.hidden) stream.ask(query.toString());
}

function took(state) {
  if (last && last.epoch !== state.epoch) {
    say("The daemon was restarted.");
    text(byId("events-note"), `another daemon since ${clock(new Date(state.daemon.started))}`);
  }
  const other = !last || last.epoch !== state.epoch;
  last = state;
  connected();
  // A new order or search is wanted at once, whatever else stands still.
  if (paused && !other && !asked()) return;
  delete document.body.dataset.asked;
  draw(state);
}

// asked tells whether what somebody asked for is still to come. Tests wait for it.
const asked = () => document.body.dataset.asked !== undefined;

function draw(state) {
  const d = state.daemon;
  text(byId("version"), d.version);
  text(byId("uptime"), `up ${span((new Date(state.at) - new Date(d.started)) / 1000)}`);
  const t = state.totals;
  text(byId("total-rate"), number(t.per_second));
  text(byId("total-exits"), count(t.exits));
  text(byId("total-lanes"), count(t.lanes));
  text(byId("total-closed"), count(t.closed));
  text(byId("total-waiting"), count(t.waiting));
  byId("totals-closed").classList.toggle("alert", t.closed > 0);
  byId("totals-waiting").classList.toggle("warn", t.waiting > 0);
  document.title = (t.closed ? `(${count(t.closed)} closed) ` : "") + "egressd";
  alarms([
    !d.attached && "Not attached: every connection goes past egressd.",
    d.reload_failed && "The last reading of the policy file failed; the policy before it is in force. egressd status says why.",
    d.canary_failed && "The last self-test failed. egressd status says why.",
  ].filter(Boolean));
  exits.update(state);
  lanes.update(state, wanted.lanes);
  events.update(state);
  // Which state it is that is shown: tests compare.
  document.body.dataset.state = `${state.epoch}-${state.seq}`;
}

function alarms(all) {
  const box = byId("alarms");
  const now = all.join("\n");
  if (box.dataset.now === now) return;
  box.dataset.now = now;
  box.replaceChildren(...all.map((words) => make("p", "alarm", words)));
}

function pill(state, words) {
  const el = byId("connection");
  attr(el, "data-state", state);
  text(el, words);
}

function connected() {
  document.body.classList.remove("lost");
  countdowns.freeze(Boolean(paused));
  if (paused) return pill("paused", `paused at ${clock(paused)}`);
  pill("live", missed ? `live, ${count(missed)} updates missed` : "live");
}

function lost(since) {
  document.body.classList.add("lost");
  countdowns.freeze(true);
  pill("lost", since ? `disconnected since ${clock(since)}` : "no answer yet");
}

function skipped(n) {
  missed = n;
}

function pause(on) {
  paused = on ? new Date() : null;
  attr(byId("pause"), "aria-pressed", on);
  text(byId("pause"), on ? "Resume" : "Pause");
  countdowns.freeze(on);
  if (!last || document.body.classList.contains("lost")) return;
  connected();
  if (!on) draw(last);
}

// Controls.
let typing;
byId("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(change, 200);
});
function change() {
  document.body.dataset.asked = "";
  ask();
}
byId("show").addEventListener("change", change);
document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(typing);
  change();
});
byId("pause").addEventListener("click", () => pause(!paused));
byId("lanes-more").addEventListener("click", () => {
  wanted.lanes = Math.min(500, wanted.lanes + 200);
  change();
});
byId("exits-more").addEventListener("click", () => {
  wanted.exits = Math.min(48, wanted.exits + 12);
  change();
});
document.addEventListener("keydown", (event) => {
  const typingNow = event.target.closest?.("input, select, textarea");
  if (event.key === "/" && !typingNow && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    byId("search").focus();
    byId("search").select();
  }
});

// Theme: what the system prefers, until somebody chooses.
const themes = ["auto", "light", "dark"];
const root = document.documentElement;
function theme(name) {
  if (name === "auto") delete root.dataset.theme;
  else root.dataset.theme = name;
  text(byId("theme"), "Theme: " + name);
  exits.theme();
}
byId("theme").addEventListener("click", () => {
  const next = themes[(themes.indexOf(root.dataset.theme ?? "auto") + 1) % themes.length];
  theme(next);
  try {
    if (next === "auto") localStorage.removeItem("egressd-theme");
    else localStorage.setItem("egressd-theme", next);
  } catch {
    // It holds until the page is left.
  }
});
theme(root.dataset.theme ?? "auto");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => exits.theme());

// A page that nobody sees costs the daemon nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) stream.close();
  else ask();
});
ask();
