"use strict";
// Figures as SVG, drawn at the width they are shown in; each can be read by pointer and keyboard, and saved.

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "12 4", "4 2", "1 2", "10 2 2 2 2 2"];
const COLOURS = 8;
const colour = (i) => `var(--run${i % COLOURS})`;
const fixed = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function element(tag, attributes = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  found.append(...children);
  return found;
}

function drawn(tag, attributes = {}, ...children) {
  const found = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style" && typeof value === "object") {
      for (const [key, one] of Object.entries(value)) found.style.setProperty(key, one);
    } else found.setAttribute(name, value);
  }
  found.append(...children);
  return found;
}

const words = (x, y, text, more = {}) =>
  drawn("text", { x, y, "font-size": 12, style: { fill: "var(--ink)" }, ...more }, String(text));
const line = (x1, y1, x2, y2, stroke, more = {}) => drawn("line", { x1, y1, x2, y2, style: { stroke }, ...more });

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted, size = 10 ** Math.floor(Math.log10(rough));
  const step = size * ([1, 2, 5, 10].find((n) => n * size >= rough) || 10);
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-6; v += step) found.push(Number(v.toFixed(10)));
  return found;
}

function canvas(width, height, label) {
  return drawn("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label, tabindex: 0,
    "font-family": "system-ui, sans-serif",
  });
}

// Names of runs with their lines; returns the height it took.
function legend(svg, entries, left, width) {
  let x = left, y = 16;
  for (const { name, place, mark } of entries) {
    const text = shorten(name, Math.max(12, Math.floor((width - left - 46) / 7))), wide = 36 + 7 * text.length;
    if (x > left && x + wide > width) { x = left; y += 20; }
    if (mark) svg.append(drawn("circle", { cx: x + 12, cy: y - 4, r: 5, style: { fill: colour(place) } }));
    else svg.append(line(x, y - 4, x + 24, y - 4, colour(place), { "stroke-width": 2.5, "stroke-dasharray": DASHES[place % 8] }));
    svg.append(words(x + 29, y, text));
    x += wide + 10;
  }
  return entries.length ? y + 8 : 8;
}

// Lines of [x, y, what else is read there]; both axes linear.
function lineChart({ label, width, series, x, y, diagonal = false, cursor = null, square = false }) {
  const left = 52, right = 14, bottom = 44;
  const height = square ? Math.min(width, 440) : Math.max(260, Math.min(380, width * 0.5));
  const probe = canvas(width, height, label), top = legend(probe, series, left, width) + 8, full = height + top;
  probe.setAttribute("viewBox", `0 0 ${width} ${full}`);
  probe.setAttribute("height", full);
  const px = (v) => left + (v - x.low) / (x.high - x.low || 1) * (width - left - right);
  const py = (v) => full - bottom - (v - y.low) / (y.high - y.low || 1) * (full - top - bottom);
  for (const t of ticks(y.low, y.high, 5)) {
    probe.append(line(left, py(t), width - right, py(t), "var(--grid)"));
    probe.append(words(left - 6, py(t) + 4, t, { "text-anchor": "end" }));
  }
  for (const t of ticks(x.low, x.high, width < 480 ? 4 : 8)) {
    probe.append(line(px(t), full - bottom, px(t), full - bottom + 5, "var(--soft)"));
    probe.append(words(px(t), full - bottom + 19, t, { "text-anchor": "middle" }));
  }
  probe.append(line(left, full - bottom, width - right, full - bottom, "var(--soft)"));
  probe.append(words((left + width - right) / 2, full - 6, x.name, { "text-anchor": "middle" }));
  probe.append(words(14, (top + full - bottom) / 2, y.name,
    { "text-anchor": "middle", transform: `rotate(-90 14 ${(top + full - bottom) / 2})` }));
  if (diagonal) probe.append(line(px(x.low), py(y.low), px(x.high), py(y.high), "var(--soft)", { "stroke-dasharray": "3 4" }));
  const marks = [];
  for (const { name, place, points, dots } of series) {
    const path = points.map(([a, b], i) => `${i ? "L" : "M"}${px(a).toFixed(1)} ${py(b).toFixed(1)}`).join("");
    probe.append(drawn("path", {
      d: path, fill: "none", "stroke-width": 2.2, "stroke-dasharray": DASHES[place % 8], "stroke-linejoin": "round",
      style: { stroke: colour(place) },
    }));
    if (dots || points.length === 1) {
      for (const [a, b] of points) probe.append(drawn("circle", { cx: px(a), cy: py(b), r: 3.5, style: { fill: colour(place) } }));
    }
    for (const [a, b, more] of points) {
      const text = `${name}: ${x.name} ${x.read ? x.read(a) : fixed(a)}, ${y.name} ${y.read ? y.read(b) : fixed(b)}`;
      marks.push({ x: px(a), y: py(b), text: more ? `${text}, ${more}` : text });
    }
  }
  if (cursor) {
    for (const { at, place } of cursor) {
      probe.append(drawn("circle", {
        cx: px(at[0]), cy: py(at[1]), r: 6.5, "stroke-width": 2.5, style: { fill: "var(--page)", stroke: colour(place) },
      }));
    }
  }
  return { svg: probe, marks };
}

