"""The style sheet of `report.html`. Colours are of Okabe and Ito's set, which colour-blind readers tell apart."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root{--ink:#1a1a1a;--soft:#555;--line:#d0d0d0;--page:#fff;--a:#0072b2;--b:#b34700;--band:#e2e2e2}
*{box-sizing:border-box}
body{margin:0 auto;max-width:68rem;padding:1rem;font:16px/1.5 system-ui,sans-serif;
color:var(--ink);background:var(--page)}
h1{font-size:1.6rem;margin:.2rem 0}h2{font-size:1.25rem;margin:2rem 0 .5rem;border-bottom:2px solid var(--ink)}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
p{max-width:46rem}code{font-size:.85em;overflow-wrap:anywhere}
a{color:#005a8c}a:focus-visible,.scroll:focus-visible{outline:3px solid #0072b2;outline-offset:2px}
.skip{position:absolute;left:-99rem}.skip:focus{position:static}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1rem;list-style:none;padding:.5rem 0;margin:0;
border-block:1px solid var(--line)}
nav a{display:inline-block;padding:.25rem 0}
.outcome{display:inline-block;font-weight:700;font-size:1.3rem;margin:0;padding:.1rem .8rem;
border:3px solid;border-radius:.3rem}
.pass{color:#00614a}.fail{color:#8f3800}.void{color:#333;border-style:dashed}
.arm-key{font-weight:700;white-space:nowrap}.arm-key.a{color:var(--a)}.arm-key.b{color:var(--b)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
.figures td,.figures th{white-space:nowrap;padding-inline:.4rem}
table.wrap td{overflow-wrap:anywhere;min-width:6rem}
.badge{white-space:nowrap;font-size:.75rem;font-weight:700;border:1px solid;border-radius:.2rem;padding:0 .3rem}
.badge.real{background:#1a1a1a;color:#fff}.badge.real-small{border-width:2px}
.badge.unresolved,.badge.no-floor{border-style:dashed;color:var(--soft)}
ul.key{list-style:none;padding:0}
.forest-row{display:grid;grid-template-columns:minmax(0,30rem) minmax(0,1fr);gap:0 1rem;align-items:center;
border-bottom:1px solid #eee}
.forest-row.axis{border:0;align-items:end}.axis-name{font-weight:600}.said{font-size:.8rem;color:#333}
.forest-row>div:first-child{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 .5rem;font-size:.9rem}
.ends{display:flex;justify-content:space-between;font-size:.8rem}
div.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));gap:1rem}
figure{margin:0;break-inside:avoid}figcaption{font-size:.875rem;font-weight:600}
svg.chart{display:block;overflow:hidden}svg.mark{overflow:visible}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}
.grid{stroke:#ddd;stroke-width:1}.zero{stroke:var(--ink);stroke-width:1.5}
.band{fill:var(--band)}.margin{stroke:#777;stroke-width:1;stroke-dasharray:1 3}
.floor-mean{stroke:#777;stroke-width:1.5;stroke-dasharray:5 3}
.interval{stroke:var(--ink);stroke-width:2}.pair{fill:none;stroke:#666;stroke-width:1.5}
.estimate{stroke-width:2}.estimate.better{fill:var(--a);stroke:var(--a)}.estimate.worse{fill:#fff;stroke:var(--b)}
.trace{fill:none;stroke-width:2;vector-effect:non-scaling-stroke;stroke:var(--ink)}
.trace.arm-A{stroke:var(--a)}.trace.arm-B{stroke:var(--b);stroke-dasharray:7 4}
.trace.drop{stroke:var(--b);stroke-dasharray:7 4}.trace.pss{stroke:var(--a)}
.trace.gpu{stroke:#00614a;stroke-dasharray:2 3}
.phase{fill:#f4f4f4}.phase.warm-up{fill:#e4e4e4}.phase.serve{fill:#fff3cc}.phase.stop{fill:#eee}
.mark-A{fill:var(--a)}.mark-B{fill:#fff;stroke:var(--b);stroke-width:2}
.join{stroke-width:1.5}.join.arm-A{stroke:var(--a)}.join.arm-B{stroke:var(--b)}
.heat td{text-align:center;min-width:2.6rem}.heat .none{color:var(--soft)}
.heat-0{background:#f0f6fb}.heat-1{background:#d3e5f2}.heat-2{background:#aed0e8}.heat-3{background:#80b6da}
.heat-4{background:#f6e3c3}.heat-5{background:#efc987}.heat-6{background:#e6ab4e}
dl{display:grid;grid-template-columns:minmax(9rem,auto) 1fr;gap:.1rem 1rem;font-size:.9rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
@media(max-width:44rem){table.figures{font-size:.75rem}.figures td,.figures th{padding-inline:.2rem}
.forest-row{grid-template-columns:1fr;padding:.3rem 0}
.forest-row>div:first-child{justify-content:flex-start}
.forest-row.axis{position:sticky;top:0;background:var(--page)}dl{grid-template-columns:1fr}dt{margin-top:.4rem}}
@media print{body{font-size:10pt;max-width:none;padding:0}nav,.skip{display:none}.scroll{overflow:visible}
table{font-size:7.5pt}th,td{padding:1pt 3pt}.figures td,.figures th{white-space:normal}
.forest-row{grid-template-columns:1fr 1fr}.said,.badge{font-size:7pt}.forest-row>div:first-child{font-size:8pt}
.forest-row,tr,li{break-inside:avoid}h2,h3,h2+p{break-after:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
""".strip().replace("\n", "")
