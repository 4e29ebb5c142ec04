// A graph of some curves over time. It is read with the mouse or the arrow keys: the caption says the values at the cursor.

import { clock } from "./format.js";
import { h, svg } from "./dom.js";

const HEIGHT = 150;
const LEFT = 46;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;

/** The end of a scale from zero: 1, 2 or 5 times a power of ten. */
function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value * 0.999);
}

/** Points of a curve as parts of a path; nothing is drawn where there is no value. */
function path(values, x, y) {
  let pen = "M";
  let text = "";
  values.forEach((value, at) => {
    if (value === null || value === undefined) {
      pen = "M";
      return;
    }
    text += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  });
  return text;
}

export class Chart {
  /** `figure` gets the graph; `title` says what it shows, `format` writes a value. */
  constructor(figure, title, format) {
    this.title = title;
    this.format = format;
    this.caption = h("figcaption");
    this.svg = svg("svg", { height: HEIGHT, role: "img", tabindex: 0 });
    this.legend = h("ul", { class: "legend curves" });
    figure.replaceChildren(this.caption, this.svg, this.legend);
    this.at = null;
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.look(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => this.look(null));
    new ResizeObserver(() => this.draw()).observe(figure);
  }

  /** Shows curves: `times` in seconds since 1970; each of `curves` has a name, a class and values. */
  show(times, curves, span) {
    Object.assign(this, { times, curves, span });
    if (this.at !== null && this.at >= times.length) this.at = null;
    this.draw();
  }

  draw() {
    const width = Math.floor(this.svg.parentNode.clientWidth);
    if (!this.times || width < 80) return;
    const { times, curves, span } = this;
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const last = times.at(-1) ?? 0;
    const inside = times.findIndex((time) => time >= last - span);
    const most = ceiling(Math.max(0, ...curves.flatMap((curve) => curve.values.slice(Math.max(inside, 0))).filter(Number.isFinite)));
    this.x = (at) => LEFT + (1 - (last - times[at]) / span) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - TOP - BOTTOM);
    const shown = (values) => values.map((value, at) => (at < inside ? null : value));
    const grid = [0, most / 2, most].flatMap((value) => [
      svg("path", { class: "grid", d: `M${LEFT} ${y(value)}H${width - RIGHT}` }),
      svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, this.format(value)),
    ]);
    const ends = times.length ? [
      svg("text", { x: LEFT, y: HEIGHT - 5 }, clock(last - span)),
      svg("text", { x: width - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, clock(last)),
    ] : [];
    const lines = curves.map((curve) => svg("path", { class: `curve ${curve.class}`, d: path(shown(curve.values), this.x, y) }));
    this.cursor = svg("path", { class: "cursor" });
    this.svg.replaceChildren(...grid, ...ends, this.cursor, ...lines);
    this.legend.replaceChildren(...curves.map((curve) => h("li", {},
      svg("svg", { width: 24, height: 10, "aria-hidden": "true" }, svg("path", { class: `curve ${curve.class}`, d: "M1 5H23" })), curve.name)));
    const now = curves.map((curve) => `${curve.name} ${this.format(curve.values.at(-1) ?? 0)}`).join(", ");
    this.svg.setAttribute("aria-label", `${this.title}: now ${now}. Arrow keys read other times.`);
    this.look(this.at);
  }

  /** Puts the cursor on a sample; `null` takes it away. */
  look(at) {
    this.at = at;
    if (!this.times) return;
    const shown = at ?? this.times.length - 1;
    if (shown < 0) {
      this.caption.replaceChildren(h("b", {}, this.title));
      return;
    }
    this.cursor?.setAttribute("d", at === null ? "" : `M${this.x(at)} ${TOP}V${HEIGHT - BOTTOM}`);
    const values = this.curves.map((curve) => {
      const value = curve.values[shown];
      return h("span", {}, `${curve.name} `, h("b", {}, value === null || value === undefined ? "–" : this.format(value)));
    });
    this.caption.replaceChildren(h("b", {}, this.title), h("span", {}, at === null ? "now" : clock(this.times[at])), ...values);
  }

  point(x) {
    if (!this.times?.length) return;
    const far = (at) => Math.abs(this.x(at) - x);
    let best = this.times.length - 1;
    for (let at = best; at >= 0; at -= 1) if (far(at) <= far(best)) best = at;
    this.look(best);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -12, PageDown: 12 }[event.key];
    const end = { Home: 0, End: this.times?.length - 1 }[event.key];
    if (event.key === "Escape") this.look(null);
    if ((step === undefined && end === undefined) || !this.times?.length) return;
    event.preventDefault();
    const from = this.at ?? this.times.length - 1;
    const first = Math.max(0, this.times.findIndex((time) => time >= this.times.at(-1) - this.span));
    this.look(Math.min(this.times.length - 1, Math.max(first, end ?? from + step)));
  }
}
