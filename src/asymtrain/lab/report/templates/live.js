"use strict";
// Figures that answer the pointer. Each `.plot` holds its SVG and its values; when it comes into view, ECharts draws the
// values and the SVG steps back until the page is printed.
(() => {
  let library = null;
  async function load() {
    await run("charts");
    return window.echarts;
  }

  // Small helpers

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const paint = (text) => text.replace(/var\((--[\w-]+),([^)]*)\)/g, (_, name, other) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim() || other.trim());
  const theme = () => ({ ink: paint("var(--ink, #222)"), soft: paint("var(--soft, #555)"),
    rule: paint("var(--rule, #ccc)"), panel: paint("var(--paper, #fff)") });
  const escaped = (text) => String(text).replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
  const there = (value) => value !== null && value !== undefined;

  const minus = (text) => text.replace(/^-/, "−"); // the page's sign

  function number(value, digits = 4) {
    if (!there(value)) return "—";
    if (value === 0) return "0";
    const size = Math.abs(value);
    const short = Number(value.toPrecision(size >= 1e5 || size < 1e-3 ? 3 : digits));
    return minus((size >= 1e5 || size < 1e-3 ? short.toExponential() : String(short)).replace("e+", "e"));
  }
  // Ties go to the even digit, as in Python, which writes the tables
  function fixed(value, digits) {
    const exact = Math.abs(value).toFixed(digits + 30);
    const short = exact.slice(0, -30).replace(/\.$/, "");
    const up = !/50{29}$/.test(exact) || /[13579]$/.test(short);
    return up ? value.toFixed(digits) : (value < 0 ? "-" : "") + short;
  }
  // A value as the tables of the page write it, with its unit where that is wanted
  function written(value, { written: how }, unit = how?.unit) {
    if (!how || !there(value)) return number(value);
    const text = how.significant ? number(value, how.digits) : minus(fixed(value * (how.times || 1), how.digits));
    return `${how.signed && !text.startsWith("−") ? "+" : ""}${text}${unit || ""}`;
  }
  // The unit once, but for a percent sign
  const listed = (values, panel, between) => values.map((value, i) =>
    written(value, panel, i + 1 < values.length && panel.written?.unit !== "%" ? "" : undefined)).join(between);
  const span = (low, high, panel) => there(low) && there(high) ? listed([low, high], panel, " to ") : "";

  function tip(title, rows, more = "") {
    const body = rows.map(([colour, label, value, more]) => `<tr><td><i style="background:${colour || "transparent"}"></i>`
      + `${escaped(label)}</td><td>${escaped(value)}</td><td>${escaped(more || "")}</td></tr>`).join("");
    return `<b>${escaped(title)}</b><table>${body}</table>${escaped(more)}`;
  }

  function common(colours) {
    return {
      animation: false,
      textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: colours.ink },
      tooltip: { confine: true, className: "tip", backgroundColor: colours.panel, borderColor: colours.rule,
        textStyle: { color: colours.ink, fontSize: 12 }, transitionDuration: 0,
        axisPointer: { lineStyle: { color: colours.soft }, shadowStyle: { color: colours.rule, opacity: 0.35 } } },
      grid: { left: 6, right: 14, top: 10, bottom: 4, outerBoundsMode: "same", outerBoundsContain: "all" },
    };
  }

  function axis(colours, more) {
    return { axisLine: { show: false }, axisTick: { show: false }, splitLine: { lineStyle: { color: colours.rule } },
      nameLocation: "middle", nameTextStyle: { color: colours.ink, fontSize: 12 },
      axisLabel: { color: colours.ink, fontSize: 11, hideOverlap: true, formatter: (value) => number(value) }, ...more };
  }

  // Lines: the mean of each series, its interval, its seeds

  function lines(panel, state) {
    const colours = theme();
    const series = [];
    const shown = panel.lines.map((line, at) => ({ line, at })).filter(({ line }) =>
      !state.hidden.has(line.label) && !state.hidden.has(line.thin ? "thin" : "thick"));
    for (const { line, at } of shown) {
      const colour = paint(line.paint);
      const x = line.x;
      const style = { color: colour, width: line.width || 2, type: line.dash || "solid" };
      const points = x.map((value, i) => [value, there(line.y[i]) ? line.y[i] : null]);
      (line.seeds || []).forEach((seed, i) => {
        if (state.seeds !== "all" && state.seeds !== line.seed_names[i]) return;
        const one = state.seeds !== "all";
        series.push({ type: line.marker ? "scatter" : "line", name: `seed ${line.seed_names[i]}`, z: one ? 4 : 2, silent: !one,
          data: x.map((value, k) => [value, there(seed[k]) ? seed[k] : null]), showSymbol: false, connectNulls: true,
          symbol: "circle", symbolSize: 6, symbolOffset: line.marker ? [9, 0] : [0, 0], // the mark of the mean hides none
          itemStyle: { color: colour, opacity: one ? 1 : 0.55 },
          lineStyle: { ...style, width: one ? 1.8 : 0.9, opacity: one ? 1 : 0.5 }, tooltip: { show: one } });
      });
      if (line.low && state.intervals) series.push(interval(line, x, colour));
      series.push({ type: line.alone ? "scatter" : "line", id: `mean-${at}`, name: line.label || panel.y_label, z: 3, data: points,
        symbol: line.symbol || "circle", symbolSize: (line.size || 4) * 1.4, showSymbol: Boolean(line.symbol),
        connectNulls: !line.marker, lineStyle: style, emphasis: { disabled: true },
        itemStyle: line.hollow ? { color: "transparent", borderColor: colours.ink, borderWidth: 1.2 } : { color: colour } });
    }
    if (panel.ring) series.push({ type: "scatter", silent: true, data: [panel.ring], symbol: "circle", symbolSize: 18,
      itemStyle: { color: "transparent", borderColor: colours.ink, borderWidth: 1.5 }, tooltip: { show: false } });
    series.push(straight([...dotted(panel.marks), ...(panel.zero ? [{ y: 0 }] : [])], colours.ink));

    const every = shown.flatMap(({ line }) => line.x);
    const whole = every.every(Number.isInteger);
    const words = new Map((panel.ticks || []).map((tick, i) => [tick, (panel.tick_labels || [])[i] ?? String(tick)]));
    const low = Math.min(...every), high = Math.max(...every);
    const beside = panel.tick_labels || panel.lines.some((line) => line.alone) ? 0.04 * (high - low || 1) : 0;
    const ticks = panel.ticks ? { customValues: panel.ticks } : {};
    const values = shown.flatMap(({ line }) => line.y).filter(there);
    return { ...common(colours), series,
      xAxis: axis(colours, { type: "value", name: panel.x_label, nameGap: 26, splitLine: { show: false },
        axisLine: { show: true, onZero: false, lineStyle: { color: colours.rule } }, minInterval: whole ? 1 : undefined,
        min: every.length ? low - beside : 0, max: every.length ? (high === low ? high + 1 : high + beside) : 1,
        axisLabel: { ...axis(colours).axisLabel, ...ticks, rotate: words.size > 6 ? 45 : 0,
          formatter: (value) => words.get(value) ?? number(value) } }),
      yAxis: axis(colours, { type: panel.log ? "log" : "value", name: panel.y_label, nameGap: 44, scale: !panel.from_zero,
        logBase: values.length && Math.max(...values) / Math.min(...values) < 100 ? 2 : 10,
        min: panel.log ? Math.min(...values) / 1.3 : panel.from_zero ? 0 : undefined,
        max: panel.log ? Math.max(...values) * 1.3 : undefined, splitNumber: 4,
        axisLabel: { ...axis(colours).axisLabel, showMinLabel: !panel.log, showMaxLabel: !panel.log } }),
      tooltip: { ...common(colours).tooltip, trigger: panel.lines.some((line) => line.alone) ? "item" : "axis",
        formatter: (given) => {
          const all = (Array.isArray(given) ? given : [given]).filter((one) => there(one.value?.[1]));
          if (!all.length) return "";
          const x = all[0].value[0];
          return tip(`${panel.x_label} ${words.get(x) ?? number(x)}`, all.map((one) => {
            const line = one.seriesId.startsWith("mean-") ? panel.lines[one.seriesId.slice(5)] : null;
            const i = one.dataIndex;
            const kind = line && panel.kinds ? `, ${panel.kinds[line.thin ? 1 : 0]}` : "";
            return [paint(line ? line.paint : one.color), `${one.seriesName}${kind}`, written(one.value[1], panel),
              line && line.low ? span(line.low[i], line.high[i], panel) : ""];
          }));
        } } };
  }

  // Lines down a panel at x, or across it at y; axes do not stretch to them
  const dotted = (marks = []) => marks.map((x) => ({ x, dash: [2, 3] }));
  function straight(places, colour) {
    return { type: "custom", silent: true, z: 5, clip: true, tooltip: { show: false }, encode: { x: -1, y: -1 },
      data: places.map((_, i) => [i]),
      renderItem: ({ dataIndex, coordSys: { x: left, y: top, width, height } }, api) => {
        const { x, y, dash } = places[dataIndex];
        const [across, down] = api.coord([x ?? 1, y ?? 1]);
        const shape = there(x) ? { x1: across, x2: across, y1: top, y2: top + height } : { x1: left, x2: left + width, y1: down, y2: down };
        return { type: "line", shape, style: { stroke: colour, lineWidth: 1, lineDash: dash } };
      } };
  }

  // A band, or a bar at each marked point
  function interval(line, x, colour) {
    const ends = x.map((value, i) => [value, line.low[i], line.high[i]]).filter(([, low, high]) => there(low) && there(high));
    return { type: "custom", silent: true, z: 1, data: ends, encode: { x: 0, y: [1, 2] }, tooltip: { show: false }, clip: true,
      renderItem: (params, api) => {
        if (line.marker || line.alone) {
          const [at, from] = api.coord([api.value(0), api.value(1)]);
          const [, to] = api.coord([api.value(0), api.value(2)]);
          return { type: "line", shape: { x1: at, y1: from, x2: at, y2: to }, style: { stroke: colour, lineWidth: 1.8 } };
        }
        if (params.dataIndex) return null;
        const points = [...ends.map(([at, low]) => api.coord([at, low])), ...ends.map(([at, , high]) => api.coord([at, high])).reverse()];
        return { type: "polygon", shape: { points }, style: { fill: colour, opacity: 0.16 } };
      } };
  }

  // Bars: effects below each other, with intervals and seeds

  function bars(panel, state) {
    const colours = theme();
    const colourOf = ({ paint: own }) => paint(own || panel.paint);
    const [left, right] = panel.ends;
    const seeds = state.seeds === "none" ? [] : panel.bars.flatMap((bar, i) => (bar.seeds || []).map((value) => [value, i]));
    const intervals = panel.bars.map((bar, i) => [bar.low, bar.high, i]).filter(([low, high]) => there(low) && there(high));
    // A width to break long labels at is taken up by short ones too.
    const longest = Math.max(...panel.bars.map((bar) => bar.label.length));
    const broken = longest > 25 && { width: longest > 50 ? 200 : 150, overflow: "break", lineHeight: 13 };
    return { ...common(colours),
      xAxis: axis(colours, { type: "value", name: panel.x_label, nameGap: 26, min: left, max: right, splitNumber: 4,
        position: panel.bars.length > 12 ? "top" : "bottom", // in sight where the figure is taller than a screen
        axisLabel: { ...axis(colours).axisLabel, showMinLabel: false, showMaxLabel: false } }),
      yAxis: axis(colours, { type: "category", inverse: true, data: panel.bars.map((bar) => bar.label), splitLine: { show: false },
        axisLabel: { color: colours.ink, fontSize: 11, interval: 0, ...broken } }),
      tooltip: { ...common(colours).tooltip, trigger: "axis", axisPointer: { type: "shadow", axis: "y", shadowStyle: { color: colours.rule, opacity: 0.35 } },
        formatter: ([{ dataIndex }]) => {
          const bar = panel.bars[dataIndex];
          const rows = [[colourOf(bar), bar.more ? panel.x_label : "mean", written(bar.estimate, panel)]];
          if (there(bar.low)) rows.push(["", "interval", span(bar.low, bar.high, panel)]);
          if (bar.seeds) rows.push(["", bar.seeds.length > 1 ? "seeds" : "seed", listed(bar.seeds, panel, ", ")]);
          return tip(bar.label, rows, bar.more);
        } },
      series: [
        // What the row under the pointer is known by
        { type: "scatter", symbol: "diamond", z: 4, emphasis: { disabled: true },
          data: panel.bars.map((bar, i) => ({ value: [bar.estimate ?? 0, i], itemStyle: { color: colourOf(bar) } })), symbolSize: (_, { dataIndex }) => there(panel.bars[dataIndex].estimate) ? 12 : 0 },
        { type: "custom", silent: true, z: 3, data: intervals, encode: { x: [0, 1], y: 2 }, tooltip: { show: false },
          renderItem: (_, api) => {
            const [low, high] = [api.value(0), api.value(1)];
            const colour = colourOf(panel.bars[api.value(2)]);
            const inside = (value) => Math.min(Math.max(value, left), right);
            const [x1, y] = api.coord([inside(low), api.value(2)]);
            const [x2] = api.coord([inside(high), api.value(2)]);
            const arrow = (x, ahead) => ({ type: "polygon", shape: { points: [[x, y - 4], [x + ahead, y], [x, y + 4]] }, style: { fill: colour } });
            return { type: "group", children: [
              { type: "line", shape: { x1, y1: y, x2, y2: y }, style: { stroke: colour, lineWidth: 2.4 } },
              ...(low < left ? [arrow(x1, -6)] : []), ...(high > right ? [arrow(x2, 6)] : [])] };
          } },
        { type: "scatter", silent: true, z: 5, data: seeds, symbolSize: 6, symbolOffset: [0, 9], tooltip: { show: false },
          itemStyle: { color: ({ value: [, i] }) => colourOf(panel.bars[i]), opacity: 0.55 } },
        straight([{ x: 0 }, ...dotted(panel.marks)], colours.ink),
      ] };
  }

  // Surfaces from above, and in relief

  // A colour between those of a scale
  function shade(colours, share) {
    const at = Math.min(Math.max(share, 0), 1) * (colours.length - 1);
    const before = Math.min(Math.floor(at), colours.length - 2);
    const parts = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
    const [from, to] = [parts(colours[before]), parts(colours[before + 1])];
    return `rgb(${from.map((part, i) => Math.round(part + (at - before) * (to[i] - part)))})`;
  }

  // Cells [i, j, value] of a grid
  function cells(data, colours, [low, high], opacity, edge) {
    return { type: "custom", data: data.filter(([, , value]) => there(value)), encode: { x: 0, y: 1 },
      renderItem: (_, api) => {
        const [x, y] = api.coord([api.value(0), api.value(1)]);
        const [width, height] = api.size([1, 1]).map((size) => size / 2);
        const [left, right, top, bottom] = [x - width, x + width, y - height, y + height].map(Math.round); // no seams
        return { type: "rect", shape: { x: left, y: top, width: right - left, height: bottom - top },
          style: { fill: shade(colours, (api.value(2) - low) / (high - low)), opacity },
          emphasis: { style: { stroke: edge, lineWidth: 1.5 } } };
      } };
  }

  const place = (panel, x, y, value) => tip(panel.title, [["", panel.x_label || "x", number(x)], ["", panel.y_label || "y", number(y)],
    ["", panel.label || "value", number(value)]]);

  function contours(panel, state, spec) {
    const colours = theme();
    const data = panel.values.flatMap((row, i) => row.map((value, j) => [i, j, value]));
    const side = (values, name, gap) => axis(colours, { type: "category", data: values, name, nameGap: gap, splitLine: { show: false },
      axisLabel: { ...axis(colours).axisLabel, interval: (i) => [0, (values.length - 1) / 2, values.length - 1].includes(i),
        formatter: (value) => number(Number(value)) } });
    return { ...common(colours), xAxis: side(panel.x, panel.x_label, 24), yAxis: side(panel.y, panel.y_label, 34),
      tooltip: { ...common(colours).tooltip, formatter: ({ value: [i, j, value] }) => place(panel, panel.x[i], panel.y[j], value) },
      series: [cells(data, spec.colours, panel.limits, 1, colours.ink)] };
  }

  // The library sets labels at both ends of an axis, however near the next one is: ends that are steps as well
  function even(low, high) {
    const rough = (high - low) / 3;
    const power = 10 ** Math.floor(Math.log10(rough));
    const interval = [1, 2, 5, 10].map((times) => times * power).find((step) => step >= rough);
    return { interval, min: Math.floor(low / interval) * interval, max: Math.ceil(high / interval) * interval };
  }

  function unit(panel) {
    const power = Math.floor(Math.log10(Math.max(...panel.limits.map(Math.abs))));
    return Math.abs(power) < 3 ? 1 : 10 ** power;
  }

  function relief(panel, state, spec) {
    const colours = theme();
    // Short labels: the axis of heights has its unit beside the scale of colours, and a label in a corner would meet another.
    const side = (formatter) => ({ type: "value", name: "",
      axisLabel: { fontSize: 11, color: colours.ink, formatter, margin: 10 }, axisLine: { lineStyle: { color: colours.soft, width: 1 } },
      splitLine: { lineStyle: { color: colours.rule } }, axisPointer: { lineStyle: { color: colours.ink }, label: { show: false } }, splitNumber: 4 });
    return { animation: false, textStyle: common(colours).textStyle,
      tooltip: { ...common(colours).tooltip, formatter: ({ value: [x, y, z] }) => place(panel, x, y, z) },
      visualMap: { show: false, min: panel.limits[0], max: panel.limits[1], inRange: { color: spec.colours }, dimension: 2 },
      xAxis3D: { ...side((x) => x === panel.x[0] ? "" : number(x)), min: panel.x[0], max: panel.x.at(-1), interval: panel.x.at(-1) / 2 },
      yAxis3D: { ...side((y) => y === panel.y[0] ? "" : number(y)), min: panel.y[0], max: panel.y.at(-1), interval: panel.y.at(-1) / 2 },
      zAxis3D: { ...side((z) => number(z / unit(panel))), ...even(...panel.limits) },
      grid3D: { boxWidth: 100, boxDepth: 100, boxHeight: 70, top: -14, left: 0, right: 0, bottom: 0,
        viewControl: { alpha: state.alpha, beta: state.beta, distance: 205, minDistance: 205, maxDistance: 205, damping: 0, animation: false,
          panSensitivity: 0, zoomSensitivity: 0 }, light: { main: { intensity: 1 }, ambient: { intensity: 0.4 } } },
      series: [{ type: "surface", shading: "color", wireframe: { show: true, lineStyle: { color: "rgba(0,0,0,.22)", width: 1 } },
        data: panel.values.flatMap((row, i) => row.map((value, j) => [panel.x[i], panel.y[j], there(value) ? value : "-"])) }] };
  }

  // Images under a map

  const pictures = new Map();
  function picture(address) {
    if (!pictures.has(address)) pictures.set(address, new Promise((done) => {
      const image = new Image();
      image.onload = () => done(image);
      image.src = address;
    }));
    return pictures.get(address);
  }

  // Larger by whole pixels, since a canvas would blur it; in grey where a map lies over it
  function enlarged(image, grey) {
    const times = Math.max(1, Math.ceil(256 / image.width));
    const canvas = make("canvas", { width: image.width * times, height: image.height * times });
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    if (grey) pen.filter = "grayscale(1)";
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas;
  }

  function images(panel, state, spec) {
    const colours = theme();
    const heat = panel.heat || [[0]];
    const side = (values) => ({ type: "category", show: false, data: values.map((_, i) => i) });
    const data = panel.heat ? heat.flatMap((row, i) => row.map((value, j) => [j, i, value])) : [];
    return { ...common(colours), grid: { left: 0, right: 0, top: 0, bottom: 0, outerBoundsMode: "none" },
      xAxis: side(heat[0]), yAxis: { ...side(heat), inverse: true },
      tooltip: { ...common(colours).tooltip, formatter: ({ value: [j, i, value] }) => tip(`row ${i + 1}, column ${j + 1}`, [["", spec.scale, number(value)]]) },
      series: [
        { type: "custom", silent: true, data: panel.image ? [[0, 0]] : [], tooltip: { show: false },
          renderItem: ({ coordSys: { x, y, width, height } }) => ({ type: "image", style: { image: panel.image, x, y, width, height } }) },
        cells(data, spec.colours, [0, spec.top], spec.share, "#fff"),
      ] };
  }

  const OPTIONS = { lines, bars, contours, relief, images };

  // Controls: a legend that switches, seeds, intervals, a slider over frames

  function swatch(line) {
    const part = (tag, attributes, ...children) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      element.append(...children);
      return element;
    };
    const stroke = { d: "M0 6h22", stroke: line.paint, "stroke-width": line.width || 2, "stroke-dasharray": (line.dash || []).join(" ") };
    const look = line.hollow ? { r: 4.5, stroke: "var(--ink)" } : { r: 3.2, fill: line.paint };
    return part("svg", { class: "swatch", width: 22, height: 12, fill: "none", "aria-hidden": "true" },
      ...(line.alone ? [] : [part("path", stroke)]), ...(line.symbol ? [part("circle", { cx: 11, cy: 6, ...look })] : []));
  }

  function toggle(label, pressed, act, icon) {
    const button = make("button", { type: "button", "aria-pressed": String(pressed) }, ...(icon ? [icon] : []), label);
    button.addEventListener("click", () => {
      const now = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(now));
      act(now);
    });
    return button;
  }

  function controls(spec, state, redraw) {
    const bar = make("div", { class: "controls", role: "group", "aria-label": `Show in ${spec.title}` });
    const hide = (name) => (shown) => { if (shown) state.hidden.delete(name); else state.hidden.add(name); redraw(); };
    const all = spec.kind === "lines" ? spec.panels.flatMap((panel) => panel.lines) : [];
    const labels = new Map([...all].sort((a, b) => Boolean(a.thin) - Boolean(b.thin)).reverse().filter((line) => line.label).map((line) => [line.label, line]));
    const order = [...new Set([...all].sort((a, b) => Boolean(a.thin) - Boolean(b.thin)).map((line) => line.label).filter(Boolean))];
    for (const label of order) bar.append(toggle(label, true, hide(label), swatch(labels.get(label))));
    const kinds = spec.panels.find((panel) => panel.kinds)?.kinds;
    if (kinds) [["thick", 2.4], ["thin", 1]].forEach(([name, width], i) =>
      bar.append(toggle(kinds[i], true, hide(name), swatch({ paint: "var(--ink)", width }))));
    const seeded = all.filter((line) => line.seeds);
    const dotted = spec.kind === "bars" && spec.panels.some((panel) => panel.bars.some((one) => one.seeds));
    if (seeded.length) {
      const select = make("select");
      const names = [...new Set(seeded.flatMap((line) => line.seed_names))];
      for (const [value, words] of [["all", "all seeds"], ["none", "no seeds"], ...names.map((name) => [name, `seed ${name}`])])
        select.append(make("option", { value }, words));
      select.value = state.seeds;
      select.addEventListener("change", () => { state.seeds = select.value; redraw(); });
      bar.append(make("label", {}, make("span", { class: "unseen" }, "Seeds "), select));
    } else if (dotted) {
      bar.append(toggle("Seeds", true, (shown) => { state.seeds = shown ? "all" : "none"; redraw(); }));
    }
    if (all.some((line) => line.low)) bar.append(toggle("Intervals", true, (shown) => { state.intervals = shown; redraw(); }));
    const frames = [...new Set(spec.panels.map((panel) => panel.frame).filter(Boolean))];
    if (frames.length > 1) {
      const last = frames.length - 1;
      const output = make("output", {}, frames[last]);
      const slider = make("input", { type: "range", min: 0, max: last, value: last, "aria-valuetext": frames[last] });
      slider.addEventListener("input", () => {
        state.frame = frames[slider.value];
        output.textContent = state.frame;
        slider.setAttribute("aria-valuetext", state.frame);
        redraw();
      });
      bar.append(make("label", { class: "slider" }, make("span", { class: "unseen" }, "Frame "), slider, output));
    }
    state.frame = frames.at(-1) || "";
    return bar;
  }

  function scale(spec) {
    if (!spec.colours || (spec.kind === "images" && !spec.scale)) return [];
    const ranges = spec.kind === "images" ? [[spec.scale, 0, spec.top]] : spec.panels.map(({ group, label, limits }) =>
      [label ? (new Set(spec.panels.map((panel) => panel.group)).size > 1 ? `${label}, ${group}` : label) : group || "", ...limits]);
    const heights = spec.kind === "relief" && unit(spec.panels[0]) !== 1 ? `; heights in units of ${number(unit(spec.panels[0]))}` : "";
    return [...new Map(ranges.map((range) => [String(range), range])).values()].map(([label, low, high]) => {
      const ramp = make("i", { style: `background: linear-gradient(to right, ${spec.colours.join(", ")})` });
      return make("p", { class: "ramp" }, label, " ", number(low), " ", ramp, " ", number(high), heights);
    });
  }

  // A figure's life: shown when near, drawn again when something is switched, given back when a relief is out of sight

  const views = new Map();

  class View {
    constructor(plot) {
      this.plot = plot;
      this.state = { hidden: new Set(), seeds: "", intervals: true, frame: "", alpha: 28, beta: 35 };
      this.charts = new Map();
      this.ready = this.read();
    }

    async read() {
      this.spec = JSON.parse(await unpacked(this.plot.querySelector(".values")));
      this.state.seeds ||= (this.spec.panels[0].lines || []).some((line) => line.seeds_on_demand) ? "none" : "all";
    }

    async show(echarts) {
      const { spec, state } = this;
      if (this.shown) return;
      this.shown = true;
      if (spec.kind === "images") {
        const loaded = await Promise.all(spec.pictures.map(picture));
        for (const panel of spec.panels) if (there(panel.picture)) panel.image = enlarged(loaded[panel.picture], panel.heat);
      }
      this.live = make("div", { class: `live ${spec.kind}` });
      const first = spec.panels.slice(0, spec.columns);
      this.live.style.setProperty("--columns", first.filter(({ frame }) => !frame || frame === first.find((panel) => panel.frame).frame).length);
      if (spec.kind !== "relief") this.live.append(controls(spec, state, () => this.draw(echarts)));
      this.grid = make("div", { class: "panels" });
      this.live.append(this.grid, ...scale(spec));
      this.plot.append(this.live);
      this.plot.classList.add("is-live");
      this.draw(echarts);
    }

    hide() {
      for (const chart of this.charts.values()) chart.dispose();
      this.charts.clear();
      this.live?.remove();
      this.live = null;
      this.shown = false;
      this.plot.classList.remove("is-live");
    }

    draw(echarts) {
      const { spec, state } = this;
      const chosen = spec.panels.map((panel, i) => ({ panel, i })).filter(({ panel }) => !panel.frame || panel.frame === state.frame);
      // The same place for the same column of every frame
      chosen.forEach(({ panel, i }, at) => {
        const box = this.grid.children[at] || this.box(panel, i);
        if (spec.kind === "images") {
          box.querySelector(".of").textContent = (panel.title || "").split("\n")[0];
          box.classList.toggle("none", !there(panel.picture));
        }
        const canvas = box.querySelector(".chart");
        let chart = this.charts.get(at);
        if (!chart) {
          chart = echarts.init(canvas);
          this.charts.set(at, chart);
          new ResizeObserver(() => { if (!chart.isDisposed()) chart.resize(); }).observe(canvas);
          if (spec.kind === "relief") this.turnable(box, chart);
        }
        chart.setOption(OPTIONS[spec.kind](panel, state, spec), { notMerge: true });
      });
    }

    box(panel) {
      const rows = this.spec.kind === "bars" ? panel.bars.length : 0;
      const title = make("p", { class: "of" }, (panel.title || "").split("\n")[0]);
      if (this.spec.kind === "images" && panel.paint) title.style.color = panel.paint;
      const label = [this.spec.title, panel.title].filter(Boolean).join(": ");
      const chart = make("div", { class: "chart", role: "img", "aria-label": label });
      if (rows) chart.style.height = `${4 + (rows > 12 ? 1.75 : 2.1) * rows}rem`; // two lines of a label fit
      const head = panel.title || this.spec.kind === "images" ? [title] : [];
      const name = panel.label && this.spec.kind === "images" ? [make("p", { class: "row" }, panel.label)] : [];
      const box = make("div", { class: "panel" }, ...head, ...name, chart);
      this.grid.append(box);
      return box;
    }

    turnable(box, chart) {
      box.tabIndex = 0;
      const turn = (alpha, beta, except) => {
        Object.assign(this.state, { alpha, beta });
        this.live.dataset.turned = `${Math.round(alpha)} ${Math.round(beta)}`;
        for (const other of this.charts.values())
          if (other !== except) other.setOption({ grid3D: { viewControl: { alpha, beta } } });
      };
      chart.on("grid3dcamerachanged", ({ alpha, beta }) => {
        if (Math.abs(alpha - this.state.alpha) > 0.01 || Math.abs(beta - this.state.beta) > 0.01) turn(alpha, beta, chart);
      });
      box.addEventListener("keydown", (event) => {
        const [up, right] = { ArrowUp: [5, 0], ArrowDown: [-5, 0], ArrowLeft: [0, -5], ArrowRight: [0, 5] }[event.key] || [];
        if (up === undefined) return;
        event.preventDefault();
        turn(Math.max(-90, Math.min(90, this.state.alpha + up)), this.state.beta + right);
      });
    }
  }

  // On a phone a surface would hold the page that is scrolled: there it waits for the button.
  const fine = matchMedia("(pointer: fine)").matches;

  async function enter(plot) {
    const view = views.get(plot) || new View(plot);
    views.set(plot, view);
    await view.ready;
    if (view.spec.kind === "relief" && !view.bar) {
      if (!make("canvas").getContext("webgl")) return;
      view.wanted = fine;
      view.bar = make("div", { class: "controls" }, toggle("Turn", fine, (on) => {
        view.wanted = on;
        if (on) enter(plot); else view.hide();
      }), make("span", { class: "hint" }, "Drag a surface and all turn with it, or select it and use the arrow keys."));
      plot.prepend(view.bar);
    }
    if (view.spec.kind === "relief" && !view.wanted) return;
    view.show(await (library ??= load()));
  }

  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      // Browsers allow few drawings in three dimensions at a time.
      if (isIntersecting) enter(target);
      else if (views.get(target)?.spec?.kind === "relief") views.get(target).hide();
    }
  }, { rootMargin: "200px" });
  for (const plot of document.querySelectorAll(".plot")) watcher.observe(plot);

  // A page that is being watched (watch.js) has new parts, or new values in a figure that was there.
  document.addEventListener("fresh", async ({ target }) => {
    for (const [plot, view] of views) {
      if (!plot.isConnected) {
        view.hide();
        views.delete(plot);
      }
    }
    for (const plot of target.matches(".plot") ? [target] : target.querySelectorAll(".plot")) {
      const view = views.get(plot);
      if (!view) {
        watcher.observe(plot);
        continue;
      }
      await view.read();
      if (view.live) view.draw(await library);
    }
  });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", async () => {
    const echarts = await library;
    for (const view of views.values()) if (view.live) view.draw(echarts);
  });
})();
