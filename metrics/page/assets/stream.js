// SPDX-License-Identifier: Apache-2.0

// The stream of states, which comes back whatever happens to the daemon or the
// way to it.

const silence = 5000; // ms without a state, after which a connection counts as dead
const firstPause = 500; // ms until a lost connection is tried again; it doubles
const longestPause = 5000;

/**
 * Stream calls state(State) for each state and lost(since, why) when there are
 * none any more. A state that is not newer than the last one of its epoch is left
 * out.
 */
export class Stream {
  constructor({ state, lost, skipped }) {
    this.on = { state, lost, skipped };
    this.source = null;
    this.query = "";
    this.pause = firstPause;
    this.seen = { epoch: "", seq: 0 };
    this.lastAt = null; // of the last state
  }

  /** ask opens the stream anew, with the parameters of a query. */
  ask(query) {
    this.query = query;
    this.open();
  }

  open() {
    this.close();
    const source = new EventSource("api/v1/stream?" + this.query);
    this.source = source;
    this.watch();
    source.addEventListener("state", (event) => {
      if (this.source !== source) return;
      this.watch();
      this.pause = firstPause;
      const state = JSON.parse(event.data);
      const again = state.epoch === this.seen.epoch && state.seq < this.seen.seq;
      this.lastAt = new Date();
      if (again) return;
      this.seen = { epoch: state.epoch, seq: state.seq };
      this.on.state(state);
    });
    source.addEventListener("skipped", (event) => {
      if (this.source === source) this.on.skipped(Number(event.data));
    });
    source.addEventListener("error", () => {
      // The browser's own way of coming back gives up at the first answer that
      // is none, so this one is used for all.
      if (this.source === source) this.retry();
    });
  }

  /** close ends the stream until it is opened again. */
  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  watch() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.retry(), silence);
  }

  retry() {
    this.close();
    this.on.lost(this.lastAt);
    this.timer = setTimeout(() => this.open(), this.pause);
    this.pause = Math.min(this.pause * 2, longestPause);
  }
}
