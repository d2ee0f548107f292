"use strict";
// Charts drawn as SVG from the page's own data: {"charts": [...], "axes": one per run, "runs": names} (charts.py).
(() => {
const page = JSON.parse(document.getElementById("curves").textContent);
const make = (tag, words, more) => Object.assign(document.createElement(tag), words === undefined ? {} : {textContent: words}, more || {});
const svg = (tag, attributes, words) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  if (words !== undefined) element.textContent = words;
  return element;
};
const state = {x: "step", smooth: true, hidden: new Set(), lit: null};
const COLORS = 8, TITLES = {step: "step", tokens: "tokens", seconds: "time"};
const drawn = [];
const nameOf = (one) => page.runs.length > 1 ? page.labels[one.run] : one.name;

// ---- numbers in words

function short(value) {
  for (const [unit, size] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["k", 1e3]]) if (Math.abs(value) >= size) return +(value / size).toPrecision(3) + unit;
  return String(+value.toPrecision(3));
}
function clock(seconds) {
  if (seconds < 90) return Math.round(seconds) + " s";
  if (seconds < 5400) return +(seconds / 60).toPrecision(2) + " min";
  return +(seconds / 3600).toPrecision(3) + " h";
}
const acrossOf = (chart) => chart.across || TITLES[state.x];
const along = (value) => state.x === "seconds" ? clock(value) : state.x === "tokens" ? short(value) : Math.round(value).toLocaleString("en");
function value(chart, y, exact) {
  if (chart.kind === "percent") return +(100 * y).toPrecision(3) + " %";
  const size = Math.abs(y);
  if (y === 0) return "0";
  if (size < 0.001) return y.toExponential(exact ? 2 : 1).replace(/\.0+e/, "e");
  if (size >= 10000) return short(y);
  return exact ? (size < 100 ? y.toPrecision(4) : y.toFixed(1)) : String(+y.toPrecision(4));
}
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1, size = 10 ** Math.floor(Math.log10(rough));
  const step = size * ([1, 2, 5, 10].find((n) => n * size >= 0.75 * rough) || 10), found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-12) + 1e-300 && found.length < 20; n++) found.push(+(n * step).toPrecision(12));
  return found;
}
function clockTicks(high, wanted) {
  const step = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000].find((n) => n >= high / wanted) || 864000, found = [];
  for (let n = 0; n * step <= high; n++) found.push(n * step);
  return found;
}
function logTicks(low, high) {
  const found = [], few = Math.log10(high / low) < 2;
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const n of few ? [1, 2, 5] : [1]) { const tick = n * 10 ** power; if (tick >= low * 0.999 && tick <= high * 1.001) found.push(+tick.toPrecision(3)); }
  return found.length > 1 ? found : [low, high].map((y) => +y.toPrecision(2));
}

// ---- series

function place(run, step) { // the x of a step on the chosen axis, interpolated linearly between logged steps
  if (state.x === "step") return step;
  const {step: steps, [state.x]: values} = page.axes[run];
  if (!steps.length) return step;
  let low = 0, high = steps.length - 1;
  if (step <= steps[0]) return values[0] * (steps[0] ? step / steps[0] : 1);
  if (step >= steps[high]) return values[high];
  while (high - low > 1) { const middle = (low + high) >> 1; if (steps[middle] <= step) low = middle; else high = middle; }
  return values[low] + (values[high] - values[low]) * (step - steps[low]) / (steps[high] - steps[low]);
}
function smoothed(y) { // centred moving mean, narrower at the beginning, so that it does not lag behind a steep fall
  const half = Math.max(1, Math.round(y.length / 60)), sums = [0];
  for (const one of y) sums.push(sums[sums.length - 1] + one);
  return y.map((_, n) => { const from = n - Math.min(n, half), to = Math.min(y.length, n + 1 + Math.min(n, half)); return (sums[to] - sums[from]) / (to - from); });
}
const isSmooth = (one) => state.smooth && one.noisy && one.y.length > 40;
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] <= x) low = middle; else high = middle; }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}
function inWords(chart, one) {
  const least = Math.min(...one.y), most = Math.max(...one.y), last = one.y.length - 1;
  return one.name + ": " + value(chart, one.y[0], true) + " at " + (chart.across || "step") + " " + one.x[0] + ", " + value(chart, one.y[last], true) + " at " + (chart.across || "step") + " " + one.x[last] + ", between " + value(chart, least, true) + " and " + value(chart, most, true);
}

