// Lines over steps or time, with marks for what happened. Arrow keys move the cross where a chart has the focus.

const HEIGHT = 180, LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 20;

function niceTicks(low, high, most) {
  const raw = (high - low) / most, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(factor => factor * size).find(step => step >= raw * 0.999);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) ticks.push(Math.abs(tick) < step / 1e6 ? 0 : tick);
  return ticks;
}

/// The index of the value that is nearest to `wanted` in a sorted list.
function nearest(sorted, wanted) {
  let low = 0, high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle; else high = middle;
  }
  return Math.abs(sorted[low] - wanted) <= Math.abs(sorted[high] - wanted) ? low : high;
}

class Chart {
  /// options: title, format (of a value), fromZero
  constructor(parent, options) {
    this.options = options;
    this.svg = draw('svg', {role: 'img', tabindex: '0'});
    this.tip = make('div', {class: 'tip', hidden: true});
    this.legend = make('p', {class: 'legend'});
    this.box = make('div', {class: 'chart', 'data-chart': options.title}, make('h3', {}, options.title), this.svg, this.tip, this.legend);
    parent.append(this.box);
    this.svg.addEventListener('pointermove', event => this.point(event.clientX - this.svg.getBoundingClientRect().left));
    this.svg.addEventListener('pointerleave', () => this.lift());
    this.svg.addEventListener('blur', () => this.lift());
    this.svg.addEventListener('keydown', event => this.key(event));
  }

  /// data: xs, formatX, lines [{name, colour, ys, faint}], dots [{name, colour, points [[x, y]]}], marks [{x, kind, text}]
  show(data) {
    this.data = data;
    this.box.hidden = !data.lines.some(line => line.ys.some(known)) && !data.dots.length;
    if (!this.box.hidden) this.redraw();
  }

  redraw() {
    const {xs, lines, dots, marks} = this.data, width = Math.max(this.svg.clientWidth, 200);
    let low = this.options.fromZero ? 0 : Infinity, high = -Infinity, left = Infinity, right = -Infinity;
    const see = y => { if (known(y)) { low = Math.min(low, y); high = Math.max(high, y); } };
    for (const line of lines) line.ys.forEach(see);
    for (const {points} of dots) for (const [x, y] of points) { see(y); left = Math.min(left, x); right = Math.max(right, x); }
    if (xs.length) { left = Math.min(left, xs[0]); right = Math.max(right, xs[xs.length - 1]); }
    if (!known(high)) return;
    if (high - low < 1e-12 * Math.abs(high) || high === low) { high += Math.abs(high) / 10 || 1; if (!this.options.fromZero) low -= Math.abs(low) / 10 || 1; }
    const margin = (high - low) / 25;
    high += margin;
    if (!this.options.fromZero) low -= margin;
    if (right <= left) right = left + 1;
    const toX = x => LEFT + (x - left) / (right - left) * (width - LEFT - RIGHT);
    const toY = y => TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM);
    Object.assign(this, {toX, width});
    const parts = [];
    for (const tick of niceTicks(low, high, 4)) {
      const y = toY(tick).toFixed(1);
      parts.push(draw('line', {class: 'grid', x1: LEFT, x2: width - RIGHT, y1: y, y2: y}),
                 draw('text', {x: LEFT - 6, y: +y + 4, 'text-anchor': 'end'}, this.options.format(tick)));
    }
    for (const tick of niceTicks(left, right, Math.max(2, Math.floor(width / 110)))) {
      parts.push(draw('text', {x: toX(tick).toFixed(1), y: HEIGHT - 5, 'text-anchor': 'middle'}, this.data.formatX(tick)));
    }
    for (const {x, kind, text} of marks) {
      if (x < left || x > right) continue;
      const at = toX(x).toFixed(1);
      parts.push(draw('line', {class: `mark k-${kind}`, 'data-mark': kind, x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM}, draw('title', {}, text)));
    }
    for (const {ys, colour, faint} of lines) {
      let path = '', down = false;
      ys.forEach((y, i) => {
        if (!known(y)) { down = false; return; }
        path += `${down ? 'L' : 'M'}${toX(xs[i]).toFixed(1)} ${toY(y).toFixed(1)}`;
        down = true;
      });
      parts.push(draw('path', {class: faint ? 'line faint' : 'line', d: path, stroke: colour}));
    }
    for (const {points, colour} of dots) {
      for (const [x, y] of points) if (known(y)) parts.push(draw('circle', {cx: toX(x).toFixed(1), cy: toY(y).toFixed(1), r: 4, fill: colour}));
    }
    this.cross = draw('line', {class: 'cross', y1: TOP, y2: HEIGHT - BOTTOM, visibility: 'hidden'});
    this.svg.replaceChildren(...parts, this.cross);
    const named = [...lines.filter(line => !line.faint), ...dots];
    this.svg.setAttribute('aria-label', `${this.options.title}: ${named.map(one => `${one.name} ${this.options.format(this.lastOf(one))}`).join(', ')}`);
    this.legend.replaceChildren(...named.map(({name, colour}) => make('span', {}, make('i', {class: 'swatch', colour}), name)));
    this.legend.hidden = named.length < 2;
    if (this.at !== undefined) this.stand(Math.min(this.at, xs.length - 1));
  }

  lastOf(one) {
    return one.ys ? one.ys.findLast(known) : (one.points[one.points.length - 1] || [])[1];
  }

  point(pixels) {
    const {xs} = this.data;
    if (!xs.length || !this.toX) return;
    const left = this.toX(0), perX = this.toX(1) - left;
    this.stand(nearest(xs, (pixels - left) / perX));
  }

  key(event) {
    const last = this.data.xs.length - 1, by = event.shiftKey ? 20 : 1, now = this.at === undefined ? last : this.at;
    const to = {ArrowLeft: now - by, ArrowRight: now + by, Home: 0, End: last}[event.key];
    if (event.key === 'Escape') this.lift();
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.stand(Math.max(0, Math.min(last, to)));
  }

  stand(index) {
    const {xs, lines, marks, formatX} = this.data, x = this.toX(xs[index]);
    if (!known(x)) return;
    this.at = index;
    fill(this.cross, {x1: x.toFixed(1), x2: x.toFixed(1), visibility: 'visible'}, []);
    const near = marks.filter(mark => Math.abs(this.toX(mark.x) - x) < 4).slice(0, 4);
    this.tip.replaceChildren(make('div', {}, this.data.nameX + ' ' + formatX(xs[index])),
      ...lines.map(line => make('div', {}, make('i', {class: 'swatch', colour: line.colour}), `${line.name} ${this.options.format(line.ys[index])}`)),
      ...near.map(mark => make('div', {}, mark.text)));
    this.tip.hidden = false;
    const leftSide = x > this.width / 2;
    this.tip.style.left = leftSide ? '' : `${x + 8}px`;
    this.tip.style.right = leftSide ? `${this.width - x + 8}px` : '';
  }

  lift() {
    this.at = undefined;
    this.tip.hidden = true;
    if (this.cross) this.cross.setAttribute('visibility', 'hidden');
  }
}
