/** The page of the loss scaler: what the server said of it, put in rows. Verdicts are the server's; none is made here. */

import { WEIGHT } from "./health.js";
import { number } from "./json.js";
import { emptySeries, seriesFrom } from "./series.js";

/** @typedef {import("./json.js").JsonNumber} JsonNumber */
/** @typedef {import("./health.js").Alert} Alert */
/** @typedef {{ step: number, rank: number | null, layer: string | null, optimizers: number[], ranks: number[], scale: JsonNumber }} Skip */
/**
 * @typedef {object} ScalerAnswer
 * @property {number | null} step
 * @property {string | null} state null: no scaler is known
 * @property {JsonNumber} loss_scale
 * @property {JsonNumber} highest_scale
 * @property {number | null} in_a_row
 * @property {number | null} window
 * @property {number | null} window_skips
 * @property {number | null} good_steps
 * @property {number | null} growth_interval
 * @property {number | null} from
 * @property {number | null} to
 * @property {number} skips
 * @property {number[]} optimizers
 * @property {Skip[]} skipped newest first
 */
/**
 * @typedef {object} Operand
 * @property {string} layer
 * @property {number} index
 * @property {string} kind
 * @property {string} format
 * @property {string} scaling static | delayed | dynamic
 * @property {number | null} step
 * @property {JsonNumber} absmax
 * @property {JsonNumber} scale
 * @property {JsonNumber} share absmax x scale / the format's maximum
 * @property {number | null} nonfinite
 * @property {JsonNumber} underflow
 */
/** @typedef {{ values: JsonNumber[], min: JsonNumber[], max: JsonNumber[] }} Envelope */
/** @typedef {{ layer: string, kind: string, format: string, scaling: string, limit: number, cell: number, steps: number[], absmax: Envelope, headroom: Envelope, scale: JsonNumber[] }} OperandHistory */
/** @typedef {import("../state.js").Load<ScalerAnswer>} StatusLoad */

/** Rows of the tables before somebody asks for more. */
export const ROWS = 50;

/** @type {{ status: import("../state.js").Load<ScalerAnswer>, rate: import("../state.js").Load<import("./series.js").Series>, operands: import("../state.js").Load<Operand[]>, history: import("../state.js").Load<OperandHistory>, skipRows: number, operandRows: number }} */
export const EMPTY_SCALER = {
  status: { status: "idle", data: null, error: null },
  rate: { status: "idle", data: null, error: null },
  operands: { status: "idle", data: null, error: null },
  history: { status: "idle", data: null, error: null },
  skipRows: ROWS,
  operandRows: ROWS,
};

/** @typedef {typeof EMPTY_SCALER} ScalerState */

/** Rules that speak of skipped steps. */
const JUDGES = ["loss_scale_collapse", "nonfinite"];

/**
 * What the rules said of a skipped step: the gravest alert whose stretch has it.
 * @param {number} step @param {readonly Alert[]} alerts of what is drawn @returns {Alert | null} null: none did
 */
export function verdictOf(step, alerts) {
  /** @type {Alert | null} */
  let found = null;
  for (const alert of alerts) {
    if (!JUDGES.includes(alert.kind) || step > alert.last_step || step < Math.min(alert.since_step ?? alert.first_step, alert.first_step)) continue;
    const graver = found === null || WEIGHT[alert.severity] > WEIGHT[found.severity];
    // Of two that are as grave, a collapse says more than the overflows that make it up.
    if (graver || (found !== null && WEIGHT[alert.severity] === WEIGHT[found.severity] && alert.kind === "loss_scale_collapse")) found = alert;
  }
  return found;
}

/** The share of skipped steps in each cell; what lies between 0 and 1 within a cell is no envelope. @param {import("./series.js").SeriesAnswer | undefined} answer */
export function rateFrom(answer) {
  if (!answer) return emptySeries("skip_rate");
  const series = seriesFrom({ ...answer, name: "skip_rate" });
  return { ...series, min: series.values, max: series.values };
}

/** "KIND:LAYER" in the address. @param {Pick<Operand, "kind" | "layer">} operand */
export const operandKey = ({ kind, layer }) => `${kind}:${layer}`;

/** @param {string} key @returns {{ kind: string, layer: string } | null} */
export function operandOf(key) {
  const at = key.indexOf(":");
  return at <= 0 ? null : { kind: key.slice(0, at), layer: key.slice(at + 1) };
}

/** How close to its limit an operand is; what is not finite is beyond it, what fills its format by construction is not close. @param {Operand} operand */
function closeness(operand) {
  if ((operand.nonfinite ?? 0) > 0) return Infinity;
  const share = number(operand.share);
  if (share === undefined || Number.isNaN(share)) return -Infinity;
  return operand.scaling === "dynamic" ? -1 + share / 1e6 : share;
}

/**
 * @param {readonly Operand[]} operands in execution order @param {string} filter a part of the layer's name @param {string} order "" closest to the limit first, "layers" execution order
 */
export function operandRows(operands, filter, order) {
  const wanted = filter.toLowerCase();
  const rows = operands.filter(({ layer }) => layer.toLowerCase().includes(wanted));
  return order === "layers" ? rows : rows.sort((a, b) => closeness(b) - closeness(a) || a.index - b.index);
}

/** Bits left before the format's maximum. @param {Operand} operand @returns {number | undefined} */
export function bitsLeft(operand) {
  if ((operand.nonfinite ?? 0) > 0) return -Infinity;
  const share = number(operand.share);
  return share === undefined ? undefined : -Math.log2(share);
}

/** The three traces of an operand. @param {OperandHistory} answer */
export function historySeries(answer) {
  const of = (/** @type {string} */ name, /** @type {Envelope} */ values) => seriesFrom({ name, cell: answer.cell, steps: answer.steps, ...values });
  return {
    absmax: of("operand_absmax", answer.absmax),
    headroom: of("operand_headroom", answer.headroom),
    scale: answer.cell > 1 ? null : of("operand_scale", { values: answer.scale, min: answer.scale, max: answer.scale }),
  };
}
