// What the page asks of the switch.

const KEY = "weir-token";

/** What the switch says where it gives no answer. `status` is that of HTTP; 0 where nobody answers. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The JSON of /api/PATH. Parameters that are empty are left out. */
export async function get(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined));
  const token = sessionStorage.getItem(KEY);
  let response;
  try {
    response = await fetch(`/api/${path}${query.size ? `?${query}` : ""}`, {
      headers: token ? { Authorization: `Bearer ${token}` } : {},
      cache: "no-store",
      signal: AbortSignal.timeout(20_000),
    });
  } catch {
    throw new Refused(0, "no answer");
  }
  if (!response.ok) throw new Refused(response.status, (await response.text()).trim());
  // Cookies have 64 bits, numbers here only 53: they become texts. Within a text, the second quote would have a backslash before it.
  return JSON.parse((await response.text()).replace(/"cookie":(\d+)/g, '"cookie":"$1"'));
}

/** Has requests bear this token from now on. */
export function bear(token) {
  sessionStorage.setItem(KEY, token);
}

/** Whether they bear one. */
export function bears() {
  return Boolean(sessionStorage.getItem(KEY));
}
