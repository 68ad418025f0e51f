"""The report's style sheet: the page's colours in both themes, and paper."""

__all__ = ["STYLE"]

_LIGHT = """--bg:#faf9f5;--panel:#f1efe8;--line:#c9c6ba;--graticule:#dedbd1;--text:#192123;--muted:#5a6464;
--trace:#0b6a5d;
--critical:#b3301a;--warning:#855800;--info:#1f5f9e;--ok:#2c7a69"""
_DARK = """--bg:#0b1113;--panel:#11191c;--line:#2a383c;--graticule:#233034;--text:#e2eae7;--muted:#93a3a1;
--trace:#86dcc9;
--critical:#ff7d5c;--warning:#e9b949;--info:#86b8ea;--ok:#5fae9c"""

STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}"
    ".pixels.dark{display:none}"
    "@media screen and (prefers-color-scheme:dark){"
    f":root{{{_DARK}}}"
    ".pixels.dark{display:inline}.pixels.light{display:none}}"
    """
*{box-sizing:border-box}
body{margin:0 auto;max-width:1040px;padding:20px 24px 40px;background:var(--bg);color:var(--text);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","PingFang SC","Microsoft YaHei",
"Noto Sans CJK SC",sans-serif}
h1{font-size:22px;line-height:1.25;margin:2px 0 12px;overflow-wrap:anywhere}
h2{font-size:16px;margin:32px 0 8px;padding-top:10px;border-top:1px solid var(--line)}
h3{font-size:13px;margin:14px 0 2px;display:flex;gap:12px;align-items:baseline;flex-wrap:wrap}
h3 span{font-weight:400;color:var(--muted)}
p{margin:6px 0}
.brand,.note,.muted{color:var(--muted)}
.note{font-size:12.5px}
.brand{font-size:12px;letter-spacing:.04em}
.mono,code,pre,td.number,.hero b,dl.facts dd{font-family:ui-monospace,"SF Mono","Cascadia Mono","JetBrains Mono",
Menlo,Consolas,"DejaVu Sans Mono",monospace;font-variant-numeric:tabular-nums}
dl.facts{display:flex;flex-wrap:wrap;gap:6px 28px;margin:0}
dl.facts dt{font-size:12px;color:var(--muted)}
dl.facts dd{margin:0;font-size:13px}
.verdict{background:var(--panel);border:1px solid var(--line);
border-left:4px solid var(--ok);padding:14px 18px;
margin:18px 0 0;display:grid;grid-template-columns:minmax(190px,auto) 1fr;gap:8px 32px}
.verdict.over{border-left-color:var(--critical)}
.verdict.near{border-left-color:var(--warning)}
.verdict h2{display:none}
.hero .label{font-size:12px;color:var(--muted)}
.hero b{font-size:44px;line-height:1.1;font-weight:600}
.over .hero b{color:var(--critical)}
.near .hero b{color:var(--warning)}
.hero .unit{color:var(--muted);margin-left:6px}
.hero p{max-width:30ch}
.verdict table{align-self:start}
.verdict th{font-weight:400;color:var(--muted);white-space:nowrap;font-size:13px}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:left;vertical-align:top;padding:4px 12px 4px 0;border-bottom:1px solid var(--graticule)}
thead th{font-weight:600;font-size:12px;color:var(--muted);border-bottom-color:var(--line)}
th.number,td.number{text-align:right;white-space:nowrap}
td.name{overflow-wrap:anywhere;min-width:13em}
td.key{color:var(--muted);white-space:nowrap}
td.value{overflow-wrap:anywhere;white-space:pre-wrap}
tr:last-child>td,tr:last-child>th{border-bottom:0}
.sev{white-space:nowrap;font-weight:600}
.sev svg{width:11px;height:11px;margin-right:6px;
vertical-align:-1px;fill:currentColor;stroke:currentColor;display:inline}
.sev.past svg{fill:none}
.sev.critical,.bad{color:var(--critical)}
.sev.warning,.warn{color:var(--warning)}
.sev.info{color:var(--info)}
.sev.ok{color:var(--ok)}
.past~td{color:var(--muted)}
.scroll{overflow-x:auto}
.wide{min-width:680px}
.figure{overflow-x:auto;margin:2px 0}
.figure svg{display:block;width:100%;min-width:640px}
.figure.scale svg{max-width:640px;min-width:520px}
svg{display:block}
svg text{font:11px ui-monospace,"SF Mono","Cascadia Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;
fill:var(--muted)}
svg .end{text-anchor:end}
svg .middle{text-anchor:middle}
svg .strong{fill:var(--text)}
svg .halo{paint-order:stroke;stroke:var(--bg);stroke-width:3px}
svg .raised{font-size:8px}
.frame{fill:none;stroke:var(--line)}
.grid{stroke:var(--graticule);stroke-dasharray:1 3}
.tick{stroke:var(--muted)}
.trace{fill:none;stroke:var(--trace);stroke-width:1.4;stroke-linecap:round;stroke-linejoin:round}
.band{fill:var(--trace);opacity:.22}
.zero{stroke:var(--text);stroke-width:2}
.limit{fill:none;stroke:var(--critical);stroke-width:1.6}
.limit.normal{stroke-dasharray:6 4;stroke-width:1.2}
.limit.zero{stroke-dasharray:2 3;stroke-width:1.2}
.mark{stroke-width:1.3}
.mark.critical{stroke:var(--critical)}
.mark.warning{stroke:var(--warning);stroke-dasharray:5 3}
.mark.info{stroke:var(--info);stroke-dasharray:1.5 3}
.nonfinite{fill:none;stroke:var(--critical);stroke-width:1.6}
.skipped{fill:var(--warning)}
.pixels{image-rendering:pixelated}
pre{background:var(--panel);border:1px solid var(--line);padding:8px 12px;overflow-x:auto;
font-size:12.5px;margin:6px 0;white-space:pre-wrap;overflow-wrap:anywhere}
footer{margin-top:32px;border-top:1px solid var(--line);padding-top:8px;font-size:12px;color:var(--muted)}
@media (max-width:640px){body{padding:14px 14px 32px}.verdict{grid-template-columns:1fr}.verdict th{white-space:normal}
.alerts thead{display:none}.alerts tr{display:block;border-bottom:1px solid var(--graticule);padding:4px 0}
.alerts td{display:inline-block;border:0}
.alerts .note{display:inline;margin-left:8px}.alerts td.what{display:block;min-width:0}}
@media print{@page{margin:14mm}body{max-width:none;padding:0;font-size:11px}
.figure,.scroll{overflow:visible}.figure svg,.wide{min-width:0}
figure,.figure,tr,pre,.verdict{break-inside:avoid}h2,h3{break-after:avoid}}
"""
)
