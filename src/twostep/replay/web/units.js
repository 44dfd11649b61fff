// Mechs, their wrecks and trails, and what they shoot.

const TRAIL_SECONDS = 4;
const TRACER_SECONDS = 0.45;
const FLASH_SECONDS = 0.3;
const BURST_SECONDS = 0.9;
const SMALLEST = 9; // Pixels from a mech's middle to its edge, however small the picture.

function sizeOf(arena, unit) {
  return Math.max(unit.radius * arena.scale, SMALLEST * arena.density);
}

// Lines that fade into the past.
function drawTrails(arena, moment) {
  const { pen, match } = arena;
  const span = TRAIL_SECONDS / match.secondsPerFrame;
  for (const unit of match.units) {
    const until = Math.min(moment, unit.death);
    if (moment - until > span) continue;
    pen.strokeStyle = arena.colors[unit.team];
    pen.lineWidth = 0.4 * sizeOf(arena, unit);
    const times = [];
    for (let time = Math.max(0, Math.ceil(moment - span)); time < until; time++) times.push(time);
    times.push(until);
    for (let i = 1; i < times.length; i++) {
      const [one, other] = [match.state(unit.index, times[i - 1]), match.state(unit.index, times[i])];
      pen.globalAlpha = 0.3 * Math.max(0, 1 - (moment - times[i]) / span);
      pen.beginPath();
      arena.line(one.x, one.y, other.x, other.y);
      pen.stroke();
    }
  }
  pen.globalAlpha = 1;
}

// Grey hulls, and for a moment the blast.
function drawWrecks(arena, moment) {
  const { pen, match, colors, density } = arena;
  for (const unit of match.units) {
    if (unit.death > moment) continue;
    const state = match.state(unit.index, unit.death);
    const size = sizeOf(arena, unit);
    placeAt(arena, state, () => {
      tracePath(pen, unit.shape.map(([x, y]) => [x * size, y * size]));
      pen.globalAlpha = 0.35;
      pen.fillStyle = colors.wreck;
      pen.fill();
      pen.globalAlpha = 0.9;
      pen.strokeStyle = colors.wreck;
      pen.lineWidth = 1.2 * density;
      pen.stroke();
      pen.strokeStyle = colors[unit.team];
      pen.lineWidth = 2 * density;
      strokeCross(pen, 0.5 * size);
    });
    const age = ((moment - unit.death) * match.secondsPerFrame) / BURST_SECONDS;
    if (age < 1) {
      pen.globalAlpha = 1 - age;
      pen.strokeStyle = colors.low;
      pen.lineWidth = (1 - age) * 5 * density;
      strokeCircle(arena, state, size * (1 + 3 * age));
    }
  }
  pen.globalAlpha = 1;
}

// How far the followed unit's weapon reaches.
function drawReach(arena, moment) {
  const unit = arena.match.units[arena.followed];
  if (!unit || unit.death <= moment) return;
  const { pen, density } = arena;
  pen.strokeStyle = arena.colors[unit.team];
  pen.globalAlpha = 0.8;
  pen.lineWidth = density;
  pen.setLineDash([2 * density, 5 * density]);
  strokeCircle(arena, arena.match.state(unit.index, moment), unit.weapon_range * arena.scale);
  pen.setLineDash([]);
  pen.globalAlpha = 1;
}

// Tracers that fade: solid to what they hit, dashed past what they missed.
function drawShots(arena, moment) {
  const { pen, match, colors, density } = arena;
  for (const shot of match.recentShots(moment, TRACER_SECONDS / match.secondsPerFrame)) {
    const shooter = match.units[shot.shooter];
    const [from, to] = [match.state(shot.shooter, shot.frame), match.state(shot.target, shot.frame)];
    const distance = Math.hypot(to.x - from.x, to.y - from.y) || 1;
    const [dx, dy] = [(to.x - from.x) / distance, (to.y - from.y) / distance];
    const muzzle = Math.min(1.4 * shooter.radius, distance / 2);
    // A miss goes by on one side, always the same for the same shot.
    const aside = shot.hit ? 0 : (shot.index % 2 ? 1.2 : -1.2) * match.units[shot.target].radius;
    const beyond = shot.hit ? 0 : 2;
    const end = { x: to.x + dx * beyond - dy * aside, y: to.y + dy * beyond + dx * aside };
    const age = ((moment - shot.frame) * match.secondsPerFrame) / TRACER_SECONDS;
    pen.globalAlpha = (1 - age) * (shot.hit ? 1 : 0.7);
    pen.strokeStyle = colors[shooter.team];
    pen.lineWidth = (shot.hit ? 2.4 : 1.4) * density;
    pen.setLineDash(shot.hit ? [] : [4 * density, 4 * density]);
    pen.beginPath();
    arena.line(from.x + dx * muzzle, from.y + dy * muzzle, end.x, end.y);
    pen.stroke();
    pen.setLineDash([]);
    if (shot.hit) {
      pen.fillStyle = colors.heat;
      fillCircle(arena, end, (3 + 3 * age) * density);
    }
  }
  pen.globalAlpha = 1;
}

