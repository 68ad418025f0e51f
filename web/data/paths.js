/** Where the server answers. */

/** Columns of a heat map that are asked for: as many as a grid may have before it is pooled by two. */
export const COLUMN_LIMIT = 600;

/** All runs: the page filters them itself. */
export const RUNS = "/api/v1/runs?archived=true";

/** @param {string} run @param {string} [rest] @param {Record<string, string | number | null>} [query] null: left out */
export function runPath(run, rest = "", query = {}) {
  const fields = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== null) fields.set(name, String(value));
  const text = fields.toString();
  return `/api/v1/runs/${encodeURIComponent(run)}${rest}${text ? `?${text}` : ""}`;
}

/** What the heat map of a run shows. @param {Pick<import("./route.js").Route, "kind" | "metric" | "format" | "from" | "to">} route */
export function heatQuery({ kind, metric, format, from, to }) {
  return { kind, metric, format, from, to };
}

/** @param {string} run @param {Record<string, string | number | null>} query */
export function heatPath(run, query) {
  return runPath(run, "/heatmap", { columns: COLUMN_LIMIT, ...query });
}
