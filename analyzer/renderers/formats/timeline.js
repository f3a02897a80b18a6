// The timeline: decodes the data of the page, draws it on a canvas, and answers to mouse, keyboard and touch.
// Times are nanoseconds since the start of what is shown; all texts of the report are set as text, never as HTML.
"use strict";

const timeline = (() => {
  const AXIS = 24, HEADER = 20, GAP = 3, MOST_LANES = 6;
  const HEIGHTS = { ledger: 34, stream: 22, iteration: 18, path: 18, counter: 30 };
  const ROW = 15;
  const LEAST_NS = 20;
  const MOST_TABLES = 24;
  const TEXT_LEAST = 28;
  const BLOCK = 32;

  // ---- data ------------------------------------------------------------------------------------------------------

  async function inflated(text) {
    const packed = atob(text.trim());
    const bytes = new Uint8Array(packed.length);
    for (let at = 0; at < packed.length; at++) bytes[at] = packed.charCodeAt(at);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // Columns as numbers; those with values beyond 32 bits as 64-bit floats, which are exact up to 104 days.
  function columnsOf(head, bytes, offset) {
    const found = {};
    for (const { name, count, width, beyond } of head.columns) {
      const values = beyond.length ? new Float64Array(count) : new Uint32Array(count);
      for (let plane = 0; plane < width; plane++) {
        const factor = 2 ** (8 * plane), from = offset + plane * count;
        for (let at = 0; at < count; at++) values[at] += bytes[from + at] * factor;
      }
      for (const [at, high] of beyond) values[at] += high * 2 ** 32;
      found[name] = values;
      offset += width * count;
    }
    return found;
  }

  async function decoded(text) {
    const bytes = await inflated(text);
    const length = new DataView(bytes.buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    const columns = columnsOf(head, bytes, 4 + length);
    const count = columns.length.length;
    const start = new Float64Array(count), end = new Float64Array(count);
    head.lanes.forEach((lane, number) => {
      const stop = number + 1 < head.lanes.length ? head.lanes[number + 1].at : count;
      let now = lane.start, longest = 0;
      for (let at = lane.at; at < stop; at++) {
        now += columns.step[at];
        start[at] = now;
        end[at] = now + columns.length[at];
        longest = Math.max(longest, columns.length[at]);
      }
      Object.assign(lane, { stop, longest });
    });
    const share = new Float32Array(count).fill(1), events = new Uint32Array(count).fill(1);
    const covered = new Map();
    let at = 0;
    for (let row = 0; row < head.several; row++) {
      at += columns.at[row];
      share[at] = columns.covered[row] / Math.max(end[at] - start[at], 1);
      events[at] = columns.count[row];
      covered.set(at, columns.covered[row]);
    }
    const { name, note, tone, launch } = columns;
    for (const lane of head.lanes) blocked(lane, { start, end, tone, share });
    return { head, count, start, end, name, note, tone, launch, share, events, covered };
  }

  // Sums of each block of events of a lane: its end, its longest event, and covered time by tone (those of the lane). A
  // block that lies within a pixel column is drawn by these; one with an event without duration is not.
  function blocked(lane, { start, end, tone, share }) {
    const count = Math.floor((lane.stop - lane.at) / BLOCK);
    lane.tones = [...new Set(tone.subarray(lane.at, lane.stop))];
    lane.ends = new Float64Array(count);
    lane.longests = new Float64Array(count);
    lane.sums = new Float64Array(count * lane.tones.length);
    const places = new Map(lane.tones.map((one, place) => [one, place]));
    for (let block = 0, at = lane.at; block < count; block++)
      for (const stop = at + BLOCK; at < stop; at++) {
        const length = end[at] - start[at];
        lane.ends[block] = Math.max(lane.ends[block], end[at]);
        lane.longests[block] = length > 0 ? Math.max(lane.longests[block], length) : Infinity;
        lane.sums[block * lane.tones.length + places.get(tone[at])] += length * share[at];
      }
  }

  // ---- texts -----------------------------------------------------------------------------------------------------

  function duration(ns) {
    const size = Math.abs(ns);
    for (const [unit, factor] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]])
      if (size >= factor) return size < 1e4 * factor ? `${(ns / factor).toPrecision(4)} ${unit}` : `${whole(Math.round(ns / factor))} ${unit}`;
    return `${Math.round(ns)} ns`;
  }

  function instant(ns, step) {
    const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / 1e9))));
    return digits > 6 ? `${(ns / 1e6).toFixed(digits - 3)} ms` : `${(ns / 1e9).toFixed(digits)} s`;
  }

  const whole = (number) => number.toLocaleString("en-US");
  const percent = (share) => `${(100 * share).toFixed(1)} %`;

  // ---- picture ---------------------------------------------------------------------------------------------------

  class Timeline {
    constructor(root, data) {
      Object.assign(this, { root, data });
      this.canvas = root.querySelector("canvas");
      this.tip = root.querySelector(".tip");
      this.status = root.querySelector("[data-role=status]");
      this.details = root.querySelector("[data-role=details]");
      this.context = this.canvas.getContext("2d", { alpha: false });
      [this.low, this.high] = data.head.begin;
      this.top = 0;
      this.chosen = -1;
      this.selection = null;
      this.hits = null;
      this.matches = [];
      this.folded = new Set();
      this.unfolded = new Set();
      this.touches = new Map();
      this.inBlocks = true;
      this.rows = this.rowsOf();
      this.colours();
      this.listen();
      this.fit();
      this.resize();
      this.fromAddress();
    }

    get length() { return this.data.head.length_ns; }
    get scale() { return (this.width - this.labels) / (this.high - this.low); }
    x(ns) { return this.labels + (ns - this.low) * this.scale; }
    ns(x) { return this.low + (x - this.labels) / this.scale; }

    // Rows from top to bottom: a header per group, then its tracks with their lanes, then its counters.
    rowsOf() {
      const { tracks, lanes, counters } = this.data.head;
      const byTrack = tracks.map(() => []);
      for (const lane of lanes) (byTrack[lane.track][lane.lane] ??= []).push(lane);
      const groups = new Map();
      tracks.forEach((track, number) => {
        if (!groups.has(track.group)) groups.set(track.group, []);
        groups.get(track.group).push({ ...track, number, lanes: byTrack[number].filter(Boolean) });
      });
      for (const counter of counters) {
        if (!groups.has(counter.group)) groups.set(counter.group, []);
        groups.get(counter.group).push({ ...counter, kind: "counter", lanes: [] });
      }
      const rows = [], several = tracks.filter((track) => track.kind === "ledger").length > 1;
      for (const [group, own] of groups) {
        rows.push({ kind: "group", label: group, group, tracks: own });
        rows.push(...own);
        const host = !own.some((track) => ["ledger", "stream", "iteration", "path", "counter"].includes(track.kind));
        if (own.every((track) => track.kind === "overhead") || (several && host)) this.folded.add(group);
      }
      return rows;
    }

    // Places of the rows that are shown.
    placed() {
      let y = 0;
      const shown = [];
      for (const row of this.rows) {
        if (row.kind === "group") {
          shown.push({ row, y, height: HEADER });
          y += HEADER;
        } else if (!this.folded.has(row.group)) {
          const all = this.unfolded.has(row) || row.lanes.length <= MOST_LANES;
          const lanes = all ? row.lanes.length : MOST_LANES;
          const each = HEIGHTS[row.kind] ?? ROW;
          const height = Math.max(lanes, 1) * (lanes > 1 ? Math.min(each, ROW) : each);
          shown.push({ row, y, height, lanes, each: height / Math.max(lanes, 1) });
          y += height + GAP;
        }
      }
      this.content = y;
      return shown;
    }

    colours() {
      const style = getComputedStyle(document.documentElement);
      const of = (name) => style.getPropertyValue(name).trim();
      this.paper = of("--paper");
      this.ink = of("--ink");
      this.dim = of("--dim");
      this.line = of("--line");
      this.band = of("--band");
      this.accent = of("--accent");
      this.dark = of("--scheme") === "dark";
      this.tones = this.data.head.tones.map((tone) => of(`--${tone}`) || of("--unknown"));
      this.tonesOfNames = new Map();
    }

    // Kernels of one bucket differ in lightness by name; ranges and operators differ in hue.
    colour(at) {
      const tone = this.data.tone[at], name = this.data.name[at];
      const key = tone * 4294967296 + name;
      let found = this.tonesOfNames.get(key);
      if (found === undefined) {
        const kind = this.data.head.tones[tone];
        let hash = 2166136261;
        for (const letter of this.data.head.texts[name].slice(0, 200)) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619);
        hash = (hash >>> 8) & 0xffff;
        if (kind === "range" || kind === "operator" || kind === "python")
          found = `hsl(${hash % 360} ${this.dark ? 35 : 55}% ${this.dark ? 32 : 72}%)`;
        else if (kind === "kernel" && name)
          found = `color-mix(in oklab, ${this.tones[tone]} ${(this.dark ? 48 : 68) + (hash % 5) * 8}%, ${this.dark ? "black" : "white"})`;
        else found = this.tones[tone];
        this.tonesOfNames.set(key, found);
      }
      return found;
    }

    // A text's colour on that of an event: those of ledger and calls are as light in both themes.
    inkOn(at) {
      const kind = this.data.head.tones[this.data.tone[at]];
      if (["range", "operator", "python"].includes(kind)) return this.dark ? "#fff" : "#111";
      if (["communication", "profiler", "launch", "host"].includes(kind)) return "#fff";
      return kind === "kernel" && this.dark ? "#fff" : "#111";
    }

    // As high as all rows, if that is less than the page gives.
    fit() {
      this.placed();
      this.canvas.style.height = `min(70vh, ${Math.max(this.content + AXIS + 4, 160)}px)`;
    }

    resize() {
      const box = this.canvas.getBoundingClientRect();
      const ratio = window.devicePixelRatio || 1;
      this.width = Math.max(box.width, 60);
      this.labels = Math.min(190, Math.round(this.width * 0.35));
      this.height = box.height;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.ratio = ratio;
      this.columns = Math.ceil(this.width - this.labels);
      this.sums = this.data.head.tones.map(() => new Float32Array(this.columns + 1));
      this.found = new Float32Array(this.columns + 1);
      this.draw();
    }

    soon() {
      this.waiting ??= requestAnimationFrame(() => {
        this.waiting = undefined;
        this.draw();
      });
    }

    draw() {
      const { context, width, height } = this;
      const begun = performance.now();
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      context.fillStyle = this.paper;
      context.fillRect(0, 0, width, height);
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";
      const shown = this.placed();
      this.top = Math.max(0, Math.min(this.top, this.content - (height - AXIS)));
      this.places = shown;
      context.save();
      context.beginPath();
      context.rect(0, AXIS, width, height - AXIS);
      context.clip();
      for (const place of shown) {
        const y = AXIS + place.y - this.top;
        if (y + place.height < AXIS || y > height) continue;
        this.drawRow(place, y);
      }
      this.drawArrow();
      context.restore();
      this.drawAxis();
      this.drawSelection();
      this.frame = performance.now() - begun;
    }

    drawRow({ row, height, lanes, each }, y) {
      const { context } = this;
      if (row.kind === "group") {
        context.fillStyle = this.band;
        context.fillRect(0, y, this.width, height - 2);
        context.fillStyle = this.ink;
        context.textAlign = "left";
        context.fillText(`${this.folded.has(row.group) ? "▸" : "▾"} ${row.label}`, 6, y + height / 2 - 1);
        return;
      }
      context.save();
      context.beginPath();
      context.rect(this.labels, y, this.width - this.labels, height);
      context.clip();
      if (row.kind === "counter") this.drawCounter(row, y, height);
      for (let lane = 0; lane < lanes && row.lanes.length; lane++)
        for (const one of row.lanes[lane]) this.drawLane(one, y + lane * each, each - 1);
      context.restore();
      context.fillStyle = this.dim;
      context.textAlign = "left";
      const more = row.lanes.length > lanes ? ` (${row.lanes.length - lanes} more)` : "";
      context.fillText(this.fitted(row.label + more, this.labels - 16), 12, y + Math.min(height, 24) / 2);
      context.fillStyle = this.line;
      context.fillRect(0, y + height + 1, this.width, 0.5);
    }

    // Indexes of the first and last event of a lane that the view touches.
    visible(lane, low, high) {
      const { start, end } = this.data;
      let first = lane.at, stop = lane.stop;
      const before = lane.several ? (at) => start[at] + lane.longest < low : (at) => end[at] < low;
      while (first < stop) {
        const middle = (first + stop) >> 1;
        if (before(middle)) first = middle + 1;
        else stop = middle;
      }
      let last = first, beyond = lane.stop;
      while (last < beyond) {
        const middle = (last + beyond) >> 1;
        if (start[middle] < high) last = middle + 1;
        else beyond = middle;
      }
      return [first, last];
    }

    // Events of a pixel and wider are boxes; what is shorter is summed by column and tone, so that a column is as full
    // as the time is.
    drawLane(lane, y, height) {
      const { context, scale, low, sums, found, hits } = this;
      const { start, end, tone, share, name, events } = this.data;
      const [first, last] = this.visible(lane, low, this.high);
      const used = new Set();
      let anyFound = false;
      for (let at = first; at < last; at++) {
        const left = (start[at] - low) * scale, right = (end[at] - low) * scale;
        if (hits === null && this.inBlocks && (at - lane.at) % BLOCK === 0 && this.addBlock(lane, (at - lane.at) / BLOCK, left, used)) {
          at += BLOCK - 1;
          continue;
        }
        const hit = hits === null || hits[name[at]];
        if (right - left < 1 || events[at] > 1) {
          const own = sums[tone[at]], part = share[at];
          used.add(tone[at]);
          let column = Math.max(Math.floor(left), 0);
          // what has no duration is a tick
          if (right === left && column <= this.columns) own[column] += 1e-6;
          const stop = Math.min(right, this.columns);
          if (hit && hits !== null && column <= this.columns) {
            anyFound = true;
            for (let marked = column; marked <= stop; marked++) found[marked] = 1;
          }
          for (let from = Math.max(left, 0); from < stop; column++) {
            const until = Math.min(column + 1, stop);
            own[column] += (until - from) * part;
            from = until;
          }
          continue;
        }
        this.drawEvent(at, Math.max(left, -2), Math.min(right, this.columns + 2), y, height, hit);
      }
      if (used.size) this.drawColumns(used, y, height);
      if (anyFound) {
        context.fillStyle = this.accent;
        for (let column = 0; column <= this.columns; column++)
          if (found[column]) context.fillRect(this.labels + column, y, 1, 3);
        found.fill(0);
      }
    }

    // Adds a block to the column that it lies in; false where it needs more than one, or is not whole.
    addBlock(lane, block, left, used) {
      if (block >= lane.ends.length || !(lane.longests[block] * this.scale < 1)) return false;
      const column = Math.floor(left);
      if (left < 0 || column >= this.columns || (lane.ends[block] - this.low) * this.scale >= column + 1) return false;
      lane.tones.forEach((tone, place) => {
        const ns = lane.sums[block * lane.tones.length + place];
        if (!ns) return;
        used.add(tone);
        this.sums[tone][column] += ns * this.scale;
      });
      return true;
    }

    drawColumns(used, y, height) {
      const { context } = this;
      const order = [...used].sort((one, other) => one - other);
      const floor = new Float32Array(this.columns + 1);
      context.globalAlpha = this.hits === null ? 1 : 0.35;
      for (const tone of order) {
        const own = this.sums[tone];
        context.fillStyle = this.tones[tone];
        for (let column = 0; column <= this.columns; column++) {
          const full = Math.min(own[column], 1 - floor[column]);
          if (full <= 0) continue;
          const tall = Math.max(full * height, order.length === 1 ? 0.6 : 0);
          context.fillRect(this.labels + column, y + height - floor[column] * height - tall, 1, tall);
          floor[column] += full;
        }
        own.fill(0);
      }
      context.globalAlpha = 1;
    }

    drawEvent(at, left, right, y, height, hit) {
      const { context, data } = this;
      const width = right - left;
      context.globalAlpha = hit ? 1 : 0.25;
      context.fillStyle = this.colour(at);
      context.fillRect(this.labels + left, y, Math.max(width - (width > 3 ? 0.5 : 0), 0.8), height);
      if (at === this.chosen) {
        context.strokeStyle = this.ink;
        context.lineWidth = 2;
        context.strokeRect(this.labels + left + 1, y + 1, Math.max(width - 2, 1), height - 2);
      }
      if (width > TEXT_LEAST) {
        const from = Math.max(left, 0), room = Math.min(right, this.columns) - from - 6;
        if (room > TEXT_LEAST - 8) {
          context.fillStyle = this.inkOn(at);
          context.textAlign = "left";
          const label = this.short(data.name[at]) || data.head.tones[data.tone[at]];
          context.fillText(this.fitted(label, room), this.labels + from + 3, y + height / 2 + 0.5);
        }
      }
      context.globalAlpha = 1;
    }

    // A name as the page's tables have it: kernels shortened.
    short(name) { return this.data.head.short[name] ?? this.data.head.texts[name]; }

    fitted(text, room) {
      if (text.length * 5 < room) return text;
      const most = Math.max(1, Math.floor(room / 5.6));
      return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
    }

    drawCounter(row, y, height) {
      const { context } = this;
      const most = row.unit === "share" ? 1 : row.value.reduce((high, one) => Math.max(high, one), row.bin_ns ? 0 : 1);
      const tone = { share: "kernel", launches: "queued" }[row.unit] ?? "memcpy";
      context.fillStyle = this.tones[this.data.head.tones.indexOf(tone)];
      const tall = (value) => Math.max(value / (most || 1), 0) * (height - 2);
      if (row.bin_ns)
        this.means(row, (column, value) => {
          const high = tall(value);
          context.fillRect(this.labels + column, y + height - high, 1, high);
        });
      else
        for (let at = 0; at < row.t.length; at++) {
          const until = at + 1 < row.t.length ? row.t[at + 1] : this.length;
          if (until < this.low || row.t[at] > this.high) continue;
          const left = Math.max(this.x(row.t[at]), this.labels), right = Math.min(this.x(until), this.width);
          context.fillRect(left, y + height - tall(row.value[at]), Math.max(right - left, 0.5), tall(row.value[at]));
        }
      const bins = row.bin_ns ? `, means of ${duration(row.bin_ns)}` : "";
      const told = `${row.unit === "share" ? "of" : "at most"} ${amount(most, row.unit)}${bins}`;
      context.textAlign = "right";
      context.fillStyle = this.paper;
      context.fillRect(this.width - 8 - context.measureText(told).width, y + 1, context.measureText(told).width + 8, 13);
      context.fillStyle = this.dim;
      context.fillText(told, this.width - 4, y + 8);
    }

    // Each pixel column with the mean of a counter in it, by time: bins below a pixel are not widened to one.
    means(row, draw) {
      const { t, value } = row;
      let at = placeIn(t, this.low);
      for (let column = 0; column < this.columns; column++) {
        const from = this.low + column / this.scale, until = Math.min(this.low + (column + 1) / this.scale, this.high);
        let sum = 0;
        while (at + 1 < t.length && t[at + 1] <= from) at += 1;
        for (let next = at; next < t.length && t[next] < until; next++)
          sum += value[next] * Math.max(Math.min(next + 1 < t.length ? t[next + 1] : this.length, until) - Math.max(t[next], from), 0);
        if (sum > 0) draw(column, sum / (until - from));
      }
    }

    drawAxis() {
      const { context } = this;
      context.fillStyle = this.paper;
      context.fillRect(0, 0, this.width, AXIS);
      const about = (this.high - this.low) / Math.max((this.width - this.labels) / 110, 1);
      const power = 10 ** Math.floor(Math.log10(about));
      const step = Math.max(power * ([1, 2, 5, 10].find((one) => one * power >= about) ?? 10), 1);
      const { offset_ns: offset } = this.data.head;
      context.textAlign = "left";
      const first = Math.ceil((this.low + offset) / step), count = Math.min((this.high - this.low) / step + 1, this.width);
      for (let number = 0; number < count; number++) {
        const at = (first + number) * step, x = this.x(at - offset);
        if (x > this.width) break;
        context.fillStyle = this.line;
        context.fillRect(x, AXIS - 6, 1, this.height);
        context.fillStyle = this.dim;
        context.fillText(instant(at, step), x + 3, AXIS / 2);
      }
      context.fillStyle = this.paper;
      context.fillRect(0, 0, this.labels, AXIS);
      context.fillStyle = this.ink;
      context.fillText(`${duration(this.high - this.low)} shown`, 6, AXIS / 2);
    }

    drawSelection() {
      if (!this.selection) return;
      const { context } = this;
      const [from, until] = this.selection.map((ns) => Math.min(Math.max(this.x(ns), this.labels), this.width));
      context.fillStyle = this.accent;
      context.globalAlpha = 0.18;
      context.fillRect(from, 0, Math.max(until - from, 1), this.height);
      context.globalAlpha = 1;
      context.fillRect(from, 0, 1, this.height);
      context.fillRect(until, 0, 1, this.height);
    }

    // An arrow from the launching call to the operation that is chosen, or from a call that is chosen to what it launched.
    drawArrow() {
      const { launch, start, end } = this.data;
      if (this.chosen < 0) return;
      const pairs = launch[this.chosen] ? [[launch[this.chosen] - 1, this.chosen]] : this.launched(this.chosen).map((at) => [this.chosen, at]);
      const { context } = this;
      context.strokeStyle = context.fillStyle = this.accent;
      context.lineWidth = 1.5;
      for (const [call, work] of pairs) {
        const from = this.place(call), to = this.place(work);
        if (!from || !to) continue;
        const x0 = this.x(Math.min(end[call], Math.max(start[call], start[work]))), x1 = this.x(start[work]);
        context.beginPath();
        context.moveTo(x0, from);
        context.bezierCurveTo(x0 + 20, (from + to) / 2, x1 - 20, (from + to) / 2, x1, to);
        context.stroke();
        context.beginPath();
        context.arc(x1, to, 3, 0, 7);
        context.fill();
      }
    }

    launched(call) {
      const found = [];
      const { launch, count } = this.data;
      for (let at = 0; at < count && found.length < 100; at++) if (launch[at] === call + 1) found.push(at);
      return found;
    }

    laneOf(at) {
      let first = 0, stop = this.data.head.lanes.length;
      while (first + 1 < stop) {
        const middle = (first + stop) >> 1;
        if (this.data.head.lanes[middle].at <= at) first = middle;
        else stop = middle;
      }
      return this.data.head.lanes[first];
    }

    // Middle of an event's lane on the canvas; undefined where its row is folded.
    place(at) {
      const lane = this.laneOf(at);
      const place = this.places.find(({ row }) => row.number === lane.track);
      if (!place) return undefined;
      const number = Math.min(place.row.lanes.findIndex((lanes) => lanes.includes(lane)), place.lanes - 1);
      return AXIS + place.y - this.top + (number + 0.5) * place.each;
    }

    at(x, y) {
      const where = y - AXIS + this.top;
      const place = this.places.find((one) => where >= one.y && where < one.y + one.height);
      if (!place || place.row.kind === "group") return { place, event: -1 };
      const lane = place.row.lanes[Math.floor((where - place.y) / place.each)];
      const low = this.ns(x - 2), high = this.ns(x + 2), middle = this.ns(x);
      let best = -1, distance = Infinity;
      for (const one of lane ?? []) {
        const [first, last] = this.visible(one, low, high);
        for (let at = first; at < last; at++) {
          const away = Math.max(this.data.start[at] - middle, middle - this.data.end[at], 0) + (this.data.events[at] > 1 ? 1e-3 : 0);
          if (away < distance) [best, distance] = [at, away];
        }
      }
      return { place, event: best };
    }

    // ---- what an event says --------------------------------------------------------------------------------------

    facts(at) {
      const { data } = this, { head } = data;
      const track = head.tracks[this.laneOf(at).track];
      const tone = head.tones[data.tone[at]];
      const name = head.texts[data.name[at]] || (track.kind === "ledger" ? tone : "(no name)");
      const facts = [["begins", instant(data.start[at] + head.offset_ns, 1)], ["takes", duration(data.end[at] - data.start[at])]];
      if (data.events[at] > 1)
        facts.push(["stands for", `${whole(data.events[at])} events of ${duration(data.covered.get(at))} together; the longest has this name`]);
      if (track.kind === "ledger") facts.push(["bucket", tone]);
      if (data.note[at]) facts.push([{ ledger: "in range", path: "cause" }[track.kind] || "what", head.texts[data.note[at]]]);
      if (data.launch[at]) {
        const call = data.launch[at] - 1, after = data.start[at] - data.end[call];
        const alone = data.events[at] === 1 && data.events[call] === 1;
        const when = after < 0 ? `${duration(-after)} before it returned` : `${duration(after)} after it returned`;
        facts.push(["launched by", `${head.texts[data.name[call]]}${alone ? `, ${when}` : ""}`]);
      }
      facts.push(["track", `${track.group}, ${track.label}`]);
      return [name, facts];
    }

    choose(at) {
      this.chosen = at;
      if (at < 0) return this.soon();
      const [name, facts] = this.facts(at);
      const list = document.createElement("dl");
      for (const [what, text] of facts) list.append(element("dt", what), element("dd", text));
      const buttons = document.createElement("p");
      const button = (text, act) => {
        const one = element("button", text);
        one.type = "button";
        one.addEventListener("click", act);
        buttons.append(one, " ");
      };
      button("Zoom to it", () => this.show(this.data.start[at], this.data.end[at], 0.5));
      if (this.data.launch[at]) button("Go to its launch", () => this.go(this.data.launch[at] - 1));
      const launched = this.data.launch[at] ? [] : this.launched(at);
      if (launched.length) button("Go to what it launched", () => this.go(launched[0]));
      button("Find all of this name", () => this.search(this.data.head.texts[this.data.name[at]], true));
      this.details.replaceChildren(element("h3", name), list, buttons);
      this.soon();
      this.toAddress();
    }

    go(at) {
      const { start, end } = this.data;
      const lane = this.laneOf(at);
      if (this.folded.delete(this.data.head.tracks[lane.track].group)) this.fit();
      const row = this.rows.find((one) => one.number === lane.track);
      if (row.lanes.findIndex((lanes) => lanes.includes(lane)) >= MOST_LANES) this.unfolded.add(row);
      if (start[at] < this.low || end[at] > this.high || (end[at] - start[at]) * this.scale < 2) {
        const half = Math.max((end[at] - start[at]) * 10, LEAST_NS * 50, 1);
        this.view((start[at] + end[at]) / 2 - half, (start[at] + end[at]) / 2 + half);
      }
      this.places = this.placed();
      const place = this.places.find((one) => one.row === row);
      const y = place.y + row.lanes.findIndex((lanes) => lanes.includes(lane)) * place.each;
      if (y < this.top || y + place.each > this.top + this.height - AXIS) this.top = y - 40;
      this.choose(at);
    }

    // ---- selection -----------------------------------------------------------------------------------------------

    select(low, high) {
      const within = (ns) => Math.min(Math.max(Math.round(ns), 0), this.length);
      const from = within(Math.min(low, high)), until = within(Math.max(low, high));
      this.selection = until > from ? [from, until] : null;
      if (!this.selection) {
        this.status.textContent = "Nothing is selected: less than a nanosecond.";
        this.details.replaceChildren();
        return this.soon();
      }
      const { offset_ns: offset, window: told } = this.data.head;
      const parts = [element("h3", `${duration(until - from)} selected`)];
      if (told) parts.push(element("p", `--window '${from + offset}ns..${until + offset}ns'`));
      const rows = this.rows.filter((row) => row.kind === "ledger" || row.kind === "stream");
      const tables = rows.map((row) => this.sumsOf(row, from, until, row.kind === "ledger" ? "ledger" : "name")).filter(Boolean);
      parts.push(...tables.slice(0, MOST_TABLES));
      if (!tables.length) parts.push(element("p", "No GPU did or awaited anything in it."));
      if (tables.length > MOST_TABLES) parts.push(element("p", `${whole(tables.length - MOST_TABLES)} more streams and ledgers`));
      this.details.replaceChildren(...parts);
      this.status.textContent = `${duration(until - from)} selected; statistics below the timeline.`;
      this.toAddress();
      return this.soon();
    }

    // Time by bucket, or by name with the count, of the events of a track within an interval.
    statistics(row, from, until, by) {
      const { data } = this;
      const sums = new Map();
      let about = false;
      for (const lane of row.lanes.flat()) {
        const [first, last] = this.visible(lane, from, until);
        for (let at = first; at < last; at++) {
          const inside = Math.min(data.end[at], until) - Math.max(data.start[at], from);
          if (data.start[at] >= until || (data.end[at] <= from && data.start[at] !== from)) continue;
          const key = by === "ledger" ? data.tone[at] : data.name[at];
          const sum = sums.get(key) ?? { ns: 0, count: 0 };
          if (data.events[at] > 1) {
            const all = inside >= data.end[at] - data.start[at];
            about ||= !all || by === "name";
            sum.ns += all ? data.covered.get(at) : inside * data.share[at];
          } else sum.ns += inside;
          sum.count += data.events[at];
          sums.set(key, sum);
        }
      }
      return { sums: [...sums].sort(([, one], [, other]) => other.ns - one.ns), about };
    }

    sumsOf(row, from, until, by) {
      const { sums, about } = this.statistics(row, from, until, by);
      if (!sums.length) return null;
      const { head } = this.data;
      const table = document.createElement("table");
      table.dataset.track = `${row.group}, ${row.label}`;
      const known = by === "ledger" ? sums.reduce((ns, [, one]) => ns + one.ns, 0) : until - from;
      const part = known < until - from - 1 && !about ? `; of ${duration(known)} of it, the rest is before or after all that this GPU did` : "";
      const caption = element("caption", `${row.group}, ${row.label}${part}${about ? "; about, since short events are summed" : ""}`);
      const heads = document.createElement("tr");
      for (const text of ["time", "share", "count", by === "ledger" ? "bucket" : "name"]) heads.append(element("th", text));
      table.append(caption, heads);
      for (const [key, { ns, count }] of sums.slice(0, 15)) {
        const line = document.createElement("tr");
        line.dataset.ns = Math.round(ns);
        const texts = [duration(ns), percent(ns / (until - from)), whole(count)];
        for (const text of texts) line.append(element("td", text));
        const name = element("td", by === "ledger" ? head.tones[key] : this.short(key) || "(no name)");
        name.className = "name";
        if (by !== "ledger" && head.short[key]) name.title = head.texts[key];
        line.append(name);
        table.append(line);
      }
      if (sums.length > 15) table.append(element("caption", `${whole(sums.length - 15)} more`));
      return table;
    }

    // ---- search --------------------------------------------------------------------------------------------------

    search(text, exactly = false) {
      const field = this.root.querySelector("input[type=search]");
      if (field.value !== text) field.value = text;
      this.matches = [];
      this.hits = null;
      this.match = -1;
      if (text) {
        const wanted = text.toLowerCase();
        const fits = exactly ? (name) => name === text : (name) => name.toLowerCase().includes(wanted);
        this.hits = Uint8Array.from(this.data.head.texts, (name) => (name && fits(name) ? 1 : 0));
        const { name, start, count } = this.data;
        let alone = 0;
        for (let at = 0; at < count; at++) if (this.hits[name[at]]) { this.matches.push(at); alone += this.data.events[at] === 1; }
        const beside = (at) => Number(this.data.head.tracks[this.laneOf(at).track].kind !== "stream");
        const rank = new Map(this.matches.map((at) => [at, beside(at)]));  // what ran on a GPU comes first
        this.matches.sort((one, other) => rank.get(one) - rank.get(other) || start[one] - start[other]);
        const sums = this.matches.length - alone;
        const told = `${whole(alone)} events${sums ? ` and ${whole(sums)} sums` : ""} found`;
        const more = this.data.covered.size ? "; more may be in sums of short events, which have the name of the longest" : "";
        this.status.textContent = (this.matches.length ? `${told}; Enter goes to the next one` : "Nothing found") + `${more}.`;
      } else this.status.textContent = "";
      this.soon();
    }

    next(step) {
      if (!this.matches.length) return;
      this.match = (this.match + step + this.matches.length) % this.matches.length;
      this.go(this.matches[this.match]);
      this.status.textContent = `${whole(this.match + 1)} of ${whole(this.matches.length)}`;
    }

    // ---- view ----------------------------------------------------------------------------------------------------

    view(low, high) {
      // times are exact to 53 bits
      const length = Math.min(Math.max(high - low, LEAST_NS, this.length * 1e-13), this.length);
      low = Math.min(Math.max(low, 0), this.length - length);
      [this.low, this.high] = [low, low + length];
      this.soon();
      this.toAddress();
    }

    show(low, high, margin = 0.05) {
      const more = (high - low) * margin;
      this.view(low - more, high + more);
    }

    zoom(factor, x = this.labels + (this.width - this.labels) / 2) {
      const middle = this.ns(Math.max(x, this.labels));
      this.view(middle - (middle - this.low) * factor, middle + (this.high - middle) * factor);
    }

    pan(share) {
      const by = (this.high - this.low) * share;
      this.view(this.low + by, this.high + by);
    }

    toAddress() {
      clearTimeout(this.address);
      this.address = setTimeout(() => {
        const parts = [`t=${Math.round(this.low)}..${Math.round(this.high)}`];
        if (this.selection) parts.push(`s=${this.selection.map(Math.round).join("..")}`);
        if (this.chosen >= 0) parts.push(`e=${this.chosen}`);
        try {
          history.replaceState(null, "", `#${parts.join("&")}`);
        } catch { /* within another page the address is not ours */ }
      }, 200);
    }

    fromAddress() {
      const found = new Map(location.hash.slice(1).split("&").map((part) => part.split("=")));
      const pair = (text) => (text ?? "").split("..").map((side) => Number(side || NaN));
      const [low, high] = pair(found.get("t"));
      if (high > low && low < this.length && high > 0) this.view(Math.max(low, 0), Math.min(high, this.length));
      const [from, until] = pair(found.get("s"));
      if (until > from && from < this.length && until > 0) this.select(from, until);
      const event = Number(found.get("e") || NaN);
      if (Number.isInteger(event) && event >= 0 && event < this.data.count) this.choose(event);
    }

    // ---- input ---------------------------------------------------------------------------------------------------

    listen() {
      const { canvas } = this;
      const spot = (event) => {
        const box = canvas.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
      };
      canvas.addEventListener("wheel", (event) => {
        const [x] = spot(event);
        if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 100) * 0.004), x);
        else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / (this.width - this.labels));
        else {
          const before = this.top;
          this.top = Math.max(0, Math.min(this.top + event.deltaY, this.content - (this.height - AXIS)));
          if (before === this.top) return;
          this.soon();
        }
        event.preventDefault();
      }, { passive: false });
      canvas.addEventListener("pointerdown", (event) => this.down(event, ...spot(event)));
      canvas.addEventListener("pointermove", (event) => this.move(event, ...spot(event)));
      for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, (event) => this.up(event, ...spot(event)));
      canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      canvas.addEventListener("dblclick", (event) => {
        const { event: at } = this.at(...spot(event));
        if (at >= 0) this.show(this.data.start[at], this.data.end[at], 0.5);
      });
      canvas.addEventListener("keydown", (event) => this.key(event));
      const field = this.root.querySelector("input[type=search]");
      field.addEventListener("input", () => this.search(field.value));
      field.addEventListener("keydown", (event) => {
        if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1);
        if (event.key === "Escape") this.search("");
      });
      const acts = {
        in: () => this.zoom(0.5),
        out: () => this.zoom(2),
        all: () => this.view(0, this.length),
        next: () => this.next(1),
        previous: () => this.next(-1),
        select: (button) => button.setAttribute("aria-pressed", String((this.selecting = !this.selecting))),
      };
      for (const button of this.root.querySelectorAll("button[data-act]"))
        button.addEventListener("click", () => acts[button.dataset.act](button));
      new ResizeObserver(() => this.resize()).observe(canvas);
    }

    down(event, x, y) {
      if (event.button > 0) return;
      this.canvas.setPointerCapture(event.pointerId);
      this.touches.set(event.pointerId, x);
      if (this.touches.size === 2) {
        this.drag = null;
        this.pinch = this.spread();
        return;
      }
      const selects = (event.shiftKey || this.selecting) && x >= this.labels;
      this.drag = { x, y, top: this.top, low: this.low, high: this.high, selects, from: this.ns(x), moved: false };
    }

    spread() {
      const [one, other] = [...this.touches.values()];
      return { apart: Math.max(Math.abs(one - other), 10), middle: (one + other) / 2, low: this.low, high: this.high };
    }

    move(event, x, y) {
      if (this.touches.has(event.pointerId)) this.touches.set(event.pointerId, x);
      if (this.touches.size === 2 && this.pinch) {
        const now = this.spread(), was = this.pinch;
        const factor = was.apart / now.apart, middle = was.low + (was.middle - this.labels) / (this.width - this.labels) * (was.high - was.low);
        const length = (was.high - was.low) * factor;
        const low = middle - (now.middle - this.labels) / (this.width - this.labels) * length;
        return this.view(low, low + length);
      }
      const { drag } = this;
      if (!drag) return this.hover(x, y);
      drag.moved ||= Math.abs(x - drag.x) + Math.abs(y - drag.y) > 3;
      if (!drag.moved) return undefined;
      this.tip.hidden = true;
      if (drag.selects) {
        this.selection = [Math.min(drag.from, this.ns(x)), Math.max(drag.from, this.ns(x))];
        return this.soon();
      }
      const by = (drag.x - x) / (this.width - this.labels) * (drag.high - drag.low);
      this.top = drag.top + drag.y - y;
      return this.view(drag.low + by, drag.high + by);
    }

    up(event, x, y) {
      this.touches.delete(event.pointerId);
      if (this.touches.size < 2) this.pinch = null;
      const { drag } = this;
      this.drag = null;
      if (!drag || event.type === "pointercancel") return;
      if (drag.moved) {
        if (drag.selects) this.select(drag.from, this.ns(x));
        return;
      }
      const { place, event: at } = this.at(x, y);
      if (at >= 0) return this.choose(at);
      if (place?.row.kind === "group") this.toggle(this.folded, place.row.group);
      else if (place && x < this.labels) this.toggle(this.unfolded, place.row);
      else {
        this.chosen = -1;
        this.soon();
      }
      return undefined;
    }

    toggle(set, one) {
      if (!set.delete(one)) set.add(one);
      this.fit();
      this.soon();
    }

    hover(x, y) {
      const { event: at, place } = x < this.labels ? { event: -1 } : this.at(x, y);
      const counter = place?.row.kind === "counter" ? this.valueAt(place.row, this.ns(x)) : null;
      this.tip.hidden = at < 0 && !counter;
      if (this.tip.hidden) return;
      const [name, facts] = counter ?? this.facts(at);
      const short = name.length > 160 ? `${name.slice(0, 159)}…` : name;
      this.tip.replaceChildren(element("b", short), ...facts.slice(0, -1).map(([what, text]) => element("div", `${what} ${text}`)));
      this.tip.style.left = `${Math.min(x + 14, this.width - Math.min(this.tip.offsetWidth, this.width - 20) - 6)}px`;
      this.tip.style.top = `${y + 16}px`;
    }

    // What a counter was at a time, in the form of an event's facts; null before its first value.
    valueAt(row, ns) {
      const at = placeIn(row.t, ns);
      if (row.t[at] > ns) return null;
      const what = row.bin_ns ? `mean of ${duration(row.bin_ns)} from ${instant(row.t[at] + this.data.head.offset_ns, 1000)}` : "";
      return [`${row.label}: ${amount(row.value[at], row.unit)}`, [["", what], ["", ""]]];
    }

    key(event) {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const acts = {
        w: () => this.zoom(0.7), "+": () => this.zoom(0.7), "=": () => this.zoom(0.7),
        s: () => this.zoom(1.4), "-": () => this.zoom(1.4),
        a: () => this.pan(-0.2), ArrowLeft: () => this.pan(-0.2),
        d: () => this.pan(0.2), ArrowRight: () => this.pan(0.2),
        ArrowUp: () => { this.top -= 40; this.soon(); },
        ArrowDown: () => { this.top += 40; this.soon(); },
        Home: () => this.view(0, this.length), 0: () => this.view(0, this.length),
        f: () => this.selection && this.show(...this.selection),
        m: () => this.chosen >= 0 && this.select(this.data.start[this.chosen], this.data.end[this.chosen]),
        v: () => this.select(this.low, this.high),
        n: () => this.step(1), p: () => this.step(-1),
        g: () => this.foldAll(),
        Escape: () => { this.selection = null; this.chosen = -1; this.details.replaceChildren(); this.soon(); this.toAddress(); },
        "/": () => this.root.querySelector("input[type=search]").focus(),
      };
      const act = acts[event.key] ?? acts[event.key.toLowerCase()];
      if (!act) return;
      act();
      event.preventDefault();
    }

    // Folds all groups of host threads, or unfolds all groups where any is folded.
    foldAll() {
      const { rows } = this;
      const host = rows.filter((row) => row.kind === "group" && !row.tracks.some(({ kind }) => ["ledger", "stream", "iteration", "path"].includes(kind)));
      this.folded = new Set(this.folded.size ? [] : host.map((row) => row.group));
      this.status.textContent = this.folded.size ? "Threads are folded." : "All is unfolded.";
      this.fit();
      this.soon();
    }

    // The next or previous event of the lane, or the first that is shown.
    step(by) {
      if (this.chosen < 0) {
        const lane = this.data.head.lanes.find((one) => this.data.head.tracks[one.track].kind === "stream") ?? this.data.head.lanes[0];
        if (!lane) return undefined;
        return this.go(Math.min(this.visible(lane, this.low, this.high)[0], lane.stop - 1));
      }
      const lane = this.laneOf(this.chosen), at = this.chosen + by;
      return at >= lane.at && at < lane.stop ? this.go(at) : undefined;
    }
  }

  function element(kind, text) {
    const made = document.createElement(kind);
    made.textContent = text;
    return made;
  }

  // The last place of rising times that is not after `ns`; the first one where all are.
  function placeIn(times, ns) {
    let first = 0, stop = times.length;
    while (first + 1 < stop) {
      const middle = (first + stop) >> 1;
      if (times[middle] <= ns) first = middle;
      else stop = middle;
    }
    return first;
  }

  function amount(value, unit) {
    if (unit === "share") return percent(value);
    if (unit === "launches") return whole(value);
    const names = ["", "k", "M", "G", "T"];
    let at = 0;
    while (value >= 999.5 && at < 4) { value /= 1000; at += 1; }
    return `${value < 999.5 ? value.toPrecision(3) : whole(Math.round(value))} ${names[at]}${unit === "bytes" ? "B" : unit}`;
  }

  async function begin(root) {
    const text = document.getElementById("timeline-data").textContent;
    const data = await decoded(text);
    const made = new Timeline(root, data);
    root.dataset.ready = "yes";
    return made;
  }

  return { begin, duration };
})();
