// Asks for what is new once a second and draws it. All text goes in as text, never as markup.
"use strict";
const COLOURS = [0, 1, 2, 3, 4, 5, 6, 7].map((k) => `var(--c${k})`);
const seen = { run: "", after: 0, lines: [], told: null, follow: true };
const $ = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const space = ["svg", "path", "line", "text", "circle", "title"].includes(name);
  const made = space ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.map(String));
  return made;
}
function put(parent, ...children) { parent.replaceChildren(...children); return parent; }
function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(1) : Number(value.toPrecision(4)).toString();
}
function bytes(count) {
  if (!Number.isFinite(count)) return "–";
  const unit = count >= 1e6 ? [1e6, "MB"] : count >= 1e3 ? [1e3, "kB"] : [1, "B"];
  return `${(count / unit[0]).toFixed(unit[0] > 1 ? 1 : 0)} ${unit[1]}`;
}
const clock = (text) => (text || "").slice(11, 19);

function facts(pairs) {
  put($("facts"), ...pairs.map(([name, value, look]) => {
    const box = document.createElement("div");
    box.append(element("dt", {}, name), element("dd", look ? { class: look } : {}, value));
    return box;
  }));
}

// ── charts ──────────────────────────────────────────────────────────────────────────────────────
function chart(title, rounds, series, chosen, log) {
  const [W, H, L, B, T] = [400, 190, 52, 24, 10];
  const scale = log ? (v) => Math.log10(v) : (v) => v;
  const usable = (v) => Number.isFinite(v) && (!log || v > 0);
  const values = series.flatMap((s) => s.values.filter((v) => v !== null && usable(v)).map(scale));
  let [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
  if (high - low < 1e-12) { low -= 0.5; high += 0.5; }
  const first = rounds[0].round, last = rounds[rounds.length - 1].round;
  const x = (r) => L + (W - L - 12) * (last > first ? (r - first) / (last - first) : 0.5);
  const y = (v) => T + (H - T - B) * (1 - (scale(v) - low) / (high - low));
  const end = series.length === 1 ? series[0].values[series[0].values.length - 1] : null;
  const svg = element("svg", { viewBox: `0 0 ${W} ${H}`, role: "img",
    "aria-label": `${title}, rounds ${first} to ${last}${end === null ? "" : `, now ${short(end)}`}` });
  for (const at of [low, (low + high) / 2, high]) {
    const value = log ? 10 ** at : at, height = T + (H - T - B) * (1 - (at - low) / (high - low));
    svg.append(element("line", { x1: L, x2: W - 8, y1: height, y2: height, class: "axis" }));
    svg.append(element("text", { x: L - 6, y: height + 4, "text-anchor": "end" }, short(Number(value.toPrecision(2)))));
  }
  svg.append(element("text", { x: L, y: H - 6 }, first));
  svg.append(element("text", { x: W - 8, y: H - 6, "text-anchor": "end" }, last));
  svg.append(element("line", { x1: x(chosen), x2: x(chosen), y1: T, y2: H - B, class: "cursor" }));
  for (const one of series) {
    let path = "", pen = false;
    one.values.forEach((v, k) => {
      if (v === null || !usable(v)) { pen = false; return; }
      path += `${pen ? "L" : "M"}${x(rounds[k].round).toFixed(1)} ${y(v).toFixed(1)}`;
      if (!pen && rounds.length === 1) path += "h0.1";
      pen = true;
    });
    const drawn = element("path", { d: path || "M0 0", "stroke-linecap": "round", class: one.colour ? "" : "other" });
    if (one.colour) drawn.style.stroke = one.colour;
    drawn.append(element("title", {}, one.name));
    svg.append(drawn);
  }
  const figure = document.createElement("figure");
  figure.append(svg, element("figcaption", {}, title));
  return figure;
}

function colours(rounds) {
  // The sites that weigh most have a colour of their own; where there are many, the rest share one.
  const top = {}, last = rounds[rounds.length - 1].sites;
  for (const { sites } of rounds) for (const [s, t] of Object.entries(sites)) top[s] = Math.max(top[s] || 0, t.lambda);
  const order = Object.keys(last).sort((a, b) => top[b] - top[a]).slice(0, COLOURS.length);
  return Object.fromEntries(Object.keys(last).filter((s) => order.includes(s)).map((s, k) => [s, COLOURS[k]]));
}

// ── a federation ────────────────────────────────────────────────────────────────────────────────
function federation(told) {
  const run = told.run, rounds = seen.lines.filter((l) => l.event === "round");
  const last = rounds[rounds.length - 1], now = seen.lines[seen.lines.length - 1];
  $("title").textContent = run ? `${run.study} at ${told.title}` : told.title;
  const look = { running: "good", finished: "good", interrupted: "warn" };
  const state = run ? (run.state === "finished" ? `finished: ${run.message}` : `${run.state}, step ${now ? now.step : "enrol"}`)
    : "no run yet";
  say(`${state}${told.server ? "" : "; the server is down"}`,
    run && run.state === "finished" && !["converged", "trained"].includes(run.status) ? "warn" : run ? look[run.state] : "");
  const there = Object.values(told.sites).filter((since) => since).length;
  const sum = (name) => rounds.reduce((total, l) => total + (l[name] || 0), 0);
  facts([
    ["Rounds", last ? last.round : 0],
    ...(run && run.network ? [] : [["Gap", last ? short(last.gap) : "–"]]),
    ["Objective", last ? short(last.objective) : "–"],
    ["Sites connected", `${there} of ${Object.keys(told.sites).length}`, told.server ? "" : "warn"],
    ["Last round took", last && last.seconds !== null ? `${last.seconds.toFixed(1)} s` : "–"],
    ["Up / down", `${bytes(sum("bytes_up"))} / ${bytes(sum("bytes_down"))}`],
    ["Began", run ? clock(run.began) : "–"],
  ]);
  certificate(run);
  $("rounds").hidden = !last;
  $("sites").hidden = false;
  let line = null;
  if (last) {
    const slider = $("round");
    slider.min = rounds[0].round; slider.max = last.round;
    if (seen.follow) slider.value = last.round;
    line = rounds.find((l) => l.round === Number(slider.value)) || last;
    $("chosen").textContent = line.round;
    slider.setAttribute("aria-valuetext", run.network ? `round ${line.round}` : `round ${line.round}, gap ${short(line.gap)}`);
    $("latest").setAttribute("aria-pressed", String(seen.follow));
    const own = colours(rounds), names = Object.keys(last.sites);
    const each = (field) => names.map((name) => ({ name, colour: own[name],
      values: rounds.map((l) => (l.sites[name] ? l.sites[name][field] : null)) }))
      .sort((a, b) => Boolean(a.colour) - Boolean(b.colour));
    const one = (field, colour) => [{ name: field, colour, values: rounds.map((l) => l[field]) }];
    put($("charts"),
      run.network ? chart("Objective", rounds, one("objective", COLOURS[0]), line.round, false)
        : chart("Gap (log scale)", rounds, one("gap", COLOURS[0]), line.round, true),
      chart("Share λ by site", rounds, each("lambda"), line.round, false),
      chart("Risk by site", rounds, each("risk"), line.round, false),
      chart("Seconds a round", rounds, one("seconds", COLOURS[3]), line.round, false));
    table(told, run, line, own);
  } else table(told, run, null, {});
  events(seen.lines.filter((l) => !["round", "step"].includes(l.event)).map((l) => [l.time, wording(l),
    /refused|lost|two processes/.test(l.event) ? "bad" : /waiting|late|again/.test(l.event) ? "warn" : ""]));
}
function wording(line) {
  const parts = [line.site, (line.sites instanceof Array) ? line.sites.join(", ") : "", line.reason, line.cause];
  return [line.event, ...parts.filter(Boolean)].join(": ");
}
function certificate(run) {
  const shown = run && run.state === "finished";
  $("certificate").hidden = !shown;
  if (!shown) return;
  const c = run.certificate;
  $("certificate").querySelector("p").textContent = c
    ? Object.entries(c).map(([k, v]) => `${k.replaceAll("_", " ")} ${typeof v === "number" ? short(v) : v}`).join(" · ")
    : run.network ? "There is none: the exact certificate is for linear models. Figures below are of the last round; the model is the mean of its last rounds."
    : "There is none: not all sites answered at the end, or the study is differentially private.";
}
function table(told, run, line, own) {
  const heads = ["Site", "λ", "Risk", "Rows", "Answered in", "Remarks"];
  put($("sites").querySelector("thead tr"), ...heads.map((h) => element("th", { scope: "col" }, h)));
  const names = line ? Object.keys(line.sites) : Object.keys(told.sites);
  put($("sites").querySelector("tbody"), ...names.map((name) => {
    const row = document.createElement("tr"), figures = line ? line.sites[name] : {};
    const head = element("th", { scope: "row" });
    if (own[name]) { const dot = element("span", { class: "swatch", "aria-hidden": "true" }); dot.style.background = own[name]; head.append(dot); }
    head.append(name);
    const took = line && line.took ? line.took[name] : undefined;
    const remarks = [];
    if (told.server && !told.sites[name]) remarks.push(["not connected", "warn"]);
    if (line && line.extrapolated.includes(name)) remarks.push(["its last report, extrapolated", "warn"]);
    if (line && line.refused[name]) remarks.push([`refused: ${line.refused[name]}`, "bad"]);
    if (line && line.clipped && (line.clipped instanceof Array ? line.clipped.includes(name) : line.clipped[name])) remarks.push(["clipped", "warn"]);
    const last = document.createElement("td");
    remarks.forEach(([text, look], k) => { if (k) last.append("; "); last.append(element("span", { class: look }, text)); });
    row.append(head, element("td", {}, short(figures.lambda)), element("td", {}, short(figures.risk)),
      element("td", {}, run && run.rows && run.rows[name] !== undefined ? run.rows[name] : "–"),
      element("td", {}, took === undefined ? "–" : `${took.toFixed(2)} s`), last);
    return row;
  }));
}

// ── a site ──────────────────────────────────────────────────────────────────────────────────────
function site(told) {
  $("title").textContent = `site ${told.title}`;
  const sent = seen.lines.filter((l) => l.event === "answered"), last = sent[sent.length - 1];
  say(told.server ? (last ? `taking part: ${last.study}, ${last.round ? `round ${last.round}` : last.step}` : "connected or connecting; not asked yet")
    : "not running", told.server ? "good" : "warn");
  const refused = seen.lines.filter((l) => /^refused/.test(l.note || "")).length;
  facts([
    ["Questions answered", sent.length], ["Refused", refused, refused ? "warn" : ""],
    ["Bytes sent", bytes(sent.reduce((total, l) => total + l.bytes, 0))],
    ["Runs", new Set(sent.map((l) => l.run)).size],
    ...Object.entries(told.policy),
  ]);
  $("sites").hidden = !sent.length;
  $("sites-title").textContent = "What was sent, by run";
  const runs = new Map();
  for (const l of sent) {
    const now = runs.get(l.run) || { study: l.study, count: 0, rounds: 0, size: 0 };
    now.count += 1; now.size += l.bytes; now.rounds = Math.max(now.rounds, l.round || 0); now.last = l.what;
    runs.set(l.run, now);
  }
  put($("sites").querySelector("thead tr"), ...["Run", "Questions", "Rounds", "Bytes", "Last sent"].map((h) => element("th", { scope: "col" }, h)));
  put($("sites").querySelector("tbody"), ...[...runs].reverse().map(([name, t]) => {
    const row = document.createElement("tr");
    row.append(element("th", { scope: "row" }, name), element("td", {}, t.count), element("td", {}, t.rounds || "–"),
      element("td", {}, bytes(t.size)), element("td", {}, t.last));
    return row;
  }));
  events(seen.lines.map((l) => [l.time, l.note, /^refused|Error/.test(l.note || "") ? "bad" : ""]));
}

// ── both ────────────────────────────────────────────────────────────────────────────────────────
function say(text, look) {
  const state = $("state");
  if (state.textContent !== text) state.textContent = text;  // said aloud only when it changes
  state.className = look || "";
}
function events(list) {
  put($("events").querySelector("ol"), ...list.slice(-200).reverse().map(([time, text, look]) => {
    const item = document.createElement("li");
    item.append(element("time", { datetime: time || "" }, clock(time)), element("span", look ? { class: look } : {}, text));
    return item;
  }));
}
function draw() {
  if (!seen.told) return;
  (seen.told.kind === "site" ? site : federation)(seen.told);
}
function choices(told) {
  $("pick").hidden = told.runs.length < 2;
  const listed = [...$("runs").options].map((o) => o.value);
  if (String(listed) === String(told.runs)) return;
  put($("runs"), ...told.runs.map((name) => element("option", { value: name }, name)));
  if (told.run) $("runs").value = told.run.name;
}
let wanted = "";  // the run that was picked; nothing: the newest
async function look() {
  try {
    const told = await (await fetch(`data?run=${encodeURIComponent(wanted || seen.run)}&after=${seen.after}`)).json();
    if (!told.error) {
      const newest = told.runs[0];
      if (!wanted && newest && told.run && told.run.name !== newest) { seen.run = newest; seen.after = 0; seen.lines = []; return look(); }
      const name = told.run ? told.run.name : "";
      if (name !== seen.run || told.after < seen.after) seen.lines = [];
      const before = seen.after;
      seen.lines.push(...told.lines);
      seen.run = name; seen.after = told.after; seen.told = told;
      choices(told); draw();
      if (told.lines.length && told.after - before >= 5000) return look();
    }
  } catch { say("the page's server has stopped; start `dorfl watch` again", "bad"); }
  setTimeout(look, 1000);
}
$("runs").addEventListener("change", (e) => { wanted = e.target.value; seen.run = wanted; seen.after = 0; seen.lines = []; seen.follow = true; });
$("round").addEventListener("input", (e) => { seen.follow = e.target.value === e.target.max; draw(); });
$("latest").addEventListener("click", () => { seen.follow = true; draw(); });
look();