// ---- one chart

function Chart(chart, box) {
  const several = chart.series.length > 1, isPositive = chart.series.every((one) => (one.low || one.y).every((y) => y > 0));
  const ratio = Math.max(...chart.series.flatMap((one) => one.y)) / Math.min(...chart.series.flatMap((one) => one.y));
  const self = {log: false, at: null, zoom: null};
  const bySteps = () => Boolean(chart.across) || state.x === "step";
  const toPlace = (run, step) => chart.across ? step : place(run, step), inAxis = (x) => chart.across ? short(x) : along(x);
  const head = make("div", undefined, {className: "head"}), title = make("h3", chart.title), unit = make("span", chart.unit, {className: "soft unit"});
  head.append(title, unit);
  if (isPositive && ratio > 3) {
    const button = make("button", "log", {title: "logarithmic axis"});
    button.setAttribute("aria-pressed", "false"); button.setAttribute("aria-label", "logarithmic axis of " + chart.title);
    button.onclick = () => { self.log = !self.log; button.setAttribute("aria-pressed", self.log); self.draw(); };
    head.append(button);
  }
  const plot = make("div", undefined, {className: "plot", tabIndex: 0}), tip = make("div", undefined, {className: "tip", hidden: true}), says = make("p", undefined, {className: "unseen"});
  plot.setAttribute("role", "group"); says.setAttribute("aria-live", "polite");
  const table = make("details"), summary = make("summary", "values"), scroll = make("div", undefined, {className: "scroll high", tabIndex: 0});
  scroll.setAttribute("role", "region"); scroll.setAttribute("aria-label", "values of " + chart.title);
  table.append(summary, scroll); table.ontoggle = () => { if (table.open) fillTable(); };
  box.append(head, plot, says, table);
  let frame = null;

  const shown = () => chart.series.filter((one) => !state.hidden.has(one.run));
  const color = (one, number) => `var(--c${(page.runs.length > 1 ? one.run : number) % COLORS})`;

  self.draw = () => {
    const visible = shown(), width = Math.max(260, plot.clientWidth), height = chart.wide ? 300 : 210;
    plot.setAttribute("aria-label", chart.title + (chart.unit ? ", " + chart.unit : "") + ". " + visible.map((one) => inWords(chart, one)).join("; ") + ". Arrow keys read values.");
    plot.replaceChildren(tip);
    if (!visible.length) { plot.append(make("p", "no run is shown", {className: "soft"})); return; }
    const lines = visible.map((one) => ({one, number: chart.series.indexOf(one), xs: one.x.map((step) => toPlace(one.run, step)), raw: one.y, ys: isSmooth(one) ? smoothed(one.y) : one.y, edges: one.low ? [one.low, one.high].map((ys) => isSmooth(one) ? smoothed(ys) : ys) : []}));
    const most = Math.max(...lines.flatMap((line) => line.xs)), whole = [bySteps() ? Math.min(...lines.flatMap((line) => line.xs), most - 1) : 0, most || 1];
    const [x0, x1] = self.zoom || whole;
    const inside = (line, ys) => ys.filter((_, n) => line.xs[n] >= x0 && line.xs[n] <= x1);
    const faint = (line) => isSmooth(line.one) && !line.edges.length;
    let all = lines.flatMap((line) => [line.ys, ...line.edges].flatMap((ys) => inside(line, ys)));
    const sorted = lines.flatMap((line) => faint(line) ? inside(line, line.raw) : []).sort((a, b) => a - b);
    if (sorted.length) all = all.concat(sorted[Math.floor(sorted.length * 0.005)], sorted[Math.ceil(sorted.length * 0.995) - 1]); // faint curves may leave the chart
    if (!all.length) all = lines.flatMap((line) => line.ys);
    let low = Math.min(...all), high = Math.max(...all);
    if (self.log) { const room = (high / low) ** 0.05 || 1.1; low /= room; high *= room; if (low === high) { low /= 2; high *= 2; } }
    else {
      const room = (high - low || Math.abs(high) || 1) * 0.07;
      if (low >= 0 && (chart.zero || low < room)) low = 0; else low -= room;
      high += room;
    }
    const marks = self.log ? logTicks(low, high) : ticks(low, high, chart.wide ? 6 : 4);
    const names = several && visible.length <= 12 ? lines : [];
    const room = Math.min(150, Math.max(14, ...names.map((line) => 14 + 8 * Math.min(22, nameOf(line.one).length))));
    const left = 12 + 6.6 * Math.max(...marks.map((y) => value(chart, y).length)), right = width - room, top = 10, bottom = height - 34;
    const px = (x) => left + (x - x0) / (x1 - x0 || 1) * (right - left);
    const py = self.log ? (y) => bottom - Math.log(y / low) / Math.log(high / low) * (bottom - top) : (y) => bottom - (y - low) / (high - low) * (bottom - top);
    const picture = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true"});
    const clip = "clip-" + chart.id, defs = svg("defs"), area = svg("clipPath", {id: clip});
    area.append(svg("rect", {x: left - 4, y: top - 4, width: right - left + 8, height: bottom - top + 8})); defs.append(area); picture.append(defs);
    for (const y of marks) picture.append(svg("line", {x1: left, x2: right, y1: py(y), y2: py(y), class: "grid"}), svg("text", {x: left - 6, y: py(y) + 4, class: "tick end"}, value(chart, y)));
    picture.append(svg("line", {x1: left, x2: right, y1: bottom, y2: bottom, class: "axis"}));
    const across = !bySteps() && state.x === "seconds" && !self.zoom ? clockTicks(x1, Math.max(2, (right - left) / 80)) : ticks(x0, x1, Math.max(3, (right - left) / 70));
    for (const x of across) picture.append(svg("line", {x1: px(x), x2: px(x), y1: bottom, y2: bottom + 4, class: "axis"}), svg("text", {x: px(x), y: bottom + 17, class: "tick"}, bySteps() ? short(x) : along(x)));
    picture.append(svg("text", {x: right, y: height - 3, class: "tick end"}, acrossOf(chart)));
    const body = svg("g", {"clip-path": `url(#${clip})`}); picture.append(body);
    for (const mark of chart.marks) {
      const at = px(toPlace(0, mark.x));
      if (at < left || at > right) continue;
      picture.append(svg("line", {x1: at, x2: at, y1: top, y2: bottom, class: "mark"}), svg("text", {x: at - 4, y: top + 8, class: "tick end"}, mark.label));
    }
    const path = (line, ys) => ys.map((y, n) => (n ? "L" : "M") + px(line.xs[n]).toFixed(1) + " " + py(y).toFixed(1)).join("");
    for (const line of lines) {
      const group = svg("g", {class: "series" + (state.lit !== null && state.lit !== line.one.run ? " dim" : "") + (state.lit === line.one.run ? " lit" : ""), style: `--color: ${color(line.one, line.number)}`});
      if (line.edges.length) group.append(svg("path", {d: path(line, line.edges[0]) + line.edges[1].map((y, n) => "L" + px(line.xs[n]).toFixed(1) + " " + py(y).toFixed(1)).reverse().join("") + "Z", class: "band"}));
      if (faint(line)) group.append(svg("path", {d: path(line, line.raw), class: "faint"}));
      const dash = page.runs.length > 1 ? Math.floor(line.one.run / COLORS) : 0;
      group.append(svg("path", {d: path(line, line.ys), class: "line" + (line.number && page.runs.length < 2 && !line.one.points ? " second" : ""), ...(dash ? {"stroke-dasharray": dash % 2 ? "6 3" : "2 3"} : {})}));
      if (line.one.points && line.xs.length <= 60 || line.xs.length === 1) line.xs.forEach((x, n) => group.append(svg("circle", {cx: px(x), cy: py(line.ys[n]), r: line.xs.length > 30 ? 2 : 3, class: "point"})));
      body.append(group);
    }
    const labels = names.map((line) => ({line, y: py(line.ys[line.ys.length - 1])})).sort((a, b) => a.y - b.y);
    for (let pass = 0; pass < 8; pass++) for (let n = 1; n < labels.length; n++) { const gap = 14 - (labels[n].y - labels[n - 1].y); if (gap > 0) { labels[n].y += gap / 2; labels[n - 1].y -= gap / 2; } }
    for (const [n, label] of labels.entries()) {
      const name = nameOf(label.line.one);
      picture.append(svg("text", {x: right + 8, y: Math.max(top + 4, Math.min(bottom - 14 * (labels.length - 1 - n), label.y)) + 4, class: "label", style: `fill: ${color(label.line.one, label.line.number)}`}, name.length > 22 ? name.slice(0, 10) + "…" + name.slice(-11) : name));
    }
    const cross = svg("g", {class: "cross"}); picture.append(cross); plot.append(picture);
    frame = {lines, px, py, left, right, top, bottom, x0, x1, cross, width};
    if (self.at !== null) point(self.at, false);
  };

  function point(x, aloud) {
    const {lines, px, py, left, right, top, bottom, cross, width} = frame;
    const leader = lines.reduce((a, b) => b.xs.length > a.xs.length ? b : a), at = leader.xs[nearest(leader.xs, x)];
    self.at = at; cross.replaceChildren(); tip.replaceChildren();
    if (px(at) < left - 1 || px(at) > right + 1) return hide();
    cross.append(svg("line", {x1: px(at), x2: px(at), y1: top, y2: bottom, class: "hair"}));
    tip.append(make("div", acrossOf(chart) + " " + inAxis(at), {className: "soft"}));
    const found = lines.map((line) => { const n = nearest(line.xs, at); return {line, n}; });
    if (found.length > 6) found.sort((a, b) => b.line.ys[b.n] - a.line.ys[a.n]);
    for (const {line, n} of found.slice(0, 12)) {
      const row = make("div"), dot = make("span", undefined, {className: "dot"});
      dot.style.background = color(line.one, line.number);
      const far = Math.abs(px(line.xs[n]) - px(at)) > 12 ? " (" + acrossOf(chart) + " " + inAxis(line.xs[n]) + ")" : "";
      row.append(dot, (several ? line.one.name + " " : ""), make("b", value(chart, line.ys[n], true)), far + (line.edges.length ? " (" + line.edges.map((ys) => value(chart, ys[n], true)).join(" to ") + ")" : isSmooth(line.one) ? " (here " + value(chart, line.raw[n], true) + ")" : ""));
      cross.append(svg("circle", {cx: px(line.xs[n]), cy: py(line.ys[n]), r: 4, class: "dotted", style: `fill: ${color(line.one, line.number)}`}));
      tip.append(row);
    }
    tip.hidden = false;
    const wide = tip.offsetWidth, to = px(at) + 12 + wide > width ? px(at) - 12 - wide : px(at) + 12;
    tip.style.left = Math.max(0, to) + "px"; tip.style.top = top + "px";
    if (aloud) says.textContent = chart.title + ", " + [...tip.children].map((row) => row.textContent).join(", ");
  }
  function hide() { if (frame) frame.cross.replaceChildren(); tip.hidden = true; self.at = null; }
  const toX = (event) => { const box = plot.getBoundingClientRect(), {left, right, x0, x1} = frame; return x0 + (event.clientX - box.left - left) / (right - left) * (x1 - x0); };
  let from = null;
  plot.onpointermove = (event) => {
    if (!frame) return;
    point(toX(event), false);
    if (from !== null) {
      const {px, top, bottom, left, right, cross} = frame, [a, b] = [px(from), px(toX(event))].map((at) => Math.max(left, Math.min(right, at))).sort((p, q) => p - q);
      cross.append(svg("rect", {x: a, y: top, width: b - a, height: bottom - top, class: "brush"}));
    }
  };
  plot.onpointerdown = (event) => { if (frame && event.pointerType === "mouse" && event.button === 0) from = toX(event); };
  plot.onpointerup = (event) => {
    if (!frame || from === null) return;
    const to = toX(event), {x0, x1, px} = frame;
    if (Math.abs(px(to) - px(from)) > 12) { self.zoom = [Math.max(x0, Math.min(from, to)), Math.min(x1, Math.max(from, to))]; self.at = null; self.draw(); }
    from = null;
  };
  plot.ondblclick = () => { self.zoom = null; self.draw(); };
  plot.onpointerleave = () => { from = null; hide(); };
  plot.onblur = hide;
  plot.onkeydown = (event) => {
    if (!frame) return;
    if (event.key === "Escape") { self.zoom = null; hide(); self.draw(); return; }
    const leader = frame.lines.reduce((a, b) => b.xs.length > a.xs.length ? b : a), last = leader.xs.length - 1, now = self.at === null ? -1 : nearest(leader.xs, self.at);
    const to = {ArrowRight: now + 1, ArrowLeft: self.at === null ? last : now - 1, PageDown: now + 10, PageUp: now - 10, Home: 0, End: last}[event.key];
    if (to === undefined) return;
    event.preventDefault(); point(leader.xs[Math.max(0, Math.min(last, to))], true);
  };
  function fillTable() {
    const steps = [...new Set(chart.series.flatMap((one) => one.x))].sort((a, b) => a - b), every = Math.ceil(steps.length / 100);
    const chosen = steps.filter((_, n) => n % every === 0 || n === steps.length - 1), body = make("table"), first = make("tr");
    first.append(make("th", chart.across || "step", {scope: "col"}), ...chart.series.map((one) => make("th", one.name, {scope: "col"}))); body.append(first);
    for (const step of chosen) {
      const row = make("tr"); row.append(make("td", step.toLocaleString("en")));
      for (const one of chart.series) { const n = nearest(one.x, step); row.append(make("td", every === 1 && one.x[n] !== step ? "" : value(chart, one.y[n], true))); }
      body.append(row);
    }
    scroll.replaceChildren(body);
  }
  return self;
}

