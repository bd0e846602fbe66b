"use strict";
// The page: what is chosen, and the figures that follow from it. Works from a file, without a network.

(() => {
  let data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const state = {
    client: "all", choice: Object.keys(data.choices)[0] || "", runs: new Set(data.runs.map((_, i) => i)), bins: 15,
    threshold: 0.5, label: 0, measure: "accuracy", peers: 0,
  };
  const MEASURES = { accuracy: "accuracy", weighted_f1: "weighted F1", loss: "loss" };
  const HALVES = ["all", "early", "late"];

  const clientName = (client) => {
    if (client === "all") return "all clients together";
    if (client === "server") return "the server's images";
    const run = data.runs.find((r) => r.sources[client]);
    return run ? `client ${client} (${run.sources[client]})` : `client ${client}`;
  };
  const chosenRuns = () => data.runs.map((run, place) => ({ run, place })).filter(({ place }) => state.runs.has(place));
  const finishedRuns = () => chosenRuns().filter(({ run }) => run.finished);
  const sumsOf = (run, part = "test") => pooled(run, state.choice, state.client, part, data.classes.length);
  const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "run";
  const widthOf = (host) => Math.max(280, Math.floor(host.closest("section").clientWidth) - 2);
  const nothing = (host, why) => host.replaceChildren(element("p", { class: "none" }, why));
  const scope = () => `${clientName(state.client)}; model: ${data.choices[state.choice] || ""}`;

  // Figures

  function drawClients() {
    const host = at("figure-clients");
    if (!host) return;
    const series = finishedRuns().map(({ run, place }) => ({
      name: run.name, place, values: run.f1[state.choice] || {}, intervals: run.f1_interval[state.choice] || {},
    }));
    const clients = [...new Set(series.flatMap((s) => Object.keys(s.values)))].sort((a, b) => Number(a) - Number(b));
    const values = series.flatMap((s) => [...Object.values(s.values), ...Object.values(s.intervals).flat()]).filter((v) => v !== null);
    if (!values.length) return nothing(host, "No run is chosen, or none has test results.");
    const spread = Math.max(0.1, Math.max(...values) - Math.min(...values));
    const low = Math.max(0, Math.floor((Math.min(...values) - 0.1 * spread) * 20) / 20);
    const high = Math.min(1, Math.ceil((Math.max(...values) + 0.1 * spread) * 20) / 20);
    const rows = clients.map((client) => ({ client, name: clientName(client).replace("client ", widthOf(host) < 480 ? "" : "client ") }));
    const caption = `Weighted F1 on test images, by client, with 95 % intervals; model: ${data.choices[state.choice]}`;
    const bound = (s, c, i) => (s.intervals[c] || [null, null])[i];
    place(host, dotChart({
      label: `${caption}. One row a client, one dot a run, its interval as a line.`, width: widthOf(host), rows, series, chosen: state.client,
      x: { low, high, name: "weighted F1" },
    }), {
      caption, name: "weighted-f1-by-client",
      head: ["client", ...series.map((s) => s.name), ...series.flatMap((s) => [`${s.name}, from`, `${s.name}, to`])],
      rows: clients.map((c) => [clientName(c), ...series.map((s) => s.values[c]), ...series.flatMap((s) => [bound(s, c, 0), bound(s, c, 1)])]),
    });
  }

  function curveOf(run) {
    const found = run.training, names = Object.keys(found);
    if (state.client !== "all") {
      const one = found[state.client];
      return one ? one.round.map((r, i) => [r, one[state.measure][i]]).filter(([, v]) => v !== null) : [];
    }
    const by = new Map();
    for (const name of names) {
      found[name].round.forEach((r, i) => {
        const value = found[name][state.measure][i];
        if (value !== null) by.set(r, [...(by.get(r) || []), value]);
      });
    }
    return [...by].sort((a, b) => a[0] - b[0]).map(([r, values]) => [r, sum(values) / values.length]);
  }

  function drawTraining() {
    const host = at("figure-training");
    const series = chosenRuns().map(({ run, place }) => ({ name: run.name, place, points: curveOf(run) })).filter((s) => s.points.length);
    if (!series.length) return nothing(host, "No round has been validated yet, or no run is chosen.");
    const values = series.flatMap((s) => s.points.map((p) => p[1])), name = MEASURES[state.measure];
    const who = state.client === "all" ? "mean over clients" : clientName(state.client);
    const caption = `Validation ${name} during training, ${who}`;
    place(host, lineChart({
      label: `${caption}. One line a run, by round.`, width: widthOf(host), series,
      x: { low: 0, high: Math.max(...series.flatMap((s) => s.points.map((p) => p[0]))), name: "round", read: (v) => v },
      y: { low: 0, high: state.measure === "loss" ? Math.max(...values) * 1.05 : Math.min(1, Math.max(...values) * 1.15 + 0.02), name },
    }), {
      caption, name: `training-${state.measure}`, head: ["run", "round", name],
      rows: series.flatMap((s) => s.points.map(([r, v]) => [s.name, r, v])),
    });
  }

  function drawPeers() {
    for (const half of HALVES) drawHalf(half, at(`figure-peers-${half}`), at(`peers-said-${half}`));
  }

  function drawHalf(half, host, said) {
    const run = data.runs[state.peers];
    if (!run || !run.peers) {
      said.textContent = "";
      return nothing(host, run ? `${run.name}: no client has had a peer.` : "No run yet.");
    }
    const shares = run.peers.shares[half], names = run.sources.map((_, i) => String(i));
    const read = (share, m, k) => {
      if (m === k) return `client ${m}`;
      if (share === null) return `client ${m} never had a peer`;
      return `${percent(share)} of client ${m}'s peers were client ${k} (${run.sources[m]}, ${run.sources[k]})`;
    };
    const cells = shares.map((row, m) => row.map((share, k) => ({
      shade: m === k ? null : share, shown: m === k || share === null ? "" : String(Math.round(100 * share)), read: read(share, m, k),
    })));
    const when = { all: "all rounds", early: `before round ${run.peers.late_from}`, late: `from round ${run.peers.late_from}` }[half];
    const caption = `Peers, ${run.name}, ${when}: share of a client's (row) peers that each other client (column) was, in %`;
    place(host, cellChart({
      label: `${caption}. Outlined cells: images of the same kind.`, width: Math.min(640, widthOf(host)), names, columns: names, cells,
      xName: "peer", yName: "client", outlined: (i, j) => i !== j && run.sources[i] === run.sources[j],
    }), {
      caption, name: `peers-${slug(run.name)}-${half}`, head: ["client", "images like", ...names.map((n) => `peer ${n}`)],
      rows: shares.map((row, m) => [String(m), run.sources[m], ...row]),
    });
    const { overall, chance } = run.peers.purity[half];
    said.textContent = overall === null ? "No client that had a peer has another of its kind."
      : `${percent(overall)} of the peers came from clients with images of the same kind, as a mean over clients; peers drawn blindly would give ${percent(chance)}.`;
  }

  // One small figure for each chosen run.
  function several(id, draw) {
    const host = at(id), runs = finishedRuns();
    if (!runs.length) return nothing(host, "No run is chosen, or none has test results.");
    const width = Math.min(420, widthOf(host));
    const before = new Map([...host.querySelectorAll("figure")].map((f) => [f.dataset.place, f]));
    host.replaceChildren(...runs.map(({ run, place: where }) => {
      const figure = before.get(String(where)) || element("figure", { "data-place": where });
      const found = sumsOf(run);
      if (found) draw(figure, run, where, found, width);
      else nothing(figure, `${run.name}: no test images of ${clientName(state.client)}.`);
      return figure;
    }));
  }

  function drawReliability() {
    several("figures-reliability", (figure, run, where, found, width) => {
      const bins = reliability(found, state.bins);
      const caption = `${run.name}, ${clientName(state.client)}: ECE ${fixed(ece(found, state.bins))} over ${state.bins} equal bins, ${images(found)} images`;
      place(figure, reliabilityChart({ label: `Reliability diagram. ${caption}. Bars: accuracy; lines: confidence.`, width, bins, place: where }), {
        caption, name: `reliability-${slug(run.name)}`, head: ["from", "to", "images", "confidence", "accuracy", "gap"],
        rows: bins.map((b) => [b.low, b.high, b.n, b.confidence, b.accuracy, b.gap]),
      });
      figure.dataset.ece = ece(found, state.bins);
    });
  }

  function drawRisk() {
    const host = at("figure-risk"), series = [], cursor = [], rows = [];
    for (const { run, place: where } of finishedRuns()) {
      const test = sumsOf(run), validation = sumsOf(run, "validation");
      if (!test) continue;
      series.push({ name: run.name, place: where, points: riskCoverage(test).map(([c, r, t]) => [c, r, `from confidence ${fixed(t)}`]) });
      const now = keptAt(test, state.threshold), before = validation && keptAt(validation, state.threshold);
      if (now.risk !== null) cursor.push({ at: [now.coverage, now.risk], place: where });
      rows.push([run.name, percent(now.coverage), percent(now.risk), `${now.wrong} of ${now.kept}`,
        before ? percent(before.coverage) : "–", before ? percent(before.risk) : "–"]);
    }
    at("threshold-rows").replaceChildren(...rows.map(([name, ...cells]) => element("tr", {},
      element("th", { scope: "row" }, name), ...cells.map((text) => element("td", {}, text)))));
    if (!series.length) return nothing(host, "No run is chosen, or none has test images of this client.");
    const highest = Math.max(...series.flatMap((s) => s.points.map((p) => p[1])));
    const caption = `Risk and coverage on test images, ${clientName(state.client)}`;
    place(host, lineChart({
      label: `${caption}. The ring marks the chosen confidence of ${fixed(state.threshold)}.`, width: widthOf(host), series, cursor,
      x: { low: 0, high: 1, name: "coverage: share answered" }, y: { low: 0, high: Math.min(1, Math.ceil(11 * highest + 0.5) / 10), name: "risk: share wrong" },
    }), {
      caption, name: "risk-coverage", head: ["run", "coverage", "risk", "confidence from"],
      rows: finishedRuns().flatMap(({ run }) => (sumsOf(run) ? riskCoverage(sumsOf(run)) : []).map((p) => [run.name, ...p])),
    });
  }

  function drawRanking() {
    const label = data.classes[state.label];
    const figure = (id, title, curve, area, areaName, x, y, diagonal) => {
      const host = at(id), series = [], rows = [];
      for (const { run, place: where } of finishedRuns()) {
        const found = sumsOf(run), points = found && curve(found, state.label);
        if (!points) continue;
        series.push({ name: `${run.name}, ${areaName} ${fixed(area(found, state.label))}`, place: where, points: points.map(([a, b, t]) => [a, b, `from ${fixed(t)}`]) });
        rows.push(...points.map((p) => [run.name, ...p]));
      }
      if (!series.length) return nothing(host, `${title}: ${label} is absent from the test images of ${clientName(state.client)}, or no run is chosen.`);
      const caption = `${title}, ${label} against the rest, ${clientName(state.client)}`;
      place(host, lineChart({
        label: `${caption}. ${series.map((s) => s.name).join("; ")}.`, width: Math.min(520, widthOf(host)), series, diagonal, square: true,
        x: { low: 0, high: 1, name: x }, y: { low: 0, high: 1, name: y },
      }), { caption, name: `${slug(areaName)}-${slug(label)}`, head: ["run", x, y, "probability from"], rows });
    };
    figure("figure-roc", "ROC", roc, auroc, "AUROC", "false positive rate", "true positive rate", true);
    figure("figure-pr", "Precision and recall", precisionRecall, averagePrecision, "AUPRC", "recall", "precision", false);
  }

  function drawConfusion() {
    several("figures-confusion", (figure, run, where, found, width) => {
      const cells = found.confusion.map((row, t) => {
        const all = sum(row);
        return row.map((n, p) => ({
          shade: all ? n / all : null, shown: n ? String(n) : "",
          read: `${n} images of ${data.classes[t]} called ${data.classes[p]}${all ? ` (${percent(n / all)} of its ${all})` : ""}`,
        }));
      });
      const caption = `${run.name}, ${clientName(state.client)}: ${sum(found.right)} of ${images(found)} images right`;
      place(figure, cellChart({
        label: `Confusion matrix. ${caption}. Rows: true class; columns: predicted.`, width, names: data.classes, columns: data.classes, cells,
        xName: "predicted", yName: "true", outlined: (i, j) => i === j,
      }), { caption, name: `confusion-${slug(run.name)}`, head: ["true", ...data.classes], rows: found.confusion.map((row, t) => [data.classes[t], ...row]) });
    });
  }

  function drawProgress() {
    const host = at("progress");
    if (!host) return;
    host.replaceChildren(...data.runs.filter((run) => !run.finished).map((run) => {
      const bar = element("progress", { max: run.rounds, value: run.done, "aria-label": `${run.name}: rounds done` });
      return element("p", {}, `${run.name}: ${run.done} of ${run.rounds} rounds `, bar);
    }));
    if (!data.runs.length) nothing(host, "The run is about to begin.");
  }

  const draw = {
    all() {
      drawProgress();
      drawTraining();
      drawPeers();
      if (data.classes.length) {
        drawClients();
        this.trust();
      }
      if (at("scope")) at("scope").textContent = `Shown: ${scope()}.`;
    },
    trust() { drawReliability(); drawRisk(); drawRanking(); drawConfusion(); },
  };

  // Controls

  function options(select, entries, chosen) {
    select.replaceChildren(...entries.map(([value, text]) => element("option", { value, ...(String(value) === String(chosen) ? { selected: "" } : {}) }, text)));
  }

  function on(id, event, act) {
    if (at(id)) at(id).addEventListener(event, (found) => act(found.target));
  }

  let filledWith = "";
  function fillControls() {
    const known = new Set(data.runs.flatMap((run) => [...Object.keys(run.training), ...Object.values(run.chosen).flatMap((keys) => Object.keys(keys))]));
    const clients = [...known].sort((a, b) => Number(a) - Number(b));
    const wanted = JSON.stringify([clients, data.runs.map((run) => run.name)]);
    if (wanted === filledWith) return; // a list that a person may have open
    filledWith = wanted;
    options(at("client"), [["all", "All clients"], ...clients.map((c) => [c, clientName(c)])], state.client);
    if (at("choice")) options(at("choice"), Object.entries(data.choices), state.choice);
    options(at("peers-run"), data.runs.map((run, i) => [i, run.name]), state.peers);
    if (at("label")) options(at("label"), data.classes.map((name, i) => [i, name]), state.label);
    at("runs").replaceChildren(...data.runs.map((run, i) => {
      const box = element("input", { type: "checkbox", value: i, ...(state.runs.has(i) ? { checked: "" } : {}) });
      box.addEventListener("change", () => {
        if (box.checked) state.runs.add(i); else state.runs.delete(i);
        draw.all();
      });
      const mark = element("span", { class: "swatch", "aria-hidden": "true" });
      mark.style.background = colour(i);
      return element("label", {}, box, mark, run.name);
    }));
  }

  function tabs(list) {
    const all = [...list.querySelectorAll("[role=tab]")];
    const choose = (tab, focus) => {
      for (const one of all) {
        one.setAttribute("aria-selected", String(one === tab));
        one.tabIndex = one === tab ? 0 : -1;
        at(one.getAttribute("aria-controls")).hidden = one !== tab;
      }
      if (focus) tab.focus();
    };
    all.forEach((tab, i) => {
      tab.addEventListener("click", () => choose(tab, false));
      tab.addEventListener("keydown", (event) => {
        const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: all.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        choose(all[(to + all.length) % all.length], true);
      });
    });
    choose(all[0], false);
  }

  // Light and dark: what the system wants, until a person says otherwise.

  function theme() {
    const button = at("theme"), root = document.documentElement;
    const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
    const say = () => { button.textContent = dark() ? "Light colours" : "Dark colours"; };
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      say();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", say);
    say();
  }

  // A page that is served while training asks for the rounds so far.

  function follow() {
    const said = at("live"), wasFinished = data.runs.some((run) => run.finished);
    let seen = JSON.stringify(data);
    const ask = async () => {
      try {
        const answer = await fetch("state.json", { cache: "no-store" }), text = await answer.text();
        if (answer.ok && text !== seen) {
          seen = text;
          const begun = data.runs.length;
          data = JSON.parse(text);
          if (!wasFinished && data.runs.some((run) => run.finished)) return location.reload();
          if (!begun) state.runs = new Set(data.runs.map((_, i) => i));
          fillControls();
          draw.all();
        }
        said.textContent = `Refreshes by itself; last asked at ${new Date().toLocaleTimeString()}.`;
        setTimeout(ask, 2000);
      } catch {
        said.textContent = "The run has ended or was stopped: this page no longer refreshes. “fedperl report” makes it anew from the run's folder.";
      }
    };
    if (wasFinished) said.textContent = "The run is finished; this page no longer refreshes.";
    else setTimeout(ask, 2000);
  }

  fillControls();
  theme();
  on("client", "change", (t) => { state.client = t.value; draw.all(); });
  on("choice", "change", (t) => { state.choice = t.value; draw.all(); });
  on("measure", "change", (t) => { state.measure = t.value; drawTraining(); });
  on("peers-run", "change", (t) => { state.peers = Number(t.value); drawPeers(); });
  on("bins", "change", (t) => { state.bins = Number(t.value); drawReliability(); });
  on("label", "change", (t) => { state.label = Number(t.value); drawRanking(); });
  on("threshold", "input", (t) => {
    state.threshold = Number(t.value);
    at("threshold-value").textContent = fixed(state.threshold);
    drawRisk();
  });
  const firstWithPeers = data.runs.findIndex((run) => run.peers);
  if (firstWithPeers > 0) {
    state.peers = firstWithPeers;
    at("peers-run").value = String(firstWithPeers);
  }
  draw.all();
  document.querySelectorAll("[role=tablist]").forEach(tabs);
  let width = innerWidth, waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    if (innerWidth !== width) waiting = setTimeout(() => { width = innerWidth; draw.all(); }, 150);
  });
  const folded = () => [...document.querySelectorAll("details.printed")];
  addEventListener("beforeprint", () => folded().forEach((one) => { one.open = true; }));
  if (data.live) follow();
})();
