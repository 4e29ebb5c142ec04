// What each worker does: how busy it is, and in which tier packets found their flow.

import { $, cells, h, keyed, row, svg } from "./dom.js";
import { percent, short } from "./format.js";

const WIDTH = 120;
const HEIGHT = 12;

const TIERS = [
  ["simple_hits", "simple match", "tier0"],
  ["exact_hits", "exact-match cache", "tier1"],
  ["megaflow_hits", "megaflows", "tier2"],
  ["misses", "missed", "tier3"],
];

$("#tiers").append(...TIERS.map(([, name, tier]) => h("li", {},
  svg("svg", { width: 12, height: 12, "aria-hidden": "true" }, svg("rect", { class: tier, width: 12, height: 12 })), name)));

const bar = (...rects) => svg("svg", { width: WIDTH, height: HEIGHT, "aria-hidden": "true" }, ...rects);

/** Shows the workers of the last sample. */
export function show(now) {
  keyed($("#workers tbody"), now.stats.workers, (worker) => worker.worker, () => {
    const tr = row(["", "", "number", "number", "wrap"]);
    const full = svg("rect", { class: "full", height: HEIGHT });
    tr.children[1].append(h("span", { class: "busy" }, bar(svg("rect", { class: "bar", width: WIDTH, height: HEIGHT }), full), h("span")));
    tr.children[4].append(bar(...TIERS.map(([, , tier]) => svg("rect", { class: tier, height: HEIGHT }))), h("span", { class: "more" }));
    return tr;
  }, (tr, worker) => {
    const core = worker.core === undefined ? "" : ` on core ${worker.core}`;
    cells(tr, [`${worker.worker}${core}`, undefined, short(worker.packets), short(worker.cycles_per_packet)]);
    $(".full", tr).setAttribute("width", (worker.busy_percent / 100) * WIDTH);
    $(".busy span", tr).textContent = percent(worker.busy_percent);
    const all = TIERS.reduce((sum, [key]) => sum + worker[key], 0);
    let x = 0;
    const shares = TIERS.map(([key, name, tier]) => {
      const share = all > 0 ? worker[key] / all : 0;
      const rect = $(`.${tier}`, tr.children[4]);
      rect.setAttribute("x", x);
      rect.setAttribute("width", share * WIDTH);
      x += share * WIDTH;
      return share > 0 && `${name} ${percent(100 * share)}`;
    });
    $(".more", tr.children[4]).textContent = shares.filter(Boolean).join(", ") || "no packets";
  });
}
