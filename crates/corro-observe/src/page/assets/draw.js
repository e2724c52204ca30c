// Curves on a canvas: lines, or areas that add up. Knows nothing of jobs.
"use strict";

const Draw = (() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Ticks at round numbers that cover 0 to `most`.
  function ticks(most, count) {
    if (!(most > 0)) return [0, 1];
    const rough = most / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const all = [];
    for (let i = 0; i * step < most * 1.001; i++) all.push(i * step);
    all.push(all.length * step);
    return all;
  }

  function colour(index, count) {
    const dark = document.documentElement.classList.contains("dark");
    const hue = count <= 8 ? [215, 28, 150, 330, 265, 185, 50, 0][index % 8] : Math.round((index * 360) / count);
    return `hsl(${hue} ${dark ? "72% 62%" : "68% 45%"})`;
  }

  // `series`: {name, colour, points: [[x, y or null]], strong}; `options`: {format, formatX, stacked, most}.
  function chart(canvas, series, options) {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    g.font = "11px system-ui, sans-serif";
    const shown = options.stacked ? stack(series) : series;
    let x0 = Infinity, x1 = -Infinity, most = options.most || 0, least = 0;
    for (const one of shown) for (const [x, y] of one.points) {
      x0 = Math.min(x0, x); x1 = Math.max(x1, x);
      if (y !== null && !options.most) { most = Math.max(most, y); least = Math.min(least, y); }
    }
    const unit = options.base ? options.base ** Math.max(0, Math.floor(Math.log(most || 1) / Math.log(options.base))) : 1;
    const marks = options.most ? [0, 0.25, 0.5, 0.75, 1].map((n) => n * options.most) : ticks(most / unit, 4).map((n) => n * unit);
    const labels = marks.map((n) => (n === 0 ? "0" : options.format(n)));
    const top = marks[marks.length - 1], left = Math.max(...labels.map((text) => g.measureText(text).width)) + 10, right = width - 6, bottom = height - 18, above = 6;
    const X = (x) => (x1 > x0 ? left + ((x - x0) / (x1 - x0)) * (right - left) : (left + right) / 2);
    const Y = (y) => bottom - ((y - least) / (top - least || 1)) * (bottom - above);
    g.textBaseline = "middle"; g.textAlign = "right"; g.lineWidth = 1;
    for (const [i, mark] of marks.entries()) {
      g.strokeStyle = css("--grid");
      g.beginPath(); g.moveTo(left, Math.round(Y(mark)) + 0.5); g.lineTo(right, Math.round(Y(mark)) + 0.5); g.stroke();
      g.fillStyle = css("--soft");
      g.fillText(labels[i], left - 6, Y(mark));
    }
    if (x1 > x0) {
      g.textBaseline = "top"; g.textAlign = "left"; g.fillText(options.formatX(x0), left, bottom + 5);
      g.textAlign = "right"; g.fillText(options.formatX(x1), right, bottom + 5);
    }
    for (const one of options.stacked ? [...shown].reverse() : shown) {
      trace(g, one, X, Y);
      if (options.stacked) {
        const known = one.points.filter(([, y]) => y !== null);
        if (known.length) {
          g.lineTo(X(known[known.length - 1][0]), bottom); g.lineTo(X(known[0][0]), bottom); g.closePath();
          g.fillStyle = one.colour; g.fill();
        }
      } else {
        g.strokeStyle = one.colour; g.lineWidth = one.strong ? 2.6 : series.length > 12 ? 1 : 1.6; g.lineJoin = "round"; g.stroke();
        const last = one.points.filter(([, y]) => y !== null);
        if (last.length === 1) { g.beginPath(); g.arc(X(last[0][0]), Y(last[0][1]), 2.5, 0, 7); g.fillStyle = one.colour; g.fill(); }
      }
    }
    canvas.places = { x0, x1, left, right, series, options };
  }

  function trace(g, one, X, Y) {
    g.beginPath();
    let first = true;
    for (const [x, y] of one.points) {
      if (y === null) continue;
      if (first) g.moveTo(X(x), Y(y)); else g.lineTo(X(x), Y(y));
      first = false;
    }
  }

  function stack(series) {
    const sums = new Map();
    return series.map((one) => ({
      ...one,
      points: one.points.map(([x, y]) => {
        if (y === null) return [x, null];
        sums.set(x, (sums.get(x) || 0) + y);
        return [x, sums.get(x)];
      }),
    }));
  }

  // What a chart shows at this place, in words.
  function words(canvas, pixel) {
    const p = canvas.places;
    if (!p || !(p.x1 > p.x0)) return "";
    const at = p.x0 + ((pixel - p.left) / (p.right - p.left)) * (p.x1 - p.x0);
    const near = (one) => {
      let best = null;
      for (const [x, y] of one.points) if (y !== null && (!best || Math.abs(x - at) < Math.abs(best[0] - at))) best = [x, y];
      return best;
    };
    const found = p.series.map((one) => [one.name, near(one)]).filter(([, point]) => point);
    if (!found.length) return "";
    const shown = found.length > 8 ? found.sort((a, b) => b[1][1] - a[1][1]).slice(0, 4) : found;
    return `${p.options.formatX(found[0][1][0])}  ` + shown.map(([name, [, y]]) => `${name} ${p.options.format(y)}`).join(", ");
  }

  return { chart, colour, css, words };
})();
