// The busiest ports, each with its traffic of the last hour.

import { $, cells, h, keyed, row, say, svg } from "./dom.js";
import { bits, short } from "./format.js";
import * as graphs from "./graphs.js";

const WIDTH = 160;
const HEIGHT = 24;

/** A small graph without a scale: what matters is its shape. */
function spark(port) {
  const values = port.rx_bytes.map((value, at) => (value === null ? null : value + port.tx_bytes[at]));
  const most = Math.max(1, ...values.filter(Number.isFinite));
  const last = Math.max(60, values.length) - 1;
  const start = last + 1 - values.length;
  let pen = "M";
  let d = "";
  values.forEach((value, at) => {
    if (value === null) {
      pen = "M";
      return;
    }
    d += `${pen}${(((start + at) / last) * WIDTH).toFixed(1)} ${(HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1)}`;
    pen = "L";
  });
  return d;
}

/** Shows the ports that have a history, with their rates of now. */
export function show(now) {
  const rates = new Map(now.ports.map((port) => [graphs.portKey(port), port]));
  keyed($("#ports tbody"), graphs.ports(), graphs.portKey, (port) => {
    const tr = row(["wrap", "", "number", "number", "number", "number", "number", ""]);
    tr.children[0].append(h("button", { class: "plain", type: "button", onclick: () => graphs.choose(graphs.portKey(port)) }));
    tr.children[7].append(svg("svg", { width: WIDTH, height: HEIGHT, "aria-hidden": "true" }, svg("path", { class: "curve c-received" })));
    return tr;
  }, (tr, port) => {
    say($("button", tr), port.name);
    $("path", tr).setAttribute("d", spark(port));
    const rate = rates.get(graphs.portKey(port));
    const numbers = rate
      ? [rate.link, bits(rate.rx_bytes), bits(rate.tx_bytes), short(rate.rx_packets), short(rate.tx_packets), short(rate.dropped)]
      : ["gone", "–", "–", "–", "–", "–"];
    cells(tr, [undefined, ...numbers]);
    tr.children[1].className = numbers[0] === "up" ? "" : numbers[0] === "error" ? "bad" : "off";
    tr.children[6].classList.toggle("bad", rate?.dropped > 0);
  });
}
