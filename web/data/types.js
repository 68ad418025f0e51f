/**
 * What the server says, as types.
 *
 * @typedef {import("./json.js").JsonNumber} JsonNumber
 * @typedef {import("./health.js").Alert} Alert
 * @typedef {import("./health.js").Severity} Severity
 *
 * @typedef {{ headroom: JsonNumber, layer: string, kind: string, step: number }} Worst
 *
 * @typedef {object} RunItem
 * @property {string} name
 * @property {string} state live | stalled | finished | failed | lost
 * @property {number} attempt
 * @property {number} steps
 * @property {string | null} started_at
 * @property {string | null} heartbeat_at
 * @property {string | null} finished_at
 * @property {{ loss: JsonNumber, grad_norm: JsonNumber, loss_scale: JsonNumber }} last
 * @property {Worst | null} worst
 * @property {Record<Severity, number>} alerts open ones
 * @property {Record<Severity, number>} alerts_past resolved ones
 * @property {JsonNumber[]} sparkline losses
 * @property {import("./overhead.js").Overhead | null} overhead what the agent costs
 * @property {number} world ranks of the present attempt
 * @property {number[]} missing_ranks the first ones that have reported nothing
 *
 * @typedef {{ kind: string, format: string, role: string, scaling: string }} Operand
 * @typedef {{ name: string, module_type?: string, parameters?: number, operands?: Operand[] }} LayerInfo
 * @typedef {{ step: number, layer: string | null, rank: number | null }} SkippedStep
 * @typedef {{ run: string, attempts: import("./attempts.js").Attempt[], layers: LayerInfo[], skipped_steps: SkippedStep[], ranks_disagree?: import("./ranks.js").Disagreement[] }} RunDetail
 *
 * @typedef {object} DeviceSample
 * @property {number} time_ns
 * @property {string} backend
 * @property {number} index
 * @property {number} [rank]
 * @property {string | null} [pci]
 * @property {string | null} [name]
 * @property {number | null} [vram_used_bytes]
 * @property {number | null} [vram_total_bytes]
 * @property {import("./json.js").JsonNumber} [busy_percent]
 * @property {import("./json.js").JsonNumber} [power_watts]
 * @property {import("./json.js").JsonNumber} [temperature_celsius]
 * @property {number | null} [allocated_bytes]
 * @property {number | null} [reserved_bytes]
 *
 * @typedef {{ mode: "local" | "token", scope: "admin" | "read" | null }} Session
 */
export {};
