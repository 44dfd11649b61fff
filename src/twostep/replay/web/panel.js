// What stands around the arena: the score, the list of units, the events, and the timeline's marks.

const CAPTION_SECONDS = 2.5;
const CAPTION_LINES = 3;

class Panel {
  constructor(match, { follow, jump }) {
    this.match = match;
    this.lines = [];
    this.cards = match.units.map((unit) => makeCard(unit, match, () => follow(unit.index)));
    this.entries = match.events.map((event) => this.makeEntry(event, () => jump(event.frame)));
    this.makeTicks();
    const kinds = [...new Map(match.units.map((unit) => [unit.class, unit])).values()];
    byId("classes").append(...kinds.map((unit) => make("span", "kind", [outline(unit, 20), unit.class])));
    this.sides = TEAMS.map((team) => {
      const side = document.querySelector(`#score .${team}`);
      const pips = match.units.filter((unit) => unit.team === team).map((unit) => [unit, make("i")]);
      side.querySelector(".pips").append(...pips.map(([, pip]) => pip));
      return { team, pips, alive: side.querySelector(".alive"), bar: document.querySelector(`#race .${team}`) };
    });
  }

  makeEntry(event, jump) {
    const time = formatTime(event.frame * this.match.secondsPerFrame);
    const button = make("button", `event ${event.team}`, [make("span", "at", [time]), event.text]);
    button.type = "button";
    button.addEventListener("click", jump);
    document.querySelector("#log ol").append(make("li", "", [button]));
    return { event, button };
  }

  makeTicks() {
    for (const event of this.match.events) {
      const tick = make("i", `${event.kind} ${event.team}`);
      tick.style.left = `${(100 * event.frame) / Math.max(1, this.match.last)}%`;
      byId("ticks").append(tick);
    }
  }

  // How much hull each team has left, over time: blue upwards from the middle, red downwards.
  drawStrength(colors) {
    const { match } = this;
    const canvas = byId("strength");
    const density = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth * density, canvas.clientHeight * density];
    [canvas.width, canvas.height] = [width, height];
    const pen = canvas.getContext("2d");
    const most = Math.max(...TEAMS.map((team) => match.strength(team, 0)), 1);
    TEAMS.forEach((team, side) => {
      pen.beginPath();
      pen.moveTo(0, height / 2);
      for (let frame = 0; frame <= match.last; frame++) {
        const reach = (match.strength(team, frame) / most) * (height / 2);
        pen.lineTo((frame / Math.max(1, match.last)) * width, height / 2 + (side ? reach : -reach));
      }
      pen.lineTo(width, height / 2);
      pen.fillStyle = colors[team];
      pen.globalAlpha = 0.28;
      pen.fill();
    });
  }

  show(moment, followed) {
    const { match } = this;
    const zone = match.zoneAt(moment);
    for (const [side, { team, pips, alive, bar }] of this.sides.entries()) {
      const living = match.aliveAt(team, moment);
      for (const [unit, pip] of pips) pip.classList.toggle("lost", unit.death <= moment);
      alive.textContent = `${living} of ${pips.length}`;
      bar.style.width = `${50 * Math.min(1, zone.score[side])}%`;
    }
    const percents = zone.score.map((score) => `${Math.round(100 * score)} %`);
    byId("holder").textContent = `${percents[0]} · ${["zone free", "Blue holds the zone", "Red holds the zone", "zone contested"][zone.owner]} · ${percents[1]}`;
    byId("race").setAttribute("aria-label", `Score in the zone: blue ${percents[0]}, red ${percents[1]}`);
    for (const card of this.cards) showCard(card, match, moment, card.unit.index === followed);
    byId("followed").textContent = followed < 0 ? "" : stateInWords(match.units[followed], match.state(followed, moment));
    this.showEvents(moment);
  }

  showEvents(moment) {
    for (const entry of this.entries) entry.button.classList.toggle("past", entry.event.frame <= moment);
    const now = this.entries.findLast(({ event }) => event.frame <= moment);
    if (now !== this.now) {
      this.now?.button.removeAttribute("aria-current");
      now?.button.setAttribute("aria-current", "true");
      if (now) keepInSight(document.querySelector("#log ol"), now.button);
      this.now = now;
    }
    const span = CAPTION_SECONDS / this.match.secondsPerFrame;
    const told = this.match.events.filter(({ kind, frame }) => frame <= moment && (kind === "end" || moment - frame < span));
    const lines = told.slice(-CAPTION_LINES);
    if (lines.length === this.lines.length && lines.every((event, i) => event === this.lines[i])) return;
    this.lines = lines;
    byId("caption").replaceChildren(...lines.map((event) => make("li", `${event.kind} ${event.team}`, [event.text])));
  }

  // Brings a unit's card into the visible part of its list.
  reveal(unit) {
    const { button } = this.cards[unit];
    keepInSight(button.parentElement, button);
  }
}

