// Time: playing, jumping, keys. Everything that is shown follows from the moment, the speed and who is followed.

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];

class Player {
  constructor(match) {
    this.match = match;
    this.moment = 0;
    this.playing = false;
    this.loop = false;
    this.speed = 1;
    this.arena = new Arena(byId("arena"), match);
    this.panel = new Panel(match, { follow: (unit) => this.follow(unit), jump: (frame) => this.jump(frame) });
    this.still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.wire();
    this.setTheme(window.matchMedia("(prefers-color-scheme: dark)").matches);
    this.resize();
  }

  wire() {
    const click = (id, act) => byId(id).addEventListener("click", act);
    click("start", () => this.toggle());
    click("play", () => this.toggle());
    click("first", () => this.jump(0));
    click("last", () => this.jump(this.match.last));
    click("back", () => this.stepBy(-1));
    click("forth", () => this.stepBy(1));
    click("theme", () => this.setTheme(document.documentElement.dataset.theme !== "dark"));
    click("loop", () => this.switchLoop());
    click("zoom", () => this.switchOption("zoom"));
    click("trails", () => this.switchOption("trails"));
    byId("speed").append(...SPEEDS.map((speed) => new Option(`${speed}×`, speed, speed === 1, speed === 1)));
    byId("speed").addEventListener("change", (event) => this.setSpeed(Number(event.target.value)));
    byId("scrub").max = this.match.last;
    byId("scrub").addEventListener("input", (event) => this.seek(Number(event.target.value)));
    byId("arena").addEventListener("click", (event) => {
      this.follow(this.arena.unitAt(event.clientX, event.clientY, this.moment));
    });
    window.addEventListener("resize", () => this.resize());
    document.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    const second = Math.max(1, Math.round(1 / this.match.secondsPerFrame));
    const far = event.shiftKey ? second : 1;
    const keys = {
      " ": () => this.toggle(),
      k: () => this.toggle(),
      ArrowLeft: () => this.stepBy(-far),
      ArrowRight: () => this.stepBy(far),
      Home: () => this.jump(0),
      End: () => this.jump(this.match.last),
      n: () => this.toEvent(1),
      p: () => this.toEvent(-1),
      "+": () => this.changeSpeed(1),
      "=": () => this.changeSpeed(1),
      "-": () => this.changeSpeed(-1),
      l: () => this.switchLoop(),
      z: () => this.switchOption("zoom"),
      t: () => this.switchOption("trails"),
      Escape: () => this.follow(-1),
    };
    const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    // Space on a button of the page presses that button, and nothing else.
    if (!act || (event.key === " " && event.target.tagName === "BUTTON" && event.target.id !== "play")) return;
    event.preventDefault();
    act();
  }

  toggle() {
    this.playing = !this.playing;
    if (this.playing && this.moment >= this.match.last) this.moment = 0;
    this.before = null;
    this.request();
    this.show();
  }

  pause() {
    this.playing = false;
  }

  // Goes somewhere without a change of playing or not.
  seek(moment) {
    this.moment = clamp(moment, 0, this.match.last);
    this.before = null;
    this.show();
    this.request();
  }

  jump(frame) {
    this.seek(frame);
    byId("said").textContent = `${formatTime(this.moment * this.match.secondsPerFrame)}, ${byId("holder").textContent}`;
  }

  stepBy(frames) {
    this.pause();
    this.jump(frames < 0 ? Math.ceil(this.moment) + frames : Math.floor(this.moment) + frames);
  }

  toEvent(direction) {
    const frames = this.match.events.map((event) => event.frame);
    const next = direction > 0 ? frames.find((frame) => frame > this.moment) : frames.findLast((frame) => frame < this.moment);
    this.jump(next ?? (direction > 0 ? this.match.last : 0));
  }

  setSpeed(speed) {
    this.speed = speed;
    byId("speed").value = speed;
  }

  changeSpeed(direction) {
    this.setSpeed(SPEEDS[clamp(SPEEDS.indexOf(this.speed) + direction, 0, SPEEDS.length - 1)]);
  }

  switchLoop() {
    this.loop = !this.loop;
    byId("loop").setAttribute("aria-pressed", this.loop);
  }

  switchOption(name) {
    const { options } = this.arena;
    options[name] = !options[name];
    byId(name).setAttribute("aria-pressed", options[name]);
    this.request();
  }

  follow(unit) {
    this.arena.followed = unit === this.arena.followed ? -1 : unit;
    const followed = this.match.units[this.arena.followed];
    if (followed) this.panel.reveal(followed.index);
    byId("said").textContent = followed ? `Following ${followed.id}` : "Following nobody";
    this.show();
    this.request();
  }

  setTheme(dark) {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    this.arena.readColors();
    this.panel.drawStrength(this.arena.colors);
    this.request();
  }

  resize() {
    this.arena.resize();
    this.panel.drawStrength(this.arena.colors);
    this.show();
    this.request(true);
  }

  // Asks for one picture; while something moves, each picture asks for the next.
  request(atOnce = false) {
    this.atOnce ||= atOnce || this.still;
    this.pending ||= requestAnimationFrame((now) => this.draw(now));
  }

  draw(now) {
    this.pending = null;
    if (this.playing) this.advance(now);
    const moving = this.arena.moveCamera(this.moment, this.atOnce);
    this.atOnce = false;
    this.arena.draw(this.moment);
    if (this.playing || moving) this.request();
  }

  advance(now) {
    const passed = this.before === null ? 0 : (now - this.before) / 1000;
    this.before = now;
    this.moment += (Math.min(passed, 0.25) * this.speed) / this.match.secondsPerFrame;
    if (this.moment >= this.match.last) {
      this.moment = this.loop ? 0 : this.match.last;
      this.playing = this.loop;
    }
    this.show();
  }

  // Brings everything but the canvas up to date.
  show() {
    const seconds = (frame) => formatTime(frame * this.match.secondsPerFrame);
    document.body.classList.toggle("playing", this.playing);
    document.body.classList.toggle("begun", this.playing || this.moment > 0);
    byId("play").setAttribute("aria-label", this.playing ? "Pause" : "Play");
    byId("time").textContent = `${seconds(this.moment)} / ${seconds(this.match.last)}`;
    byId("scrub").value = Math.floor(this.moment);
    byId("scrub").setAttribute("aria-valuetext", seconds(this.moment));
    this.panel.show(this.moment, this.arena.followed);
  }
}

const player = new Player(new Match(JSON.parse(byId("match").textContent)));
