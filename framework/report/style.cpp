#include "framework/report/sections.h"

namespace capstan::framework {

// Lines: colours that also people with colour-blindness tell apart (after Okabe and Ito), with dashes and letters beside them for
// grey print. Heat maps have their own colours, which no mode changes.
const char report_style[] = R"css(
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5a636e; --paper: #ffffff; --rule: #d5dae0; --band: #f4f6f8;
  --c0: #0b62a8; --c1: #c8500a; --c2: #00755a; --c3: #9b2f78; --c4: #3b3b3b; --c5: #3f8fd0; --c6: #a97900; --c7: #7a4a36;
  --c8: #5d6b1e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #a3adb8; --paper: #15181c; --rule: #3a414a;
  --band: #1e2329; --c0: #5fa8e6; --c1: #f08a4b; --c2: #3cc4a0; --c3: #e184c0; --c4: #d0d0d0; --c5: #9cd0ff; --c6: #e0b84a;
  --c7: #c99a84; --c8: #b5c46a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 1180px; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.4rem; padding-top: 0.5rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.3rem 0 0.3rem; }
p { margin: 0.4rem 0; max-width: 75ch; }
a { color: var(--c0); }
code { font: 0.85em/1.4 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; font-size: 0.9rem; }
.note { color: var(--soft); font-size: 0.85rem; }
.refused { border-left: 3px solid var(--c1); padding-left: 0.6rem; font-size: 0.9rem; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; margin: 0.4rem 0; }
th, td { padding: 0.25rem 0.6rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; white-space: normal; max-width: 9rem; }
th:first-child, td.t { text-align: left; }
tbody th { font-weight: 600; text-align: left; white-space: normal; min-width: 8rem; max-width: 17rem; }
@media (max-width: 600px) { tbody th { max-width: 10rem; } th, td { padding: 0.25rem 0.4rem; } }
h4 { font-size: 0.9rem; margin: 1rem 0 0.2rem; }
td.long { white-space: normal; text-align: left; min-width: 15rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: 0.5rem 1.5rem; }
.maps { display: flex; flex-wrap: wrap; gap: 0.5rem 2rem; }
.maps > figure { max-width: 100%; }
.smalls { display: grid; grid-template-columns: repeat(auto-fill, minmax(104px, 1fr)); gap: 0.6rem; max-width: 1000px; }
figure { margin: 0.6rem 0; min-width: 0; }
figure.small { margin: 0; }
figure.small figcaption { font-weight: 400; font-size: 0.75rem; text-align: center; }
figcaption { font-weight: 600; font-size: 0.9rem; }
.chart { max-width: 560px; }
.none { color: var(--soft); border: 1px dashed var(--rule); padding: 1.5rem; text-align: center; }
svg { display: block; }
svg.fit { width: 100%; height: auto; }
.small svg { background: var(--band); }
.legend { display: flex; flex-wrap: wrap; gap: 0.1rem 1.2rem; font-size: 0.85rem; max-width: none; }
.legend span { white-space: normal; }
.legend svg { display: inline-block; vertical-align: middle; }
svg text { fill: var(--ink); font: 11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
svg text.name { fill: var(--soft); }
svg text.cell { fill: #10151c; text-anchor: middle; font-size: 10px; }
svg tspan.w { fill: #ffffff; }
.grid { stroke: var(--rule); stroke-width: 1; fill: none; }
.axis { stroke: var(--soft); stroke-width: 1; fill: none; }
.over { fill: transparent; stroke: var(--paper); stroke-width: 1; }
.l0, .l1, .l2, .l3, .l4, .l5, .l6, .l7, .l8 { fill: none; stroke-width: 2; stroke-linejoin: round; }
.l0 { stroke: var(--c0); } .l1 { stroke: var(--c1); stroke-dasharray: 7 3; } .l2 { stroke: var(--c2); stroke-dasharray: 2 2; }
.l3 { stroke: var(--c3); stroke-dasharray: 9 3 2 3; } .l4 { stroke: var(--c4); } .l5 { stroke: var(--c5); stroke-dasharray: 7 3; }
.l6 { stroke: var(--c6); stroke-dasharray: 2 2; } .l7 { stroke: var(--c7); stroke-dasharray: 9 3 2 3; }
.l8 { stroke: var(--c8); stroke-dasharray: 12 4; }
.faint { stroke-width: 0.8; stroke-opacity: 0.4; stroke-dasharray: none; }
.m0, .m1, .m2, .m3, .m4, .m5, .m6, .m7, .m8 { stroke: var(--paper); stroke-width: 1; }
.m0 { fill: var(--c0); } .m1 { fill: var(--c1); } .m2 { fill: var(--c2); } .m3 { fill: var(--c3); } .m4 { fill: var(--c4); }
.m5 { fill: var(--c5); } .m6 { fill: var(--c6); } .m7 { fill: var(--c7); } .m8 { fill: var(--c8); }
svg text.t0, .k0 { fill: var(--c0); color: var(--c0); } svg text.t1, .k1 { fill: var(--c1); color: var(--c1); }
svg text.t2, .k2 { fill: var(--c2); color: var(--c2); } svg text.t3, .k3 { fill: var(--c3); color: var(--c3); }
svg text.t4, .k4 { fill: var(--c4); color: var(--c4); } svg text.t5, .k5 { fill: var(--c5); color: var(--c5); }
svg text.t6, .k6 { fill: var(--c6); color: var(--c6); } svg text.t7, .k7 { fill: var(--c7); color: var(--c7); }
svg text.t8, .k8 { fill: var(--c8); color: var(--c8); }
svg text.t0, svg text.t1, svg text.t2, svg text.t3, svg text.t4, svg text.t5, svg text.t6, svg text.t7, svg text.t8 {
  font-weight: 700; }
@media print { :root { color-scheme: light; --ink: #000; --soft: #444; --paper: #fff; --rule: #bbb; --band: #f4f4f4;
    --c0: #0b62a8; --c1: #c8500a; --c2: #00755a; --c3: #9b2f78; --c4: #3b3b3b; --c5: #3f8fd0; --c6: #a97900; --c7: #7a4a36;
    --c8: #5d6b1e; }
  body { max-width: none; padding: 0; font-size: 10pt; } nav, .screen { display: none; }
  .scroll { overflow: visible; } svg.own { max-width: 100%; height: auto; }
  th, td { white-space: normal; padding: 0.15rem 0.35rem; } figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  path, rect { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
)css";

}  // namespace capstan::framework
