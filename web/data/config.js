/** A run's configuration as flat paths, in groups, beside that of another run. */

/** @typedef {"same" | "added" | "removed" | "changed"} Change */
/** @typedef {{ path: string, value: unknown, other: unknown, change: Change, weighs: boolean }} Entry other: of the run compared with; weighs: bears on numerics */
/** @typedef {{ name: string, entries: Entry[] }} Group */
/** @typedef {{ item: string, status: string, value: string, why: string, fix: string }} Verdict */

/** Groups in the order they are shown; what an agent sends besides is "more". */
export const GROUPS = ["precision", "arguments", "source", "versions", "environment", "more"];

/** Characters of a value beyond which it is folded. */
export const LONG_VALUE = 240;

/** Words of a path that decide what the numbers can become: formats, scales, step sizes, and what executes them. */
const WEIGHS =
  /(^|[._/\- ])(precision|dtype|autocast|fp8|fp16|bf16|tf32|float16|bfloat16|float32\w*|amp|quanti[sz]ation\w*|(loss_?)?scal(e|er|ing)\w*|lr|eps|learning_rate|max_grad_norm|(gradient_)?clip\w*|grad_clip\w*|chip|arch|gpu|device_name)($|[._/\- ])|loss_scale|_scale\b|versions\.(torch|rocm|hip|cuda|driver)|(rocm|driver)_?version|HSA_OVERRIDE_GFX_VERSION/i;

/** @param {string} path */
export const weighs = (path) => WEIGHS.test(path);

/**
 * Every leaf by its path; an empty list or mapping is a leaf. A dot, a bracket or a backslash within a key is escaped, so that no two leaves share a path.
 * @param {unknown} value @param {string} [at] @param {Map<string, unknown>} [into] @returns {Map<string, unknown>}
 */
export function flatten(value, at = "", into = new Map()) {
  const isList = Array.isArray(value);
  const items = isList ? value.map((one, i) => /** @type {const} */ ([`[${i}]`, one])) : value !== null && typeof value === "object" ? Object.entries(value) : [];
  if (items.length === 0) {
    if (at !== "") into.set(at, value);
    return into;
  }
  // A list of plain values, as a command line is, reads better whole.
  if (isList && value.every((one) => one === null || typeof one !== "object")) return into.set(at, value);
  for (const [key, one] of items) {
    const name = isList ? key : key.replace(/[\\.[\]]/g, "\\$&");
    flatten(one, isList || at === "" ? `${at}${name}` : `${at}.${name}`, into);
  }
  return into;
}

/** @param {unknown} value on one line */
export const plainText = (value) => (typeof value === "string" ? value : (JSON.stringify(value) ?? ""));

/** @param {Record<string, unknown>} config @param {Record<string, unknown> | null} other null: nothing to compare with @returns {Entry[]} what weighs first, then in the order of the configuration */
export function entriesOf(config, other) {
  const [own, its] = [flatten(withoutVerdicts(config)), other === null ? null : flatten(withoutVerdicts(other))];
  /** @type {Entry[]} */
  const entries = [];
  for (const path of new Set([...own.keys(), ...(its?.keys() ?? [])])) {
    const [value, former] = [own.get(path), its?.get(path)];
    const change = its === null || (own.has(path) && its.has(path) && JSON.stringify(value) === JSON.stringify(former)) ? "same" : !its.has(path) ? "added" : !own.has(path) ? "removed" : "changed";
    entries.push({ path, value, other: former, change, weighs: weighs(path) });
  }
  return [...entries.filter((entry) => entry.weighs), ...entries.filter((entry) => !entry.weighs)];
}

/** @param {readonly Entry[]} entries @param {{ search: string, changesOnly: boolean }} wanted @returns {Group[]} those with something in them */
export function grouped(entries, { search, changesOnly }) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = entries.filter((entry) => {
    if (changesOnly && entry.change === "same") return false;
    const text = `${entry.path} ${plainText(entry.value)} ${plainText(entry.other)}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  return GROUPS.map((name) => ({ name, entries: shown.filter((entry) => groupOf(entry.path) === name) })).filter((group) => group.entries.length > 0);
}

/** @param {string} path */
function groupOf(path) {
  const top = /^[^.[]+/.exec(path)?.[0] ?? "";
  if (top === "command" || top === "directory") return "source";
  return GROUPS.includes(top) ? top : "more";
}

/** @param {Record<string, unknown>} config */
function withoutVerdicts({ doctor: _, ...rest }) {
  return rest;
}

const WORST = ["wrong", "warning", "ok"];

/** What the doctor found, worst first. @param {Record<string, unknown>} config whatever an agent has sent @returns {Verdict[]} */
export function verdictsOf(config) {
  const found = Array.isArray(config["doctor"]) ? config["doctor"] : [];
  const rank = (/** @type {string} */ status) => (WORST.indexOf(status) + WORST.length + 1) % (WORST.length + 1);
  return found
    .filter((one) => one !== null && typeof one === "object" && typeof one.item === "string")
    .map((one) => ({ item: one.item, status: WORST.includes(one.status) ? one.status : "warning", value: plainText(one.value ?? ""), why: plainText(one.why ?? ""), fix: plainText(one.fix ?? "") }))
    .sort((a, b) => rank(a.status) - rank(b.status));
}

/**
 * Formats that layers met, with how many operands of each kind: what was executed, beside what was declared.
 * @param {readonly import("./types.js").LayerInfo[]} layers @returns {[string, [string, number][]][]} kind -> format -> layers, most first
 */
export function executedOf(layers) {
  /** @type {Map<string, Map<string, number>>} */
  const kinds = new Map();
  for (const { kind, format } of layers.flatMap((layer) => layer.operands ?? [])) {
    const formats = kinds.get(kind) ?? new Map();
    kinds.set(kind, formats.set(format, (formats.get(format) ?? 0) + 1));
  }
  return [...kinds].map(([kind, formats]) => [kind, [...formats].sort((a, b) => b[1] - a[1])]);
}

/** As YAML 1.2: strings that could be read as something else are quoted as in JSON, which YAML contains. @param {unknown} value @param {string} [indent] @returns {string} */
export function yaml(value, indent = "") {
  if (value === null || typeof value !== "object") return scalar(value);
  const list = Array.isArray(value);
  const items = list ? value.map((one) => /** @type {const} */ (["-", one])) : Object.entries(value).map(([key, one]) => /** @type {const} */ ([`${scalar(key)}:`, one]));
  if (items.length === 0) return list ? "[]" : "{}";
  return items
    .map(([head, one]) => {
      const nested = one !== null && typeof one === "object" && Object.keys(one).length > 0;
      return nested ? `${indent}${head}\n${yaml(one, `${indent}  `)}` : `${indent}${head} ${yaml(one)}`;
    })
    .join("\n");
}

/** @param {unknown} value */
function scalar(value) {
  if (typeof value !== "string") return JSON.stringify(value) ?? "null";
  const plain = /^[A-Za-z_][\w./ -]*$/.test(value) && !value.endsWith(" ") && !/^(true|false|null|yes|no|on|off|y|n|inf|nan)$/i.test(value);
  return plain ? value : JSON.stringify(value);
}
