"""What a person sees while training: L16, L17, L18, L19."""

import io
import math

import gymnasium as gym
import pytest
from rich.console import Console

from twostep.stats.console import Progress, duration, number, sparkline
from twostep.stats.health import Advice, entropy_range, health


def judged(metrics, topic, between=None):
    found = {advice.topic: advice for advice in health(metrics, between)}
    return found[topic]


@pytest.mark.parametrize(
    ("kl", "words", "state"), [(0.001, "calm", "good"), (0.03, "brisk", "fair"), (0.06, "too fast", "poor")]
)
def test_pace(kl, words, state):
    """L17: below 0.05."""
    advice = judged({"approx_kl": kl}, "policy moves")
    assert (advice.words, advice.state) == (words, state)
    assert ("lower lr or clip_coef" in advice.hint) == (state == "poor")


@pytest.mark.parametrize(
    ("variance", "words"), [(0.9, "good"), (0.71, "good"), (0.6, "fair"), (0.49, "poor"), (-3, "poor")]
)
def test_value_estimate(variance, words):
    """L16, C33: good above 0.7, a warning below 0.5."""
    assert judged({"explained_variance": variance}, "value estimate").words == words


@pytest.mark.parametrize(("entropy", "words"), [(0.69, "wide"), (0.2, "narrowing"), (0.01, "gone")])
def test_exploration_of_choices(entropy, words):
    between = entropy_range(gym.spaces.Discrete(2), 0.69)
    assert judged({"entropy": entropy}, "exploration", between).words == words


@pytest.mark.parametrize(("fraction", "words"), [(1.0, "wide"), (0.2, "narrowing"), (0.04, "gone")])
def test_exploration_of_continuous_actions(fraction, words):
    """A deviation of a twentieth of the first one, in each of 6 actions, is no exploration any more."""
    of_one = 0.5 * math.log(2 * math.pi * math.e)
    between = entropy_range(gym.spaces.Box(-1, 1, (6,)), 6 * of_one)
    deviation = math.exp((fraction - 1) * math.log(20))
    assert judged({"entropy": 6 * (of_one + math.log(deviation))}, "exploration", between).words == words


def test_exploration_is_not_judged_without_a_measure():
    assert health({"entropy": 0.1}) == []
    assert entropy_range(gym.spaces.Discrete(2), math.nan) is None
    assert entropy_range(gym.spaces.Dict(), 1.0) is None


def test_ratio_and_clipping():
    assert judged({"ratio_error": 0.0}, "ratio check") == Advice("ratio check", "good", "ok", "ratio exactly 1")
    assert judged({"ratio_error": 0.3}, "ratio check").state == "poor"
    assert judged({"clipfrac": 0.1}, "clipping").words == "light"
    assert judged({"clipfrac": 0.5}, "clipping").words == "heavy"


def test_what_was_not_measured_is_not_judged():
    assert health({}) == []
    assert health({"approx_kl": math.nan, "explained_variance": math.inf}) == []


@pytest.mark.parametrize(
    ("values", "width", "picture"),
    [
        ([], 5, ""),
        ([math.nan], 5, ""),
        ([1.0], 5, "▁"),
        ([1.0, 1.0, 1.0], 5, "▁▁▁"),
        ([0.0, 7.0], 5, "▁█"),
        (list(range(8)), 8, "▁▂▃▄▅▆▇█"),
        (list(range(800)), 8, "▁▂▃▄▅▆▇█"),
    ],
)
def test_sparkline(values, width, picture):
    assert sparkline(values, width) == picture


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (67, "1:07"), (3725, "1:02:05"), (200_000, "2 d 7 h"), (math.inf, "?"), (math.nan, "?")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_number():
    assert [number(value) for value in (1234.56, -0.123, math.nan)] == ["1,234.6", "-0.12", "none yet"]


METRICS = {"mean_reward": 21.0, "approx_kl": 0.2, "explained_variance": 0.8, "entropy": 0.6, "ratio_error": 0.0}


def test_plain_lines_where_there_is_no_terminal(monkeypatch):
    clock = iter([0.0, 0.0, 1.0, *[10.0] * 9])
    monkeypatch.setattr("twostep.stats.console.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    progress = Progress("CartPole-v1", 1000, action_space=gym.spaces.Discrete(2), stream=stream)
    with progress:
        progress.log(METRICS, 100)
        assert stream.getvalue() == "", "too soon after the start"
        progress.log(METRICS, 500)
    assert stream.getvalue() == (
        "500 / 1,000 steps (50%) | return 21.0 | 50 steps/s | 0:10 left | policy moves too fast\n"
    )


def test_a_line_before_the_first_update_and_episode():
    progress = Progress("CartPole-v1", 1000, stream=io.StringIO())
    assert "return" not in progress.line()
    progress.log({"mean_reward": math.nan}, 10)
    assert "return" not in progress.line()
    assert progress.history == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_live_display_shows_progress_return_and_health(monkeypatch):
    """L19."""
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    with Progress("CartPole-v1", 1000, solved_at=475, stream=stream) as progress:
        progress.log(METRICS, 250)
    shown = stream.getvalue()
    for words in ("CartPole-v1", "25%", "1,000 steps", "21.0 mean return", "solved at 475", "too fast", "lower lr"):
        assert words in shown
    assert shown.endswith("\x1b[?25h"), "the cursor is back"


@pytest.mark.parametrize("width", [20, 60, 120])
def test_no_line_is_wider_than_the_terminal(width):
    progress = Progress("CartPole-v1", 100_000, stream=io.StringIO())
    for step in range(100):
        progress.log(METRICS | {"mean_reward": step}, 256 * step)
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(progress.render())
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 9