// One row a client, one dot a run, with its interval as a line.
function dotChart({ label, width, rows, series, x, chosen }) {
  const left = width < 480 ? 104 : 170, right = 16, gap = Math.min(6, 24 / series.length), pitch = Math.max(26, 12 + gap * series.length);
  const svg = canvas(width, 10, label);
  const top = legend(svg, series.map((s) => ({ ...s, mark: true })), width < 480 ? 8 : left, width) + 6;
  const height = top + rows.length * pitch + 42;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  const px = (v) => left + (v - x.low) / (x.high - x.low || 1) * (width - left - right);
  for (const t of ticks(x.low, x.high, width < 480 ? 4 : 8)) {
    svg.append(line(px(t), top, px(t), height - 40, "var(--grid)"));
    svg.append(words(px(t), height - 24, t, { "text-anchor": "middle" }));
  }
  svg.append(words((left + width - right) / 2, height - 5, x.name, { "text-anchor": "middle" }));
  const marks = [];
  rows.forEach((row, i) => {
    const y = top + (i + 0.5) * pitch, bold = chosen === row.client;
    svg.append(words(left - 8, y + 4, shorten(row.name, width < 480 ? 14 : 24),
      { "text-anchor": "end", "font-weight": bold ? 700 : 400 }));
    if (i) svg.append(line(left, y - pitch / 2, width - right, y - pitch / 2, "var(--grid)", { "stroke-width": 0.6 }));
    series.forEach((s, k) => {
      const value = s.values[row.client], cy = y + (k - (series.length - 1) / 2) * gap; // equal ones stay visible
      if (value === null || value === undefined) return;
      const [from, to] = s.intervals[row.client] || [null, null], known = from !== null && to !== null;
      if (known) svg.append(line(px(from), cy, px(to), cy, colour(s.place), { "stroke-width": bold ? 2.4 : 1.4 }));
      svg.append(drawn("circle", { cx: px(value), cy, r: bold ? 6 : 4.5, style: { fill: colour(s.place), stroke: "var(--page)" } }));
      const read = `${row.name}, ${s.name}: ${x.name} ${fixed(value)}`;
      marks.push({ x: px(value), y: cy, text: known ? `${read}, 95 % interval ${fixed(from)} to ${fixed(to)}` : read });
    });
  });
  return { svg, marks };
}

// A square of cells, shares or counts; `shade` is 0 to 1, or null for what does not exist.
function cellChart({ label, width, names, columns, cells, xName, yName, outlined = () => false }) {
  const longest = Math.max(...names.map((n) => n.length), ...columns.map((n) => n.length));
  const left = 26 + Math.min(70, 8 * longest), top = 46, size = Math.min(52, (width - left - 6) / columns.length);
  const height = top + names.length * size + 8, svg = canvas(width, height, label), marks = [];
  svg.append(words(left + size * columns.length / 2, 14, xName, { "text-anchor": "middle" }));
  svg.append(words(13, top + size * names.length / 2, yName,
    { "text-anchor": "middle", transform: `rotate(-90 13 ${top + size * names.length / 2})` }));
  const text = Math.max(8.5, Math.min(12, size * 0.36));
  columns.forEach((n, j) => svg.append(words(left + (j + 0.5) * size, top - 8, shorten(n, 6), { "text-anchor": "middle", "font-size": text })));
  names.forEach((n, i) => {
    svg.append(words(left - 6, top + (i + 0.5) * size + 4, shorten(n, 8), { "text-anchor": "end", "font-size": Math.max(10, text) }));
    columns.forEach((_, j) => {
      const { shade, shown, read } = cells[i][j], x = left + j * size, y = top + i * size;
      const box = drawn("rect", {
        x: x + 0.5, y: y + 0.5, width: size - 1, height: size - 1, "fill-opacity": shade === null ? 0.3 : Math.max(0.03, 0.75 * shade),
        "stroke-width": outlined(i, j) ? 1.6 : 0.4,
        style: { fill: shade === null ? "var(--grid)" : "var(--heat)", stroke: outlined(i, j) ? "var(--ink)" : "var(--soft)" },
      }, drawn("title", {}, read));
      svg.append(box);
      if (shown) svg.append(words(x + size / 2, y + size / 2 + text * 0.36, shown, { "text-anchor": "middle", "font-size": text, "pointer-events": "none" }));
      marks.push({ x: x + size / 2, y: y + size / 2, text: read });
    });
  });
  return { svg, marks };
}