function makeCard(unit, match, follow) {
  const button = make("button", `unit ${unit.team}`);
  button.type = "button";
  button.addEventListener("click", follow);
  const bars = { hp: makeBar("Hull"), heat: makeBar("Heat"), cooldown: makeBar("Gun") };
  const earned = make("span", "earned");
  earned.title = "Reward earned so far";
  const tally = make("span", "tally");
  const head = make("span", "head", [outline(unit, 22), make("b", "", [unit.id]), make("span", "class", [unit.class]), earned]);
  button.append(head, bars.hp.row, make("span", "pair", [bars.heat.row, bars.cooldown.row]), tally);
  byId(unit.team).append(button);
  const longest = Math.max(...match.tracks.cooldown[unit.index], 1e-6);
  return { unit, button, bars, earned, tally, longest };
}

function makeBar(name) {
  const fill = make("i");
  const value = make("output");
  return { row: make("span", `bar ${name.toLowerCase()}`, [make("span", "", [name]), make("span", "track", [fill]), value]), fill, value };
}

function showCard({ unit, button, bars, earned, tally, longest }, match, moment, followed) {
  const state = match.state(unit.index, moment);
  const counts = match.tally(unit.index, moment);
  button.setAttribute("aria-pressed", followed);
  button.classList.toggle("lost", !state.alive);
  bars.heat.row.classList.toggle("shut", state.alive && state.overheated);
  const hull = state.hp / unit.max_hp;
  bars.hp.row.classList.toggle("low", hull < 0.35);
  setBar(bars.hp, hull, state.alive ? Math.ceil(state.hp) : "lost");
  setBar(bars.heat, state.alive ? state.heat / unit.max_heat : 0, !state.alive ? "–" : state.overheated ? "shut" : Math.round(state.heat));
  const waiting = state.cooldown > 0.02;
  setBar(bars.cooldown, state.alive ? 1 - state.cooldown / longest : 0, !state.alive ? "–" : waiting ? `${state.cooldown.toFixed(1)} s` : "ready");
  earned.textContent = signed(state.earned);
  tally.textContent = `${counts.kills} destroyed · ${Math.round(counts.dealt)} dealt · ${counts.hits}/${counts.shots} hits`;
}

function stateInWords(unit, state) {
  const name = `${unit.id} ${unit.class}`;
  if (!state.alive) return `${name} · destroyed · ${signed(state.earned)}`;
  const heat = state.overheated ? "shut down" : `heat ${Math.round(state.heat)}`;
  const gun = state.cooldown > 0.02 ? `gun ${state.cooldown.toFixed(1)} s` : "gun ready";
  return `${name} · hull ${Math.ceil(state.hp)} · ${heat} · ${gun} · ${signed(state.earned)}`;
}

function signed(number) {
  return `${number < 0 ? "−" : "+"}${Math.abs(number).toFixed(2)}`;
}

// Scrolls a list, and nothing around it, so that an element of it is in the middle.
function keepInSight(list, element) {
  list.scrollTop = element.offsetTop - (list.clientHeight - element.offsetHeight) / 2;
}

function setBar(bar, part, text) {
  bar.fill.style.width = `${100 * clamp(part, 0, 1)}%`;
  bar.value.textContent = text;
}

// A unit's outline as a small picture, nose to the right.
function outline(unit, size) {
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  picture.setAttribute("viewBox", "-1.6 -1.6 3.2 3.2");
  picture.setAttribute("width", size);
  picture.setAttribute("height", size);
  picture.setAttribute("aria-hidden", "true");
  const polygon = document.createElementNS("http://www.w3.org/2000/svg", "polygon");
  polygon.setAttribute("points", unit.shape.map(([x, y]) => `${x},${-y}`).join(" "));
  picture.append(polygon);
  return picture;
}

function make(tag, className = "", children = []) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

function formatTime(seconds) {
  const minutes = Math.floor(seconds / 60);
  return `${minutes}:${(seconds - 60 * minutes).toFixed(1).padStart(4, "0")}`;
}
