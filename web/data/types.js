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
 * @typedef {{ run: string, attempts: import("./attempts.js").Attempt[], layers: LayerInfo[], skipped_steps: SkippedStep[], ranks_disagree?: import("./ranks.js").Disagreement[], scalars: Record<string, unknown>, config: { doctor?: DoctorVerdict[] } & Record<string, unknown>, checkpoints: import("./chart-marks.js").Checkpoint[], checkpoints_saved: number }} RunDetail checkpoints: the newest ones of those that were saved
 * @typedef {{ item: string, status: string, value: string, why: string, fix: string }} DoctorVerdict
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
 * @property {import("./json.js").JsonNumber} [memory_busy_percent]
 * @property {number | null} [alloc_retries]
 * @property {number | null} [ooms]
 * @property {import("./json.js").JsonNumber} [core_clock_mhz]
 * @property {import("./json.js").JsonNumber} [memory_clock_mhz]
 * @property {number | null} [pcie_width] this and those below are in a few readings only
 * @property {import("./json.js").JsonNumber} [pcie_speed_gts]
 * @property {number | null} [pcie_max_width]
 * @property {import("./json.js").JsonNumber} [pcie_max_speed_gts]
 * @property {number | null} [pcie_replays]
 * @property {number | null} [xgmi_links]
 * @property {import("./json.js").JsonNumber} [xgmi_bytes_per_s]
 * @property {number | null} [ecc_corrected]
 * @property {number | null} [ecc_uncorrected]
 * @property {import("./json.js").JsonNumber} [throttle_power_percent]
 * @property {import("./json.js").JsonNumber} [throttle_thermal_percent]
 * @property {import("./json.js").JsonNumber} [throttle_brake_percent]
 *
 * @typedef {{ id: number, run: string | null, kind: string | null, layer: string | null, until: string, comment: string, created_at: string }} Silence
 * @typedef {{ id: number, at: string, actor: string, action: string, subject: string }} Change a line of the audit log
 *
 * @typedef {object} Endpoint
 * @property {number} id
 * @property {string} type
 * @property {string} url of a chat only the host and the end
 * @property {string} language of its messages
 * @property {string[]} kinds empty: all
 * @property {Severity} min_severity
 * @property {boolean} signed
 * @property {boolean} enabled
 * @property {string | null} disabled_reason
 * @property {string} created_at
 *
 * @typedef {{ type: string, signed: boolean, per_minute: number | null, targets: string[] }} EndpointType
 *
 * @typedef {object} Delivery
 * @property {number} id
 * @property {number} endpoint
 * @property {number | null} alert
 * @property {string} webhook_id
 * @property {string} type alert.firing | alert.reminder | alert.resolved | alert.test
 * @property {string} state pending | leased | ok | failed | dead
 * @property {number} tries
 * @property {string | null} next_at
 * @property {number | null} http_status
 * @property {string | null} error
 * @property {string} created_at
 * @property {string | null} done_at
 *
 * @typedef {{ kind: string, rule: string, description: string, description_zh: string, parameters: Record<string, number> }} Rule
 * @typedef {Record<string, Record<string, number>>} Changes rule -> parameter -> value
 * @typedef {{ preset: string | null, parameters: Changes, levels: Record<string, Changes> }} RuleSettings what is set for one run or all; levels: what each preset alone would give
 * @typedef {{ alerts: Alert[], from_step: number | null, tensors_from_step: number | null }} Preview
 *
 * @typedef {{ mode: "local" | "token", scope: "admin" | "read" | null }} Session
 */
export {};