// Bars of accuracy over bins of confidence; the line is what they should reach.
function reliabilityChart({ label, width, bins, place }) {
  const left = 46, right = 10, top = 10, bottom = 42, height = width, svg = canvas(width, height, label), marks = [];
  const px = (v) => left + v * (width - left - right), py = (v) => height - bottom - v * (height - top - bottom);
  for (const t of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
    svg.append(line(left, py(t), width - right, py(t), "var(--grid)"));
    svg.append(words(left - 6, py(t) + 4, t, { "text-anchor": "end" }), words(px(t), height - bottom + 17, t, { "text-anchor": "middle" }));
  }
  const most = Math.max(...bins.map((b) => b.n), 1);
  for (const b of bins) {
    const wide = px(b.high) - px(b.low) - 2, share = `${b.n} images`;
    const read = `confidence ${fixed(b.confidence)}, accuracy ${fixed(b.accuracy)}, gap ${fixed(b.gap)}, ${share}`;
    svg.append(drawn("rect", {
      x: px(b.low) + 1, y: py(b.accuracy), width: wide, height: Math.max(0.8, py(0) - py(b.accuracy)),
      "fill-opacity": 0.35 + 0.6 * b.n / most, style: { fill: colour(place) },
    }, drawn("title", {}, read)));
    svg.append(line(px(b.low) + 1, py(b.confidence), px(b.high) - 1, py(b.confidence), "var(--ink)", { "stroke-width": 2 }));
    marks.push({ x: (px(b.low) + px(b.high)) / 2, y: py(b.accuracy), text: read });
  }
  svg.append(line(px(0), py(0), px(1), py(1), "var(--soft)", { "stroke-dasharray": "3 4" }));
  svg.append(words((left + width - right) / 2, height - 7, "confidence", { "text-anchor": "middle" }));
  svg.append(words(13, (top + height - bottom) / 2, "accuracy",
    { "text-anchor": "middle", transform: `rotate(-90 13 ${(top + height - bottom) / 2})` }));
  return { svg, marks };
}

// Reading values: the mark nearest to the pointer, or the next one with the arrow keys.
function readable(svg, marks, readout) {
  const ring = drawn("circle", { r: 9, "stroke-width": 2, visibility: "hidden", class: "ring", style: { fill: "none", stroke: "var(--ink)" } });
  svg.append(ring);
  let at = -1;
  const show = (i) => {
    if (!marks.length) return;
    at = Math.max(0, Math.min(marks.length - 1, i));
    readout.textContent = marks[at].text;
    ring.setAttribute("cx", marks[at].x);
    ring.setAttribute("cy", marks[at].y);
    ring.setAttribute("visibility", "visible");
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let best = -1, least = Infinity;
    marks.forEach((m, i) => {
      const distance = (m.x - x) ** 2 + (m.y - y) ** 2;
      if (distance < least) { least = distance; best = i; }
    });
    show(best);
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) show(at + step);
    else if (event.key === "Home") show(0);
    else if (event.key === "End") show(marks.length - 1);
    else return;
    event.preventDefault();
  });
  svg.addEventListener("focus", () => { if (at < 0) show(0); });
}

// Saving: colours are resolved, so that the file looks the same elsewhere.
function asFile(svg) {
  const copy = svg.cloneNode(true), style = getComputedStyle(document.documentElement);
  copy.querySelectorAll(".ring").forEach((ring) => ring.remove());
  copy.removeAttribute("tabindex");
  copy.setAttribute("xmlns", SVG);
  copy.prepend(drawn("rect", { width: "100%", height: "100%", style: { fill: "var(--page)" } }));
  return new XMLSerializer().serializeToString(copy).replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
}

function asCsv(head, rows) {
  const cell = (value) => {
    let text = value === null || value === undefined ? "" : String(value);
    if (typeof value === "string" && /^[=+@\t\r-]/.test(text)) text = `'${text}`; // no formula for a spreadsheet
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [head, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// Puts a drawing into a figure with its caption, what is read, buttons and its numbers as a table.
function place(host, { svg, marks }, { caption, name, head, rows }) {
  const open = host.querySelector("details") && host.querySelector("details").open;
  const readout = element("output", { class: "readout", "aria-live": "polite" });
  readout.textContent = "Point at the figure, or focus it and press the arrow keys, to read values.";
  readable(svg, marks, readout);
  const body = element("tbody");
  const table = element("table", {}, element("caption", {}, caption), element("thead", {},
    element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))), body);
  const shown = (value) => (value === null || value === undefined ? "–" : typeof value === "number" && !Number.isInteger(value) ? value.toFixed(4) : String(value));
  const fill = () => {
    if (!body.childElementCount) body.append(...rows.map((row) => element("tr", {}, ...row.map((value) => element("td", {}, shown(value))))));
  };
  const region = element("div", { class: "scroll", role: "region", "aria-label": `Numbers: ${caption}`, tabindex: 0 }, table);
  const details = element("details", {}, element("summary", {}, "Numbers as a table"), region);
  details.addEventListener("toggle", fill);
  if (open) {
    details.open = true;
    fill();
  }
  const picture = element("button", { type: "button" }, "Save as SVG");
  picture.addEventListener("click", () => save(`${name}.svg`, "image/svg+xml", asFile(svg)));
  const numbers = element("button", { type: "button" }, "Save as CSV");
  numbers.addEventListener("click", () => save(`${name}.csv`, "text/csv", asCsv(head, rows)));
  picture.setAttribute("aria-label", `Save as SVG: ${caption}`);
  numbers.setAttribute("aria-label", `Save as CSV: ${caption}`);
  host.replaceChildren(element("figcaption", {}, caption), svg, readout,
    element("div", { class: "buttons" }, picture, numbers), details);
}
