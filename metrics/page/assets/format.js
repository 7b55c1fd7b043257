// SPDX-License-Identifier: Apache-2.0

// Numbers and times as people read them.

/** number writes a rate with about three digits. */
export function number(x) {
  if (x === 0) return "0";
  if (x >= 10000) return Math.round(x).toLocaleString("en");
  if (x >= 99.5) return x.toFixed(0);
  if (x >= 9.95) return x.toFixed(1);
  if (x >= 0.1) return x.toFixed(2);
  return x.toFixed(4);
}

/** budget writes what is allowed, by the unit that suits: 2/s, 90/min, 20/h. */
export function budget(perSecond) {
  if (!perSecond) return "–";
  for (const [unit, scale] of [["s", 1], ["min", 60]]) {
    const n = perSecond * scale;
    if (n >= 0.1) return trim(n) + "/" + unit;
  }
  return trim(perSecond * 3600) + "/h";
}

// trim is x with three digits, without zeros at the end.
function trim(x) {
  return x >= 100 ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(3)));
}

/** count writes a whole number, with its thousands apart. */
export const count = (n) => n.toLocaleString("en");

/** share writes a part of one as a percentage. */
export const share = (x) => Math.round(x * 100) + "%";

/** span writes seconds in few characters: 3.2s, 48s, 3m05s, 2h07m, 4d. */
export function span(s) {
  if (s < 9.95) return s.toFixed(1) + "s";
  s = Math.round(s);
  const two = (n) => String(n).padStart(2, "0");
  if (s < 60) return s + "s";
  if (s < 3600) return Math.floor(s / 60) + "m" + two(s % 60) + "s";
  if (s < 48 * 3600) return Math.floor(s / 3600) + "h" + two(Math.floor((s % 3600) / 60)) + "m";
  return Math.floor(s / 86400) + "d";
}

/** clock writes the time of day of a Date. */
export function clock(date) {
  const two = (n) => String(n).padStart(2, "0");
  return two(date.getHours()) + ":" + two(date.getMinutes()) + ":" + two(date.getSeconds());
}