// ---- the page

const grid = document.getElementById("charts");
for (const chart of page.charts) {
  const box = make("figure", undefined, {className: "chart" + (chart.wide ? " wide" : ""), id: "chart-" + chart.id});
  grid.append(box); drawn.push(Chart(chart, box));
}
const redraw = () => drawn.forEach((one) => one.draw());
document.querySelectorAll("[data-x]").forEach((button) => { button.onclick = () => {
  state.x = button.dataset.x;
  document.querySelectorAll("[data-x]").forEach((other) => other.setAttribute("aria-pressed", other === button));
  drawn.forEach((one) => { one.zoom = null; one.at = null; }); redraw();
}; });
const smooth = document.getElementById("smooth");
if (smooth) smooth.onchange = () => { state.smooth = smooth.checked; redraw(); };
document.querySelectorAll("[data-run]").forEach((box) => { // the table of the runs is the legend
  const run = Number(box.dataset.run), row = box.closest("tr");
  box.onchange = () => { if (box.checked) state.hidden.delete(run); else state.hidden.add(run); redraw(); };
  if (row) { row.onpointerenter = () => { state.lit = run; redraw(); }; row.onpointerleave = () => { state.lit = null; redraw(); }; }
});
let before = 0;
new ResizeObserver(() => { if (grid.clientWidth !== before) { before = grid.clientWidth; redraw(); } }).observe(grid);
redraw();
document.body.dataset.charts = drawn.length;
})();
