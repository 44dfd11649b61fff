// What happened, at any moment: between two frames, units are on the straight line from one to the other.

const TEAMS = ["blue", "red"];

class Match {
  constructor(packed) {
    Object.assign(this, packed);
    this.tracks = unpack(packed.tracks);
    this.last = this.frames - 1;
    this.shots = readShots(unpack(packed.shots));
    this.units.forEach((unit, index) => {
      unit.index = index;
      unit.shape = this.shapes[unit.class] ?? this.shapes.other;
      unit.label = (unit.id.replace(/^[a-z]+_?/i, "") || unit.id).slice(0, 4);
      const death = this.tracks.alive[index].indexOf(0);
      unit.death = death < 0 ? Infinity : death;
    });
  }

  // The state of a unit at a moment, which is a frame number with a fraction.
  state(unit, moment) {
    const before = Math.min(Math.floor(moment), this.last);
    const after = Math.min(before + 1, this.last);
    const part = moment - before;
    const between = (track) => track[unit][before] + (track[unit][after] - track[unit][before]) * part;
    const tracks = this.tracks;
    return {
      x: between(tracks.x),
      y: between(tracks.y),
      heading: between(tracks.heading),
      heat: between(tracks.heat),
      hp: tracks.hp[unit][before],
      cooldown: tracks.cooldown[unit][before],
      alive: tracks.alive[unit][before] > 0,
      overheated: tracks.overheated[unit][before] > 0,
      earned: tracks.earned[unit][before],
    };
  }

  zoneAt(moment) {
    const frame = Math.min(Math.floor(moment), this.last);
    return { score: this.tracks.zoneScore.map((series) => series[frame]), owner: this.tracks.zoneOwner[0][frame] };
  }

  aliveAt(team, moment) {
    return this.units.filter((unit) => unit.team === team && unit.death > moment).length;
  }

  strength(team, frame) {
    let total = 0;
    for (const unit of this.units) if (unit.team === team) total += Math.max(0, this.tracks.hp[unit.index][frame]);
    return total;
  }

  // Shots of the last `span` frames before a moment.
  recentShots(moment, span) {
    let index = this.shots.findIndex((shot) => shot.frame > moment - span);
    const recent = [];
    for (; index >= 0 && index < this.shots.length && this.shots[index].frame <= moment; index++) {
      recent.push(this.shots[index]);
    }
    return recent;
  }

  tally(unit, moment) {
    const kills = this.events.filter((event) => event.kind === "kill" && event.by === unit && event.frame <= moment).length;
    const tally = { kills, dealt: 0, shots: 0, hits: 0 };
    for (const shot of this.shots) {
      if (shot.frame > moment) break;
      if (shot.shooter !== unit) continue;
      tally.shots += 1;
      tally.hits += shot.hit;
      tally.dealt += shot.damage;
    }
    return tally;
  }

  // Whether a unit at one place sees another place: near enough, and no wall between.
  canSee(unit, from, to) {
    const [dx, dy] = [to.x - from.x, to.y - from.y];
    return Math.hypot(dx, dy) <= unit.vision && rayLength(this.walls, from.x, from.y, dx, dy) >= 1;
  }

  // The outline of what can be seen from a point: where rays in all directions end.
  view(x, y, range) {
    const outline = [];
    for (const angle of this.viewAngles(x, y)) {
      const dx = Math.cos(angle) * range;
      const dy = Math.sin(angle) * range;
      const part = Math.min(1, rayLength(this.walls, x, y, dx, dy));
      outline.push([x + dx * part, y + dy * part]);
    }
    return outline;
  }

  // Even directions, and three past every corner, so that shadows have sharp edges.
  viewAngles(x, y) {
    const angles = [];
    for (let i = 0; i < 120; i++) angles.push((i / 120) * 2 * Math.PI - Math.PI);
    for (const [x0, y0, x1, y1] of this.walls) {
      for (const [cornerX, cornerY] of [[x0, y0], [x0, y1], [x1, y0], [x1, y1]]) {
        const angle = Math.atan2(cornerY - y, cornerX - x);
        angles.push(angle - 1e-4, angle, angle + 1e-4);
      }
    }
    return angles.sort((a, b) => a - b);
  }
}

function readShots(columns) {
  const { frame, shooter, target, hit, damage } = columns;
  const shots = Array.from(frame[0], (value, i) => ({
    index: i,
    frame: Math.round(value),
    shooter: Math.round(shooter[0][i]),
    target: Math.round(target[0][i]),
    hit: hit[0][i] > 0,
    damage: damage[0][i],
  }));
  return shots.sort((a, b) => a.frame - b.frame);
}

// How far a ray gets before a wall, in lengths of its direction; Infinity where nothing is in the way.
function rayLength(walls, x, y, dx, dy) {
  let nearest = Infinity;
  for (const [x0, y0, x1, y1] of walls) {
    const [nearX, farX] = span(x, dx, x0, x1);
    const [nearY, farY] = span(y, dy, y0, y1);
    const enter = Math.max(nearX, nearY, 0);
    if (enter <= Math.min(farX, farY) && enter < nearest) nearest = enter;
  }
  return nearest;
}

function span(start, direction, low, high) {
  if (direction === 0) return start >= low && start <= high ? [-Infinity, Infinity] : [Infinity, -Infinity];
  const one = (low - start) / direction;
  const other = (high - start) / direction;
  return one < other ? [one, other] : [other, one];
}
