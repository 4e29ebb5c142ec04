// Numbers as people read them.

const UNITS = ["", "k", "M", "G", "T", "P"];

/** Three digits and a unit: 1.23M. */
export function short(number) {
  if (!Number.isFinite(number)) return "–";
  let unit = 0;
  let n = Math.abs(number);
  while (n >= 999.5 && unit < UNITS.length - 1) {
    n /= 1000;
    unit += 1;
  }
  const digits = n >= 99.5 || (unit === 0 && Number.isInteger(n)) ? 0 : n >= 9.95 ? 1 : 2;
  // A rate that is not zero must not look as if it were.
  const text = unit === 0 && n > 0 && n < 0.01 ? "<0.01" : n.toFixed(digits);
  return `${number < 0 ? "-" : ""}${text}${UNITS[unit]}`;
}

/** Bytes by second as bits by second. */
export const bits = (bytes) => short(8 * bytes);

/** Digits in groups of three. */
export const whole = (number) => Math.round(number).toLocaleString("en").replaceAll(",", "\u202f");

/** A number of things: 1 flow, 2 flows. */
export const count = (number, one, many = `${one}s`) => `${whole(number)} ${number === 1 ? one : many}`;

export const percent = (number) => `${number >= 99.95 || number === 0 ? number.toFixed(0) : number.toFixed(1)} %`;

/** 3 d 4 h, 4 h 5 min, 5 min 6 s. */
export function duration(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => seconds >= size);
  if (first < 0) return "0 s";
  let rest = Math.floor(seconds);
  const shown = parts.slice(first, first + 2).map(([size, unit]) => {
    const count = Math.floor(rest / size);
    rest -= count * size;
    return count > 0 && `${count} ${unit}`;
  });
  return shown.filter(Boolean).join(" ");
}

/** A time of the day, from seconds since 1970. */
export const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");

/** What fits into so many characters. */
export const clip = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);
