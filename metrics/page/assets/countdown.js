// SPDX-License-Identifier: Apache-2.0

// Cooldowns that count down between two states. They run by the clock that no
// one can set, from what the daemon said was left.

const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Countdowns {
  constructor() {
    this.running = new Map(); // element → {ends, whole, write}
    this.frozen = false;
    this.tick();
  }

  /** set has el show write(seconds left) until they are over. */
  set(el, left, write) {
    const ends = performance.now() + left * 1000;
    const old = this.running.get(el);
    const whole = old && ends > performance.now() ? Math.max(old.whole, left) : left;
    this.running.set(el, { ends, whole, write });
    this.draw(el);
  }

  forget(el) {
    this.running.delete(el);
  }

  /** freeze stops or starts all clocks: what is left is not known without a daemon. */
  freeze(frozen) {
    this.frozen = frozen;
  }

  draw(el) {
    const { ends, whole, write } = this.running.get(el);
    const left = Math.max(0, (ends - performance.now()) / 1000);
    const said = write(left);
    if (el.textContent !== said) el.textContent = said;
    el.style.setProperty("--left", whole > 0 ? (left / whole).toFixed(3) : "0");
  }

  tick() {
    if (!this.frozen) for (const el of this.running.keys()) this.draw(el);
    setTimeout(() => this.tick(), still.matches ? 1000 : 100);
  }
}
