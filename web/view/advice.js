/** What format and scale would hold a layer's values, as a table. */

import { LOST_SHARE, MARGIN_BITS, advise } from "../data/advice.js";
import { fixed, percent, superscript } from "../data/text.js";
import { h } from "./dom.js";
import { formatChip } from "./marks.js";

/** @param {readonly import("../data/histogram.js").HistogramColumn[]} columns @param {string | null} executed @param {import("../main.js").Context} context */
export function advice(columns, executed, { t }) {
  const { fits, best } = advise(columns, executed?.endsWith("fnuz") ?? false);
  if (fits.length === 0) return null;
  return [
    h("h3", null, t("advice.title")),
    h("p", { class: "advice" }, best === null ? t("advice.none") : [formatChip(best.format), best.scale === 0 ? ` ${t("advice.unscaled")}` : ` ${t("advice.scaled", { scale: `2${superscript(best.scale)}` })}`]),
    h(
      "table",
      { class: "fits" },
      h("thead", null, h("tr", null, ["format", "scale", "free", "small", "lost"].map((name) => h("th", { scope: "col" }, t(`fit.${name}`))))),
      h(
        "tbody",
        null,
        fits.map((fit) =>
          h(
            "tr",
            { key: fit.format, class: fit === best ? "best" : fit.fits ? "" : "unfit" },
            h("th", { scope: "row" }, formatChip(fit.format), fit === best ? h("span", { class: "sr" }, ` ${t("advice.best")}`) : null),
            h("td", null, `2${superscript(fit.scale)}`),
            h("td", null, `${fixed(fit.headroom, 1)} ${t("unit.bits")}`),
            h("td", null, percent(fit.subnormal)),
            h("td", null, percent(fit.lost)),
          ),
        ),
      ),
    ),
    h("p", { class: "muted" }, t("advice.how", { margin: String(MARGIN_BITS), share: percent(LOST_SHARE) })),
  ];
}
