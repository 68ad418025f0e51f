/** One series of several runs over one another. */

import { COLOURS, DASHES } from "../../data/compare.js";
import { MONO, inkOf, onResize } from "../canvas.js";
import { yAxis } from "../figure.js";

/** @typedef {{ name: string, place: number, x: number[], raw: number[], smooth: number[] | null }} Curve */
/**
 * @typedef {object} OverlayData
 * @property {Curve[]} curves
 * @property {{ place: number, x: number, severity: "critical" | "warning" | "info" }[]} marks of alerts
 * @property {number | null} from @property {number | null} to
 * @property {import("../figure.js").Axis} axis of the values @property {string} unit of the axis @property {string} theme @property {boolean} ready
 * @property {(from: number | null, to: number | null) => void} zoom
 */
const HEIGHT = 190;

/** @param {HTMLElement} element @returns {import("../dom.js").Island} */
export function createOverlay(element) {
  const host = document.createElement("div");
  element.append(host);
  /** @type {OverlayData | null} */
  let data = null;
  let drawn = "";
  let listening = false;
  const stop = onResize(element, () => draw(true));

  /** @param {boolean} again */
  function draw(again) {
    if (data === null || !data.ready || element.clientWidth === 0) return;
    const { zoom: _, ...shown } = data;
    const now = JSON.stringify(shown);
    if (now === drawn && !again) return;
    drawn = now;
    const plotly = /** @type {{ Plotly: import("../plot.js").Plotly }} */ (/** @type {unknown} */ (window)).Plotly;
    void plotly.react(host, tracesOf(data), layoutOf(data, element.clientWidth), { displayModeBar: false, doubleClick: false, showTips: false });
    if (listening) return;
    listening = true;
    const plot = /** @type {import("../plot.js").PlotElement} */ (/** @type {HTMLElement} */ (host));
    plot.on("plotly_doubleclick", () => data?.zoom(null, null));
    plot.on("plotly_relayout", (event) => {
      const [from, to] = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
      if (from !== undefined && to !== undefined) data?.zoom(Math.max(0, Math.round(from)), Math.max(0, Math.round(to)));
    });
  }

  return {
    update(next) {
      data = next;
      draw(false);
    },
    destroy() {
      stop();
      if (listening) /** @type {{ Plotly: import("../plot.js").Plotly }} */ (/** @type {unknown} */ (window)).Plotly.purge(host);
    },
  };
}

/** @param {OverlayData} data */
function tracesOf({ curves, theme }) {
  return curves.flatMap(({ name, place, x, raw, smooth }) => {
    // Plotly reads a few tags in names.
    const label = name.replace(/&/g, "&amp;").replace(/</g, "&lt;");
    const line = { color: COLOURS[theme]?.[place], dash: DASHES[place], width: 1.5 };
    // A run of one step has no line.
    const mode = x.length === 1 ? "markers" : "lines";
    const base = { type: "scatter", mode, x, showlegend: false, marker: { color: line.color, size: 7 } };
    const hover = { name: label, hovertemplate: "%{y:.5~g}" };
    if (smooth === null) return [{ ...base, ...hover, y: raw, line }];
    return [{ ...base, y: raw, line: { ...line, width: 1 }, opacity: 0.28, hoverinfo: "skip" }, { ...base, ...hover, y: smooth, line }];
  });
}

/** @param {OverlayData} data @param {number} width */
function layoutOf({ marks, from, to, axis, unit, theme, curves }, width) {
  const ink = inkOf(theme);
  const font = { family: MONO.replace("11px ", ""), size: 11, color: ink.muted };
  const grid = { gridcolor: ink.graticule, griddash: "dot", zeroline: false, linecolor: ink.line, mirror: true, tickfont: font, ticks: "outside", ticklen: 4, tickcolor: ink.line };
  const margin = { l: 64, r: 12, t: 8, b: 36 };
  const end = curves.reduce((most, curve) => curve.x.reduce((high, at) => (at > high ? at : high), most), 0);
  return {
    width, height: HEIGHT, margin, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font,
    hovermode: "x unified", hoverlabel: { bgcolor: ink.panel, bordercolor: ink.muted, font: { ...font, color: ink.text } }, dragmode: "zoom",
    shapes: marks.map(({ x, severity, place }) => ({ type: "line", x0: x, x1: x, y0: 0.92, y1: 1, yref: "paper", line: { color: COLOURS[theme]?.[place], width: severity === "critical" ? 3 : 1.5, dash: severity === "critical" ? "solid" : "dot" } })),
    xaxis: { ...grid, range: [from ?? 0, to ?? Math.max(1, end)], title: { text: unit, font, standoff: 4 } },
    yaxis: { ...grid, ...yAxis(axis, HEIGHT - margin.t - margin.b, curves.flatMap(({ raw, smooth }) => [...raw, ...(smooth ?? [])])), fixedrange: true },
  };
}
