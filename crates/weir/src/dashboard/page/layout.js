// Where things stand in the picture of the topology: a pure function, whose result depends on what there is, and not on what happens.
//
// A bridge is a panel over the whole width, and its ports are cells in rows, by their OpenFlow number. A bridge with more than MOST ports
// shows one by one only those that are special (other ends of patches and tunnels, ports that do not work, ports with much traffic), and
// the others as groups: ports of one type whose names differ in their number. A group can be unfolded.

const MOST = 24;
const MOST_GROUPS = 12;
const CELL = { width: 128, height: 38, gap: 14, between: 26 };
const PAD = 12;
const HEAD = 34;

/** The name of a port without its number at the end: those of "vnet7" and "vnet12" are alike. */
const stem = (name) => name.replace(/[-_.]?\d+$/, "");

/** What stands for a port in pictures: the other ports of its group do so, too. */
export const groupKey = (port) => `${port.bridge}/${stem(port.name)}/${port.type}`;

/** Whether a port is shown by itself in a big bridge whatever its traffic. */
const stands = (port) => port.peer || port.remote || ["internal", "tap"].includes(port.type) || port.link === "error";

/** Cells of a bridge: ports and groups, in order. */
function cellsOf(bridge, ports, special, unfolded) {
  if (ports.length <= MOST) return ports.map((port) => ({ port }));
  let alone = 0;
  const groups = new Map();
  const cells = [];
  for (const port of ports) {
    const key = groupKey(port);
    if ((stands(port) || special.has(`${bridge.name}/${port.name}`)) && alone < MOST) {
      alone += 1;
      cells.push({ port });
    } else if (groups.has(key)) {
      groups.get(key).members.push(port);
    } else {
      const cell = { group: key, members: [port] };
      groups.set(key, cell);
      cells.push(cell);
    }
  }
  // Very many different names: what is left is one group.
  const small = [...groups.values()].sort((a, b) => b.members.length - a.members.length).slice(MOST_GROUPS);
  const rest = { group: `${bridge.name}/others`, others: true, members: small.flatMap((cell) => cell.members) };
  const kept = cells.filter((cell) => !small.includes(cell));
  if (rest.members.length) kept.push(rest);
  return kept.flatMap((cell) => {
    if (cell.members?.length === 1) return [{ port: cell.members[0] }];
    return cell.group && unfolded.has(cell.group) ? [{ ...cell, open: true }, ...cell.members.map((port) => ({ port }))] : [cell];
  });
}

/** The label of a group: its common stem, and how many ports it has. */
function label({ members, others }) {
  return others ? `others ×${members.length}` : `${stem(members[0].name)} ×${members.length}`;
}

/**
 * The picture for a width: { height, bridges: [{ bridge, x, y, width, height }], cells: [{ port | group, x, y, width, height }],
 * place: which cell stands for BRIDGE/PORT }.
 */
export function layout({ bridges, ports }, special, unfolded, width) {
  const across = Math.max(2, Math.floor((width - 2 * PAD + CELL.gap) / (CELL.width + CELL.gap)));
  const cellWidth = Math.floor((width - 2 * PAD - (across - 1) * CELL.gap) / across);
  const panels = [];
  const cells = [];
  const place = new Map();
  let y = 1;
  for (const bridge of bridges) {
    const own = ports.filter((port) => port.bridge === bridge.name);
    own.sort((a, b) => (a.ofport ?? Infinity) - (b.ofport ?? Infinity) || (a.name < b.name ? -1 : 1));
    const inside = cellsOf(bridge, own, special, unfolded);
    inside.forEach((cell, at) => {
      const left = PAD + (at % across) * (cellWidth + CELL.gap);
      const top = y + HEAD + Math.floor(at / across) * (CELL.height + CELL.between);
      Object.assign(cell, { bridge: bridge.name, x: left, y: top, width: cellWidth, height: CELL.height });
      if (cell.group) cell.label = cell.open ? `fold ${label(cell)}` : label(cell);
      cells.push(cell);
      if (cell.port) place.set(`${bridge.name}/${cell.port.name}`, cell);
      else if (!cell.open) for (const port of cell.members) place.set(`${bridge.name}/${port.name}`, cell);
    });
    const rows = Math.max(1, Math.ceil(inside.length / across));
    const height = HEAD + rows * (CELL.height + CELL.between) - CELL.between + PAD;
    panels.push({ bridge, x: 1, y, width: width - 2, height });
    y += height + CELL.between;
  }
  return { height: Math.max(1, y - CELL.between + 1), panels, cells, place };
}
