-- page.lua: the report's page: markup, style and the script that draws. @TITLE@ and @DATA@ are filled in by report.lua;
-- nothing is loaded from elsewhere.
return [==[
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title>
<style>
:root { --ink: #1c2733; --dim: #66727f; --line: #d7dde3; --back: #fbfcfd; --card: #fff; --mark: #0b6e99; --faint: #b9c4ce }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ed; --dim: #98a4b0; --line: #36414c; --back: #14191f; --card: #1b222a; --mark: #5cc0ec; --faint: #55626e }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 24px; max-width: 1180px; background: var(--back); color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif }
h1 { font-size: 22px; margin: 0 0 4px } h2 { font-size: 15px; margin: 0 0 8px }
p { margin: 0 0 16px; color: var(--dim) }
section { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 14px 16px; margin: 0 0 16px;
  overflow-x: auto }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 16px } .pair section { min-width: 0 }
@media (max-width: 860px) { .pair { grid-template-columns: 1fr } }
svg { display: block; width: 100%; height: auto } svg text { fill: var(--dim); font-size: 11px }
.axis { stroke: var(--line) } .grid { stroke: var(--line); stroke-dasharray: 2 3 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums } th, td { text-align: left;
  padding: 3px 10px 3px 0; white-space: nowrap; border-bottom: 1px solid var(--line) }
td.error { white-space: normal; color: var(--dim) }
th { cursor: pointer; user-select: none } th:focus { outline: 2px solid var(--mark) }
th.up::after { content: " \25b2" } th.down::after { content: " \25bc" }
select { font: inherit; color: inherit; background: var(--back); border: 1px solid var(--line); border-radius: 4px }
</style>
</head>
<body>
<h1 id="title"></h1>
<p id="summary"></p>
<div class="pair">
<section id="history"><h2>Optimisation history</h2></section>
<section id="importance"><h2>Parameter importance</h2></section>
</div>
<section id="curves"><h2>Learning curves</h2></section>
<section id="parallel"><h2>Parallel coordinates</h2></section>
<section id="slices"><h2>Slices</h2></section>
<section id="contour"><h2>Contour: <select id="cx" aria-label="x"></select> × <select id="cy" aria-label="y"></select></h2>
</section>
<section id="table"><h2>Trials</h2></section>
<script id="data" type="application/json">@DATA@</script>
<script>
"use strict";
window.onerror = message => document.body.setAttribute("data-error", message);
const data = JSON.parse(document.getElementById("data").textContent);
const sign = data.direction === "minimize" ? 1 : -1;
const num = v => v === "inf" ? Infinity : v === "-inf" ? -Infinity : v === "nan" ? NaN : v;
for (const t of data.trials) {
  t.value = t.value === null || t.value === undefined ? null : num(t.value);
  t.reports = t.reports.map(([s, v]) => [s, num(v)]);
}
const ok = v => typeof v === "number" && isFinite(v);
const complete = data.trials.filter(t => t.state === "complete" && ok(t.value));
const valued = data.trials.filter(t => (t.state === "complete" || t.state === "pruned") && ok(t.value));
const best = complete.reduce((a, t) => !a || sign * t.value < sign * a.value ? t : a, null);

// ---- small things ----
function svg(name, attributes, parent, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const k in attributes) e.setAttribute(k, attributes[k]);
  if (text !== undefined) e.textContent = text;
  if (parent) parent.appendChild(e);
  return e;
}
function canvas(id, w, h) {
  return svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img" }, document.getElementById(id));
}
function note(id, text) {
  const p = document.createElement("p");
  p.textContent = text;
  document.getElementById(id).appendChild(p);
}
function short(v) {
  if (typeof v !== "number") return v === null || v === undefined ? "" : String(v);
  if (Number.isInteger(v) && Math.abs(v) < 1e7) return String(v);
  return String(Number(v.toPrecision(4)));
}
const stops = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
function colour(u) { // 0: the best, bright; 1: the worst, dark
  const x = (1 - Math.min(Math.max(u, 0), 1)) * (stops.length - 1), i = Math.min(Math.floor(x), stops.length - 2);
  return "rgb(" + stops[i].map((a, k) => Math.round(a + (stops[i + 1][k] - a) * (x - i))).join(",") + ")";
}
// Pruned trials come after the complete ones, those that came further first.
const ranked = valued.slice().sort((a, b) => a.state !== b.state ? (a.state === "complete" ? -1 : 1) :
  a.state === "pruned" && a.step !== b.step ? b.step - a.step : sign * (a.value - b.value));
ranked.forEach((t, i) => { t.rank = ranked.length > 1 ? i / (ranked.length - 1) : 0; });
function tip(e, t) {
  svg("title", {}, e, `trial ${t.number} (${t.state}): ${short(t.value)}\n` +
    Object.keys(t.params).sort().map(k => `${k} = ${short(t.params[k])}`).join("\n"));
}
// The range of values worth showing: outliers on the bad side are cut off.
function range(values) {
  const s = values.filter(ok).sort((a, b) => sign * (a - b));
  if (!s.length) return [0, 1];
  const q = f => s[Math.floor(f * (s.length - 1))];
  const limit = q(0.75) + 1.5 * (q(0.75) - q(0));
  const shown = s.filter(v => sign * v <= sign * limit);
  let lo = Math.min(...shown), hi = Math.max(...shown);
  if (lo === hi) { lo -= 0.5; hi += 0.5; }
  const pad = 0.04 * (hi - lo);
  return [lo - pad, hi + pad];
}
function ticks(lo, hi, n) {
  const raw = (hi - lo) / n, p = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map(k => k * p).find(k => k >= raw), list = [];
  for (let v = Math.ceil(lo / step) * step; v <= hi + step * 1e-9; v += step) list.push(Number(v.toPrecision(12)));
  return list;
}

// ---- a parameter's axis: value -> 0..1 ----
function axis(name) {
  const d = data.space[name] || {}, values = data.trials.map(t => t.params[name]).filter(v => v !== undefined);
  const numeric = values.length > 0 && values.every(v => typeof v === "number") && d.kind !== "choice";
  if (!numeric) {
    const list = [...new Set(values.map(String))].sort((a, b) => a - b || (a < b ? -1 : 1));
    return { name, list, u: v => v === undefined ? null : (list.indexOf(String(v)) + 0.5) / list.length,
      ticks: list.map((v, i) => [(i + 0.5) / list.length, v]) };
  }
  let lo = Math.min(...values), hi = Math.max(...values);
  const log = d.log && lo > 0, f = log ? Math.log : v => v;
  if (lo === hi) { if (log) { lo /= 2; hi *= 2; } else { lo -= 0.5; hi += 0.5; } }
  const u = v => v === undefined ? null : (f(v) - f(lo)) / (f(hi) - f(lo));
  let marks = ticks(lo, hi, 4);
  if (log) {
    marks = [];
    for (let e = Math.floor(Math.log10(lo)); e <= Math.ceil(Math.log10(hi)); e++) marks.push(Math.pow(10, e));
    marks = marks.filter(v => v >= lo * 0.999 && v <= hi * 1.001);
    if (marks.length < 2) marks = [lo, hi];
  }
  return { name, u, ticks: marks.map(v => [u(v), short(v)]) };
}
const names = [...new Set(data.trials.flatMap(t => Object.keys(t.params)))].sort();
const axes = names.map(axis).filter(a => !(a.list && a.list.length < 2));
const importance = data.importance || {};
axes.sort((a, b) => (importance[b.name] || 0) - (importance[a.name] || 0));

// A frame with a value axis. Returns functions that place.
function frame(s, box, yr, xr, xticks, xlabel, ylabel) {
  const [x0, y0, x1, y1] = box;
  const y = v => y1 - Math.min(Math.max((v - yr[0]) / (yr[1] - yr[0]), 0), 1) * (y1 - y0);
  const x = v => x0 + (v - xr[0]) / (xr[1] - xr[0]) * (x1 - x0);
  for (const v of ticks(yr[0], yr[1], 5)) {
    svg("line", { class: "grid", x1: x0, x2: x1, y1: y(v), y2: y(v) }, s);
    if (ylabel !== null) svg("text", { x: x0 - 6, y: y(v) + 4, "text-anchor": "end" }, s, short(v));
  }
  for (const [v, text] of xticks) svg("text", { x: x(v), y: y1 + 15, "text-anchor": "middle" }, s, text);
  svg("path", { class: "axis", fill: "none", d: `M${x0},${y0}V${y1}H${x1}` }, s);
  if (xlabel) svg("text", { x: (x0 + x1) / 2, y: y1 + 30, "text-anchor": "middle" }, s, xlabel);
  if (ylabel) svg("text", { x: x0, y: y0 - 6 }, s, ylabel);
  return { x, y };
}
function dot(s, cx, cy, t, r) {
  const attributes = { class: "point", cx, cy, r: r || 3.2, fill: colour(t.rank), "fill-opacity": 0.85 };
  if (t.state === "pruned") Object.assign(attributes, { fill: "none", stroke: "var(--faint)" });
  tip(svg("circle", attributes, s), t);
}

// ---- the plots ----
function drawHistory() {
  if (!valued.length) return note("history", "No trial has a value yet.");
  const s = canvas("history", 560, 300), last = Math.max(1, data.trials.length - 1), yr = range(valued.map(t => t.value));
  const marks = ticks(0, last, 6).filter(Number.isInteger).map(v => [v, v]);
  const f = frame(s, [52, 20, 550, 260], yr, [0, last], marks, "trial", "value");
  for (const t of valued) dot(s, f.x(t.number), f.y(t.value), t);
  let d = "", low = null;
  for (const t of complete) {
    if (low === null || sign * t.value < sign * low) {
      d += low === null ? `M${f.x(t.number)},${f.y(t.value)}` : `H${f.x(t.number)}V${f.y(t.value)}`;
      low = t.value;
    }
  }
  if (d) svg("path", { class: "best", d: d + `H${f.x(last)}`, fill: "none", stroke: "var(--mark)", "stroke-width": 2 }, s);
}
function drawImportance() {
  if (!data.importance) return note("importance", "Needs at least 8 trials whose values differ.");
  const list = axes.filter(a => a.name in importance), s = canvas("importance", 560, Math.max(60, 26 * list.length + 20));
  list.forEach((a, i) => {
    const v = importance[a.name], y = 10 + 26 * i;
    svg("text", { x: 140, y: y + 14, "text-anchor": "end" }, s, a.name);
    svg("rect", { class: "bar", x: 150, y: y + 2, width: Math.max(1, 340 * v), height: 17, fill: "var(--mark)" }, s);
    svg("text", { x: 156 + 340 * v, y: y + 14 }, s, (100 * v).toFixed(1) + " %");
  });
}
function drawCurves() {
  const list = data.trials.filter(t => t.reports.length > 0);
  if (!list.length) return note("curves", "No trial reported values on its way.");
  const s = canvas("curves", 1140, 360), steps = list.flatMap(t => t.reports.map(r => r[0]));
  const lo = Math.min(...steps), hi = Math.max(lo + 1, Math.max(...steps));
  const yr = range(list.flatMap(t => t.reports.map(r => r[1])));
  const marks = ticks(lo, hi, 10).filter(Number.isInteger).map(v => [v, v]);
  const f = frame(s, [52, 20, 1130, 320], yr, [lo, hi], marks, "step", "value");
  const order = list.slice().sort((a, b) => (b.rank ?? 1) - (a.rank ?? 1));
  for (const t of order) {
    const points = t.reports.filter(r => ok(r[1]));
    const stroke = t === best ? "var(--mark)" : t.state === "complete" ? colour(t.rank ?? 1) : "var(--faint)";
    const d = points.map(([step, v], i) => (i ? "L" : "M") + f.x(step).toFixed(1) + "," + f.y(v).toFixed(1)).join("");
    if (points.length === 1) dot(s, f.x(points[0][0]), f.y(points[0][1]), t, 2);
    tip(svg("path", { class: "curve", d: d || "M0,0", fill: "none", stroke, "stroke-opacity": 0.8,
      "stroke-width": t === best ? 2.5 : 1.2 }, s), t);
  }
}
function drawParallel() {
  if (axes.length === 0 || !valued.length) return note("parallel", "No parameters to show.");
  const s = canvas("parallel", 1140, 340), yr = range(valued.map(t => t.value));
  const worst = v => Math.min(Math.max((v - yr[0]) / (yr[1] - yr[0]), 0), 1);
  const columns = axes.concat([{ name: "value", u: null, ticks: ticks(yr[0], yr[1], 5).map(v => [worst(v), short(v)]) }]);
  const x = i => 60 + 1010 * i / Math.max(1, columns.length - 1), y = u => 300 - 262 * u;
  for (const t of ranked.slice().reverse()) {
    let d = "", pen = false;
    columns.forEach((a, i) => {
      const u = a.u ? a.u(t.params[a.name]) : worst(t.value);
      if (u === null) { pen = false; return; }
      d += `${pen ? "L" : "M"}${x(i).toFixed(1)},${y(u).toFixed(1)}`;
      pen = true;
    });
    tip(svg("path", { class: "line", d, fill: "none", stroke: colour(t.rank), "stroke-width": t === best ? 3 : 1.2,
      "stroke-opacity": t.state === "complete" ? 0.7 : 0.2 }, s), t);
  }
  columns.forEach((a, i) => {
    svg("line", { class: "axis", x1: x(i), x2: x(i), y1: y(0), y2: y(1) }, s);
    svg("text", { x: x(i), y: 24, "text-anchor": "middle" }, s, a.name);
    for (const [u, text] of a.ticks) svg("text", { x: x(i) + 5, y: y(u) + 4 }, s, text);
  });
}
function drawSlices() {
  if (!axes.length || !valued.length) return note("slices", "No parameters to show.");
  const across = 4, w = 285, h = 220, s = canvas("slices", across * w, Math.ceil(axes.length / across) * h);
  const yr = range(valued.map(t => t.value));
  axes.forEach((a, i) => {
    const left = (i % across) * w, top = Math.floor(i / across) * h;
    const f = frame(s, [left + 46, top + 12, left + w - 10, top + h - 42], yr, [0, 1], a.ticks, a.name, "");
    for (const t of valued) {
      const u = a.u(t.params[a.name]);
      if (u !== null) dot(s, f.x(u), f.y(t.value), t, 2.6);
    }
  });
}
function drawContour() {
  const section = document.getElementById("contour"), old = section.querySelector("svg");
  if (old) old.remove();
  const [a, b] = ["cx", "cy"].map(id => axes[document.getElementById(id).value]);
  const s = canvas("contour", 1140, 440), n = 48, x0 = 90, y0 = 12, w = 900, h = 370;
  const points = valued.map(t => [a.u(t.params[a.name]), b.u(t.params[b.name]), t]).filter(p => p[0] !== null && p[1] !== null);
  // the mean rank of the neighbourhood: a kernel a tenth of the range wide, wider where trials are few
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
    const px = (i + 0.5) / n, py = (j + 0.5) / n;
    let sum = 0, weight = 1e-12;
    for (const [u, v, t] of points) {
      const r = ((u - px) ** 2 + (v - py) ** 2) / 0.01, k = Math.exp(-r / 2) + 1e-3 / (1 + r * r);
      sum += k * t.rank;
      weight += k;
    }
    svg("rect", { class: "cell", x: x0 + w * i / n, y: y0 + h * (1 - (j + 1) / n), width: w / n + 0.5, height: h / n + 0.5,
      fill: colour(sum / weight) }, s);
  }
  for (const [u, v, t] of points) {
    tip(svg("circle", { class: "point", cx: x0 + w * u, cy: y0 + h * (1 - v), r: t === best ? 6 : 3,
      fill: t === best ? "#e4572e" : "#fff", stroke: "#222", "stroke-width": 0.8 }, s), t);
  }
  for (const [u, text] of a.ticks) svg("text", { x: x0 + w * u, y: y0 + h + 16, "text-anchor": "middle" }, s, text);
  for (const [u, text] of b.ticks) svg("text", { x: x0 - 6, y: y0 + h * (1 - u) + 4, "text-anchor": "end" }, s, text);
  svg("text", { x: x0 + w / 2, y: y0 + h + 34, "text-anchor": "middle" }, s, a.name);
  svg("text", { x: 12, y: y0 + h / 2, transform: `rotate(-90 12 ${y0 + h / 2})`, "text-anchor": "middle" }, s, b.name);
}
function setUpContour() {
  if (axes.length < 2 || !valued.length) return note("contour", "Needs two parameters.");
  ["cx", "cy"].forEach((id, k) => {
    const select = document.getElementById(id);
    axes.forEach((a, i) => select.add(new Option(a.name, i, false, i === k)));
    select.onchange = drawContour;
  });
  drawContour();
}
function drawTable() {
  const attributes = [...new Set(data.trials.flatMap(t => Object.keys(t.attributes)))].sort();
  const columns = [["trial", t => t.number], ["state", t => t.state], ["value", t => t.value],
    ["step", t => t.step], ["seconds", t => t.duration], ...names.map(n => [n, t => t.params[n]]),
    ...attributes.map(n => [n, t => typeof t.attributes[n] === "object" ? JSON.stringify(t.attributes[n]) : t.attributes[n]]),
    ["error", t => t.error && t.error.split("\n")[0]]];
  const table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  let by = -1, down = false;
  function fill() {
    const list = data.trials.slice();
    if (by >= 0) list.sort((p, q) => {
      const a = columns[by][1](p), b = columns[by][1](q);
      if (a === b) return p.number - q.number;
      if (a === null || a === undefined) return 1;
      if (b === null || b === undefined) return -1;
      const less = typeof a === "number" && typeof b === "number" ? a < b : String(a) < String(b);
      return (less ? -1 : 1) * (down ? -1 : 1);
    });
    body.replaceChildren();
    for (const t of list) {
      const row = body.insertRow();
      if (t === best) row.style.fontWeight = "600";
      for (const [name, get] of columns) {
        const cell = row.insertCell();
        cell.textContent = short(get(t));
        if (name === "error") { cell.className = "error"; cell.title = t.error || ""; }
      }
    }
    [...head.cells].forEach((c, i) => {
      c.className = i !== by ? "" : down ? "down" : "up";
      c.setAttribute("aria-sort", i !== by ? "none" : down ? "descending" : "ascending");
    });
  }
  columns.forEach(([name], i) => {
    const th = document.createElement("th");
    th.textContent = name;
    th.tabIndex = 0;
    th.onclick = () => { down = by === i && !down; by = i; fill(); };
    th.onkeydown = e => { if (e.key === "Enter") th.onclick(); };
    head.appendChild(th);
  });
  document.getElementById("table").appendChild(table);
  fill();
}

document.getElementById("title").textContent = data.name;
document.getElementById("summary").textContent = `${data.trials.length} trials: ` +
  ["complete", "pruned", "failed", "running", "waiting"].map(s => [data.trials.filter(t => t.state === s).length, s])
    .filter(([n]) => n > 0).map(([n, s]) => `${n} ${s}`).join(", ") +
  (best ? `. Best (${data.direction}): ${short(best.value)} in trial ${best.number}: ` +
    Object.keys(best.params).sort().map(k => `${k} = ${short(best.params[k])}`).join(", ") : "") + ".";
drawHistory(); drawImportance(); drawCurves(); drawParallel(); drawSlices(); setUpContour(); drawTable();
const wanted = decodeURIComponent(location.hash).match(/^#sort=(.*)$/); // a link to the table, sorted
if (wanted) for (const th of document.querySelectorAll("th")) if (th.textContent === wanted[1]) th.click();
document.body.setAttribute("data-drawn", "all");
</script>
</body>
</html>
]==]
