"""How a report looks: on paper, on a phone, by day and by night."""

STYLESHEET = """\
:root {
  color-scheme: light dark;
  --paper: #fdfcf9; --ink: #1d2126; --faint: #646b74; --rule: #dcd9d1; --wash: #f3f1ea;
  --accent: #0f6ba8; --bar: #56a3d6;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181c; --ink: #e4e3de; --faint: #9aa1a9; --rule: #343a41; --wash: #1e2227;
    --accent: #7cc0ee; --bar: #3f86b8;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 1.0625rem/1.6 "Iowan Old Style", "Palatino Linotype", Palatino, "Book Antiqua", Georgia, serif;
}
main { max-width: 62rem; margin: 0 auto; padding: 3.5rem 1.25rem 5rem; }
header { border-bottom: 3px double var(--rule); padding-bottom: 1.1rem; margin-bottom: 2rem; }
h1 { margin: 0; font-size: clamp(1.7rem, 1.2rem + 2.4vw, 2.6rem); line-height: 1.15; font-weight: 600; }
.subtitle { margin: .45rem 0 0; color: var(--faint); font-style: italic; }
h2 { margin: 2.8rem 0 .8rem; font-size: 1.4rem; line-height: 1.25; font-weight: 600; break-after: avoid; }
p { margin: 0 0 1rem; max-width: 40rem; overflow-wrap: break-word; }
code, .token { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre {
  margin: 0 0 1.4rem; padding: .8rem 1rem; overflow-x: auto; border-left: 3px solid var(--accent);
  background: var(--wash); font-size: .84rem; line-height: 1.5;
}
dl, dt, dd, .picture text, table, figcaption, .share { font-variant-numeric: lining-nums tabular-nums; }

.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: 1.2rem 1.6rem; }
.figures { margin: 0 0 2rem; }
.figures div { border-top: 1px solid var(--rule); padding-top: .55rem; }
.figures dt { color: var(--faint); font-size: .88rem; line-height: 1.3; }
.figures dd { margin: 0; }
.figures .value { font-size: 1.75rem; line-height: 1.3; overflow-wrap: anywhere; }
.figures .note { color: var(--faint); font-size: .82rem; line-height: 1.35; font-style: italic; }

main { counter-reset: picture table; }
figure { margin: 1.8rem 0 2.2rem; break-inside: avoid; }
figcaption { max-width: 40rem; color: var(--faint); font-size: .9rem; line-height: 1.45; margin-top: .6rem; }
figcaption::before { color: var(--ink); font-weight: 600; }
.pictorial figcaption::before { counter-increment: picture; content: "Figure " counter(picture) ".  "; }
.tabular figcaption::before { counter-increment: table; content: "Table " counter(table) ".  "; }
.tabular figcaption { margin: 0 0 .5rem; }
/* Pictures keep their size, so that their text has one size everywhere; those too wide scroll. */
.picture { display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; overflow-x: auto; }
.picture svg { flex: none; overflow: visible; color: var(--ink); }
.picture text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif !important; }

.wide { overflow-x: auto; }
table { border-collapse: collapse; border: solid var(--ink); border-width: 1.5px 0; font-size: .94rem; }
th, td { padding: .28rem 1.4rem .28rem 0; text-align: left; vertical-align: baseline; }
th:last-child, td:last-child { padding-right: 0; }
th { font-weight: 600; border-bottom: 1px solid var(--ink); }
td { border-bottom: 1px solid var(--rule); }
tbody tr:last-child td { border-bottom: 0; }
.number { text-align: right; }
td.number { white-space: nowrap; }

.masked { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.masked { gap: 1.6rem 2.4rem; margin: 1.4rem 0 2.2rem; }
.masked, .masked ol { list-style: none; padding: 0; }
.masked > li { break-inside: avoid; }
.masked p { margin: 0 0 .35rem; }
.masked ol { margin: 0; font-size: .84rem; }
.masked ol li { display: grid; grid-template-columns: 8.5rem 1fr 2.6rem; gap: .6rem; align-items: center; }
.token { overflow-wrap: anywhere; line-height: 1.3; }
.true .token { font-weight: 700; }
.track { height: .6rem; background: var(--wash); }
.track span { display: block; height: 100%; min-width: 1px; background: var(--bar); }
.share { text-align: right; color: var(--faint); }
mark { background: none; color: var(--accent); border-bottom: 2px solid var(--bar); font-weight: 600; }

.mistakes { list-style: none; margin: 1.4rem 0 2.2rem; padding: 0; }
.mistakes li { break-inside: avoid; border-top: 1px solid var(--rule); padding: .6rem 0; max-width: 46rem; }
.mistakes p { margin: 0 0 .25rem; max-width: none; overflow-wrap: anywhere; }
.mistakes dl { margin: 0; font-size: .9rem; overflow-wrap: anywhere; }
.mistakes dt, .mistakes dd { display: inline; margin: 0 .5rem 0 0; }
.mistakes dt { color: var(--faint); font-style: italic; }

@media (max-width: 30rem) {
  main { padding: 1.6rem .625rem 3rem; }
  body { font-size: 1rem; }
  .figures { grid-template-columns: repeat(2, 1fr); gap: 1rem; }
  .figures .value { font-size: 1.45rem; }
  th, td { padding-right: .9rem; }
  .masked ol li { grid-template-columns: 7rem 1fr 2.4rem; }
}
@media print {
  :root { --paper: #fff; --ink: #000; --faint: #444; --rule: #bbb; --wash: #f2f2f2; --accent: #0f6ba8; }
  @page { margin: 18mm; }
  body { font-size: 10.5pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  .figures .value { font-size: 1.35rem; }
  .picture svg { max-width: 100%; height: auto; }
  .wide, .picture, pre { overflow: visible; }
  pre { white-space: pre-wrap; }
}
"""
