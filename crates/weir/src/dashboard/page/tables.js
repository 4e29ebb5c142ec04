// The OpenFlow tables of each bridge, in the order of the pipeline, with how often they were looked in and how often that found a flow.

import { $, h, keyed, say, svg } from "./dom.js";
import { count, percent, short } from "./format.js";
import { list } from "./flows.js";

const WIDTH = 100;
const HEIGHT = 8;

/** Shows an answer of /api/tables. */
export function show({ tables }) {
  const bridges = [...new Set(tables.map((table) => table.bridge))].sort();
  keyed($("#pipelines"), bridges, (bridge) => bridge,
    (bridge) => h("div", {}, h("h3", {}, bridge), h("ol", { class: "pipeline", "aria-label": `Tables of ${bridge}` })),
    (div, bridge) => pipeline($("ol", div), tables.filter((table) => table.bridge === bridge)));
}

function pipeline(ol, tables) {
  keyed(ol, tables, (table) => table.table, (table) => h("li", {},
    h("button", { type: "button", onclick: () => list({ of: "openflow", bridge: table.bridge, table: table.table }) },
      h("b", {}, `table ${table.table}`), h("span"),
      svg("svg", { width: WIDTH, height: HEIGHT, "aria-hidden": "true" },
        svg("rect", { class: "bar", width: WIDTH, height: HEIGHT }), svg("rect", { class: "full", height: HEIGHT })),
      h("span"), h("span"))), (li, table) => {
    const [, flows, , rate, hits] = $("button", li).children;
    say(flows, count(table.flows, "flow"));
    const now = table.lookups_per_s > 0;
    const [lookups, matched] = now ? [table.lookups_per_s, table.matched_per_s] : [table.lookups, table.matched];
    const hit = lookups > 0 ? Math.min(1, matched / lookups) : 0;
    $(".full", li).setAttribute("width", hit * WIDTH);
    say(rate, `${short(table.lookups_per_s)} lookups/s`);
    say(hits, lookups > 0 ? `${percent(100 * hit)} hit${now ? "" : " since the start"}` : "never looked in");
  });
}
