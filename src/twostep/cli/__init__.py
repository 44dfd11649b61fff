"""The command `twostep`: train an agent, look at what it learned.

Nothing here imports torch before the input is known to be right, so help and complaints come at once. Exit codes:
0 done, 1 training failed, 2 wrong input, 128 and its number where a signal stopped a run: 130 for Ctrl-C, 143 for
SIGTERM, 138 for SIGUSR1, 129 for SIGHUP.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from twostep.cli.help import EVAL_HELP, EXPORT_HELP, HELP, INSPECT_HELP, PLAY_HELP, RESUME_HELP, TUNE_HELP, train_help
from twostep.cli.options import (
    UsageError,
    parse_eval,
    parse_export,
    parse_inspect,
    parse_play,
    parse_resume,
    parse_train,
    parse_tune,
)
from twostep.errors import TwostepError
from twostep.values import show, suggest


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; wrong input is answered with one line on stderr."""
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except TwostepError as error:
        complain(error)
        return 2
    except KeyboardInterrupt:
        complain("stopped.")
        return 130
    except BrokenPipeError:
        # Whoever read the output has gone (`twostep train --help | head`); the interpreter must not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def complain(what: object) -> None:
    """Say what is wrong in one line on stderr."""
    print("twostep:", " ".join(str(what).split()), file=sys.stderr)


def _dispatch(words: list[str]) -> int:
    if not words:
        raise UsageError("say what to do, such as 'twostep train CartPole-v1'; 'twostep --help' tells more.")
    command, rest = words[0], words[1:]
    if command in ("-h", "--help", "help"):
        print(HELP)
        return 0
    if command in ("-V", "--version", "version"):
        from twostep import __version__

        print(f"twostep {__version__}")
        return 0
    if command not in COMMANDS:
        near = suggest(command, list(COMMANDS))
        raise UsageError(f"{show(command)} is no command.{near} Commands: {', '.join(COMMANDS)}.")
    if "-h" in rest or "--help" in rest:
        print(_HELP_OF[command]())
        return 0
    return COMMANDS[command](rest)


def _train(words: list[str]) -> int:
    task, changes = parse_train(words)
    from twostep.cli.training import load_config, run_training

    return run_training(load_config(task, changes))


def _resume(words: list[str]) -> int:
    run, changes = parse_resume(words)
    from twostep.cli.training import resume_training

    return resume_training(run, changes)


def _eval(words: list[str]) -> int:
    request = parse_eval(words)
    from twostep.cli.evaluating import run_evaluation

    return run_evaluation(request)


def _play(words: list[str]) -> int:
    request = parse_play(words)
    from twostep.cli.playing import run_play

    return run_play(request)


def _inspect(words: list[str]) -> int:
    request = parse_inspect(words)
    from twostep.cli.inspecting import run_inspection

    return run_inspection(request)


def _tune(words: list[str]) -> int:
    request = parse_tune(words)
    from twostep.cli.tuning import run_tuning

    return run_tuning(request)


def _export(words: list[str]) -> int:
    request = parse_export(words)
    from twostep.cli.exporting import run_export

    return run_export(request)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "resume": _resume,
    "eval": _eval,
    "play": _play,
    "inspect": _inspect,
    "tune": _tune,
    "export": _export,
}
_HELP_OF: dict[str, Callable[[], str]] = {
    "train": train_help,
    "resume": lambda: RESUME_HELP,
    "eval": lambda: EVAL_HELP,
    "play": lambda: PLAY_HELP,
    "inspect": lambda: INSPECT_HELP,
    "tune": lambda: TUNE_HELP,
    "export": lambda: EXPORT_HELP,
}


__all__ = ["main"]
