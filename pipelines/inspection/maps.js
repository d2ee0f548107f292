"use strict";
const facts = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const make = (tag, words, more) => Object.assign(document.createElement(tag), words === undefined ? {} : {textContent: words}, more || {});
const percent = (share) => share >= 0.0995 ? (100 * share).toFixed(0) + " %" : (100 * share).toFixed(1) + " %";
const word = (token) => token.trim() === "" ? JSON.stringify(token) : "“" + token.trim() + "”";
const state = {view: 0, map: 0, head: 0, query: 0, mean: false, sort: null, down: true};
const decoded = new Map();

async function bytes(map) {
  if (!map.data) return null;
  if (!decoded.has(map)) {
    const raw = Uint8Array.from(atob(map.data), (c) => c.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
    decoded.set(map, new Uint8Array(await new Response(stream).arrayBuffer()));
  }
  return decoded.get(map);
}
const view = () => facts.views[state.view];
const current = () => view().maps[state.map];
function share(map, head, query, key) {
  const data = decoded.get(map), q = map.queries.length, k = map.keys.length;
  const one = (h) => map.largest[h] * (data[(h * q + query) * k + key] / 255) ** 2;
  if (!state.mean) return one(head);
  let sum = 0;
  for (let h = 0; h < map.heads; h++) sum += one(h);
  return sum / map.heads;
}
function largest(map) { // of what is shown: the scale of a map ends there
  let most = 1e-30;
  if (state.mean) map.queries.forEach((_, q) => map.keys.forEach((_, k) => { most = Math.max(most, share(map, 0, q, k)); }));
  return state.mean ? most : Math.max(most, map.largest[state.head]);
}
function ink() { return getComputedStyle(document.documentElement).getPropertyValue("--ink"); }
function paint(canvas, map, read) {
  const rows = map.queries.length, columns = map.keys.length, image = new ImageData(columns, rows);
  const [r, g, b] = ink().split(",").map(Number);
  for (let q = 0; q < rows; q++) for (let k = 0; k < columns; k++) {
    const at = 4 * (q * columns + k);
    image.data.set([r, g, b, 255 * Math.sqrt(read(q, k))], at);
  }
  canvas.width = columns; canvas.height = rows;
  canvas.getContext("2d").putImageData(image, 0, 0);
}
function headName(map, head) { return map.name + ", " + (state.mean ? "mean of heads" : "head " + head + " (" + map.short + ".H" + head + ")"); }

async function drawGrid() {
  const table = $("grid"); table.replaceChildren();
  const maps = view().maps;
  for (let m = 0; m < maps.length; m++) {
    const map = maps[m], row = make("tr"); row.append(make("th", map.name, {scope: "row"}));
    if (!map.data) { row.append(make("td", map.note || "not on this page", {colSpan: 12, className: "soft"})); table.append(row); continue; }
    const data = await bytes(map), size = map.queries.length * map.keys.length;
    for (let h = 0; h < map.heads; h++) {
      const cell = make("td"), button = make("button"), canvas = make("canvas");
      paint(canvas, map, (q, k) => (data[h * size + q * map.keys.length + k] / 255) ** 2);
      const s = map.summary;
      button.setAttribute("aria-label", map.name + ", head " + h + ": entropy " + s.entropy[h] + (s.distance ? ", distance " + s.distance[h] : "") + ", first token " + percent(s.first[h]));
      button.tabIndex = m === state.map && h === state.head ? 0 : -1;
      button.dataset.map = m; button.dataset.head = h; button.append(canvas);
      button.onclick = () => choose(m, h);
      cell.append(button); row.append(cell);
    }
    table.append(row);
  }
  table.onkeydown = (event) => {
    const step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
    const at = document.activeElement.dataset;
    if (!step || at.map === undefined) return;
    event.preventDefault();
    let m = Number(at.map), h = Number(at.head) + step[1];
    do m += step[0]; while (step[0] && maps[m] && !maps[m].data);
    const next = table.querySelector(`[data-map="${m}"][data-head="${h}"]`);
    if (next) { document.activeElement.tabIndex = -1; next.tabIndex = 0; next.focus(); }
  };
}
function choose(map, head) { state.map = map; state.head = head; state.query = Math.min(state.query, view().maps[map].queries.length - 1); draw(); }

function drawTokens() {
  const map = current(), cross = map.kind !== "self", asked = new Set(Object.values(view().words).flat()), most = largest(map);
  const top = $("tokens"), below = $("targets"); top.replaceChildren(); below.replaceChildren();
  const picture = view().image;
  $("how").textContent = picture ? "Choose a patch: brighter patches are looked at more." : cross
    ? "Choose a written token: below, the source tokens that it looks at." : "Choose a token: the ones that it looks at are shaded. Arrow keys move.";
  if (picture) return drawPicture(map, top);
  const keysBox = cross ? below : top;
  map.queries.forEach((token, q) => {
    const button = make("button", token.trim() === "" ? JSON.stringify(token) : token);
    button.className = (q === state.query ? "from " : "") + (!cross && asked.has(q) ? "asked" : "");
    button.setAttribute("aria-pressed", q === state.query); button.tabIndex = q === state.query ? 0 : -1;
    button.onclick = () => { state.query = q; drawHead(); $("tokens").children[q].focus(); };
    top.append(button);
  });
  if (cross) map.keys.forEach((token, k) => below.append(make("button", token, {tabIndex: -1, className: asked.has(k) ? "asked" : ""})));
  for (let k = 0; k < map.keys.length; k++) {
    const value = share(map, state.head, state.query, k);
    keysBox.children[k].style.backgroundColor = `rgba(${ink()}, ${(0.7 * Math.sqrt(value / most)).toFixed(3)})`;
    keysBox.children[k].title = percent(value);
  }
  top.onkeydown = (event) => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step) return;
    event.preventDefault();
    state.query = Math.max(0, Math.min(map.queries.length - 1, state.query + step));
    drawHead(); $("tokens").children[state.query].focus();
  };
}
function drawPicture(map, box) {
  const [rows, columns, before] = view().grid, holder = make("div", undefined, {className: "picture"}), canvas = make("canvas", undefined, {tabIndex: 0});
  const side = Math.max(20, Math.ceil(280 / Math.max(rows, columns))); // of a patch: few large ones get no thick frame
  canvas.width = columns * side; canvas.height = rows * side;
  canvas.setAttribute("role", "img"); canvas.setAttribute("aria-label", "patches of the image; arrow keys choose one");
  const pen = canvas.getContext("2d");
  let most = 0;
  for (let k = before; k < map.keys.length; k++) most = Math.max(most, share(map, state.head, state.query, k));
  for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
    const value = share(map, state.head, state.query, before + r * columns + c) / (most || 1);
    pen.fillStyle = `rgba(0, 0, 0, ${(0.8 * (1 - Math.sqrt(value))).toFixed(3)})`; pen.fillRect(c * side, r * side, side, side);
  }
  if (state.query >= before) { pen.strokeStyle = "#ff9500"; pen.lineWidth = 3; pen.strokeRect(((state.query - before) % columns) * side + 1.5, Math.floor((state.query - before) / columns) * side + 1.5, side - 3, side - 3); }
  const go = (r, c) => { if (r >= 0 && c >= 0 && r < rows && c < columns) { state.query = before + r * columns + c; drawHead(); box.querySelector("canvas").focus(); } };
  canvas.onclick = (event) => { const at = canvas.getBoundingClientRect(); go(Math.floor((event.clientY - at.top) / at.height * rows), Math.floor((event.clientX - at.left) / at.width * columns)); };
  canvas.onkeydown = (event) => { const step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key]; if (!step) return; event.preventDefault(); const at = Math.max(0, state.query - before); go(Math.floor(at / columns) + step[0], at % columns + step[1]); };
  holder.append(make("img", undefined, {src: view().image, alt: view().title}), canvas); box.append(holder);
  for (let q = 0; q < before; q++) box.append(make("button", "token " + q, {onclick: () => { state.query = q; drawHead(); }}));
}
function says() {
  const map = current(), order = map.keys.map((token, k) => [share(map, state.head, state.query, k), k]).sort((a, b) => b[0] - a[0]).slice(0, 5);
  const found = order.filter(([value]) => value > 0.005).map(([value, k]) => word(map.keys[k]) + " (" + k + ") " + percent(value));
  let sentence = word(map.queries[state.query]) + " (" + state.query + ") looks at " + (found.join(", ") || "nothing above half a percent") + ".";
  for (const [name, places] of Object.entries(view().words)) if (map.summary["to " + name]) {
    const lookers = map.queries.map((token, q) => [places.reduce((sum, k) => sum + share(map, state.head, q, k), 0), q]).filter(([, q]) => map.kind !== "self" || !places.includes(q)).sort((a, b) => b[0] - a[0]).slice(0, 5);
    sentence += " “" + name + "” is looked at by " + lookers.map(([value, q]) => word(map.queries[q]) + " (" + q + ") " + percent(value)).join(", ") + ".";
  }
  $("says").textContent = sentence;
}
function drawMap() {
  const map = current(), canvas = $("map");
  const most = largest(map);
  paint(canvas, map, (q, k) => share(map, state.head, q, k) / most);
  $("value").textContent = "The strongest colour is the largest value: " + percent(most) + ". Point at the matrix to read others.";
  const scale = Math.max(1, Math.min(14, Math.floor(520 / Math.max(map.keys.length, map.queries.length))));
  canvas.style.width = map.keys.length * scale + "px"; canvas.style.imageRendering = "pixelated";
  canvas.onmousemove = (event) => {
    const at = canvas.getBoundingClientRect(), q = Math.min(map.queries.length - 1, Math.floor((event.clientY - at.top) / at.height * map.queries.length)), k = Math.min(map.keys.length - 1, Math.floor((event.clientX - at.left) / at.width * map.keys.length));
    $("value").textContent = word(map.queries[q]) + " (" + q + ") to " + word(map.keys[k]) + " (" + k + "): " + percent(share(map, state.head, q, k));
  };
  canvas.onclick = (event) => { const at = canvas.getBoundingClientRect(); state.query = Math.floor((event.clientY - at.top) / at.height * map.queries.length); drawHead(); };
}
function drawSummary() {
  const rows = [], columns = ["entropy", "distance", "previous", "first", ...Object.keys(view().words).map((name) => "to " + name)].filter((name) => view().maps.some((map) => map.summary && map.summary[name]));
  view().maps.forEach((map, m) => { if (map.summary) for (let h = 0; h < map.heads; h++) rows.push({m, h, name: map.name + ", head " + h, values: columns.map((name) => map.summary[name] ? map.summary[name][h] : null)}); });
  if (state.sort !== null) rows.sort((a, b) => (state.down ? 1 : -1) * ((b.values[state.sort] ?? -1) - (a.values[state.sort] ?? -1)));
  const table = $("summary"), head = make("tr"); table.replaceChildren(); head.append(make("th", "head"));
  columns.forEach((name, c) => { const cell = make("th"), button = make("button", name); button.onclick = () => { state.down = state.sort === c ? !state.down : true; state.sort = c; drawSummary(); }; cell.setAttribute("aria-sort", state.sort === c ? (state.down ? "descending" : "ascending") : "none"); cell.append(button); head.append(cell); });
  table.append(head);
  for (const row of rows.slice(0, 400)) {
    const line = make("tr"); if (row.m === state.map && row.h === state.head) line.className = "chosen";
    const cell = make("td"), button = make("button", row.name); button.onclick = () => { if (view().maps[row.m].data) choose(row.m, row.h); }; cell.append(button); line.append(cell);
    row.values.forEach((value, c) => line.append(make("td", value === null ? "" : ["entropy", "distance"].includes(columns[c]) ? value.toFixed(2) : percent(value))));
    table.append(line);
  }
}
function drawLayers() {
  const box = $("layers"); box.replaceChildren();
  const {norms, lens, experts} = view();
  if (norms) {
    box.append(make($("head").tagName, "Layers"), make("p", "The mean norm of a token's state after each layer" + (lens ? ", and what the head would predict from it after the last token." : "."), {className: "soft"}));
    const table = make("table"), most = Math.max(...norms), head = make("tr"); ["after", "norm", ""].concat(lens ? ["likeliest", "next", "next"] : []).forEach((name) => head.append(make("th", name))); table.append(head);
    norms.forEach((value, n) => {
      const line = make("tr"), bar = make("td"); bar.style.textAlign = "left"; bar.append(make("span", undefined, {className: "bar", style: `width: ${(120 * value / most).toFixed(0)}px`}));
      line.append(make("td", n ? "layer " + (n - 1) : "embeddings"), make("td", value.toFixed(2)), bar);
      if (lens) for (const [token, value] of lens[n]) line.append(make("td", JSON.stringify(token) + " " + percent(value)));
      table.append(line);
    });
    const scroll = make("div", undefined, {className: "scroll"}); scroll.append(table); box.append(scroll);
  }
  if (experts) {
    box.append(make($("head").tagName, "Experts"), make("p", "The share of the tokens' choices that each expert gets.", {className: "soft"}));
    const table = make("table"), head = make("tr"); head.append(make("th", "sparse layer")); experts[0].forEach((_, e) => head.append(make("th", "expert " + e))); table.append(head);
    experts.forEach((row, n) => { const line = make("tr"); line.append(make("td", n)); row.forEach((value) => { const cell = make("td", percent(value)); cell.style.backgroundColor = `rgba(${ink()}, ${Math.min(0.6, value).toFixed(3)})`; line.append(cell); }); table.append(line); });
    const scroll = make("div", undefined, {className: "scroll"}); scroll.append(table); box.append(scroll);
  }
}
function drawHead() {
  const map = current();
  $("head").textContent = headName(map, state.head); $("note").textContent = map.note || "";
  if (!map.data) return;
  drawTokens(); says(); drawMap();
}
async function draw() {
  const map = current(); await bytes(map);
  $("title").textContent = view().title.length > 300 ? view().title.slice(0, 300) + " …" : view().title;
  $("answer").textContent = view().answer === null ? "" : "Answer: " + view().answer;
  document.querySelectorAll("#grid button").forEach((button) => button.setAttribute("aria-pressed", Number(button.dataset.map) === state.map && Number(button.dataset.head) === state.head));
  drawHead(); drawSummary();
}
async function open(number) {
  state.view = number; state.query = 0; state.head = 0;
  state.map = Math.max(0, view().maps.findIndex((map) => map.data));
  document.querySelectorAll("#choice button").forEach((button, n) => button.setAttribute("aria-pressed", n === number));
  await drawGrid(); drawLayers(); await draw();
  document.body.dataset.ready = number;
}
if (facts.views.length > 1) facts.views.forEach((one, n) => $("choice").append(make("button", (n + 1) + ": " + (one.title.length > 44 ? one.title.slice(0, 20) + " … " + one.title.slice(-20) : one.title), {onclick: () => open(n)}), " "));
$("mean").onchange = (event) => { state.mean = event.target.checked; drawHead(); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => open(state.view));
open(0);
