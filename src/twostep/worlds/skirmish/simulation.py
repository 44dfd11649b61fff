"""Many matches at once: arrays `[M, 2, K]` of matches, teams (blue, red) and mechs; every call serves all matches.

All chance is in how a match begins. What happens in a step follows from the state and the orders alone, and no match
sees another, so a match alone and the same match among others go the same way, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from twostep.worlds.skirmish.arena import draw_arena
from twostep.worlds.skirmish.config import CLASSES, EnvConfig
from twostep.worlds.skirmish.control import Orders
from twostep.worlds.skirmish.geometry import Array, Boxes
from twostep.worlds.skirmish.sight import Sight

SIDEWAYS, BACKWARDS = np.float32(0.7), np.float32(0.6)
"""Speed to the side and backwards, in parts of that ahead."""
SHUTDOWN = 3.0
"""Seconds without shots, at half the speed and half the turn rate, after overheating."""
FAR_AWAY = np.float32(1e6)
READY = 1e-3
"""A cooldown below this is over: times are sums of rounded numbers."""

BODY = ("x", "y", "velocity_x", "velocity_y", "heading", "hp", "heat", "cooldown", "shutdown")
"""What is known of every mech beside whether it lives."""
MOVING = (*BODY, "alive", "zone_score", "steps")
"""What a step changes: with its seed, all that the rest of a match depends on."""

RUNNING, ZONE, ELIMINATION, TIME = range(4)
REASONS = ("running", "zone", "elimination", "time")
DRAW, BLUE, RED = range(3)
WINNERS = ("draw", "blue", "red")


class Simulation:
    """The state of all matches; `begin` starts one, `step` moves all."""

    def __init__(self, config: EnvConfig, num_matches: int) -> None:
        self.config, self.num_matches = config, num_matches
        self.heuristics = [config.heuristic] * num_matches
        """How the scripted opponent plays in each match, where it is not told otherwise."""
        self.team_size = count = len(config.team)
        self.shape = (num_matches, 2, count)
        self.num_steps = 0
        """Of all matches together, resets included: changes whenever the state does."""
        self._describe_classes()
        self._place_walls_of_nowhere()
        for name in BODY:
            setattr(self, name, np.zeros(self.shape, dtype=np.float32))
        self.zone_score = np.zeros((num_matches, 2), dtype=np.float32)
        self.steps = np.zeros(num_matches, dtype=np.int64)
        self.alive = np.zeros(self.shape, dtype=np.bool_)
        self.seeds = [0] * num_matches
        self.forget_events()

    x: Array
    y: Array
    velocity_x: Array
    """Metres per second, as truly moved in the last step."""
    velocity_y: Array
    heading: Array
    """Radians from the x axis, counter-clockwise."""
    hp: Array
    heat: Array
    cooldown: Array
    """Seconds until the weapon is ready."""
    shutdown: Array
    """Seconds of shutdown that are left."""
    sight: Sight
    """Who can see and hit whom, now."""

    def _describe_classes(self) -> None:
        """Make an array `[K]` of every property of the classes."""
        kinds = [CLASSES[name] for name in self.config.team]

        def column(name: str) -> Array:
            return np.array([getattr(kind, name) for kind in kinds], dtype=np.float32)

        self.radius, self.max_hp, self.speed = column("radius"), column("hit_points"), column("speed")
        self.turn_rate, self.vision, self.weapon_range = column("turn_rate"), column("vision"), column("weapon_range")
        self.weapon_damage, self.weapon_cooldown = column("damage"), column("cooldown")
        self.tracking, self.shot_heat = column("tracking"), column("shot_heat")
        self.heat_capacity, self.dissipation = column("heat_capacity"), column("dissipation")

    def _place_walls_of_nowhere(self) -> None:
        """Allocate the walls of all matches; those a match does not have stand far away from everything."""
        shape = (self.config.walls, self.num_matches)
        self.walls = Boxes(*(np.full(shape, FAR_AWAY, dtype=np.float32) for _ in range(4)))
        # What a mech's centre may not enter: walls, and the outside of the arena, widened by its radius.
        size, radius = np.float32(self.config.size), self.radius
        limits = (self.config.walls + 4, *self.shape)
        self.limits = Boxes(*(np.zeros(limits, dtype=np.float32) for _ in range(4)))
        sides = ((-9, -9, 0, 9), (1, -9, 9, 9), (-9, -9, 9, 0), (-9, 1, 9, 9))  # left, right, bottom, top
        for at, box in enumerate(sides):
            for limit, side, sign in zip(self.limits, box, (-1, -1, 1, 1), strict=True):
                limit[at] = side * size + sign * radius

    def begin(self, match: int, seed: int) -> None:
        """Start a match anew; call `look` when all are started."""
        arena = draw_arena(self.config, seed)
        for at, (wall, limit) in enumerate(zip(self.walls, self.limits, strict=True)):
            wall[:, match] = FAR_AWAY
            wall[: len(arena.walls), match] = arena.walls[:, at]
            limit[4:, match] = wall[:, match, None, None] + (self.radius if at > 1 else -self.radius)
        self.x[match], self.y[match] = arena.x, arena.y
        self.heading[match] = np.array([[0.0], [np.pi]], dtype=np.float32)
        self.hp[match] = self.max_hp
        for name in ("velocity_x", "velocity_y", "heat", "cooldown", "shutdown", "zone_score", "steps"):
            getattr(self, name)[match] = 0
        self.alive[match] = True
        self.seeds[match] = seed
        self.num_steps += 1

    def look(self) -> None:
        """Find out who can see and hit whom, after anything has changed."""
        self.sight = Sight(self)
        middle, radius = np.float32(self.config.size / 2), np.float32(self.config.zone_radius)
        self.to_zone_x, self.to_zone_y = middle - self.x, middle - self.y
        self.zone_distance = np.sqrt(self.to_zone_x * self.to_zone_x + self.to_zone_y * self.to_zone_y)
        self.in_zone = (self.zone_distance <= radius) & self.alive
        present = self.in_zone.any(-1)
        self.holds_zone = present & ~present[:, ::-1]
        self.contested = present.all(-1)

    def forget_events(self) -> None:
        """Begin a step in which nothing has happened yet."""
        self.acted = self.alive.copy()
        """Who was alive when the step began."""
        self.fired = np.zeros(self.shape, dtype=np.bool_)
        self.target = np.zeros(self.shape, dtype=np.intp)
        """Whom those who fired shot at."""
        self.hit = np.zeros((*self.shape, self.team_size), dtype=np.bool_)
        """`[M, 2, K, K]`: whose shot hit whom."""
        self.damage = np.zeros((*self.shape, self.team_size), dtype=np.float32)
        """`[M, 2, K, K]`: hit points that each mech took from each enemy in this step, never more than there were."""
        self.died = np.zeros(self.shape, dtype=np.bool_)
        self.scored = np.zeros((self.num_matches, 2), dtype=np.float32)
        self.reason = np.zeros(self.num_matches, dtype=np.int8)
        self.winner = np.zeros(self.num_matches, dtype=np.int8)

    def step(self, orders: Orders) -> None:
        """Let every living mech follow its orders for one decision."""
        self.forget_events()
        self.num_steps += 1
        self.steps += 1
        self._move(orders)
        self.look()
        self._fire(orders)
        self._hold_zone()
        self._judge()

    def _move(self, orders: Orders) -> None:
        config = self.config
        able = np.where(self.shutdown > 0, np.float32(0.5), np.float32(1)) * self.alive
        ticks = np.arange(1, config.ticks_per_step + 1, dtype=np.float32)[:, None, None, None]
        rate = orders.turn * self.turn_rate * able * np.float32(config.tick_seconds)
        headings = self.heading + rate * ticks  # [ticks, M, 2, K]
        cos, sin = np.cos(headings), np.sin(headings)
        forward = orders.forward * np.where(orders.forward < 0, BACKWARDS, np.float32(1))
        left = orders.left * SIDEWAYS
        pace = self.speed * able * np.float32(config.tick_seconds)
        pace = pace / np.maximum(np.sqrt(forward * forward + left * left), 1)
        forward, left = forward * pace, left * pace
        push_x, push_y = self._push()
        dx, dy = forward * cos - left * sin + push_x, forward * sin + left * cos + push_y
        before_x, before_y = self.x, self.y
        self._slide(dx, dy)
        self.velocity_x = (self.x - before_x) / np.float32(config.step_seconds)
        self.velocity_y = (self.y - before_y) / np.float32(config.step_seconds)
        turned = headings[-1]
        self.heading = turned - np.float32(2 * np.pi) * np.round(turned / np.float32(2 * np.pi))

    def _push(self) -> tuple[Array, Array]:
        """Return how mechs that overlap drift apart, per tick."""
        units = (self.num_matches, 2 * self.team_size)
        x, y, alive = self.x.reshape(units), self.y.reshape(units), self.alive.reshape(units)
        radius = np.concatenate([self.radius, self.radius])
        dx, dy = x[:, :, None] - x[:, None, :], y[:, :, None] - y[:, None, :]
        distance = np.sqrt(dx * dx + dy * dy) + np.float32(1e-6)
        overlap = np.maximum(radius[:, None] + radius - distance, 0) * (alive[:, :, None] & alive[:, None, :])
        strength = overlap / distance * np.float32(0.5 / self.config.ticks_per_step)
        return (strength * dx).sum(-1).reshape(self.shape), (strength * dy).sum(-1).reshape(self.shape)

    def _slide(self, dx: Array, dy: Array) -> None:
        """Move tick by tick, along each axis for itself; what would enter a wall stays where it is on that axis."""
        x, y, limits = self.x, self.y, self.limits
        in_y = (y > limits.y0) & (y < limits.y1)
        for step_x, step_y in zip(dx, dy, strict=True):
            moved = x + step_x
            in_x = (moved > limits.x0) & (moved < limits.x1)
            x = np.where(np.logical_or.reduce(in_x & in_y, axis=0), x, moved)
            in_x = (x > limits.x0) & (x < limits.x1)
            moved = y + step_y
            in_y = (moved > limits.y0) & (moved < limits.y1)
            y = np.where(np.logical_or.reduce(in_x & in_y, axis=0), y, moved)
            in_y = (y > limits.y0) & (y < limits.y1)
        self.x, self.y = x, y

    def _fire(self, orders: Orders) -> None:
        """Shoot, all at the same time: heat, hits, damage and deaths."""
        sight, seconds = self.sight, np.float32(self.config.step_seconds)
        self.cooldown = np.maximum(self.cooldown - seconds, 0)
        self.shutdown = np.maximum(self.shutdown - seconds, 0)
        self.heat = np.maximum(self.heat - self.dissipation * seconds, 0)
        able = orders.fire & (self.cooldown < READY) & (self.shutdown < READY) & self.alive
        enemy_hp = self.hp[:, ::-1, None, :]
        preference = np.where(orders.weakest[..., None], enemy_hp, sight.distance)
        self.target = np.where(sight.in_reach, preference, np.inf).argmin(-1)
        self.fired = able & sight.can_fire
        self.heat = self.heat + self.fired * self.shot_heat
        self.cooldown = np.where(self.fired, self.weapon_cooldown, self.cooldown)
        overheated = self.heat >= self.heat_capacity
        self.shutdown = np.where(overheated & (self.shutdown < READY), np.float32(SHUTDOWN), self.shutdown)
        if not self.fired.any():
            return
        aimed = (self.target[..., None] == np.arange(self.team_size)) & self.fired[..., None]
        self.damage = self._hits(aimed)
        taken = self.damage.sum(2)[:, ::-1]
        # Several may hit one that has less left than they deal: each is credited in proportion.
        there = np.minimum(self.hp / np.maximum(taken, np.float32(1e-6)), 1)
        self.damage = self.damage * there[:, ::-1, None, :]
        self.died = self.alive & (taken >= self.hp)
        self.hp = np.where(self.died, np.float32(0), self.hp - taken)
        self.alive = self.alive & ~self.died
        if self.died.any():
            self.look()

    def _hits(self, aimed: Array) -> Array:
        """Return what shots do: less with distance, nothing where the target crosses faster than the weapon tracks."""
        sight = self.sight
        velocity_x, velocity_y = self.velocity_x[:, ::-1, None, :], self.velocity_y[:, ::-1, None, :]
        across = np.abs(velocity_x * sight.dy - velocity_y * sight.dx)
        self.hit = aimed & (across <= self.tracking[:, None] * sight.distance * sight.distance)
        falloff = np.minimum(np.float32(1.5) - sight.distance / self.weapon_range[:, None], 1)
        return self.hit * falloff * self.weapon_damage[:, None]

    def _hold_zone(self) -> None:
        seconds = np.float32(self.config.step_seconds)
        self.scored = self.holds_zone * seconds
        self.zone_score = self.zone_score + self.scored

    def _judge(self) -> None:
        """Decide which matches are over. The zone comes before elimination, and that before time."""
        full: Array = self.zone_score >= np.float32(self.config.zone_seconds - READY)
        there: Array = np.logical_or.reduce(self.alive, axis=-1)
        late = self.steps >= self.config.max_steps
        over = full.any(-1) | ~there.all(-1) | late
        for match in np.flatnonzero(over).tolist():
            self.reason[match], lead = self._decide(match, full[match], there[match])
            self.winner[match] = DRAW if lead[0] == lead[1] else BLUE if lead[0] > lead[1] else RED

    def _decide(self, match: int, full: Array, there: Array) -> tuple[int, Array]:
        """Return why a match is over, and what its winner has more of, `[2]`."""
        if full.any():
            return ZONE, full
        if not there.all():
            return ELIMINATION, there
        blue, red = self.zone_score[match]
        return TIME, self.hp_share(match) if abs(blue - red) < READY else self.zone_score[match]

    def hp_share(self, match: int) -> Array:
        """Return the part of its hit points that each team has left, `[2]`."""
        return self.hp[match].sum(-1) / self.max_hp.sum()

    def outcome(self, match: int) -> dict[str, Any]:
        """Describe how a match ended, in the plain containers that infos and replays hold."""
        return {
            "winner": WINNERS[self.winner[match]],
            "reason": REASONS[self.reason[match]],
            "frames": int(self.steps[match]),
            "hp": [round(float(share), 6) for share in self.hp_share(match)],
            "zone": [round(float(score), 3) for score in self.zone_score[match]],
        }
