// The ground: view, floor, zone, walls, and what a followed unit sees of it.

const CLOSEST = 2.2;
const MARGIN = 0.09; // Around what the zoom shows, in parts of the arena's side.

class Arena {
  constructor(canvas, match) {
    this.canvas = canvas;
    this.match = match;
    this.pen = canvas.getContext("2d");
    this.options = { trails: true, zoom: true };
    this.followed = -1;
    this.camera = { x: match.size[0] / 2, y: match.size[1] / 2, zoom: 1 };
    this.readColors();
  }

  readColors() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(`--${name}`).trim();
    const names = ["floor", "grid", "wall", "edge", "blue", "red", "zone", "contested", "heat", "hull", "low"];
    this.colors = Object.fromEntries([...names, "wreck", "mark", "shade", "text", "quiet", "page"].map((name) => [name, read(name)]));
  }

  // As large as the column is wide and the window high, in real pixels.
  resize() {
    const [width, height] = this.match.size;
    const frame = this.canvas.parentElement;
    const highest = Math.max(240, window.innerHeight - (window.innerWidth < 720 ? 250 : 235));
    const shown = Math.min(frame.clientWidth, (highest * width) / height);
    this.density = window.devicePixelRatio || 1;
    this.canvas.style.width = `${shown}px`;
    this.canvas.style.height = `${(shown * height) / width}px`;
    this.canvas.width = Math.round(shown * this.density);
    this.canvas.height = Math.round(((shown * height) / width) * this.density);
    this.fit = this.canvas.width / width;
  }

  // Moves the camera towards where it should be; returns whether it is still under way.
  moveCamera(moment, atOnce) {
    const wanted = this.wantedCamera(moment);
    let moving = false;
    for (const key of ["x", "y", "zoom"]) {
      const gap = wanted[key] - this.camera[key];
      moving ||= Math.abs(gap) > 0.01;
      this.camera[key] += atOnce || Math.abs(gap) < 0.01 ? gap : gap * 0.18;
    }
    this.scale = this.fit * this.camera.zoom;
    return moving;
  }

  // All of the arena; with zoom the followed unit, or as close as keeps the zone and everybody alive in the picture.
  wantedCamera(moment) {
    const { match } = this;
    const [width, height] = match.size;
    if (!this.options.zoom) return { x: width / 2, y: height / 2, zoom: 1 };
    const [zoneX, zoneY, radius] = match.zone;
    const shown = this.followed >= 0 ? [] : [[zoneX - radius, zoneY - radius], [zoneX + radius, zoneY + radius]];
    for (const unit of match.units) {
      if (this.followed >= 0 ? unit.index !== this.followed : unit.death <= moment) continue;
      const { x, y } = match.state(unit.index, moment);
      shown.push([x, y]);
    }
    const [lowX, highX] = extent(shown.map(([x]) => x), MARGIN * width);
    const [lowY, highY] = extent(shown.map(([, y]) => y), MARGIN * height);
    const zoom = clamp(Math.min(width / (highX - lowX), height / (highY - lowY)), 1, CLOSEST);
    const centre = (low, high, side) => clamp((low + high) / 2, side / 2 / zoom, side - side / 2 / zoom);
    return { x: centre(lowX, highX, width), y: centre(lowY, highY, height), zoom };
  }

  // From the arena, where y points up, to pixels.
  toPixels(x, y) {
    return [
      this.canvas.width / 2 + (x - this.camera.x) * this.scale,
      this.canvas.height / 2 - (y - this.camera.y) * this.scale,
    ];
  }

  unitAt(clientX, clientY, moment) {
    const box = this.canvas.getBoundingClientRect();
    const x = (clientX - box.left) * this.density;
    const y = (clientY - box.top) * this.density;
    let found = -1;
    let nearest = 22 * this.density;
    for (const unit of this.match.units) {
      const state = this.match.state(unit.index, moment);
      const [unitX, unitY] = this.toPixels(state.x, state.y);
      const distance = Math.hypot(unitX - x, unitY - y) + (state.alive ? 0 : 8 * this.density);
      if (distance < nearest) [found, nearest] = [unit.index, distance];
    }
    return found;
  }

  draw(moment) {
    const { pen, canvas } = this;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.globalAlpha = 1;
    pen.fillStyle = this.colors.floor;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    this.drawGrid();
    this.drawZone(moment);
    if (this.options.trails) drawTrails(this, moment);
    drawWrecks(this, moment);
    this.drawShade(moment);
    this.drawWalls();
    drawReach(this, moment);
    drawShots(this, moment);
    drawMechs(this, moment);
  }

  drawGrid() {
    const { pen, match } = this;
    const [width, height] = match.size;
    const spacing = niceSpacing(Math.max(width, height) / 12);
    pen.strokeStyle = this.colors.grid;
    pen.lineWidth = this.density;
    pen.beginPath();
    for (let x = spacing; x < width; x += spacing) this.line(x, 0, x, height);
    for (let y = spacing; y < height; y += spacing) this.line(0, y, width, y);
    pen.stroke();
  }

  line(x0, y0, x1, y1) {
    this.pen.moveTo(...this.toPixels(x0, y0));
    this.pen.lineTo(...this.toPixels(x1, y1));
  }

  drawZone(moment) {
    const { pen, match, colors, density } = this;
    const [zoneX, zoneY, radius] = match.zone;
    const [x, y] = this.toPixels(zoneX, zoneY);
    const size = radius * this.scale;
    const { score, owner } = match.zoneAt(moment);
    const color = [colors.zone, colors.blue, colors.red, colors.contested][owner];
    const circle = (extent) => {
      pen.beginPath();
      pen.arc(x, y, Math.max(0, extent), 0, 2 * Math.PI);
    };
    circle(size);
    pen.fillStyle = color;
    pen.globalAlpha = owner ? 0.14 : 0.06;
    pen.fill();
    pen.globalAlpha = 0.75;
    pen.strokeStyle = color;
    pen.lineWidth = 1.5 * density;
    pen.setLineDash(owner === 3 ? [7 * density, 5 * density] : []);
    pen.stroke();
    pen.setLineDash([]);
    // Each team's progress is an arc from the top, blue to the left and red to the right; who gets around has won.
    pen.lineWidth = Math.max(3 * density, 0.35 * this.scale);
    TEAMS.forEach((team, side) => {
      if (score[side] <= 0) return;
      const reach = Math.min(1, score[side]) * 2 * Math.PI;
      const inner = size - pen.lineWidth * (1.1 + 1.25 * side);
      pen.beginPath();
      pen.arc(x, y, Math.max(0, inner), -Math.PI / 2, -Math.PI / 2 + (side ? reach : -reach), side === 0);
      pen.strokeStyle = colors[team];
      pen.globalAlpha = 0.9;
      pen.stroke();
    });
    pen.globalAlpha = 1;
  }

  drawWalls() {
    const { pen, colors } = this;
    pen.fillStyle = colors.wall;
    pen.strokeStyle = colors.edge;
    pen.lineWidth = 1.2 * this.density;
    for (const [x0, y0, x1, y1] of this.match.walls) {
      const [left, top] = this.toPixels(x0, y1);
      const [right, bottom] = this.toPixels(x1, y0);
      pen.beginPath();
      pen.roundRect(left, top, right - left, bottom - top, Math.min(4 * this.density, (right - left) / 3));
      pen.fill();
      pen.stroke();
    }
  }

  // Dims all that the followed unit cannot see.
  drawShade(moment) {
    if (this.followed < 0) return;
    const state = this.match.state(this.followed, moment);
    if (!state.alive) return;
    const { pen } = this;
    const unit = this.match.units[this.followed];
    pen.beginPath();
    pen.rect(0, 0, this.canvas.width, this.canvas.height);
    const seen = this.match.view(state.x, state.y, unit.vision).map(([x, y]) => this.toPixels(x, y));
    tracePath(pen, seen);
    pen.fillStyle = this.colors.shade;
    pen.fill("evenodd");
    pen.beginPath();
    tracePath(pen, seen);
    pen.strokeStyle = this.colors[unit.team];
    pen.globalAlpha = 0.5;
    pen.lineWidth = this.density;
    pen.stroke();
    pen.globalAlpha = 1;
  }
}

function tracePath(pen, points) {
  points.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.closePath();
}

function extent(values, margin) {
  return [Math.min(...values) - margin, Math.max(...values) + margin];
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

function niceSpacing(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
}
