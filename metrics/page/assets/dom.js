// SPDX-License-Identifier: Apache-2.0

// Small helpers for the document. Whatever comes from the daemon goes into it as
// text, never as markup.

export const byId = (id) => document.getElementById(id);

/** text sets what an element says, if that is new. */
export function text(el, said) {
  if (el.textContent !== said) el.textContent = said;
}

/** attr sets an attribute, if that is new; null takes it away. */
export function attr(el, name, value) {
  if (value === null) el.removeAttribute(name);
  else if (el.getAttribute(name) !== String(value)) el.setAttribute(name, value);
}

/** make makes an element with a class and children. */
export function make(name, kind, ...children) {
  const el = document.createElement(name);
  if (kind) el.className = kind;
  el.append(...children);
  return el;
}

/**
 * Keyed keeps the children of an element in step with a list: one child for each
 * key, which stays the same element as long as the key is there, so that focus,
 * selection and what a reader is at stay where they are.
 */
export class Keyed {
  constructor(parent, create) {
    this.parent = parent;
    this.create = create;
    this.rows = new Map();
  }

  update(items, keyOf, fill) {
    const next = new Map();
    for (const item of items) {
      const key = keyOf(item);
      if (next.has(key)) continue;
      next.set(key, [this.rows.get(key) ?? this.create(item), item]);
    }
    for (const [key, row] of this.rows) {
      if (next.has(key)) continue;
      row.el.remove();
      row.gone?.();
    }
    this.rows = new Map();
    let at = this.parent.firstElementChild;
    for (const [key, [row, item]] of next) {
      this.rows.set(key, row);
      if (row.el === at) at = at.nextElementSibling;
      else this.parent.insertBefore(row.el, at);
      fill(row, item);
    }
  }
}
