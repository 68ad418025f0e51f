/** The cards of a run, as the agent last read them. What could not be read is a dash, never a zero. */

import { number, numbers } from "../data/json.js";
import { fixed, gibibytes } from "../data/text.js";
import { h } from "./dom.js";
import { sparkline } from "./marks.js";
import { failure, loading } from "./notes.js";

/** @typedef {import("../data/types.js").DeviceSample} DeviceSample */

/** @param {import("../state.js").State} state @param {import("../main.js").Context} context */
export function devices(state, context) {
  const { t } = context;
  const { data, error } = state.devices;
  const cards = [...byCard(data ?? [])];
  return h(
    "section",
    { class: "devices", "aria-labelledby": "devices-title" },
    h("h2", { id: "devices-title" }, t("devices.title"), cards.length > 0 ? h("span", { class: "muted" }, t("devices.window")) : null),
    error ? failure(context, error) : data === null ? loading(context, t("what.devices")) : null,
    data !== null && cards.length === 0 ? h("p", { class: "quiet" }, t("devices.none"), h("span", { class: "muted" }, t("devices.none_hint"))) : null,
    cards.map(([key, samples]) => card(key, samples, context)),
  );
}

/** @param {readonly DeviceSample[]} samples @returns {Map<string, DeviceSample[]>} */
function byCard(samples) {
  /** @type {Map<string, DeviceSample[]>} */
  const cards = new Map();
  for (const sample of samples) {
    if (sample.backend === "none") continue;
    const key = sample.pci ?? `${sample.rank ?? 0}/${sample.index}`;
    const own = cards.get(key);
    if (own) own.push(sample);
    else cards.set(key, [sample]);
  }
  return cards;
}

/** @param {string} key @param {readonly DeviceSample[]} samples @param {import("../main.js").Context} context */
function card(key, samples, { t }) {
  const last = /** @type {DeviceSample} */ (samples.at(-1));
  const used = last.vram_used_bytes ?? null;
  const total = last.vram_total_bytes ?? null;
  const share = used !== null && total ? used / total : null;
  const every = Math.max(1, Math.floor(samples.length / 60));
  const history = samples.filter((_, i) => i % every === 0);
  const trace = (/** @type {"busy_percent" | "power_watts" | "temperature_celsius"} */ field, /** @type {string} */ unit) => {
    const value = number(last[field]);
    return h(
      "div",
      { class: "trace" },
      h("dt", null, t(`devices.${field}`)),
      h("dd", null, value === undefined || !Number.isFinite(value) ? "\u2014" : fixed(value, 0), h("span", { class: "unit" }, value === undefined ? "" : unit)),
      sparkline(numbers(history.map((sample) => sample[field] ?? null)), 64, 18),
    );
  };
  return h(
    "div",
    { class: "card", key },
    h("p", { class: "card-name" }, h("strong", null, String(last.index)), last.name ?? t("devices.unnamed"), h("span", { class: "muted" }, last.pci ?? last.backend)),
    h(
      "p",
      { class: "vram" },
      h("span", { class: "label" }, "VRAM"),
      h(
        "span",
        { class: `bar${share !== null && share >= 0.95 ? " full" : ""}`, role: "meter", "aria-label": "VRAM", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": share === null ? undefined : Math.round(share * 100) },
        share === null ? null : h("span", { class: "fill", style: { width: `${share * 100}%` } }),
        share === null || !last.allocated_bytes || !total ? null : h("span", { class: "allocated", title: t("devices.allocated"), style: { left: `${(last.allocated_bytes / total) * 100}%` } }),
      ),
      h("span", { class: "figure" }, `${gibibytes(used)} / ${gibibytes(total)} GiB`),
    ),
    h("dl", { class: "traces" }, trace("busy_percent", " %"), trace("power_watts", " W"), trace("temperature_celsius", " \u00b0C")),
  );
}
