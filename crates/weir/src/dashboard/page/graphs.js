// The last hour: throughput and drops, of the switch or of one of its busiest ports.

import { $, h, keyed, say } from "./dom.js";
import { bits, short } from "./format.js";
import { Chart } from "./chart.js";

const KEPT = 720;

const of = $("#graph-of");
const unit = $("#graph-unit");
const spans = $("#graph-span");
const throughput = new Chart($("#throughput"), "Throughput", short);
const losses = new Chart($("#losses"), "Drops by second", short);

/** What there is of the hour. */
let known = { from: 1, to: 0, time: [], switch: {}, ports: [] };
let chosen = false;

export const portKey = (port) => `${port.bridge}/${port.name}`;

/** The number of the last sample that is here. */
export const last = () => known.to;

/** What the columns of the switch say last. */
export const latest = (column) => known.switch[column]?.at(-1) ?? 0;

/** How much a column of the switch comes to in all that is here. */
export function total(column) {
  const { time } = known;
  return (known.switch[column] ?? []).reduce((sum, value, at) => sum + (value ?? 0) * (at ? time[at] - time[at - 1] : 0), 0);
}

/** How long what is here reaches back, in seconds. */
export const reach = () => (known.time.length ? known.time.at(-1) - known.time[0] : 0);

export const ports = () => known.ports;

export function forget() {
  known = { from: 1, to: 0, time: [], switch: {}, ports: [] };
}

/** Takes an answer of /api/history. False where some of it is missing here, and all has to be asked for. */
export function take(answer) {
  const follows = known.to > 0 && answer.from === known.to + 1;
  if (!follows) {
    known = answer;
  } else {
    const before = new Map(known.ports.map((port) => [portKey(port), port]));
    if (answer.ports.some((port) => !before.has(portKey(port)))) return false;
    const join = (old, added) => Object.fromEntries(Object.entries(added).map(([name, values]) =>
      [name, Array.isArray(values) ? [...old[name], ...values].slice(-KEPT) : values]));
    known = {
      from: known.from,
      to: answer.to,
      time: [...known.time, ...answer.time].slice(-KEPT),
      switch: join(known.switch, answer.switch),
      ports: answer.ports.map((port) => join(before.get(portKey(port)), port)),
    };
  }
  draw();
  return true;
}

/** Shows the graphs of a port, `BRIDGE/NAME`. */
export function choose(key) {
  if (![...of.options].some((option) => option.value === key)) return;
  of.value = key;
  draw();
}

function draw() {
  const sorted = [...known.ports].sort((a, b) => portKey(a).localeCompare(portKey(b), "en", { numeric: true }));
  const options = [{ key: "", text: "the whole switch" }, ...sorted.map((port) => ({ key: portKey(port), text: port.name }))];
  const wanted = of.value;
  keyed(of, options, (option) => option.key, (option) => h("option", { value: option.key }), (option, { text }) => say(option, text));
  of.value = options.some((option) => option.key === wanted) ? wanted : "";
  if (!chosen) spans.value = reach() > 900 ? "3600" : reach() > 300 ? "900" : "300";
  const port = known.ports.find((candidate) => portKey(candidate) === of.value);
  const columns = port ?? known.switch;
  const inBits = unit.value === "bits";
  throughput.title = inBits ? "Throughput in bit/s" : "Throughput in packets/s";
  throughput.format = inBits ? bits : short;
  const measure = inBits ? "bytes" : "packets";
  const span = Number(spans.value);
  throughput.show(known.time, [
    { name: "received", class: "c-received", values: columns[`rx_${measure}`] ?? [] },
    { name: "sent", class: "c-sent", values: columns[`tx_${measure}`] ?? [] },
  ], span);
  losses.title = "Drops in packets/s";
  losses.show(known.time, port ? [{ name: "dropped", class: "c-lost", values: port.dropped }] : [
    { name: "by Weir", class: "c-lost", values: columns.dropped ?? [] },
    { name: "not sent by ports", class: "c-decided", values: columns.tx_dropped ?? [] },
    { name: "by devices on reception", class: "c-device", values: columns.rx_dropped ?? [] },
  ], span);
}

for (const control of [of, unit]) control.addEventListener("change", draw);
spans.addEventListener("change", () => {
  chosen = true;
  draw();
});
