// Rows over time. What is shown is a stretch of time, [from, to] in microseconds; all that comes from ranks is drawn as text.
"use strict";

(() => {
  const $ = (id) => document.getElementById(id);
  const { title, rows, words, spans, unreadable, left_out } = window.TRACE;
  const FIELDS = 7, count = spans.length / FIELDS, LANE = 18, GAP = 8, HEAD = 26;
  const field = (i, n) => spans[i * FIELDS + n];
  const canvas = $("picture");
  let from = 0, to = 1, chosen = -1, sought = "", labels = 120;

  // Spans of each row in order, and the longest of them, so that a stretch is found by its beginning.
  const ofRow = rows.map(() => []), depths = rows.map(() => 1), longest = rows.map(() => 0);
  let end = 1;
  for (let i = 0; i < count; i++) {
    const row = field(i, 0);
    ofRow[row].push(i);
    depths[row] = Math.max(depths[row], Math.min(8, field(i, 1) + 1));
    longest[row] = Math.max(longest[row], field(i, 3));
    end = Math.max(end, field(i, 2) + field(i, 3));
  }
  const tops = [];
  let height = HEAD;
  for (const depth of depths) { tops.push(height); height += depth * LANE + GAP; }

  const time = (us) => (Math.abs(us) >= 1e6 ? `${(us / 1e6).toFixed(3)} s` : Math.abs(us) >= 1000 ? `${(us / 1000).toFixed(3)} ms` : `${us.toFixed(1)} µs`);
  const size = (n) => (n >= 1e6 ? `${(n / 1e6).toFixed(2)} MB` : n >= 1000 ? `${(n / 1000).toFixed(1)} KB` : `${n} B`);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const hues = new Map();
  function colour(word) {
    if (!hues.has(word)) {
      let sum = 7;
      for (const letter of words[word]) sum = (sum * 31 + letter.charCodeAt(0)) % 360;
      hues.set(word, sum);
    }
    return `hsl(${hues.get(word)} 58% ${document.documentElement.classList.contains("dark") ? 52 : 62}%)`;
  }
  const label = (i) => words[field(i, 5)] || words[field(i, 4)];
  const fits = (i) => !sought || `${words[field(i, 4)]} ${words[field(i, 5)]}`.toLowerCase().includes(sought);

  // The first span of a row that may reach into what is shown.
  function first(list, row) {
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (field(list[middle], 2) < from - longest[row]) low = middle + 1; else high = middle;
    }
    return low;
  }

  function ticks(g, width, X) {
    const rough = (to - from) / Math.max(2, (width - labels) / 130), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    g.textAlign = "center"; g.textBaseline = "middle";
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      g.strokeStyle = css("--line"); g.beginPath(); g.moveTo(X(at), HEAD - 6); g.lineTo(X(at), height); g.stroke();
      g.fillStyle = css("--soft"); g.fillText(time(at), X(at), 10);
    }
  }

  function draw() {
    const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.font = "11px system-ui, sans-serif";
    labels = Math.min(width * 0.3, 40 + Math.max(0, ...rows.map((name) => g.measureText(name).width)));
    const X = (us) => labels + ((us - from) / (to - from)) * (width - labels - 8);
    ticks(g, width, X);
    let drawn = 0;
    rows.forEach((name, row) => {
      const ends = [];
      for (let at = first(ofRow[row], row); at < ofRow[row].length; at++) {
        const i = ofRow[row][at], start = field(i, 2);
        if (start > to) break;
        const depth = Math.min(7, field(i, 1)), left = Math.max(X(start), labels), right = Math.min(X(start + field(i, 3)), width);
        // What would lie on the same pixel as the last one can't be seen.
        if (right < labels || (right - left < 1 && ends[depth] >= Math.ceil(right))) continue;
        ends[depth] = Math.ceil(right);
        const wide = Math.max(right - left, 1), y = tops[row] + depth * LANE;
        g.globalAlpha = fits(i) ? 1 : 0.18;
        g.fillStyle = colour(field(i, 4));
        g.fillRect(left, y, wide, LANE - 2);
        if (i === chosen) { g.strokeStyle = css("--text"); g.lineWidth = 2; g.strokeRect(left, y, wide, LANE - 2); g.lineWidth = 1; }
        if (wide > 34) {
          g.save(); g.beginPath(); g.rect(left, y, wide - 3, LANE); g.clip();
          g.fillStyle = "#10151c"; g.textAlign = "left"; g.textBaseline = "middle"; g.fillText(label(i), left + 4, y + LANE / 2 - 1); g.restore();
        }
        drawn++;
      }
      g.globalAlpha = 1;
      g.fillStyle = css("--back"); g.fillRect(0, tops[row] - GAP / 2, labels - 4, depths[row] * LANE + GAP);
      g.save(); g.beginPath(); g.rect(0, tops[row], labels - 10, LANE); g.clip();
      g.fillStyle = css("--text"); g.textAlign = "left"; g.textBaseline = "middle"; g.fillText(name, 14, tops[row] + LANE / 2 - 1); g.restore();
    });
    document.body.dataset.drawn = String(drawn);
  }

  function show(a, b) {
    const least = Math.min(end, 0.5), wide = Math.max(least, Math.min(end, b - a));
    from = Math.max(0, Math.min(a, end - wide)); to = from + wide;
    draw();
  }
  const at = (x) => from + ((x - labels) / (canvas.clientWidth - labels - 8)) * (to - from);

  function under(x, y) {
    const row = tops.findIndex((top, i) => y >= top && y < top + depths[i] * LANE);
    if (row < 0 || x < labels) return -1;
    const depth = Math.floor((y - tops[row]) / LANE), moment = at(x), near = at(x + 2) - moment;
    for (let k = first(ofRow[row], row); k < ofRow[row].length; k++) {
      const i = ofRow[row][k];
      if (field(i, 2) > moment + near) break;
      if (Math.min(7, field(i, 1)) === depth && field(i, 2) + field(i, 3) >= moment - near) return i;
    }
    return -1;
  }

  function say(i) {
    const bytes = field(i, 6);
    $("said").textContent = `${rows[field(i, 0)]}: ${words[field(i, 4)]} ${words[field(i, 5)]}, ${time(field(i, 3))} at ${time(field(i, 2))}${bytes ? `, ${size(bytes)}` : ""}`;
  }

  canvas.addEventListener("wheel", (e) => {
    if (e.shiftKey) return;
    e.preventDefault();
    const middle = at(e.offsetX), by = e.deltaY > 0 ? 1.25 : 0.8;
    show(middle - (middle - from) * by, middle + (to - middle) * by);
  }, { passive: false });
  let drag = null;
  canvas.onpointerdown = (e) => { drag = { x: e.offsetX, from, to, moved: false }; canvas.setPointerCapture(e.pointerId); };
  canvas.onpointermove = (e) => {
    if (!drag) { const i = under(e.offsetX, e.offsetY); if (i >= 0) say(i); return; }
    const by = ((e.offsetX - drag.x) / (canvas.clientWidth - labels - 8)) * (drag.to - drag.from);
    drag.moved = drag.moved || Math.abs(e.offsetX - drag.x) > 3;
    if (drag.moved) show(drag.from - by, drag.to - by);
  };
  canvas.onpointerup = (e) => {
    if (drag && !drag.moved) { chosen = under(e.offsetX, e.offsetY); if (chosen >= 0) say(chosen); draw(); }
    drag = null;
  };
  window.onkeydown = (e) => {
    if (e.target === $("search")) return;
    const wide = to - from, move = { ArrowLeft: [-0.2, -0.2], ArrowRight: [0.2, 0.2], "+": [0.2, -0.2], "-": [-0.3, 0.3] }[e.key];
    if (move) { e.preventDefault(); show(from + move[0] * wide, to + move[1] * wide); }
  };
  $("search").oninput = () => {
    sought = $("search").value.toLowerCase();
    let found = 0;
    if (sought) for (let i = 0; i < count; i++) if (fits(i)) found++;
    $("said").textContent = sought ? `${found.toLocaleString("en")} operations` : "";
    draw();
  };
  $("all").onclick = () => show(0, end);
  $("theme").onclick = () => { document.documentElement.classList.toggle("dark"); draw(); };
  document.documentElement.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches);
  window.onresize = draw;
  $("title").textContent = title;
  document.title = `${title} · Corro timeline`;
  const missing = [unreadable && `${unreadable} lines could not be read`, left_out && `${left_out.toLocaleString("en")} short operations are left out`].filter(Boolean);
  $("facts").textContent = [`${rows.length} rows`, `${count.toLocaleString("en")} operations`, time(end), ...missing].join(" · ");
  show(0, end);
})();
