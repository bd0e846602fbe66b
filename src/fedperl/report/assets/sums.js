"use strict";
// Counts in bins, as fedperl.evaluate.BinnedSums has them: what they say, computed in the page.

const empty = (bins, classes) => ({
  bins, wrong: new Array(bins).fill(0), right: new Array(bins).fill(0), total: new Array(bins).fill(0),
  confusion: Array.from({ length: classes }, () => new Array(classes).fill(0)),
  others: Array.from({ length: classes }, () => new Array(bins).fill(0)),
  own: Array.from({ length: classes }, () => new Array(bins).fill(0)),
});

// Adds the counts that a page holds, [bin, wrong, right, ...], to dense ones.
function addSparse(into, found) {
  for (let i = 0; i < found.confidence.length; i += 3) {
    const bin = found.confidence[i];
    into.wrong[bin] += found.confidence[i + 1];
    into.right[bin] += found.confidence[i + 2];
    into.total[bin] += found.total[i / 3];
  }
  (found.confusion || []).forEach((row, t) => row.forEach((n, p) => { into.confusion[t][p] += n; }));
  (found.scores || []).forEach((one, label) => {
    for (let i = 0; i < one.length; i += 3) {
      into.others[label][one[i]] += one[i + 1];
      into.own[label][one[i]] += one[i + 2];
    }
  });
  return into;
}

// The counts of one client, or of all together; null where there are none.
function pooled(run, choice, client, part, classes) {
  const keys = run.chosen[choice] || {};
  let total = null;
  for (const [name, key] of Object.entries(keys)) {
    const found = (client === "all" || client === name) && run.sums[key] && run.sums[key][part];
    if (found) total = addSparse(total || empty(found.bins, classes), found);
  }
  return total && images(total) ? total : null;
}

const sum = (values) => values.reduce((a, b) => a + b, 0);
const images = (s) => sum(s.wrong) + sum(s.right);

// Equal-width bins that hold images; a gap above 0 means too sure.
function reliability(s, bins) {
  const found = [];
  for (let b = 0; b < bins; b++) {
    const low = Math.round(b * s.bins / bins), high = Math.round((b + 1) * s.bins / bins);
    const right = sum(s.right.slice(low, high)), n = right + sum(s.wrong.slice(low, high));
    if (n) {
      const confidence = sum(s.total.slice(low, high)) / n, accuracy = right / n;
      found.push({ low: low / s.bins, high: high / s.bins, n, confidence, accuracy, gap: confidence - accuracy });
    }
  }
  return found;
}

const ece = (s, bins) => sum(reliability(s, bins).map((b) => Math.abs(b.gap) * b.n)) / images(s);

// What is answered from a confidence on: coverage, and the share of wrong answers (null: none is answered).
function keptAt(s, threshold) {
  const start = Math.round(threshold * s.bins);
  const wrong = sum(s.wrong.slice(start)), kept = wrong + sum(s.right.slice(start));
  return { kept, wrong, coverage: kept / images(s), risk: kept ? wrong / kept : null };
}

// The surest first: [coverage, risk, threshold].
function riskCoverage(s) {
  const all = images(s), found = [];
  let wrong = 0, kept = 0;
  for (let b = s.bins - 1; b >= 0; b--) {
    const n = s.wrong[b] + s.right[b];
    if (n) {
      wrong += s.wrong[b];
      kept += n;
      found.push([kept / all, wrong / kept, b / s.bins]);
    }
  }
  return found;
}

// One class against the rest: [false positive rate, true positive rate, threshold]; null where there are not both.
function roc(s, label) {
  const others = sum(s.others[label]), own = sum(s.own[label]);
  if (!others || !own) return null;
  const found = [[0, 0, 1]];
  let o = 0, w = 0;
  for (let b = s.bins - 1; b >= 0; b--) {
    if (s.others[label][b] + s.own[label][b]) {
      o += s.others[label][b];
      w += s.own[label][b];
      found.push([o / others, w / own, b / s.bins]);
    }
  }
  return found;
}

function auroc(s, label) {
  const curve = roc(s, label);
  if (!curve) return null;
  let area = 0;
  for (let i = 1; i < curve.length; i++) area += (curve[i][0] - curve[i - 1][0]) * (curve[i][1] + curve[i - 1][1]) / 2;
  return area;
}

// [recall, precision, threshold] from the surest on; null without images of the class.
function precisionRecall(s, label) {
  const own = sum(s.own[label]);
  if (!own) return null;
  const found = [];
  let o = 0, w = 0;
  for (let b = s.bins - 1; b >= 0; b--) {
    if (s.others[label][b] + s.own[label][b]) {
      o += s.others[label][b];
      w += s.own[label][b];
      found.push([w / own, w / (o + w), b / s.bins]);
    }
  }
  return found;
}

function averagePrecision(s, label) {
  const curve = precisionRecall(s, label);
  if (!curve) return null;
  let before = 0, area = 0;
  for (const [recall, precision] of curve) {
    area += (recall - before) * precision;
    before = recall;
  }
  return area;
}
