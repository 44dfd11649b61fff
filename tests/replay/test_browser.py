"""The page in a real browser, without a window: what a person does with keys and mouse, and what comes of it.

Runs where `chromedriver` and a Chrome or Chromium are found (Debian: `apt-get install chromium chromium-driver`).
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import shutil
import socket
import subprocess
import time
import urllib.request

import numpy as np
import pytest
from PIL import Image

from twostep.replay import write_page
from twostep.replay.events import describe, find_events

DRIVER = shutil.which("chromedriver")
CHROME = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(
    not (DRIVER and CHROME), reason="needs chromedriver and Chromium: apt-get install chromium chromium-driver"
)
KEYS = {"left": "\ue012", "right": "\ue014", "home": "\ue011", "end": "\ue010", "escape": "\ue00c", "shift": "\ue008"}


class Browser:
    """As much of WebDriver as these tests need."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [DRIVER, f"--port={port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(folder), "HOME": str(folder)},
        )
        self.session = ""
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self):
        for _ in range(100):
            try:
                if self.ask("GET", "/status")["ready"]:
                    break
            except OSError:
                time.sleep(0.1)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
        wanted = {"goog:chromeOptions": {"binary": CHROME, "args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        opened = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{opened['sessionId']}"

    def ask(self, method, path, body=None):
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def close(self):
        try:
            if self.session:
                self.ask("DELETE", self.session)
        finally:
            self.process.terminate()
            self.process.wait()

    def open(self, path, width=1280, height=860, dark=False, still=True):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"}
        self.devtools("Emulation.setEmulatedMedia", {"features": [scheme, motion]})
        self.ask("POST", f"{self.session}/url", {"url": path.as_uri()})

    def devtools(self, command, parameters):
        return self.ask("POST", f"{self.session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script):
        return self.ask("POST", f"{self.session}/execute/sync", {"script": script, "args": []})

    def press(self, *keys):
        keys = [KEYS.get(key, key) for key in keys]
        actions = [{"type": "keyDown", "value": key} for key in keys]
        actions += [{"type": "keyUp", "value": key} for key in reversed(keys)]
        self.ask("POST", f"{self.session}/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def click(self, x, y):
        moves = [{"type": "pointerMove", "x": round(x), "y": round(y)}, {"type": "pointerDown", "button": 0}]
        moves.append({"type": "pointerUp", "button": 0})
        self.ask("POST", f"{self.session}/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": moves}]})

    def click_on(self, selector):
        box = self.box(selector)
        self.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def box(self, selector):
        return self.run(f"return document.querySelector({selector!r}).getBoundingClientRect().toJSON()")

    def text(self, selector):
        return self.run(f"return document.querySelector({selector!r}).textContent")

    def picture(self, whole=False):
        self.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        shot = self.devtools("Page.captureScreenshot", {"captureBeyondViewport": whole})
        return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")

    def complaints(self):
        return self.ask("POST", f"{self.session}/se/log", {"type": "browser"})

    def wait_for(self, condition, seconds=20):
        """Wait until a condition, in the page's language, holds."""
        end = time.monotonic() + seconds
        while not self.run(f"return {condition}"):
            assert time.monotonic() < end, f"still not: {condition}"
            time.sleep(0.05)

    def frame(self):
        return int(self.run("return document.getElementById('scrub').value"))

    def scrub(self, frame):
        self.run(
            f"const bar = document.getElementById('scrub'); bar.value = {frame}; bar.dispatchEvent(new Event('input'))"
        )

    def arena(self):
        """The pixels of the arena alone."""
        box = self.box("#arena")
        corners = (box["left"], box["top"], box["right"], box["bottom"])
        return self.picture().crop(tuple(round(corner) for corner in corners))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A function: a replay and a name to the page."""
    folder = tmp_path_factory.mktemp("pages")
    return lambda replay, name="match": write_page(replay, folder / f"{name}.html")


@pytest.fixture
def page(browser, pages, replay):
    """The page of the pretended match, at its beginning; whatever a test does, the browser must not complain."""
    browser.open(pages(replay))
    yield browser
    assert browser.complaints() == []


def cards(browser):
    """What the list of units says, per unit."""
    return browser.run(
        """return [...document.querySelectorAll('.unit')].map((card) => ({
          name: card.querySelector('b').textContent,
          lost: card.classList.contains('lost'),
          followed: card.getAttribute('aria-pressed') === 'true',
          earned: Number(card.querySelector('.earned').textContent.replace('\\u2212', '-')),
          tally: card.querySelector('.tally').textContent,
          bars: [...card.querySelectorAll('output')].map((output) => output.textContent),
          fill: parseFloat(card.querySelector('.hull i').style.width),
        }))"""
    )


def test_it_opens_at_the_beginning_and_waits(page, replay):
    assert page.run("return document.title") == page.text("h1") == describe(replay)
    assert page.text("#time").startswith("0:00.0 / ")
    assert page.frame() == 0
    assert [card["name"] for card in cards(page)] == [unit["id"] for unit in replay["units"]]
    before = page.arena()
    time.sleep(0.4)
    assert page.arena().tobytes() == before.tobytes()
    assert len(before.getcolors(10**6)) > 100
    assert page.run("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize("kind", ["replay", "real_replay"])
def test_every_state_is_that_of_the_match(browser, pages, kind, request):
    replay = request.getfixturevalue(kind)
    browser.open(pages(replay, kind))
    frames, last = replay["frames"], len(replay["frames"]["x"]) - 1
    earned = np.cumsum(replay["rewards"], axis=0)
    for frame in sorted({0, 1, last // 3, last // 2, last - 1, last}):
        browser.scrub(frame)
        for unit, card in enumerate(cards(browser)):
            hull, heat, gun = card["bars"]
            alive = bool(frames["alive"][frame, unit])
            assert card["lost"] is not alive
            assert card["earned"] == pytest.approx(earned[frame, unit], abs=0.02)
            if not alive:
                assert (hull, heat, gun) == ("lost", "\u2013", "\u2013")
                continue
            hp = float(frames["hp"][frame, unit])
            assert abs(int(hull) - math.ceil(hp)) <= 1
            assert card["fill"] == pytest.approx(100 * hp / replay["units"][unit]["max_hp"], abs=1)
            shut = bool(frames["overheated"][frame, unit])
            assert heat == "shut" if shut else abs(int(heat) - float(frames["heat"][frame, unit])) <= 1
            wait = float(frames["cooldown"][frame, unit])
            assert (
                gun == "ready"
                if wait < 0.01
                else gun == "ready" or float(gun.removesuffix(" s")) == pytest.approx(wait, abs=0.06)
            )
            shots = [shot for shot in replay["shots"].tolist() if shot[1] == unit and shot[0] <= frame]
            hits = sum(shot[3] > 0 for shot in shots)
            assert card["tally"].endswith(f"{hits}/{len(shots)} hits")
        score = [round(100 * float(part)) for part in frames["zone_score"][frame]]
        holder = ["zone free", "Blue holds the zone", "Red holds the zone", "zone contested"]
        owner = int(frames["zone_owner"][frame])
        shown = browser.text("#holder")
        assert holder[owner] in shown
        percents = [int(word) for word in shown.replace("%", " ").replace("·", " ").split() if word.isdigit()]
        assert np.abs(np.subtract(percents, score)).max() <= 1
        blue = int(frames["alive"][frame][: len(replay["units"]) // 2].sum())
        assert browser.text("#score .blue .alive") == f"{blue} of {len(replay['units']) // 2}"
    assert browser.complaints() == []


def test_it_plays_and_pauses(page):
    before = page.arena()
    page.click_on("#start")
    page.wait_for("Number(document.getElementById('scrub').value) > 3")
    assert page.run("return document.body.classList.contains('playing')")
    assert page.run("return document.getElementById('play').getAttribute('aria-label')") == "Pause"
    page.press(" ")
    stopped, shown = page.frame(), page.text("#time")
    after = page.arena()
    time.sleep(0.4)
    assert (page.frame(), page.text("#time")) == (stopped, shown)
    assert before.tobytes() != after.tobytes()
    page.click_on("#play")
    page.wait_for(f"Number(document.getElementById('scrub').value) > {stopped}")
    page.press("k")
    assert not page.run("return document.body.classList.contains('playing')")


def seconds_per_second(page):
    """How much of the match goes by in a second, by the browser's clock."""
    page.press("home")
    page.press(" ")
    passed = page.run(
        """return new Promise((done) => {
          const shown = () => Number(document.getElementById('scrub').value);
          const [began, frame] = [performance.now(), shown()];
          setTimeout(() => done([shown() - frame, (performance.now() - began) / 1000]), 900);
        })"""
    )
    page.press(" ")
    return passed[0] / passed[1]


def test_speed(page, replay):
    assert page.run("return document.getElementById('speed').value") == "1"
    usual = seconds_per_second(page) * replay["seconds_per_frame"]
    page.press("+")
    page.press("+")
    assert page.run("return document.getElementById('speed').value") == "4"
    fast = seconds_per_second(page) * replay["seconds_per_frame"]
    assert 0.2 < usual < 1.3
    assert 1.5 * usual < fast < 5.2
    for _ in range(9):
        page.press("-")
    assert page.run("return document.getElementById('speed').value") == "0.25"
    page.run("const menu = document.getElementById('speed'); menu.value = '8'; menu.dispatchEvent(new Event('change'))")
    page.press("-")
    assert page.run("return document.getElementById('speed').value") == "4"


def test_it_stops_at_the_end_and_begins_again(page, replay):
    last = len(replay["frames"]["x"]) - 1
    page.scrub(last - 2)
    page.press(" ")
    page.wait_for(f"Number(document.getElementById('scrub').value) === {last}")
    page.wait_for("!document.body.classList.contains('playing')")
    assert page.text("#caption .end") == find_events(replay)[-1].text
    page.press(" ")
    page.wait_for(f"Number(document.getElementById('scrub').value) < {last // 2}")
    page.press("l")
    page.scrub(last - 2)
    page.wait_for(f"Number(document.getElementById('scrub').value) < {last // 2}")
    assert page.run("return document.body.classList.contains('playing')")


def test_the_mouse_scrubs(page, replay):
    last = len(replay["frames"]["x"]) - 1
    box = page.box("#scrub")
    pictures = []
    for part in (0.25, 0.5, 0.75):
        page.click(box["x"] + part * box["width"], box["y"] + box["height"] / 2)
        assert page.frame() == pytest.approx(part * last, abs=0.03 * last + 1)
        pictures.append(page.arena().tobytes())
    assert len(set(pictures)) == 3


def test_keys_step_and_jump(page, replay):
    last, second = len(replay["frames"]["x"]) - 1, round(1 / replay["seconds_per_frame"])
    events = sorted({event.frame for event in find_events(replay)})
    presses = [(("right",), 1), (("right",), 2), (("left",), 1), (("shift", "right"), 1 + second)]
    presses += [(("shift", "left"), 1), (("end",), last), (("right",), last), (("home",), 0), (("left",), 0)]
    presses += [(("n",), events[0]), (("n",), events[1]), (("p",), events[0]), (("p",), 0)]
    for keys, frame in presses:
        page.press(*keys)
        assert page.frame() == frame, keys
    for button, frame in (("forth", 1), ("forth", 2), ("back", 1), ("last", last), ("first", 0)):
        page.click_on(f"#{button}")
        assert page.frame() == frame, button


def test_the_list_of_events_leads_there(page, replay):
    events = find_events(replay)
    assert page.run("return [...document.querySelectorAll('.event')].map((entry) => entry.lastChild.data)") == [
        event.text for event in events
    ]
    for number in (0, len(events) // 2, len(events) - 1):
        page.run(f"document.querySelectorAll('.event')[{number}].click()")
        assert page.frame() == events[number].frame
        current = page.run("return document.querySelector('.event[aria-current]').lastChild.data")
        assert current == [event for event in events if event.frame <= events[number].frame][-1].text
        told = page.run("return [...document.querySelectorAll('#caption li')].map((line) => line.textContent)")
        assert current in told
        list_, entry = page.box("#log ol"), page.box(".event[aria-current]")
        assert list_["top"] - 1 <= entry["top"] <= entry["bottom"] <= list_["bottom"] + 1


def test_a_click_on_a_unit_shows_its_state(page, replay):
    page.press("z")  # so that a place in the arena has its place in the picture
    page.scrub(5)
    before = page.arena()
    box, frames = page.box("#arena"), replay["frames"]
    scale = box["width"] / replay["size"][0]
    for unit in (0, 7):
        x = box["x"] + float(frames["x"][5, unit]) * scale
        y = box["y"] + box["height"] - float(frames["y"][5, unit]) * scale
        page.click(x, y)
        name = replay["units"][unit]["id"]
        assert [card["name"] for card in cards(page) if card["followed"]] == [name]
        assert page.text("#said") == f"Following {name}"
        words = page.text("#followed")
        assert words.startswith(f"{name} {replay['units'][unit]['class']} · hull ")
        assert page.arena().tobytes() != before.tobytes()
    page.press("escape")
    assert not any(card["followed"] for card in cards(page))
    assert page.text("#followed") == ""
    page.click_on("#red .unit:nth-of-type(2)")
    assert [card["name"] for card in cards(page) if card["followed"]] == [replay["units"][6]["id"]]
    page.press("z")
    assert page.arena().tobytes() != before.tobytes()


def test_the_zoom_keeps_everybody_in_sight(page, replay):
    frame = len(replay["frames"]["x"]) // 2
    page.scrub(frame)
    near = page.arena()
    page.click_on("#zoom")
    far = page.arena()
    assert near.tobytes() != far.tobytes()
    page.click_on("#zoom")
    assert page.arena().tobytes() == near.tobytes()
    page.click_on("#trails")
    assert page.arena().tobytes() != near.tobytes()


def brightness(picture):
    return float(np.asarray(picture).mean())


def test_light_and_dark(browser, pages, replay):
    for dark in (False, True):
        browser.open(pages(replay), dark=dark)
        first = brightness(browser.picture())
        browser.click_on("#theme")
        second = brightness(browser.picture())
        assert (first < 90 < second) if dark else (second < 90 < first)
    assert browser.complaints() == []


@pytest.mark.parametrize(
    ("width", "height"), [(320, 568), (390, 844), (844, 390), (820, 1180), (1280, 720), (2560, 1440)]
)
@pytest.mark.parametrize("team", [("light", "heavy"), ("scout", "light", "medium", "heavy") * 5])
def test_it_fits_any_window(browser, pages, play_match, width, height, team):
    match = play_match(seed=4, team=team, size=100.0, max_seconds=12.0)
    for unit in match["units"]:
        unit["id"] += "_of_the_long_name" * (unit["id"][-1] == "1")
    browser.open(pages(match), width, height)
    browser.scrub(20)
    browser.run("document.querySelector('.unit').click()")
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    arena, play = browser.box("#arena"), browser.box("#play")
    assert arena["left"] >= 0
    assert arena["right"] <= width
    assert arena["width"] >= min(240, width - 40)
    assert arena["width"] == pytest.approx(arena["height"], abs=1)
    if height > 500:
        assert play["bottom"] <= height  # arena and controls are seen together
    crowded = browser.run(
        """return [...document.querySelectorAll('button, .bar, #time, #holder, .tally')].filter((element) =>
          element.offsetParent && element.scrollWidth > element.clientWidth + 1).map((element) => element.className)"""
    )
    assert crowded == []
    row = [browser.box(f"#score .{part}") for part in ("blue .pips", "blue .alive", "red .alive", "red .pips")]
    words = browser.run(
        """const range = document.createRange(); range.selectNodeContents(document.getElementById('holder'));
        return range.getBoundingClientRect().toJSON()"""
    )
    assert max(box["right"] for box in row[:2]) <= words["left"]
    assert words["right"] <= min(box["left"] for box in row[2:] if box["width"])
    assert browser.complaints() == []


def test_a_sharp_screen_gets_sharp_pictures(browser, pages, replay):
    browser.open(pages(replay))
    browser.devtools(
        "Emulation.setDeviceMetricsOverride", {"width": 900, "height": 900, "deviceScaleFactor": 2, "mobile": False}
    )
    browser.wait_for("document.getElementById('arena').width > 1.9 * document.getElementById('arena').clientWidth")
    assert browser.complaints() == []


def test_motion_goes_on_between_frames(browser, pages, real_replay):
    """Frames are 0.4 s apart; played slowly, many different pictures are shown in that time."""
    browser.open(pages(real_replay), still=False)
    browser.press("-")
    browser.press("-")
    browser.press(" ")
    pictures = {browser.arena().tobytes() for _ in range(4)}
    assert browser.frame() <= 3
    assert len(pictures) >= 3
    browser.press(" ")
    assert browser.complaints() == []


def test_hostile_names_do_nothing(browser, pages, real_replay):
    name = '</script><img src=x onerror="document.title=1"><script>document.title=2</script>{{script}}'
    hostile = {**real_replay, "units": [{**unit, "id": name, "class": name} for unit in real_replay["units"]]}
    browser.open(pages(hostile, "hostile"))
    browser.press("end")
    assert browser.run("return document.title") == describe(real_replay)
    assert {card["name"] for card in cards(browser)} == {name}
    assert browser.run("return document.images.length") == 0
    assert browser.complaints() == []


def test_a_match_of_one_frame_can_be_opened(browser, pages, real_replay):
    one = {**real_replay, "frames": {name: column[:1] for name, column in real_replay["frames"].items()}}
    one |= {"rewards": one["rewards"][:1], "shots": np.zeros((0, 5), dtype=np.float32)}
    one["outcome"] = {**one["outcome"], "reason": "running", "winner": "draw"}
    browser.open(pages(one, "one"))
    for key in (" ", "right", "end", "n", "p", "l", " ", " "):
        browser.press(key)
    assert browser.frame() == 0
    assert browser.text("#time") == "0:00.0 / 0:00.0"
    assert browser.complaints() == []
