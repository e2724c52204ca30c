// Draws the story of a job: asks for what is new once a second, and at once when something has happened; or shows a recording. All that ranks say is put in as text.
"use strict";

(() => {
  const $ = (id) => document.getElementById(id);
  const token = new URLSearchParams(location.search).get("token") || "";
  const MAX_ROWS = 1200, MAX_LINES = 4000;
  let view = null, rows = [], coarse = [], lines = [], events = [], whole = false, hover = null, pulse = "", files = [], others = [];

  // Words for numbers.
  const fixed = (n, digits) => n.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const ms = (n) => (n == null ? "–" : n >= 1000 ? `${fixed(n / 1000, 2)} s` : `${fixed(n, n < 10 ? 2 : n < 100 ? 1 : 0)} ms`);
  const percent = (n) => (n == null ? "–" : `${fixed(n * 100, n > 0 && n < 0.0995 ? 1 : 0)} %`);
  const scaled = (n, units, by) => {
    if (n == null) return "–";
    let at = 0;
    while (n >= by && at < units.length - 1) { n /= by; at++; }
    return `${fixed(n, n < 10 && at ? 1 : 0)} ${units[at]}`;
  };
  const bytes = (n) => scaled(n, ["B", "KB", "MB", "GB", "TB"], 1000);
  const memory = (n) => scaled(n, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
  const bits = (n) => scaled(n, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"], 1000);
  const clock = (at) => {
    const s = Math.floor(at / 1000), two = (n) => String(n).padStart(2, "0");
    return s >= 3600 ? `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}` : `${Math.floor(s / 60)}:${two(s % 60)}`;
  };
  const plain = (n) => (Math.abs(n) >= 1e5 || (n !== 0 && Math.abs(n) < 1e-3) ? n.toExponential(1) : fixed(n, Math.abs(n) < 10 ? 3 : 0));

  // An element with a class, a text, and others in it.
  function make(tag, cls, text, ...inside) {
    const e = document.createElement(tag);
    if (cls) e.className = cls;
    if (text != null) e.textContent = text;
    e.append(...inside);
    return e;
  }
  const cell = (text, cls) => make("td", cls, text);
  const column = (name) => view.columns.indexOf(name);
  const seated = () => view.ranks.filter((r) => r.rank != null).sort((a, b) => a.rank - b.rank);
  const mean = (list) => (list.length ? list.reduce((a, b) => a + b, 0) / list.length : null);
  const shown = () => (whole && coarse.length ? coarse : rows);

  // The last known number of a rank, not older than a while.
  function latest(rank, name) {
    const at = column(name);
    for (let i = rows.length - 1; i >= Math.max(0, rows.length - 30); i--) {
      const v = rows[i].ranks[rank]?.[at];
      if (v != null) return v;
    }
    return null;
  }

  function facts() {
    const ranks = seated(), hosts = new Set(ranks.map((r) => r.host)), first = ranks.find((r) => r.state === "running") || ranks[0];
    const list = [["ranks", view.size || view.ranks.length], ["hosts", hosts.size || "–"], ["running for", clock(view.now)]];
    if (first) {
      list.push(["step", Math.max(...ranks.map((r) => r.step)).toLocaleString("en")]);
      if (first.gear) list.push(["agreement", first.gear]);
      if (first.fusion) list.push(["fusion", `${fixed(first.fusion, 1)} tensors`]);
      const planes = first.planes.map((p) => p[0]).join(", ");
      if (planes) list.push(["plane", planes]);
    }
    if (view.epoch) list.push(["epoch", view.epoch]);
    $("facts").replaceChildren(...list.map(([name, value]) => make("span", "", `${name} `, make("b", "", value))));
    $("command").textContent = view.command;
    $("command").title = view.command;
    $("state").textContent = view.state;
    $("state").className = `badge ${view.state}`;
    document.title = `${view.state === "running" ? "" : view.state + " · "}${view.command.split(" ").pop().split("/").pop()} · Corro`;
    const stall = view.stall && view.stall.awaited.length ? view.stall : null;
    $("stall").hidden = !stall;
    if (stall) {
      const who = (list) => (list.length === 1 ? `rank ${list[0]}` : `ranks ${list.join(", ")}`);
      const text = `${who(stall.waiting)} ${stall.waiting.length === 1 ? "has" : "have"} waited ${clock(stall.lasts)} for ${who(stall.awaited)}`;
      $("stall-stacks").textContent = view.stacks.map(([rank, text]) => `rank ${rank}\n${text}`).join("\n");
      $("stall-text").textContent = stall.tensor ? `${text}, in ${stall.tensor}` : text;
    }
    $("failure").hidden = !view.failure;
    $("failure").textContent = view.failure || "";
  }

  function tiles() {
    const ranks = seated().filter((r) => r.state === "running" || view.state !== "running");
    const now = (name) => mean(ranks.map((r) => latest(r.rank, name)).filter((v) => v != null));
    const live = view.state === "running";
    const all = (i) => mean(ranks.filter((r) => r.shares).map((r) => r.shares[i]));
    const step = (live && now("step_ms")) || mean(ranks.map((r) => r.step_ms).filter((v) => v != null));
    const share = (name, i) => (live ? now(name) : null) ?? all(i);
    const slow = ranks.filter((r) => r.last != null).sort((a, b) => b.last - a.last)[0];
    const rate = live ? now("bytes") : null;
    const cpu = now("cpu"), used = now("memory"), gpu = now("gpu");
    const list = [
      ["step", ms(step), step ? `${fixed(1000 / step, 1)} steps/s` : "no step seen yet"],
      ["computing", percent(share("computing", 0)), "of a step, mean of ranks"],
      ["communication", percent(share("communication", 1)), ranks.some((r) => r.hidden) ? "at most; computing hides some" : "that computing does not hide"],
      ["waiting for others", percent(share("waiting", 2)), slow && slow.last > 0.5 && ranks.length > 1 && share("waiting", 2) > 0.02 ? `mostly for rank ${slow.rank} (${percent(slow.last)} of steps)` : "nobody in particular"],
      ["tensors", rate == null ? bytes(Math.max(0, ...ranks.map((r) => r.bytes))) : `${bytes(rate)}/s`, "on each rank"],
      ["CPU", cpu == null ? "–" : `${fixed(cpu / 100, cpu < 20 ? 2 : 1)} cores`, used == null ? "" : `${memory(used)} memory, each rank`],
    ];
    if (gpu != null) list.push(["GPU", `${fixed(gpu, 0)} %`, `${memory(now("gpu_memory"))} used`]);
    $("tiles").replaceChildren(...list.map(([name, value, note]) => {
      const tile = make("div", "tile", null, make("span", "", name), make("b", "", value), make("small", "", note));
      tile.dataset.name = name;
      return tile;
    }));
  }

  function advice() {
    $("advice-panel").hidden = !view.advice.length;
    $("advice").replaceChildren(...view.advice.map((a) => make("li", "", a.text)));
  }

  function bar(shares) {
    const e = make("div", "bar");
    if (!shares) return e;
    ["computing", "communication", "waiting"].forEach((name, i) => {
      const part = make("i", name);
      part.style.width = `${shares[i] * 100}%`;
      e.append(part);
    });
    e.title = `computing ${percent(shares[0])}, communication ${percent(shares[1])}, waiting ${percent(shares[2])}`;
    return e;
  }

  function ranks() {
    const gpu = view.ranks.some((r) => r.gpu_memory);
    const head = ["rank", "host", "state", "step", "ms/step", "where a step goes", "came last", "CPU", "memory", ...(gpu ? ["GPU", "GPU memory"] : []), "under way"];
    const numbers = new Set(["step", "ms/step", "came last", "CPU", "memory", "GPU", "GPU memory", "under way"]);
    const all = [...seated(), ...view.ranks.filter((r) => r.rank == null)];
    const awaited = new Set(view.stall ? view.stall.awaited : []);
    const rowOf = (r) => {
      // Of one that is gone while the job goes on, the rank may be another's by now.
      const number = (name) => (r.rank == null || (r.state !== "running" && view.state === "running") ? null : latest(r.rank, name));
      const cpu = number("cpu"), used = number("memory"), load = number("gpu");
      const dot = make("span", "dot");
      dot.style.background = Draw.colour(r.rank ?? 0, view.size);
      const state = r.waits && r.state === "running" ? `waits ${clock(r.waits[0])}` : r.ending && r.state === "failed" ? r.ending : r.state;
      const row = make("tr", awaited.has(r.rank) ? "mark" : r.state === "failed" || r.state === "done" ? "gone" : "", null,
        make("td", "", null, dot, r.rank == null ? `process ${r.process}` : String(r.rank)),
        cell(r.host), cell(state, r.state), cell(r.step.toLocaleString("en"), "number"),
        cell(r.step_ms == null ? "–" : fixed(r.step_ms, 2), "number"), make("td", "", null, bar(r.shares)),
        cell(percent(r.last), "number"), cell(cpu == null ? "–" : `${fixed(cpu, 0)} %`, "number"), cell(memory(used), "number"),
        ...(gpu ? [cell(load == null ? "–" : `${fixed(load, 0)} %`, "number"), cell(r.gpu_memory ? `${memory(number("gpu_memory"))} of ${memory(r.gpu_memory)}` : "–", "number")] : []), cell(r.queued, "number"));
      row.dataset.rank = r.rank ?? "";
      row.onmouseenter = () => { hover = r.rank; charts(); };
      row.onmouseleave = () => { hover = null; charts(); };
      return row;
    };
    const top = make("tr", "", null, ...head.map((name) => make("th", numbers.has(name) ? "number" : "", name)));
    $("ranks").replaceChildren(make("thead", "", null, top), make("tbody", "", null, ...all.map(rowOf)));
  }

  function tensors() {
    const found = view.tensors || [], ranks = seated().filter((r) => r.collective_ms != null), first = ranks[0];
    $("tensors-panel").hidden = !found.length;
    const all = first ? Math.min(...ranks.map((r) => r.collective_ms)) * first.step : 0;
    const head = ["tensor", "times", "each", "time each", "of that time", ""];
    const top = make("tr", "", null, ...head.map((name, i) => make("th", i > 0 && i < 5 ? "number" : "", name)));
    const body = found.map(([name, times, total, took]) => {
      const share = all ? Math.min(1, took / all) : null, used = make("div", "bar"), part = make("i", "communication");
      part.style.width = `${(share || 0) * 100}%`;
      used.append(part);
      const named = cell(name, "cut");
      named.title = name;
      return make("tr", "", null, named, cell(times.toLocaleString("en"), "number"), cell(bytes(total / times), "number"), cell(ms(took / times), "number"), cell(percent(share), "number"), make("td", "", null, used));
    });
    $("tensors").replaceChildren(make("thead", "", null, top), make("tbody", "", null, ...body));
  }

  function records() {
    const found = view.records || [];
    $("records-panel").hidden = !found.length;
    if ($("records").childElementCount === found.length) return;
    $("records").replaceChildren(...found.map(([rank, text]) => make("details", "", null, make("summary", "", `rank ${rank}`), make("pre", "", text))));
  }

  function links() {
    const found = seated().flatMap((r) => r.network.map((n) => [r.host, ...n]));
    $("links-panel").hidden = !found.length;
    const head = ["host", "interface", "carried so far", "most at once", "it says it can do", ""];
    const top = make("tr", "", null, ...head.map((name, i) => make("th", i > 1 && i < 5 ? "number" : "", name)));
    const body = found.map(([host, name, speed, most, total]) => {
      const used = make("div", "bar"), part = make("i", "communication");
      part.style.width = `${speed ? Math.min(100, (most / speed) * 100) : 0}%`;
      used.append(part);
      return make("tr", "", null, cell(host), cell(name), cell(bytes(total), "number"), cell(bits(most), "number"), cell(speed ? bits(speed) : "–", "number"), make("td", "", null, used));
    });
    $("links").replaceChildren(make("thead", "", null, top), make("tbody", "", null, ...body));
  }

  // The charts there are: name, what it shows, how.
  function kinds() {
    const many = view.size > 1 ? "each rank" : "";
    const list = [["step_ms", "step time", "mean of ranks", ms], ["shares", "where a step goes", "mean of ranks", percent]];
    if (view.size > 1) list.push(["own_ms", "computing in a step", many, ms]);
    for (const name of Object.keys(view.training)) list.push([`value:${name}`, name, "mean of ranks", plain]);
    list.push(["cpu", "CPU", many, (n) => `${fixed(n, 0)} %`], ["memory", "memory", many, memory], ["bytes", "bytes of tensors a second", many, bytes]);
    if (view.ranks.some((r) => r.gpu_memory)) list.push(["gpu", "GPU load", many, (n) => `${fixed(n, 0)} %`], ["gpu_memory", "GPU memory", many, memory]);
    return list;
  }

  function seriesOf(kind) {
    const data = shown();
    if (kind === "shares") {
      return ["computing", "communication", "waiting"].map((name) => {
        const at = column(name);
        const points = data.map((row) => [row.at, mean(row.ranks.map((c) => c[at]).filter((v) => v != null))]);
        return { name, colour: Draw.css(`--${name}`), points };
      });
    }
    if (kind.startsWith("value:")) {
      const points = view.training[kind.slice(6)].map(([step, v]) => [step, v]);
      return [{ name: kind.slice(6), colour: Draw.colour(0, 1), points }];
    }
    if (kind === "step_ms") {
      const points = data.map((row) => [row.at, mean(row.ranks.map((c) => c[column(kind)]).filter((v) => v != null))]);
      return [{ name: "step", colour: Draw.colour(0, 1), points }];
    }
    const at = column(kind), list = [];
    const own = (c) => (c?.[column("step_ms")] == null ? null : c[column("step_ms")] * c[column("computing")]);
    const number = (c) => (kind === "own_ms" ? own(c) : c?.[at] ?? null);
    for (let rank = 0; rank < view.size; rank++) {
      const points = data.map((row) => [row.at, number(row.ranks[rank])]);
      const faded = hover != null && hover !== rank;
      list.push({ name: `rank ${rank}`, colour: faded ? Draw.css("--grid") : Draw.colour(rank, view.size), points, strong: hover === rank });
    }
    return hover == null ? list : list.sort((a, b) => (a.strong ? 1 : 0) - (b.strong ? 1 : 0));
  }

  function charts() {
    const wanted = kinds(), box = $("charts");
    const key = wanted.map((k) => k[0]).join("|");
    if (box.dataset.key !== key) {
      box.dataset.key = key;
      box.replaceChildren(...wanted.map(([kind, title, note]) => {
        const canvas = make("canvas"), said = make("b");
        canvas.dataset.kind = kind;
        canvas.setAttribute("role", "img");
        canvas.setAttribute("aria-label", title);
        canvas.onmousemove = (e) => { said.textContent = Draw.words(canvas, e.offsetX); };
        canvas.onmouseleave = () => { said.textContent = ""; };
        return make("div", "chart", null, make("h2", "", title, make("span", "", note ? `· ${note}` : ""), said), canvas);
      }));
    }
    for (const canvas of box.querySelectorAll("canvas")) {
      const [kind, , , format] = wanted.find((k) => k[0] === canvas.dataset.kind);
      const byStep = kind.startsWith("value:");
      const options = { format, formatX: byStep ? (n) => `step ${Math.round(n).toLocaleString("en")}` : clock, stacked: kind === "shares" };
      if (options.stacked) options.most = 1;
      if (kind === "memory" || kind === "gpu_memory") options.base = 1024;
      Draw.chart(canvas, seriesOf(kind), options);
    }
  }

  function log(box, items, make_) {
    const end = box.scrollTop + box.clientHeight >= box.scrollHeight - 30;
    box.replaceChildren(...items.map(make_));
    if (end) box.scrollTop = box.scrollHeight;
  }

  function rankOf(process) {
    const found = view.ranks.find((r) => r.process === process);
    return found && found.rank != null ? found.rank : `p${process}`;
  }

  function logs() {
    log($("events"), events, (e) => make("li", "", null, make("time", "", clock(e.at)), make("span", e.kind, e.text)));
    const who = $("who"), known = seated();
    if (who.options.length !== known.length + 1) {
      const before = who.value;
      who.replaceChildren(make("option", "", "all ranks"), ...known.map((r) => { const o = make("option", "", `rank ${r.rank}`); o.value = r.process; return o; }));
      who.options[0].value = "";
      who.value = before;
    }
    const text = $("search").value.toLowerCase();
    const found = lines.filter((l) => (who.value === "" || l.who === Number(who.value)) && (!text || l.text.toLowerCase().includes(text)));
    log($("lines"), found.slice(-500), (l) =>
      make("li", "", null, make("time", "", clock(l.at)), make("span", "who", rankOf(l.who)), make("span", l.error ? "err" : "", l.text)));
  }

  function compare() {
    $("compare-panel").hidden = others.length < 2;
    const head = ["recording", "ranks", "ran for", "ms/step", "efficiency", "computing", "communication", "waiting", "ended"];
    const stepOf = (v) => mean(v.ranks.filter((r) => r.shares).map((r) => r.step_ms));
    // Against the one with the fewest ranks, if batches of a rank are alike.
    const least = others.map(([, v]) => v).filter((v) => stepOf(v)).sort((a, b) => a.size - b.size)[0];
    const top = make("tr", "", null, ...head.map((name, i) => make("th", i ? "number" : "", name)));
    const body = others.map(([name, v]) => {
      const ranks = v.ranks.filter((r) => r.shares), share = (i) => percent(mean(ranks.map((r) => r.shares[i])));
      return make("tr", "", null, cell(name), ...[v.size, clock(v.now), ranks.length ? fixed(stepOf(v), 2) : "–", ranks.length ? percent(stepOf(least) / stepOf(v)) : "–", share(0), share(1), share(2), v.state].map((t) => cell(t, "number")));
    });
    $("compare").replaceChildren(make("thead", "", null, top), make("tbody", "", null, ...body));
  }

  function draw() {
    facts(); tiles(); advice(); ranks(); tensors(); links(); charts(); records(); logs(); compare();
    document.body.dataset.drawn = String(view.now);
  }

  function take(next, anew) {
    if (anew || !view || next.began !== view.began) { rows = []; coarse = []; lines = []; events = []; }
    view = next;
    if (next.all.length) coarse = next.all;
    rows = rows.concat(next.recent).slice(-MAX_ROWS);
    if (coarse.length && next.all.length === 0) coarse = coarse.concat(next.recent).slice(-3 * MAX_ROWS);
    lines = lines.concat(next.lines).slice(-MAX_LINES);
    events = events.concat(next.events).slice(-500);
    draw();
  }

  const ask = (path, more) => fetch(`${path}?token=${encodeURIComponent(token)}${more || ""}`, { cache: "no-store" });

  const sleep = (time) => new Promise((done) => setTimeout(done, time));

  // Waits for a second, but not longer than until something happens that should be seen at once.
  async function pause() {
    const until = Date.now() + 1000;
    while (Date.now() < until) {
      await sleep(250);
      const beat = await ask("pulse").then((answer) => (answer.ok ? answer.text() : pulse)).catch(() => pulse);
      if (beat !== pulse) { pulse = beat; return; }
    }
  }

  async function follow() {
    let wait = 0;
    try {
      const row = rows.length ? `&row=${rows[rows.length - 1].at}` : "";
      const line = lines.length ? lines[lines.length - 1].number + 1 : 0, event = events.length ? events[events.length - 1].number + 1 : 0;
      const answer = await ask("view", `${row}&lines=${line}&events=${event}`);
      if (!answer.ok) throw new Error(`${answer.status}`);
      take(await answer.json(), false);
      $("lost").hidden = true;
    } catch (why) {
      $("lost").hidden = false;
      $("lost").textContent = view && view.state !== "running"
        ? "The job is over and its launcher has gone; this is the last it said."
        : "The launcher does not answer: the job is over, or the connection is lost.";
      if (view && view.state === "running") { $("state").textContent = "not heard from"; $("state").className = "badge starting"; }
      wait = 3000;
    }
    if (wait) await sleep(wait); else await pause();
    follow();
  }

  async function open(at) {
    const [, recorded] = others[at];
    whole = true;
    $("range").textContent = "whole run";
    take(recorded, true);
  }

  function theme(dark) {
    document.documentElement.classList.toggle("dark", dark);
    if (view) draw();
  }

  async function begin() {
    const prefers = matchMedia("(prefers-color-scheme: dark)");
    theme(prefers.matches);
    prefers.addEventListener("change", (e) => theme(e.matches));
    $("theme").onclick = () => theme(!document.documentElement.classList.contains("dark"));
    $("range").onclick = () => { whole = !whole; $("range").textContent = whole ? "whole run" : "last 5 min"; if (view) draw(); };
    $("search").oninput = $("who").onchange = () => view && logs();
    window.addEventListener("resize", () => view && charts());
    if (window.RECORDING) {
      others = [["this run", window.RECORDING]];
      if (window.AGAINST) others.push(["against", window.AGAINST]);
      return open(0);
    }
    files = await (await ask("files")).json().catch(() => []);
    if (!files.length) return follow();
    for (let i = 0; i < files.length; i++) others.push([files[i], await (await ask("view", `&file=${i}`)).json()]);
    $("file").hidden = files.length < 2;
    $("file").replaceChildren(...files.map((name, i) => { const o = make("option", "", name); o.value = i; return o; }));
    $("file").onchange = () => open(Number($("file").value));
    open(0);
  }

  begin();
})();