function drawMechs(arena, moment) {
  const { match } = arena;
  const watcher = match.units[arena.followed];
  const eye = watcher && watcher.death > moment ? match.state(watcher.index, moment) : null;
  const hits = match.recentShots(moment, FLASH_SECONDS / match.secondsPerFrame).filter((shot) => shot.hit);
  const living = match.units.filter((unit) => unit.death > moment).map((unit) => {
    const state = match.state(unit.index, moment);
    const seen = !eye || match.canSee(watcher, eye, state);
    return { unit, state, strength: seen ? 1 : 0.4, flash: hits.some((shot) => shot.target === unit.index) };
  });
  // In a brawl no mech covers the state of another.
  for (const mech of living) drawMech(arena, mech);
  for (const mech of living) drawState(arena, mech);
  arena.pen.globalAlpha = 1;
}

function drawMech(arena, { unit, state, strength, flash }) {
  const { pen, colors, density } = arena;
  const size = sizeOf(arena, unit);
  pen.globalAlpha = strength;
  placeAt(arena, state, () => {
    tracePath(pen, unit.shape.map(([x, y]) => [x * size, y * size]));
    pen.fillStyle = flash ? colors.mark : colors[unit.team];
    pen.fill();
    pen.strokeStyle = flash ? colors.low : colors.floor;
    pen.lineWidth = 1.4 * density;
    pen.stroke();
    pen.fillStyle = pen.strokeStyle = flash ? colors[unit.team] : colors.mark;
    pen.lineWidth = 1.8 * density;
    if (unit.team === "red") strokeCross(pen, 0.28 * size);
    else fillDot(pen, 0.26 * size);
  });
}

function drawState(arena, { unit, state, strength }) {
  const { pen, colors, density } = arena;
  const ring = 1.6 * sizeOf(arena, unit);
  pen.globalAlpha = strength;
  drawHeat(arena, unit, state, ring);
  if (unit.index === arena.followed) {
    pen.strokeStyle = colors.text;
    pen.lineWidth = 1.6 * density;
    strokeCircle(arena, state, ring + 3.5 * density);
  }
  drawHull(arena, unit, state, ring + 5 * density);
}

// A ring that closes with the heat, and stays closed while the unit is shut down.
function drawHeat(arena, unit, state, radius) {
  const { pen, colors, density } = arena;
  const part = state.overheated ? 1 : Math.min(1, state.heat / unit.max_heat);
  if (part < 0.02) return;
  const [x, y] = arena.toPixels(state.x, state.y);
  pen.strokeStyle = state.overheated ? colors.low : colors.heat;
  pen.lineWidth = (state.overheated ? 3 : 1.8) * density;
  pen.beginPath();
  pen.arc(x, y, radius, -Math.PI / 2, -Math.PI / 2 + part * 2 * Math.PI);
  pen.stroke();
}

// The bar of hit points above a unit, and its number.
function drawHull(arena, unit, state, above) {
  const { pen, colors, density } = arena;
  const [x, y] = arena.toPixels(state.x, state.y);
  const part = clamp(state.hp / unit.max_hp, 0, 1);
  const [width, height] = [26 * density, 4 * density];
  const top = Math.max(y - above - height, 2 * density);
  pen.fillStyle = colors.edge;
  pen.fillRect(x - width / 2 - density, top - density, width + 2 * density, height + 2 * density);
  pen.fillStyle = colors.floor;
  pen.fillRect(x - width / 2, top, width, height);
  pen.fillStyle = part < 0.35 ? colors.low : colors.hull;
  pen.fillRect(x - width / 2, top, width * part, height);
  pen.fillStyle = colors.text;
  pen.font = `600 ${11 * density}px system-ui, sans-serif`;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  pen.fillText(unit.label, x - width / 2 - 4 * density, top + height / 2 + density / 2);
}

// Draws with the origin in the unit's middle and the x axis along its heading; the arena's y axis points up.
function placeAt(arena, state, draw) {
  const { pen } = arena;
  pen.save();
  pen.translate(...arena.toPixels(state.x, state.y));
  pen.rotate(-state.heading);
  pen.beginPath();
  draw();
  pen.restore();
}

function strokeCross(pen, size) {
  pen.beginPath();
  pen.moveTo(-size, -size);
  pen.lineTo(size, size);
  pen.moveTo(-size, size);
  pen.lineTo(size, -size);
  pen.stroke();
}

function fillDot(pen, size) {
  pen.beginPath();
  pen.arc(0, 0, size, 0, 2 * Math.PI);
  pen.fill();
}

function circleAt(arena, { x, y }, radius) {
  arena.pen.beginPath();
  arena.pen.arc(...arena.toPixels(x, y), radius, 0, 2 * Math.PI);
}

function strokeCircle(arena, place, radius) {
  circleAt(arena, place, radius);
  arena.pen.stroke();
}

function fillCircle(arena, place, radius) {
  circleAt(arena, place, radius);
  arena.pen.fill();
}
